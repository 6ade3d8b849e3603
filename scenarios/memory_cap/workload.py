"""What runs in each pod: the parts one after the other, each in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from facts import RELEASE, emit, wait_for_release

FOLDER = Path(__file__).parent
#: Environment by which PyTorch chooses its allocator (PyTorch 2.x, "CUDA semantics").
ALLOCATORS = {
    "native": "backend:native",
    "expandable_segments": "expandable_segments:True",
    "cudaMallocAsync": "backend:cudaMallocAsync",
}
MIB = 1 << 20


def run(phase: str, *arguments: str, allocator: str = "native") -> bool:
    """Run one part to its end; tell its last words where it failed."""
    child = subprocess.run(
        [sys.executable, str(FOLDER / "parts.py"), *arguments],
        env={**os.environ, "PYTORCH_CUDA_ALLOC_CONF": ALLOCATORS[allocator]},
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    if child.returncode:
        tail = child.stderr.strip().splitlines()[-12:]
        emit("error", phase=phase, code=child.returncode, text="\n".join(tail))
    return child.returncode == 0


def used(pids: set[int]) -> tuple[int, str]:
    """Return what NVML counts for processes, bytes, and the card's uuid."""
    import pynvml as nvml

    nvml.nvmlInit()
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    total = sum(
        int(process.usedGpuMemory or 0)
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        if process.pid in pids
    )
    return total, nvml.nvmlDeviceGetUUID(handle)


def race(index: int, parameters: dict[str, object]) -> bool:
    """Let processes fill the pod's memory at once, and hold it."""
    processes, cap = int(str(parameters["processes"])), int(str(parameters["cap_mib"]))
    ceiling = cap * int(str(parameters["ceiling_pct"])) // 100 // processes
    children = [
        subprocess.Popen(
            [sys.executable, str(FOLDER / "racer.py"), str(number), str(ceiling)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(processes)
    ]
    try:
        for word in ("ready", ""):
            for child in children:
                assert child.stdout is not None
                line = child.stdout.readline().strip()
                if (word and line != word) or not line:
                    emit("error", phase="race", code=1, text=f"a racer said {line!r}, not {word!r}")
                    return False
            if word:
                for child in children:
                    assert child.stdin is not None
                    child.stdin.write("go\n")
                    child.stdin.flush()
        total, uuid = used({child.pid for child in children})
        emit("filled", phase="race", uuid=uuid, bytes=total, processes=processes)
        emit("holding", phase="race", index=index)
        in_time = wait_for_release("race", float(str(parameters["hold_seconds"])))
        emit("released", phase="race", in_time=in_time)
        return True
    finally:
        for child in children:
            child.kill()
            child.communicate()


def main() -> int:
    """Run all parts."""
    parameters = json.loads(os.environ["WORKLOAD_PARAMETERS"])
    RELEASE.mkdir(parents=True, exist_ok=True)
    emit("started", pid=os.getpid())
    good = True
    for index, phase in enumerate(parameters["phases"]):
        if phase in ALLOCATORS:
            good &= run(phase, phase, str(index), allocator=phase)
        elif phase == "race":
            good &= race(index, parameters)
        else:
            good &= run(phase, phase, str(index))
    emit("finished", code=0 if good else 1)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
