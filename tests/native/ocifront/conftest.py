"""The front and its JSON reader, compiled with sanitizers, and a runc that only records."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

SOURCES = Path(__file__).parents[3] / "testbed/native/ocifront"
FLAGS = ["-std=c11", "-g", "-O1", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
TIMEOUT_S = 120

#: Stands in runc's place: writes down how it was called and what the configuration was then.
RUNTIME = f"""#!{sys.executable}
import json, os, sys
bundle = os.environ["TEST_BUNDLE"]
with open(os.environ["TEST_CALL"], "w") as file:
    json.dump({{"argv": sys.argv[1:], "files": sorted(os.listdir(bundle))}}, file)
raise SystemExit(7)
"""


def compile_c(target: Path, sources: Sequence[Path], flags: Sequence[str]) -> Path:
    subprocess.run(
        ["cc", *flags, f"-I{SOURCES}", *map(str, sources), "-o", str(target)],
        check=True,
        timeout=300,
    )
    return target


@pytest.fixture(scope="session")
def front_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("front")
    sources = [path for path in SOURCES.glob("*.c") if path.name != "pause.c"]
    return compile_c(folder / "vgpu-oci-front", sources, [*FLAGS, *SANITIZERS])


@pytest.fixture(scope="session")
def json_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("json")
    sources = [Path(__file__).with_name("json_driver.c"), SOURCES / "json.c"]
    return compile_c(folder / "json_driver", sources, [*FLAGS, *SANITIZERS])


@pytest.fixture(scope="session")
def pause_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built as the product builds it: it has no libc that a sanitizer could use."""
    folder = tmp_path_factory.mktemp("pause")
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-ffreestanding", "-Os"]
    flags += ["-fno-stack-protector", "-fcf-protection=none", "-fno-pie"]
    flags += ["-static", "-nostdlib", "-no-pie", "-Wl,--build-id=none"]
    return compile_c(folder / "vgpu-pause", [SOURCES / "pause.c"], flags)


@dataclass
class Front:
    """A bundle, a configuration and the front to call on them."""

    program: Path
    folder: Path
    prefix: list[str] = field(default_factory=list)
    #: Whether the variable names the configuration.
    named: bool = True

    def __post_init__(self) -> None:
        self.bundle.mkdir()
        self.runtime.write_text(RUNTIME)
        self.runtime.chmod(0o755)
        self.configure()

    @property
    def bundle(self) -> Path:
        return self.folder / "bundle"

    @property
    def runtime(self) -> Path:
        return self.folder / "runc"

    @property
    def config(self) -> Path:
        return self.folder / "front.conf"

    @property
    def log(self) -> Path:
        return self.folder / "log.json"

    def configure(self, *lines: str, runtime: Path | None = None) -> None:
        self.config.write_text("\n".join([f"runtime {runtime or self.runtime}", *lines, ""]))

    def spec(self, document: object) -> None:
        text = document if isinstance(document, str) else json.dumps(document)
        (self.bundle / "config.json").write_text(text)

    def result(self) -> Any:
        return json.loads((self.bundle / "config.json").read_text())

    def call(self) -> Any:
        return json.loads((self.folder / "call.json").read_text())

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*self.prefix, str(self.program), *arguments],
            env={
                "PATH": os.environ["PATH"],
                "VGPU_OCI_FRONT_CONFIG": str(self.config) if self.named else "",
                "TEST_BUNDLE": str(self.bundle),
                "TEST_CALL": str(self.folder / "call.json"),
                # A process that execs or exits holds its memory on purpose.
                "ASAN_OPTIONS": "detect_leaks=0",
            },
            cwd=self.folder,
            text=True,
            capture_output=True,
            timeout=TIMEOUT_S,
            check=False,
        )

    def create(self) -> subprocess.CompletedProcess[str]:
        """Call as containerd's shim does."""
        return self.run(
            *("--root", "/run/x", "--log", str(self.log), "--log-format", "json", "create"),
            *("--bundle", str(self.bundle), "--pid-file", "/run/x/init.pid", "create"),
        )


@pytest.fixture
def front(front_program: Path, tmp_path: Path) -> Front:
    return Front(front_program, tmp_path)
