"""Each run has a folder of its own, and a report whatever happens."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from testbed.errors import ClusterError, InputError
from testbed.lab.scenario import run
from testbed.lab.scenario.cases import find_cases, load_parameters, load_question

from .conftest import ROOT


def test_runs_of_the_same_second_do_not_share_a_folder(tmp_path: Path) -> None:
    made = [run.run_folder(tmp_path / "runs") for _ in range(5)]
    assert len(set(made)) == 5 and all(each.is_dir() for each in made)


@pytest.mark.parametrize("runs", ["/proc/x", "/dev/null", "/dev/null/x"])
def test_a_place_that_cannot_be_written_is_named(runs: str) -> None:
    with pytest.raises(InputError, match=f"cannot be written to {runs}"):
        run.run_folder(Path(runs))


def test_a_testbed_that_stays_out_of_order_ends_the_run_with_a_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [case] = find_cases(ROOT / "scenarios", ("co_location/a100-example",))
    folder = run.run_folder(tmp_path)
    monkeypatch.setattr(run, "check_case", lambda case, notebook: {})
    monkeypatch.setattr(run, "run_case", lambda case, **_: run._no_record(case, {}, "boom"))

    def after_error() -> None:
        raise ClusterError("the API server is away")

    report = run.run_cases(
        (case, case),
        notebooks=tmp_path,
        testbed="x",
        folder=folder,
        timeout_seconds=1,
        show=print,
        after_error=after_error,
    )
    assert [each.verdict for each in report.cases] == ["error", "error"]
    assert "API server is away" in report.cases[1].reason
    assert json.loads((tmp_path / "latest/report.json").read_text())["verdict"] == "error"


def test_rounds_have_folders_of_their_own_and_the_worst_verdict_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [case] = find_cases(ROOT / "scenarios", ("co_location/a100-example",))
    folder = run.run_folder(tmp_path)
    monkeypatch.setattr(run, "check_case", lambda case, notebook: {})
    verdicts, places, told = iter(["pass", "fail", "pass"]), [], []

    def one(case, *, folder, **_):
        places.append(folder)
        return msgspec.structs.replace(run._no_record(case, {}, ""), verdict=next(verdicts))

    monkeypatch.setattr(run, "run_case", one)
    report = run.run_cases(
        (case,),
        notebooks=tmp_path,
        testbed="x",
        folder=folder,
        timeout_seconds=1,
        show=print,
        after_error=lambda: None,
        repeat=3,
        began=lambda case, number: told.append(number),
    )
    assert [each.verdict for each in report.cases] == ["pass", "fail", "pass"]
    assert report.verdict == "fail"
    assert len(set(places)) == 3 and told == [1, 2, 3]


def test_files_that_are_none_are_named(tmp_path: Path) -> None:
    case = tmp_path / "case.yaml"
    for content in (b"\xff\xfe\x00", b": : {", b"[1]"):
        case.write_bytes(content)
        with pytest.raises(InputError, match=r"case\.yaml"):
            load_parameters(case)
    (tmp_path / "question.py").write_text("1 / 0")
    for _ in range(2):
        with pytest.raises(InputError, match=r"question\.py cannot be loaded.*division by zero"):
            load_question(tmp_path)


def test_the_command_that_runs_the_same_again() -> None:
    cases = find_cases(ROOT / "scenarios", ("co_location/a100-example",))
    assert run.command_for(cases) == "testbed run co_location/a100-example"
    options = {"cards": "a100-80gb:2;t4", "nodes": None}
    assert run.command_for(cases, 3, options) == (
        "testbed run co_location/a100-example --repeat=3 '--cards=a100-80gb:2;t4'"
    )


def test_each_line_of_a_file_is_shown_once_and_whole(tmp_path: Path) -> None:
    shown: list[str] = []
    path = tmp_path / "log"
    with run._tail(path, shown.append), path.open("a") as file:
        for text in ("one\ntw", "o\n", "\xe9\n", "no end"):
            file.write(text)
            file.flush()
    assert shown == ["one", "two", "é"]
