"""The pytest plugin's hooks, in sessions of their own; no cluster is brought up."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(600)  # sessions of pytest, on a busy machine

#: Pretends that testbeds are there, or cannot be; writes down what was asked for.
PRETENDED = """
import json, pathlib
import pytest
from testbed.errors import ClusterError
from testbed.lab.pytest_plugin import held
from testbed.lab.testbed import Testbed

ASKED = pathlib.Path(__file__).with_name("asked")

def note(*what):
    with ASKED.open("a") as file:
        file.write(json.dumps(what) + "\\n")

def join(name, spec, settings, progress, *, asked, tell):
    cards = spec.by_node()[0][0].profile
    note("join", cards, len(spec.by_node()), asked)
    if cards == "h200":
        raise ClusterError("it does not come up", why="of the weather", hint="wait for better")
    if cards == "t4" and settings.name:
        raise held.Unsuitable("not what this test needs", why="it has no T4")
    return Testbed(name, "process")

@pytest.fixture(autouse=True, scope="session")
def pretended():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(held, "join", join)
        patch.setattr(held, "runs", lambda name, settings: True)
        patch.setattr(held, "leave", lambda name, settings, progress: note("leave") or name)
        patch.setattr(held, "names", lambda settings: ())
        yield
"""

TESTS = """
import pytest

def test_usual(testbed):
    assert testbed.name

@pytest.mark.testbed(cards="t4:1")
def test_other(cluster):
    assert cluster.name == cluster.testbed.name

def test_usual_again(testbed):
    pass

@pytest.mark.testbed(cards="t4:1")
def test_other_again(testbed):
    pass

@pytest.mark.testbed(cards="h200:1", nodes=2)
def test_broken(testbed):
    pass
"""


@pytest.fixture
def session(tmp_path):
    """Runs pytest on the tests above, or on others."""

    def run(*arguments, conftest=PRETENDED, tests=TESTS, **variables):
        (tmp_path / "conftest.py").write_text(conftest)
        (tmp_path / "test_it.py").write_text(tests)
        (tmp_path / "asked").unlink(missing_ok=True)
        keep = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "VGPU_"))}
        return subprocess.run(
            [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments],
            cwd=tmp_path,
            env={**keep, "XDG_STATE_HOME": str(tmp_path / "state"), **variables},
            text=True,
            capture_output=True,
            timeout=250,
            check=False,
        )

    run.asked = lambda: (tmp_path / "asked").read_text().split("\n")[:-1]
    return run


def test_tests_of_one_need_share_one_testbed(session):
    done = session("-v")
    assert done.returncode == 1
    assert "4 passed" in done.stdout and "1 error" in done.stdout, done.stdout
    # Once each: those without a need come first, wherever they stand.
    assert session.asked() == [
        '["join", "a100-80gb", 1, false]',
        '["leave"]',
        '["join", "t4", 1, true]',
        '["leave"]',
        '["join", "h200", 2, true]',
    ]
    # The test's name does not change by its need.
    assert "test_it.py::test_other PASSED" in done.stdout


def test_an_error_is_told_in_its_words_without_our_code(session):
    text = session().stdout
    assert "it does not come up: of the weather\n  to fix: wait for better\n" in text
    assert "held" not in text and "raise ClusterError" not in text


def test_a_running_testbed_that_was_named_skips_what_it_cannot_serve(session):
    done = session("--testbed-name", "mine")
    assert re.search("2 passed, 2 skipped,.* 1 error", done.stdout), done.stdout
    assert "it has no T4" in done.stdout


def test_what_was_demanded_on_the_command_line_is_no_reason_to_skip(session):
    done = session("--testbed-name=mine", "--testbed-cards=t4:1", "-k", "usual")
    assert done.returncode == 1
    assert "2 errors" in done.stdout, done.stdout


def test_workers_leave_the_testbed_to_the_session(session):
    done = session("-n", "2", "-k", "usual or other")
    assert "4 passed" in done.stdout, done.stdout
    assert {line for line in session.asked() if "join" not in line} == set()


def test_what_stays_up_is_said(session):
    text = session("--testbed-keep", "-k", "usual").stdout
    assert "testbed pytest is left up   (testbed status --name pytest;" in text


@pytest.mark.parametrize("marker", ["'t4:1'", "card='t4:1'", "nodes='2'"])
def test_a_mistyped_marker_is_told_before_anything_runs(session, marker):
    tests = f"import pytest\n@pytest.mark.testbed({marker})\ndef test(testbed): pass\n"
    done = session(tests=tests)
    assert done.returncode != 0
    assert "@pytest.mark.testbed does not take" in done.stdout + done.stderr


def test_who_does_not_use_it_pays_nothing_and_can_leave_it_out(session):
    tests = """
import sys

def test_nothing_was_imported(pytestconfig):
    ours = {name for name in sys.modules if name.startswith("testbed")}
    package = {"testbed", "testbed.lab", "testbed.lab.pytest_plugin"}
    more = {"testbed.lab.pytest_plugin.plugin", "testbed.lab.pytest_plugin.settings"}
    assert ours <= package | more
    assert not {"kubernetes", "msgspec", "yaml"} & set(sys.modules)
"""
    done = session(conftest="", tests=tests)
    assert done.returncode == 0, done.stdout
    done = session("-p", "no:vgpu_testbed", conftest="", tests="def test(testbed): pass\n")
    assert "fixture 'testbed' not found" in done.stdout


def test_the_bare_package_says_what_is_missing(session):
    conftest = "import sys\nsys.modules['cryptography'] = None\n"
    done = session(conftest=conftest, tests="def test(testbed): pass\n")
    assert done.returncode == 1
    assert "to fix: pip install 'vgpu-testbed[pytest]'" in done.stdout, done.stdout
    assert "'cryptography' is not installed" in done.stdout


def test_help_names_options_fixtures_and_marker(session):
    text = session("--help", conftest="").stdout
    for option in ("provider", "name", "cards", "nodes", "keep", "timeout"):
        assert f"--testbed-{option}" in text
        assert f"testbed_{option}" in text
    assert (
        "@pytest.mark.testbed(cards=None, nodes=None)" in session("--markers", conftest="").stdout
    )
    fixtures = session("--fixtures", conftest="").stdout
    for name in ("testbed", "cluster", "cards", "submit"):
        assert f"\n{name}" in fixtures
