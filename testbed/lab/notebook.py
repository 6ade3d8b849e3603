"""What the notebooks import: one line opens a case, everything is computed here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from testbed.errors import InputError
from testbed.lab import kernel
from testbed.lab.experiment import Experiment
from testbed.lab.scenario.cases import (
    checked_parameters,
    find_cases,
    load_parameters,
    load_question,
    scenarios_root,
)
from testbed.lab.scenario.question import Question
from testbed.lab.scenario.run import RUNNER_PARAMETERS
from testbed.lab.scenario.run import run_folder as new_folder
from testbed.lab.session import Session
from testbed.lab.testbed import Testbed

#: Label of parameters that no file of the question has.
CUSTOM = "custom"


def open_case(
    case: str, *, testbed: str = "vgpu", run_folder: str = "", **parameters: Any
) -> Experiment:
    """Open a case for a notebook; bring the testbed up if it is not.

    Args:
        case: ``question/case``; the case's name is a label, the parameters decide.
        testbed: Name of the testbed.
        run_folder: Where record and plot go; ``runs/<time>/<case>`` by default.
        parameters: The question's parameters.

    Raises:
        InputError: an unknown question, parameters that do not fit it, or one that
            papermill injected and the notebook does not know; nothing has been started.
        ClusterError, DeployError: the testbed cannot be brought up.
    """
    shell = kernel.current()
    kernel.check_injected(shell, [*parameters, *RUNNER_PARAMETERS])
    root = scenarios_root()
    question_name, _, label = case.partition("/")
    if not label:
        raise InputError(f"{case!r} is not a case", hint="write question/case")
    question = load_question(root / question_name)
    checked = checked_parameters(question, parameters)
    session = Session(shell)
    if not session.ruled:
        case = label_of(case, question, checked, root)
    wanted = Testbed(testbed)  # before the folder: a name that is none leaves nothing
    run = None if run_folder else new_folder(root.parent / "runs")
    folder = run / case if run is not None else Path(run_folder)
    return Experiment(
        question,
        root / question_name,
        checked,
        case,
        wanted,
        folder.absolute(),
        session,
        run=run,
    )


def label_of(case: str, question: Question, parameters: Any, root: Path) -> str:
    """Return the case that has these parameters.

    papermill's ``-f`` hands over a file's content without its name, so that the label
    may still be that of the notebook's own case.
    """
    files = {str(each): each for each in find_cases(root, (case.partition("/")[0],))}
    same = []
    for name, each in files.items():
        try:
            if checked_parameters(question, load_parameters(each.path)) == parameters:
                same.append(name)
        except InputError:
            continue  # another case's fault is not this one's
    if case in same or (not same and case not in files):
        return case
    return same[0] if same else f"{case.partition('/')[0]}/{CUSTOM}"
