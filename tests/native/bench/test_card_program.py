"""The benchmark's program on an emulated card: what it prints, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.card import CardSpec, driver_root
from testbed.cli.main import app
from testbed.lab.bench.card import parse_time
from testbed.native import build


@pytest.fixture(scope="module")
def program() -> Path:
    return build.build(["emu", "runtime", "bench"]) / "vgpu-bench-card"


@pytest.fixture
def environ(program: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    monkeypatch.setenv("VGPU_TESTBED_NATIVE", str(program.parent))
    driver_root.make(tmp_path / "root", [CardSpec(count=1)])
    return {
        "PATH": os.environ["PATH"],
        "LD_LIBRARY_PATH": f"{tmp_path / 'root' / 'driver'}:{program.parent}",
        "VGPU_EMU_CARDS": str(tmp_path / "root" / "cards"),
    }


def run(
    program: Path, environ: dict[str, str], *arguments: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], env=environ, capture_output=True, text=True, timeout=180
    )


@pytest.mark.parametrize(
    "arguments",
    [("driver", "3", "50"), ("runtime", "3", "50"), ("alloc", "3", "50", "2097152")],
    ids=lambda value: value[0],
)
def test_a_line_a_batch(program: Path, environ: dict[str, str], arguments: tuple[str, ...]) -> None:
    done = run(program, environ, *arguments)
    assert (done.returncode, done.stderr) == (0, "")
    assert len([float(line) > 0 for line in done.stdout.split()]) == 3


def test_time(program: Path, environ: dict[str, str]) -> None:
    done = run(program, environ, "time", "0.1", "1000000")
    assert done.returncode == 0, done.stderr
    assert parse_time(done.stdout).modelled_ns == 1e8


@pytest.mark.parametrize("arguments", [(), ("driver", "3"), ("alloc", "3", "3"), ("x", "1", "1")])
def test_usage(program: Path, environ: dict[str, str], arguments: tuple[str, ...]) -> None:
    done = run(program, environ, *arguments)
    assert done.returncode == 2
    assert "usage" in done.stderr


def test_no_driver(program: Path, environ: dict[str, str]) -> None:
    del environ["LD_LIBRARY_PATH"]
    done = run(program, environ, "driver", "1", "1")
    assert done.returncode == 2
    assert "libcuda.so.1" in done.stderr


def test_more_memory_than_there_is(program: Path, environ: dict[str, str]) -> None:
    done = run(program, environ, "alloc", "1", "1", str(1 << 40))
    assert done.returncode == 2
    assert "error 2" in done.stderr


def test_command(environ: dict[str, str]) -> None:
    options = ["--no-torch", "--seconds", "0.1", "-o", "json"]
    done = CliRunner().invoke(app, ["bench", "card", "--card", "t4", *options])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    assert told["card"] == "t4"
    assert told["driver_launch_us"] > 0 and told["runtime_launch_us"] > 0
    assert told["alloc_free_us"] > 0
    assert told["first_tensor_s"] is None


@pytest.mark.parametrize("bad", [["--card", "t5"], ["--seconds", "0"]])
def test_bad_input(environ: dict[str, str], bad: list[str]) -> None:
    done = CliRunner().invoke(app, ["bench", "card", "--no-torch", *bad])
    assert done.exit_code == 2
    assert "error:" in done.output
    assert "to fix" in done.output or "did you mean" in done.output
