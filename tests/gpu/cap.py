"""Hold PyTorch to a memory cap on the machine's own card, and run the control without.

``python3 tests/gpu/cap.py LIBVGPU.SO [FILE]``: needs a card and a python3 with PyTorch, and
nothing of this package. Prints JSON; exit status 1 if a cap did not hold or a control did.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

CAP_MIB = 8192
CONTROL_MIB = CAP_MIB * 3 // 2
ALLOCATORS = {
    "uncached": {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"},
    "native": {"PYTORCH_ALLOC_CONF": "backend:native"},
    "expandable_segments": {"PYTORCH_ALLOC_CONF": "expandable_segments:True"},
    "cudaMallocAsync": {"PYTORCH_ALLOC_CONF": "backend:cudaMallocAsync"},
}

CHILD = Path(__file__).with_name("cap_child.py")


def child(library: str | None, extra: dict[str, str], limit_mib: int) -> dict[str, Any]:
    env = {**os.environ, **extra}
    if library:
        env["LD_PRELOAD"] = library
        env["CUDA_DEVICE_MEMORY_LIMIT_0"] = f"{CAP_MIB}m"
        env["LIBCUDA_LOG_LEVEL"] = "1"
    done = subprocess.run(
        ["python3", str(CHILD), str(limit_mib)],
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    try:
        answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, json.JSONDecodeError):
        return {"code": done.returncode, "error": done.stderr[-2000:]}
    if done.stderr:
        answer["said"] = done.stderr[-600:]
    return answer


def main() -> int:
    library = str(Path(sys.argv[1]).resolve())
    results = {}
    held = True
    for name, extra in ALLOCATORS.items():
        limited = child(library, extra, CONTROL_MIB)
        control = child(None, extra, CONTROL_MIB)
        good = (
            limited.get("survived", False)
            and limited["refused"] > 0
            and limited["held_mib"] <= CAP_MIB
            and all(mib <= CAP_MIB for mib in limited["card_mib"])
            and control.get("held_mib", 0) > CAP_MIB
        )
        held = held and good
        results[name] = {"held": good, "limited": limited, "control": control}
    text = json.dumps({"cap_mib": CAP_MIB, "allocators": results}, indent=1)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(text + "\n")
    print(text)
    return 0 if held else 1


if __name__ == "__main__":
    sys.exit(main())
