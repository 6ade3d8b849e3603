"""The library's benchmark on an emulated card: parts of it for real, and what it refuses."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.native import build


@pytest.fixture(autouse=True)
def built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VGPU_TESTBED_NATIVE", str(build.build(["emu", "shim", "bench"])))


def test_the_race() -> None:
    """Nobody passes the cap with the library, and everybody does without it."""
    done = CliRunner().invoke(app, ["bench", "shim", "--part", "race", "--rounds", "200", "--json"])
    found = json.loads(done.stdout)
    assert "error" not in found, found
    assert found["cap_race"]["passed_cap"] == 0 and found["cap_race"]["refused"] > 0
    assert found["cap_race"]["most_mib"] <= found["cap_race"]["cap_mib"]
    assert found["control"]["cap_race"]["passed_cap"] > 0
    assert found["accuracy"] == [] and found["pair_30_70_ratio"] is None
    assert done.exit_code == 0, found["missed"]


@pytest.mark.slow
def test_a_pair() -> None:
    """The sizes of shares are the benchmark's affair: here it must tell the two apart."""
    arguments = ["bench", "shim", "--part", "accuracy", "--pattern", "pair-deep", "--limit", "30"]
    done = CliRunner().invoke(app, [*arguments, "--kernel", "1000", "--seconds", "2", "--json"])
    found = json.loads(done.stdout)
    (row,) = found["accuracy"]
    assert (row["limit_pct"], row["kernel_us"], row["seconds"]) == (30, 1000, 2.0)
    assert found["pair_30_70_ratio"] > 1.3 * found["control"]["pair_30_70_ratio"]


def test_a_library_that_does_nothing_holds_nothing(tmp_path: Path) -> None:
    """The control of the benchmark itself: with another library it says no."""
    empty = tmp_path / "empty.so"
    empty.write_bytes((Path("/lib/x86_64-linux-gnu/libm.so.6")).read_bytes())
    arguments = ["bench", "shim", "--part", "race", "--rounds", "50", "--shim", str(empty)]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    assert done.exit_code == 1
    found = json.loads(done.stdout)
    assert found["cap_race"]["passed_cap"] > 0 and found["missed"]


#: What a charge without a lock looks at once more, after it was written down.
SECOND_LOOK = "if (sum(used, beyond) > limits.memory[entry]) {"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two at once need two processors")
def test_a_library_that_looks_once_only_is_found(tmp_path: Path) -> None:
    """The control of the race: two who look at the same instant both see room for one."""
    native = Path(build.__file__).parent
    source = tmp_path / "shim"
    shutil.copytree(native / "shim", source)
    account = (source / "account.c").read_text()
    assert account.count(SECOND_LOOK) == 1
    never = SECOND_LOOK.replace("limits.memory[entry]", "UINT64_MAX - 1")
    (source / "account.c").write_text(account.replace(SECOND_LOOK, never))
    library = tmp_path / "once.so"
    flags = ["-std=c11", "-O1", "-fPIC", "-fvisibility=hidden", "-shared", "-Wl,-Bsymbolic"]
    flags += [f"-I{native / 'include'}", f"-Wl,--version-script={source / 'exports.map'}"]
    sources = [str(file) for file in source.glob("*.c")]
    subprocess.run(["gcc", *flags, *sources, "-o", str(library)], check=True, timeout=550)
    arguments = ["bench", "shim", "--part", "race", "--rounds", "400", "--shim", str(library)]
    done = CliRunner().invoke(app, [*arguments, "--json"])
    found = json.loads(done.stdout)
    assert done.exit_code == 1 and found["cap_race"]["passed_cap"] > 0
    assert found["cap_race"]["refused"] > 0  # it holds all but two at the same instant


def test_a_library_that_is_not_there() -> None:
    done = CliRunner().invoke(app, ["bench", "shim", "--shim", "/nowhere.so"])
    assert done.exit_code == 2
