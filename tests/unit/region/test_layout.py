"""The ctypes mirror and the C compiler agree on every field of region.h."""

from __future__ import annotations

import ctypes
import json
import shutil
import subprocess
from pathlib import Path

import pytest

from testbed.native import region_layout as layout

INCLUDE = Path(layout.__file__).parent / "include"

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "struct hami_device_memory": layout.HamiDeviceMemory,
    "struct hami_device_util": layout.HamiDeviceUtil,
    "struct hami_process_slot": layout.HamiProcessSlot,
    "struct hami_region": layout.HamiRegion,
    "struct vgpu_device_use": layout.DeviceUse,
    "struct vgpu_process_record": layout.ProcessRecord,
    "struct vgpu_feedback": layout.Feedback,
    "struct vgpu_constant": layout.Constant,
    "struct vgpu_history": layout.History,
    "struct vgpu_ledger": layout.Ledger,
    "struct vgpu_extension": layout.Extension,
}
NUMBERS = {
    "VGPU_MAX_DEVICES": layout.MAX_DEVICES,
    "VGPU_MAX_PROCESSES": layout.MAX_PROCESSES,
    "VGPU_UUID_BYTES": layout.UUID_BYTES,
    "HAMI_REGION_MAGIC": layout.HAMI_MAGIC,
    "HAMI_REGION_MAJOR": layout.HAMI_MAJOR,
    "HAMI_REGION_MINOR": layout.HAMI_MINOR,
    "HAMI_REGION_BYTES": layout.HAMI_BYTES,
    "VGPU_EXT_OFFSET": layout.EXT_OFFSET,
    "VGPU_EXT_MAGIC": layout.EXT_MAGIC,
    "VGPU_EXT_VERSION": layout.EXT_VERSION,
    "VGPU_LOCK_ACCOUNT": layout.LOCK_ACCOUNT,
    "VGPU_HISTORY": layout.HISTORY,
    "VGPU_HISTORY_TICK_NS": layout.HISTORY_TICK_NS,
    "VGPU_REGION_BYTES": layout.REGION_BYTES,
}


@pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler")
def test_every_field_lies_where_c_puts_it(tmp_path: Path) -> None:
    rows = []
    expected: dict[str, list[int]] = {}
    for name, structure in STRUCTURES.items():
        rows.append(f'printf("\\"{name}\\": [%zu, 0],\\n", sizeof({name}));')
        expected[name] = [ctypes.sizeof(structure), 0]
        for field in structure._fields_:
            member = f"{name}.{field[0]}"
            rows.append(
                f'printf("\\"{member}\\": [%zu, %zu],\\n", offsetof({name}, {field[0]}),'
                f" sizeof((({name} *)0)->{field[0]}));"
            )
            descriptor = getattr(structure, field[0])
            expected[member] = [descriptor.offset, descriptor.size]
    for name, value in NUMBERS.items():
        rows.append(f'printf("\\"{name}\\": [%llu, 0],\\n", (unsigned long long){name});')
        expected[name] = [value, 0]
    source = tmp_path / "offsets.c"
    source.write_text(
        '#include <stdio.h>\n#include "region.h"\nint main(void) { printf("{");\n'
        + "\n".join(rows)
        + 'printf("\\"end\\": [0, 0]}"); return 0; }\n'
    )
    program = tmp_path / "offsets"
    subprocess.run(
        ["gcc", f"-I{INCLUDE}", str(source), "-o", str(program)], check=True, timeout=240
    )
    output = subprocess.run([program], check=True, capture_output=True, timeout=240).stdout
    found = json.loads(output)
    del found["end"]
    assert found == expected
