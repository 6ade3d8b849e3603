"""How long many processes of one container take to start together, and what they leave.

``python tests/native/shim/bench_start.py [300]``: each joins the container's region, makes a
context on the driver double, allocates, frees and ends. Prints JSON: ``seconds`` from the
first start to the last end, ``bare_seconds`` the same without the library, ``failed`` of them,
``records`` that are left in use (0); ``forked_seconds`` until as many that are forked from one
program (``crowd.c``), each pid 1 of its own namespace where the kernel allows it
(``forked_as_pid1`` of them), have all registered and allocated.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import shim_harness as harness

sys.path.insert(0, str(Path(__file__).parents[3]))

from testbed.native.region import RegionConstant, RegionDevice, make_region, read_region

_CONTEXT_MIB = 10
_DEADLINE_S = 120


def program(driver: Path) -> Path:
    return harness.compile_(
        Path("bench"),
        [harness.HERE / "bench.c"],
        "-O2",
        "-Wl,--no-as-needed",  # the library comes before what needs it
        str(driver / "libcuda.so.1"),
        f"-Wl,-rpath,{driver}",
        "-Wl,--allow-shlib-undefined",
    )


def environment_of(count: int, library: Path | None, folder: Path) -> tuple[Path, dict[str, str]]:
    folder.mkdir()
    (folder / "card").touch()
    device = RegionDevice(uuid=harness.fake_uuid(0), memory_limit_bytes=count * 32 << 20)
    region = make_region(folder, "cache", RegionConstant(devices=(device,)))
    driver = harness.fake_driver()
    environment = {
        "LD_LIBRARY_PATH": str(driver),
        "FAKE_CARD": str(folder / "card"),
        "FAKE_CONTEXT": str(_CONTEXT_MIB << 20),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
    }
    if library is not None:
        environment["LD_PRELOAD"] = str(library)
    return region, environment


def start(count: int, library: Path | None, folder: Path) -> dict[str, float]:
    region, environment = environment_of(count, library, folder)
    executable = program(harness.fake_driver())
    began = time.monotonic()
    running = [
        subprocess.Popen([executable, "10"], env=environment, stdout=subprocess.DEVNULL)
        for _ in range(count)
    ]
    try:
        codes = [each.wait(timeout=_DEADLINE_S) for each in running]
    finally:
        for each in running:
            if each.poll() is None:
                each.kill()
                each.wait()
    seconds = time.monotonic() - began
    return {
        "seconds": round(seconds, 3),
        "failed": sum(code != 0 for code in codes),
        "records": len(read_region(region).processes),
    }


def fork(count: int, library: Path, folder: Path) -> dict[str, float]:
    _, environment = environment_of(count, library, folder)
    flags = ("-std=gnu11", "-O1", "-g", "-Wall", "-Wextra", "-Werror", "-ldl")
    crowd = harness.compile_(Path("crowd"), [harness.HERE / "crowd.c"], *flags)
    with subprocess.Popen(
        [crowd, str(2 << 20)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdin is not None and running.stdout is not None
        began = time.monotonic()
        running.stdin.write(f"start {count}\n")
        running.stdin.flush()
        granted, _, first = map(int, running.stdout.readline().split())
        seconds = time.monotonic() - began
        running.communicate("end\n", timeout=_DEADLINE_S)
    return {
        "forked_seconds": round(seconds, 3),
        "forked_as_pid1": first,
        "forked_failed": count - granted,
    }


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    with tempfile.TemporaryDirectory() as folder:
        bare = start(count, None, Path(folder) / "bare")
        found = start(count, harness.shim(), Path(folder) / "limited")
        found |= fork(count, harness.shim(), Path(folder) / "forked")
    print(json.dumps({"processes": count, **found, "bare_seconds": bare["seconds"]}))
    return 0 if not any(found[name] for name in ("failed", "records", "forked_failed")) else 1


if __name__ == "__main__":
    sys.exit(main())
