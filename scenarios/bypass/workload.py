"""What runs in each pod: one way to start the program that takes memory."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from facts import RELEASE, emit, wait_for_release

TAKE = str(Path(__file__).with_name("take.py"))
LOADER, PRELOAD = "/lib64/ld-linux-x86-64.so.2", b"/etc/ld.so.preload"
DRIVER, COPY = "libcuda.so.1", "/tmp/way/driver/libother.so"


def command(way: str) -> tuple[list[str], dict[str, str]]:
    """Return how a way starts the program: command and environment."""
    plain, environ = [sys.executable, TAKE, DRIVER, "plain"], dict(os.environ)
    if way == "empty_environment":
        return plain, {}
    if way == "other_preload":
        return plain, {**environ, "LD_PRELOAD": "libm.so.6"}
    if way == "driver_preload":
        return [*plain[:-1], "global"], {**environ, "LD_PRELOAD": DRIVER}
    if way == "deepbind":
        return [*plain[:-1], "deepbind"], environ
    if way == "own_lookup":
        return [*plain[:-1], "lookup"], environ
    if way == "own_loader":
        Path("/tmp/way").mkdir(exist_ok=True)
        own = Path("/tmp/way/loader")
        own.write_bytes(Path(LOADER).read_bytes().replace(PRELOAD, b"/etc/ld.so.nothing"))
        own.chmod(0o755)
        return [str(own), os.path.realpath(sys.executable), *plain[1:]], environ
    if way == "driver_copy":
        Path(COPY).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_driver(), COPY)
        return [sys.executable, TAKE, COPY, "copy"], environ
    return plain, environ


def _driver() -> str:
    """Return the driver's file, as the loader finds it."""
    found = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    for line in found.splitlines():
        if line.strip().startswith(DRIVER):
            return line.rpartition("=> ")[2].strip()
    return f"/usr/local/vgpu/driver/{DRIVER}"


def main() -> int:
    """Take memory, hold it until released."""
    parameters = json.loads(os.environ["WORKLOAD_PARAMETERS"])
    RELEASE.mkdir(parents=True, exist_ok=True)
    emit("started", pid=os.getpid())
    way = parameters["way"]
    arguments, environ = command(way)
    with subprocess.Popen(
        [*arguments, str(parameters["ceiling_mib"])],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdin and child.stdout and child.stderr
        line = child.stdout.readline().strip()
        if not line.isdigit():
            child.kill()
            emit("error", phase="taken", code=1, text=f"{line} {child.stderr.read()}".strip())
            return 1
        emit("taken", phase="taken", way=way, bytes=int(line))
        emit("holding", phase="taken", index=0, ticks=parameters["ticks"])
        in_time = wait_for_release("taken", float(parameters["hold_seconds"]))
        emit("released", phase="taken", in_time=in_time)
        child.stdin.close()
    emit("finished", code=0)
    return 0


if __name__ == "__main__":
    sys.exit(main())
