"""The real thing: containerd, runc and an image of ours, as an ordinary user without cgroups."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from testbed.lab import binaries, images
from testbed.lab.images import Bind, Image, archive, rootfs

from .conftest import FLAGS, SOURCES, compile_c

SCRIPT = Path(__file__).with_name("containerd.sh")
#: Any id without an account will do.
USER = 54321
DEADLINE_S = 240
NAMESPACES = ["--user", "--map-root-user", "--mount", "--net", "--pid", "--uts", "--ipc"]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        binaries.cached() is None, reason="containerd is not built yet (testbed up builds it)"
    ),
]


@pytest.fixture
def place() -> Iterator[Path]:
    """A folder that the ordinary user can enter: pytest closes its own at every start."""
    with tempfile.TemporaryDirectory(prefix="vgpu-front-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


class Runner:
    """Runs commands in a container of an image that is lent the allow-list and a folder."""

    def __init__(self, place: Path) -> None:
        self.home = place / "home"
        self.home.mkdir()
        self.image = Image(
            reference="testbed/test:1",
            archive=place / "image.tar",
            binds=(*rootfs.lent(), Bind(source=place / "lent", destination="/opt/testbed/test")),
        )
        (place / "lent").mkdir()
        (place / "lent/file").write_text("lent by the host\n")
        content = archive.layer(rootfs.entries())
        archive.write(
            self.image.archive, self.image.reference, content, archive.Settings(env=rootfs.env())
        )
        self.config = place / "front.conf"
        runtime = binaries.locate("runc")
        self.config.write_text(images.configuration([self.image], runtime=str(runtime)))
        sources = [path for path in SOURCES.glob("*.c") if path.name != "pause.c"]
        self.front = compile_c(place / "vgpu-oci-front", sources, FLAGS)
        self.programs = binaries.cached()
        # Beside the front: the clone itself may lie in a home that the user cannot enter.
        self.script = Path(shutil.copy(SCRIPT, place))
        self.script.chmod(0o644)

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        # As root the programs' folder is below a home that the user cannot enter: it is
        # bound elsewhere first, in a mount namespace of this call.
        assert self.programs is not None
        outer: list[str | Path] = []
        programs = self.programs
        if os.geteuid() == 0:
            programs = self.home.parent / "programs"
            programs.mkdir(exist_ok=True)
            os.chown(self.home, USER, USER)
            bind = f'mount --bind {self.programs} {programs} && exec "$@"'
            outer += ["unshare", "--mount", "sh", "-c", bind, "sh"]
            outer += ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups"]
        inner = ["unshare", *NAMESPACES, "--fork", "--mount-proc", "--kill-child"]
        arguments = [programs, self.front, self.image.archive, self.image.reference]
        return subprocess.run(
            [*outer, *inner, "sh", self.script, *arguments, "/bin/sh", "-c", script],
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "HOME": str(self.home),
                "VGPU_OCI_FRONT_CONFIG": str(self.config),
            },
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def output(self, script: str, *, code: int = 0) -> str:
        result = self.run(script)
        log = self.home / "containerd.log"
        detail = log.read_text()[-2000:] if log.exists() else ""
        assert result.returncode == code, f"{result.returncode} {result.stderr}\n{detail}"
        return result.stdout


@pytest.fixture
def runner(place: Path) -> Runner:
    return Runner(place)


def test_a_container_sees_what_it_is_lent_and_nothing_else(runner: Runner) -> None:
    canary = Path.home() / f"vgpu-canary-{os.getpid()}"
    near = runner.home / canary.name
    try:
        canary.write_text("private")
        near.write_text("private")
        near.chmod(0o644)
        output = runner.output(
            "cat /opt/testbed/test/file; id -u;"
            'python3 -c "import ctypes, ssl; print(ctypes.CDLL(None) is not None)";'
            "awk 'BEGIN {print \"alternatives\"}';"
            "touch /usr/bin/x 2>/dev/null || echo read-only;"
            "touch /tmp/mine && echo writable;"
            "echo; ls -1 /;"
            f"echo; find / -name '{canary.name}' -not -path '/proc/*' 2>/dev/null; echo end"
        )
    finally:
        canary.unlink()
    said, root, found = output.split("\n\n")
    assert said.splitlines() == [
        *("lent by the host", "0", "True", "alternatives", "read-only", "writable")
    ]
    assert "home" not in root.split()
    assert found.split() == ["end"], "a private file of the host was found"


def test_errors_of_the_front_reach_the_caller(runner: Runner) -> None:
    runner.config.write_text("runtime /usr/sbin/runc\nnonsense here\n")
    result = runner.run("true")
    assert result.returncode != 0
    assert "vgpu-oci-front: cannot read" in result.stderr
    assert "line 2 (nonsense): unknown word" in result.stderr


def test_exit_codes_pass(runner: Runner) -> None:
    assert runner.output("echo said; exit 7", code=7) == "said\n"
