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

    nvml.nvmlInit()  # it counts; what is not shut down stays open
    handle = nvml.nvmlDeviceGetHandleByIndex(0)
    total = sum(
        int(process.usedGpuMemory or 0)
        for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
        if process.pid in pids
    )
    return total, nvml.nvmlDeviceGetUUID(handle)


class Racers:
    """Processes that fill the pod's memory at once, round after round."""

    def __init__(self, processes: int, ceiling_mib: int) -> None:
        self.children = [
            subprocess.Popen(
                [sys.executable, str(FOLDER / "racer.py"), str(number), str(ceiling_mib)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(processes)
        ]

    def told(self, word: str = "") -> None:
        """Wait until each has said a word, or anything that is no error.

        Raises:
            OSError: one said something else, or ended.
        """
        for child in self.children:
            assert child.stdout is not None
            line = child.stdout.readline().strip()
            if not line or line.startswith(("error", "no context")) or (word and line != word):
                raise OSError(f"a racer said {line!r}, not {word or 'what it took'!r}")

    def say(self, word: str) -> None:
        """Tell all of them."""
        for child in self.children:
            assert child.stdin is not None
            child.stdin.write(f"{word}\n")
            child.stdin.flush()

    def end(self) -> None:
        """Kill all of them."""
        for child in self.children:
            child.kill()
            child.communicate()


def race(index: int, parameters: dict[str, object]) -> bool:
    """Let processes fill the pod's memory at once, in rounds, and hold the last one's."""
    processes, cap = int(str(parameters["processes"])), int(str(parameters["cap_mib"]))
    rounds = int(str(parameters["rounds"]))
    racers = Racers(processes, cap * int(str(parameters["ceiling_pct"])) // 100 // processes)
    pids = {child.pid for child in racers.children}
    totals = []
    try:
        racers.told("ready")
        for number in range(1, rounds + 1):
            racers.say("go")
            racers.told()
            total, uuid = used(pids)
            totals.append(total)
            if number < rounds:
                racers.say("free")
                racers.told("freed")
    except OSError as error:
        emit("error", phase="race", code=1, text=str(error))
        return False
    else:
        emit(
            "filled",
            phase="race",
            uuid=uuid,
            bytes=total,
            most=max(totals),
            least=min(totals),
            rounds=rounds,
            processes=processes,
        )
        emit("holding", phase="race", index=index)
        in_time = wait_for_release("race", float(str(parameters["hold_seconds"])))
        emit("released", phase="race", in_time=in_time)
        return True
    finally:
        racers.end()


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
