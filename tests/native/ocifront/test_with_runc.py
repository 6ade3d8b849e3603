"""The front before the real runc, on a host that lacks a capability, and runc without it.

What engines ask for in a privileged container: every capability, limits of a million, a
score that the kernel never picks. The host is made to lack CAP_SYS_RESOURCE.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.lab import binaries

from .conftest import FLAGS, SOURCES, compile_c

#: Says what it got. Static, since nothing else is in the container.
PROBE = r"""
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>
int main(int argc, char **argv) {
    char line[256];
    FILE *file = fopen("/proc/self/status", "r");
    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, "CapEff:", 7) == 0) printf("%s", line);
    struct rlimit limit;
    getrlimit(RLIMIT_NOFILE, &limit);
    printf("files: %llu\n", (unsigned long long)limit.rlim_max);
    file = fopen("/proc/self/oom_score_adj", "r");
    if (file && fgets(line, sizeof line, file)) printf("score: %s", line);
    fflush(stdout);
    if (argc > 1) pause();
    return 0;
}
"""
DEADLINE_S = 180
FILES = 300
#: Some of what "privileged" asks for.
CAPABILITIES = ["CAP_CHOWN", "CAP_KILL", "CAP_SYS_ADMIN", "CAP_SYS_RESOURCE"]
DENIED = re.compile("operation not permitted|permission denied", re.IGNORECASE)
#: What a host must lack the capability for to be refused; each alone is enough.
ASKED = ("capabilities", "rlimits", "oomScoreAdj")
SYS_RESOURCE = 24

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0, reason="only root starts containers as an engine's daemon does"
    ),
    pytest.mark.skipif(binaries.locate("runc") is None, reason="runc is not installed"),
]


def process(*arguments: str, asked: tuple[str, ...] = ASKED) -> dict[str, Any]:
    wishes = {
        "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), CAPABILITIES),
        "rlimits": [{"type": "RLIMIT_NOFILE", "hard": 1 << 20, "soft": 1 << 20}],
        "oomScoreAdj": -999,
    }
    return {
        "args": ["/probe", *arguments],
        "cwd": "/",
        "user": {"uid": 0, "gid": 0},
        "env": [],
        **{key: wishes[key] for key in asked},
    }


class Host:
    """Starts containers as an engine does, without the capability."""

    def __init__(self, folder: Path) -> None:
        self.bundle = folder / "bundle"
        self.state = folder / "state"
        self.name = f"vgpu-test-{uuid.uuid4().hex[:12]}"
        self.config = folder / "front.conf"
        (self.bundle / "rootfs/proc").mkdir(parents=True)
        source = folder / "probe.c"
        source.write_text(PROBE)
        compile_c(self.bundle / "rootfs/probe", [source], ["-static", "-O1"])
        sources = [path for path in SOURCES.glob("*.c") if path.name != "pause.c"]
        self.front = compile_c(folder / "vgpu-oci-front", sources, FLAGS)
        self.runc = binaries.locate("runc")
        # Groups are no matter here, and not everywhere may a test make some.
        self.config.write_text(f"runtime {self.runc}\nargument --rootless=true\ncgroups drop\n")

    def spec(self, *arguments: str, asked: tuple[str, ...] = ASKED) -> None:
        namespaces = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")]
        document = {
            "ociVersion": "1.0.2",
            "process": process(*arguments, asked=asked),
            "root": {"path": "rootfs"},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {"namespaces": namespaces},
        }
        (self.bundle / "config.json").write_text(json.dumps(document))

    def call(self, program: Path | None, *arguments: str) -> subprocess.CompletedProcess[str]:
        lacking = ["--bounding-set=-sys_resource", "--inh-caps=-sys_resource"]
        return subprocess.run(
            [
                *("prlimit", f"--nofile={FILES}:{FILES}", "setpriv", *lacking),
                *(str(program), "--root", str(self.state), *arguments),
            ],
            env={
                "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
                "VGPU_OCI_FRONT_CONFIG": str(self.config),
            },
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )

    def run(self, program: Path | None) -> subprocess.CompletedProcess[str]:
        return self.call(program, "run", "--bundle", str(self.bundle), self.name)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    host = Host(tmp_path)
    try:
        yield host
    finally:
        host.call(host.runc, "--rootless=true", "delete", "--force", host.name)


def facts(output: str) -> dict[str, str]:
    return dict(line.split(":", 1) for line in output.splitlines() if ":" in line)


def check(output: str) -> None:
    found = facts(output)
    capabilities = int(found["CapEff"], 16)
    assert capabilities, "the others are there"
    assert not capabilities >> SYS_RESOURCE & 1
    assert int(found["files"]) == FILES
    own = int(Path("/proc/self/oom_score_adj").read_text())
    assert int(found["score"]) >= min(own, 0)


def test_a_privileged_container_starts(host: Host) -> None:
    host.spec()
    result = host.run(host.front)
    assert result.returncode == 0, result.stderr
    check(result.stdout)


@pytest.mark.parametrize("asked", ASKED)
def test_each_wish_fails_without_the_front(host: Host, asked: str) -> None:
    host.spec(asked=(asked,))
    bundle = ["--bundle", str(host.bundle)]
    result = host.call(host.runc, "--rootless=true", "run", *bundle, host.name)
    assert result.returncode != 0
    assert DENIED.search(result.stderr), result.stderr


def test_a_program_is_started_in_a_container_that_runs(host: Host, tmp_path: Path) -> None:
    """As ``docker exec --privileged``, which kind calls for every step."""
    host.spec("stay")
    bundle = ["--bundle", str(host.bundle)]
    # Detached, it would hold the pipes of this call open.
    log = tmp_path / "out"
    script = 'exec "$@" >"$0" 2>&1'
    started = subprocess.run(
        [
            *("prlimit", f"--nofile={FILES}:{FILES}", "setpriv", "--bounding-set=-sys_resource"),
            *("--inh-caps=-sys_resource", "sh", "-c", script, str(log), str(host.front)),
            *("--root", str(host.state), "run", "--detach", *bundle, host.name),
        ],
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "VGPU_OCI_FRONT_CONFIG": str(host.config)},
        stdin=subprocess.DEVNULL,
        timeout=DEADLINE_S,
        check=False,
    )
    assert started.returncode == 0, log.read_text()
    file = tmp_path / "process.json"
    file.write_text(json.dumps(process()))
    result = host.call(host.front, "exec", "--process", str(file), host.name)
    assert result.returncode == 0, result.stderr
    check(result.stdout)

    file.write_text(json.dumps(process()))
    control = host.call(host.runc, "--rootless=true", "exec", "--process", str(file), host.name)
    assert control.returncode != 0, "without the front"
    assert DENIED.search(control.stderr), control.stderr
