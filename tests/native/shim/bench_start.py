"""How long many processes of one container take to start together, and what they leave.

``python tests/native/shim/bench_start.py [300]``: each joins the container's region, makes a
context on the driver double, allocates, frees and ends. Prints JSON: ``seconds`` from the
first start to the last end, ``bare_seconds`` the same without the library, ``failed`` of them,
``records`` that are left in use (0).
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


def start(count: int, library: Path | None, folder: Path) -> dict[str, float]:
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
    executable = program(driver)
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


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 300
    with tempfile.TemporaryDirectory() as folder:
        bare = start(count, None, Path(folder) / "bare")
        found = start(count, harness.shim(), Path(folder) / "limited")
    print(json.dumps({"processes": count, **found, "bare_seconds": bare["seconds"]}))
    return 0 if found["failed"] == 0 and found["records"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
