"""The notebooks as they lie in the repository: they show and compute nothing."""

from __future__ import annotations

import ast
import json

import pytest

from testbed.lab.notebook import label_of
from testbed.lab.scenario.cases import (
    checked_parameters,
    find_cases,
    load_parameters,
    load_question,
)
from testbed.lab.scenario.run import RUNNER_PARAMETERS, check_case, notebook_parameters

from .conftest import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
COMPUTING = (
    ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda, ast.For, ast.While,
    ast.If, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp,
)  # fmt: skip


def code_cells(notebook):
    return [c for c in json.loads(notebook.read_text())["cells"] if c["cell_type"] == "code"]


def defaults(notebook):
    """Return what the parameters cell assigns."""
    cells = (c for c in code_cells(notebook) if "parameters" in c["metadata"].get("tags", ()))
    return {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse("".join(next(cells)["source"])).body
    }


def test_there_is_one_for_every_question():
    questions = {case.question for case in find_cases(ROOT / "scenarios")}
    assert {notebook.stem for notebook in NOTEBOOKS} == questions


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_cells_are_few_stripped_and_compute_nothing(notebook):
    assert len(json.loads(notebook.read_text())["cells"]) <= 10
    for cell in code_cells(notebook):
        assert cell["outputs"] == [] and cell["execution_count"] is None
        for node in ast.walk(ast.parse("".join(cell["source"]))):
            assert not isinstance(node, COMPUTING), ast.dump(node)
    assert "".join(code_cells(notebook)[-1]["source"]) == "experiment.record()"


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_parameter_reaches_the_question(notebook):
    fields = load_question(ROOT / "scenarios" / notebook.stem).parameters.__struct_fields__
    assert notebook_parameters(notebook) == {*fields, *RUNNER_PARAMETERS}
    (call,) = (
        node
        for cell in code_cells(notebook)
        for node in ast.walk(ast.parse("".join(cell["source"])))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "open_case"
    )
    handed = {keyword.arg: keyword.value.id for keyword in call.keywords}
    assert handed == {name: name for name in (*fields, "testbed", "run_folder")}
    assert [argument.id for argument in call.args] == ["case"]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_by_hand_it_runs_a_case_of_the_repository(notebook):
    given = defaults(notebook)
    (case,) = find_cases(ROOT / "scenarios", (given["case"],))
    values = load_parameters(case.path)
    assert {name: given[name] for name in values} == values


@pytest.mark.parametrize("case", find_cases(ROOT / "scenarios"), ids=str)
def test_plain_papermill_runs_each_case_as_itself(case):
    """What a file leaves out comes from the notebook there, from the question in a run."""
    notebook = ROOT / "notebooks" / f"{case.question}.ipynb"
    cells = (c for c in code_cells(notebook) if "parameters" in c["metadata"].get("tags", ()))
    values = {
        statement.targets[0].id: ast.literal_eval(statement.value)
        for statement in ast.parse("".join(next(cells)["source"])).body
    }
    label = values["case"]
    values = {name: value for name, value in values.items() if name not in RUNNER_PARAMETERS}
    question = load_question(case.folder)
    parameters = checked_parameters(question, {**values, **load_parameters(case.path)})
    assert label_of(label, question, parameters, ROOT / "scenarios") == str(case)


@pytest.mark.parametrize("case", find_cases(ROOT / "scenarios"), ids=str)
def test_every_case_fits_its_question_and_notebook(case):
    check_case(case, ROOT / "notebooks" / f"{case.question}.ipynb")


@pytest.mark.parametrize("case", find_cases(ROOT / "scenarios"), ids=str)
def test_by_papermill_alone_a_case_is_the_same(case):
    """papermill leaves what a file does not name as the notebook's cell has it."""
    handed = check_case(case, ROOT / "notebooks" / f"{case.question}.ipynb")
    alone = {
        **defaults(ROOT / "notebooks" / f"{case.question}.ipynb"),
        **load_parameters(case.path),
    }
    question = load_question(case.folder)
    whole = {name: alone[name] for name in handed}
    assert checked_parameters(question, handed) == checked_parameters(question, whole)
