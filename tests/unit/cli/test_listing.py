"""``testbed ls``: what a case asks for and needs, and why it cannot run."""

from __future__ import annotations

import json
import shutil

import pytest
from typer.testing import CliRunner

from testbed.cli.main import app
from testbed.lab.listing import cards_needed, listed
from testbed.lab.scenario.cases import find_cases

from ..scenario.conftest import ROOT


def case(name):
    (found,) = find_cases(ROOT / "scenarios", (f"co_location/{name}",))
    return found


def test_what_a_case_asks_for_and_needs():
    found = listed(case("a100-example"))
    assert found.pods_text == "a 30,720 MiB 50 %, b 20,480 MiB 30 %"
    assert found.needs_text == "1 card" and found.asserts_limit and not found.problem
    assert listed(case("two-cards")).pods_text == "a 2 cards 30,720 MiB 50 %"
    assert listed(case("two-containers")).pods_text == "a 20,480 MiB 40 % + 10,240 MiB 20 %"


def test_the_most_demanding_case_decides_the_cards():
    assert cards_needed((case("a100-example"),)) == 1
    assert cards_needed((case("a100-example"), case("two-cards"))) == 2


@pytest.fixture
def clone(tmp_path, monkeypatch):
    """A question with a case that runs and one that cannot."""
    folder = tmp_path / "scenarios" / "co_location"
    shutil.copytree(ROOT / "scenarios/co_location", folder)
    for path in folder.glob("*.yaml"):
        if path.stem != "a100-example":
            path.unlink()
    (folder / "typo.yaml").write_text("pods: {a: {gpumen: 4096}}\n")
    monkeypatch.setenv("VGPU_TESTBED_SCENARIOS", str(tmp_path / "scenarios"))


def test_a_case_that_cannot_run_is_listed_with_the_reason(clone):
    done = CliRunner().invoke(app, ["ls", "-o", "json"])
    found = {each["case"]: each for each in json.loads(done.stdout)}
    assert done.exit_code == 2
    assert found["co_location/a100-example"]["problem"] == ""
    assert "gpumen" in found["co_location/typo"]["problem"]
    shown = CliRunner().invoke(app, ["ls"]).stdout
    assert "! co_location/typo: the parameters do not fit" in shown


def test_patterns_choose(clone):
    done = CliRunner().invoke(app, ["ls", "co_location/a100*", "--json"])
    assert done.exit_code == 0
    assert [each["case"] for each in json.loads(done.stdout)] == ["co_location/a100-example"]
