"""Real kind clusters: what they need, and the command line that drives them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from .capable import lacking

ROOT = Path(__file__).parents[2]
TESTBED = Path(sys.executable).parent / "testbed"
#: Twice what the longest takes on two busy cores.
_COMMAND_S = 1200.0


def pytest_collection_modifyitems(items):
    """A cluster takes more time than a unit test."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(1500))


@dataclass(frozen=True, kw_only=True)
class Driver:
    """The command line, with state of its own."""

    home: Path
    environ: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.home / "state" / "vgpu-testbed"

    def environment(self, **more: str) -> dict[str, str]:
        kept = {
            key: value
            for key, value in os.environ.items()
            if key not in ("KIND_EXPERIMENTAL_PROVIDER", "VGPU_TESTBED_ENGINE", "DOCKER_HOST")
        }
        state = str(self.home / "state")
        # Whatever engine the machine has: what is tested here is our own.
        base = {"XDG_STATE_HOME": state, "VGPU_TESTBED_ENGINE": "own"}
        return kept | base | self.environ | more

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(TESTBED), *arguments],
            cwd=ROOT,
            env=self.environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __call__(
        self, *arguments: str, rc: int | None = 0, **more: str
    ) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **more) as process:
            try:
                out, err = process.communicate(timeout=_COMMAND_S)
            except BaseException:
                process.terminate()  # it takes down what it was bringing up
                process.communicate(timeout=120)
                raise
        done = subprocess.CompletedProcess(arguments, process.returncode, out, err)
        said = f"testbed {' '.join(arguments)} ended with {done.returncode}\n{out}\n{err}"
        assert rc is None or done.returncode == rc, said
        return done

    def json(self, *arguments: str, rc: int | None = 0) -> Any:
        return json.loads(self(*arguments, "-o", "json", rc=rc).stdout)

    def record(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((self.state / name / "kind.json").read_text())
        return found

    def left(self, name: str) -> list[str]:
        """Return what there still is of a testbed."""
        return [str(path) for path in self.state.glob(f"{name}*")]


@pytest.fixture(scope="session")
def capable() -> None:
    """What an engine of our own cannot do without; the reason is said where it is lacking."""
    if why := lacking():
        pytest.skip(why)


@pytest.fixture(scope="session")
def home(capable) -> Iterator[Path]:
    # Long, as a CI's folders may be: names of sockets must not have more than 107 bytes.
    with tempfile.TemporaryDirectory(prefix="kind-") as folder:
        home = Path(folder, "of-a-long-name-" * 8)
        home.mkdir()
        yield home


@pytest.fixture(scope="session")
def driver(home) -> Driver:
    found = Driver(home=home)
    for engine in ("docker", "podman"):
        done = found("prepare", "--provider", "kind", rc=None, KIND_EXPERIMENTAL_PROVIDER=engine)
        if done.returncode:  # told once a test: a few lines, not the way here
            pytest.fail(f"testbed prepare ({engine}) failed\n{done.stderr}", pytrace=False)
    return found
