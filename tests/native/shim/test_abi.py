"""Our declarations of the driver's ABI against NVIDIA's header, where it is installed.

``CUDA_INCLUDE`` names its folder (in the nvidia-cuda-runtime wheel: nvidia/cu13/include).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import shim_harness as harness


def header_folder() -> Path | None:
    given = [os.environ.get("CUDA_INCLUDE", ""), "/usr/local/cuda/include"]
    found = [Path(part) / "nvidia/cu13/include" for part in sys.path if part]
    for folder in [*(Path(part) for part in given if part), *found]:
        if (folder / "cuda.h").exists():
            return folder
    return None


#: Ours, theirs, and pairs of fields.
STRUCTURES = [
    ("CUmemLocation", "CUmemLocation", [("type", "type"), ("id", "id")]),
    ("CUmemAllocationProp", "CUmemAllocationProp", [("type", "type"), ("location", "location")]),
    (
        "CUmemPoolProps",
        "CUmemPoolProps",
        [("alloc_type", "allocType"), ("location", "location"), ("max_size", "maxSize")],
    ),
    (
        "CUDA_ARRAY_DESCRIPTOR_v2",
        "CUDA_ARRAY_DESCRIPTOR",
        [
            ("width", "Width"),
            ("height", "Height"),
            ("format", "Format"),
            ("channels", "NumChannels"),
        ],
    ),
    (
        "CUDA_ARRAY3D_DESCRIPTOR_v2",
        "CUDA_ARRAY3D_DESCRIPTOR",
        [("depth", "Depth"), ("format", "Format"), ("channels", "NumChannels"), ("flags", "Flags")],
    ),
    ("CUgraphNodeParams", "CUgraphNodeParams", [("type", "type"), ("body", "reserved1")]),
    ("CUuuid", "CUuuid", []),
    ("CUdeviceptr", "CUdeviceptr", []),
    ("CUmemGenericAllocationHandle", "CUmemGenericAllocationHandle", []),
]
VALUES = [
    "CUDA_ERROR_INVALID_VALUE",
    "CUDA_ERROR_OUT_OF_MEMORY",
    "CUDA_ERROR_NOT_FOUND",
    "CUDA_ERROR_NOT_SUPPORTED",
    "CU_MEM_LOCATION_TYPE_DEVICE",
    "CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN",
    "CU_MEMPOOL_ATTR_RELEASE_THRESHOLD",
    "CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT",
    "CU_STREAM_CAPTURE_STATUS_NONE",
    "CU_GRAPH_NODE_TYPE_MEM_ALLOC",
    "CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM",
    "CUDA_ARRAY3D_SPARSE",
    "CUDA_ARRAY3D_DEFERRED_MAPPING",
    "CUDA_ARRAY3D_LAYERED",
    "CUDA_ARRAY3D_CUBEMAP",
]


def numbers(folder: Path, header: str, side: int, include: Path) -> dict[str, int]:
    rows = [f'printf("\\"{name}\\": %lld,", (long long){name});' for name in VALUES]
    for pair in STRUCTURES:
        name = pair[side]
        rows.append(f'printf("\\"{pair[0]}\\": %zu,", sizeof({name}));')
        for fields in pair[2]:
            rows.append(
                f'printf("\\"{pair[0]}.{fields[0]}\\": %zu,", offsetof({name}, {fields[side]}));'
            )
    source = folder / f"{side}.c"
    body = "\n".join(rows)
    source.write_text(
        f"#include <stddef.h>\n#include <stdio.h>\n#include {header}\n"
        f'int main(void) {{ printf("{{");\n{body}\nprintf("\\"end\\": 0}}"); return 0; }}\n'
    )
    program = folder / str(side)
    subprocess.run(["gcc", f"-I{include}", source, "-o", program], check=True, timeout=240)
    found: dict[str, int] = json.loads(
        subprocess.run([program], capture_output=True, check=True, timeout=10).stdout
    )
    return found


@pytest.mark.skipif(header_folder() is None, reason="NVIDIA's cuda.h is not installed")
def test_layouts_and_values_are_nvidias(tmp_path: Path) -> None:
    theirs = header_folder()
    assert theirs is not None
    ours = numbers(tmp_path, '"cuda_abi.h"', 0, harness.NATIVE / "shim")
    assert ours == numbers(tmp_path, "<cuda.h>", 1, theirs)
