"""The workflow files that users copy: linted, pinned, and made of commands that there are."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from testbed.cli.main import app
from testbed.lab.cluster import AUTO, PROVIDERS

from .linter import built

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MODULE = Path(__file__).parent / "actionlint"
PACKAGE = "github.com/rhysd/actionlint/cmd/actionlint"


@pytest.fixture(scope="session")
def actionlint() -> Path:
    return built(MODULE, PACKAGE)


def lint(program: Path, file: Path) -> subprocess.CompletedProcess[str]:
    # What else is on the machine must not decide what is found.
    return subprocess.run(
        [program, "-no-color", "-shellcheck=", "-pyflakes=", file],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def steps(document: dict[str, Any]) -> list[dict[str, Any]]:
    return [step for job in document["jobs"].values() for step in job["steps"]]


def variants(text: str, document: dict[str, Any]) -> list[str]:
    """Return a step's text for each value of the matrix; other expressions become a word."""
    found = [text]
    for job in document["jobs"].values():
        for name, values in job.get("strategy", {}).get("matrix", {}).items():
            mark = f"${{{{ matrix.{name} }}}}"
            found = [each.replace(mark, str(value)) for each in found for value in values]
    return list(dict.fromkeys(re.sub(r"\$\{\{.*?\}\}", "word", each) for each in found))


def commands(document: dict[str, Any]) -> list[list[str]]:
    return [
        shlex.split(line, comments=True)
        for step in steps(document)
        for text in variants(step.get("run", ""), document)
        for line in text.replace("\\\n", " ").splitlines()
        if line.strip()
    ]


def problems_of_make(words: list[str], makefile: str) -> list[str]:
    """Return what a call of make names that the Makefile has not."""
    found = []
    for word in words[1:]:
        name, equals, _ = word.partition("=")
        if equals and not re.search(rf"^{re.escape(name)}\s*\?=", makefile, re.MULTILINE):
            found.append(f"no variable {name}")
        if not equals and not re.search(rf"^{re.escape(name)}:", makefile, re.MULTILINE):
            found.append(f"no target {name}")
    return found


def problems_of_testbed(words: list[str]) -> list[str]:
    """Return what a call of testbed names that the command line has not."""
    current: Any = typer.main.get_command(app)
    rest = words[1:]
    while rest and hasattr(current, "commands"):
        if rest[0] not in current.commands:
            return [f"no command {rest[0]}"]
        current, rest = current.commands[rest[0]], rest[1:]
    options = {name for each in current.params for name in (*each.opts, *each.secondary_opts)}
    found = []
    for place, word in enumerate(rest):
        if word.startswith("-") and word not in options:
            found.append(f"no option {word}")
        if word == "--provider" and rest[place + 1] not in (*PROVIDERS, AUTO):
            found.append(f"no provider {rest[place + 1]}")
    return found


def problems(document: dict[str, Any]) -> list[str]:
    makefile = (ROOT / "Makefile").read_text()
    found = []
    for words in commands(document):
        if words[0] == "make":
            found += problems_of_make(words, makefile)
            for word in words:
                if word.startswith("PROVIDER=") and word[9:] not in (*PROVIDERS, AUTO):
                    found.append(f"no provider {word[9:]}")
        elif words[0].endswith("testbed"):
            found += problems_of_testbed(words)
    return found


@pytest.mark.timeout(700)  # the linter may have to be built
@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_the_linter_finds_nothing(actionlint, file):
    done = lint(actionlint, file)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.timeout(700)
def test_the_linter_finds_something_where_there_is_something(actionlint, tmp_path):
    broken = tmp_path / "broken.yml"
    text = WORKFLOWS[0].read_text()
    broken.write_text(text.replace("matrix.provider }}", "matrix.providers }}", 1))
    done = lint(actionlint, broken)
    assert done.returncode == 1 and 'property "providers" is not defined' in done.stdout


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_actions_are_pinned_by_commit_and_say_their_version(file):
    used = re.findall(r"uses: *(\S+)(.*)", file.read_text())
    assert used
    for name, comment in used:
        assert re.fullmatch(r"[\w-]+/[\w/-]+@[0-9a-f]{40}", name), name
        assert re.fullmatch(r" # v\d+\.\d+\.\d+", comment), (name, comment)


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_every_command_is_one_that_there_is(file):
    document = yaml.safe_load(file.read_text())
    called = {words[0].rpartition("/")[2] for words in commands(document)}
    assert {"make", "testbed"} <= called
    assert problems(document) == []


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("make e2f", "no target e2f"),
        ("make e2e PROVIDR=kind", "no variable PROVIDR"),
        ("make e2e PROVIDER=minikube", "no provider minikube"),
        (".venv/bin/testbed docto", "no command docto"),
        (".venv/bin/testbed doctor --verbose", "no option --verbose"),
        (".venv/bin/testbed doctor --provider x", "no provider x"),
        (".venv/bin/testbed bench nothing", "no command nothing"),
    ],
)
def test_a_command_that_there_is_not_is_found(line, problem):
    assert problem in problems({"jobs": {"a": {"steps": [{"run": line}]}}})


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_what_a_cache_is_keyed_by_is_there(file):
    for step in steps(yaml.safe_load(file.read_text())):
        for names in re.findall(r"hashFiles\((.*?)\)", step.get("with", {}).get("key", "")):
            for pattern in re.findall(r"'(.*?)'", names):
                assert any(
                    path.is_file() for path in ROOT.glob(pattern + "/*" * pattern.endswith("**"))
                ), pattern


def test_the_page_for_other_systems_names_the_same_commands():
    page = (ROOT / "docs/ci.md").read_text()
    makefile = (ROOT / "Makefile").read_text()
    lines = re.findall(r"^\s*(?:- |sh ')?((?:make|\.venv/bin/testbed) [^'\n]+)", page, re.MULTILINE)
    assert len(lines) >= 4
    for line in lines:
        words = shlex.split(line, comments=True)
        found = (
            problems_of_make(words, makefile) if words[0] == "make" else problems_of_testbed(words)
        )
        assert found == [], line
