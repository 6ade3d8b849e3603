"""Cases on disk: ``scenarios/<question>/<case>.yaml`` beside ``question.py``."""

from __future__ import annotations

import fnmatch
import importlib.util
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import msgspec.inspect
import yaml

from testbed.errors import InputError, known_hint
from testbed.lab.scenario.question import Question


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One parameter file of a question."""

    question: str
    name: str
    path: Path

    def __str__(self) -> str:
        return f"{self.question}/{self.name}"

    @property
    def folder(self) -> Path:
        """The question's folder."""
        return self.path.parent


def scenarios_root() -> Path:
    """Return the ``scenarios`` folder: of the environment, or above this folder.

    Raises:
        InputError: there is none.
    """
    configured = os.environ.get("VGPU_TESTBED_SCENARIOS")
    if configured:
        return Path(configured)
    for folder in (Path.cwd(), *Path.cwd().parents):
        if (folder / "scenarios").is_dir():
            return folder / "scenarios"
    raise InputError(
        f"no scenarios folder in {Path.cwd()} or above", hint="run this in a clone of the project"
    )


def find_cases(root: Path, patterns: tuple[str, ...] = ("*",)) -> tuple[Case, ...]:
    """Return the cases whose ``question/case`` matches one of the patterns.

    A pattern may be a glob (``co_location/*``), a question's name alone, or the path
    of a parameter file.

    Raises:
        InputError: there are no scenarios below ``root``, or a pattern matches none.
    """
    every = tuple(
        Case(question=path.parent.name, name=path.stem, path=path)
        for path in sorted(root.glob("*/*.yaml"))
        if (path.parent / "question.py").exists()
    )
    if not every:
        raise InputError(f"no scenarios below {root}", hint="run this in a clone of the project")
    found: dict[str, Case] = {}
    for pattern in patterns:
        wanted = pattern.removesuffix(".yaml").removeprefix(f"{root.name}/")
        matches = [
            case
            for case in every
            if fnmatch.fnmatchcase(str(case), wanted)
            or case.question == wanted
            or Path(pattern).absolute() == case.path.absolute()
            or wanted == "*"
        ]
        if not matches and Path(pattern).is_file():
            raise InputError(
                f"{pattern} lies beside no question",
                why="a parameter file is a case of the question in whose folder it lies",
                hint=f"move it to one of "
                f"{', '.join(sorted({str(case.folder) for case in every}))}, as NAME.yaml",
            )
        if not matches:
            raise _unknown(pattern, wanted, every)
        found.update((str(case), case) for case in matches)
    return tuple(found.values())


def _unknown(pattern: str, wanted: str, every: tuple[Case, ...]) -> InputError:
    """Return the error for a pattern that matches no case: what could have been meant."""
    mine = [str(case) for case in every if case.question == wanted.partition("/")[0]]
    if not mine and Path(pattern).suffix in (".yaml", ".yml"):
        return InputError(
            f"there is no parameter file {pattern}",
            hint=f"`testbed ls` lists those that there are, such as {every[0].path}",
        )
    return InputError(
        f"no case matches {pattern!r}",
        hint=known_hint(wanted, mine or map(str, every), listed="`testbed ls` lists them:"),
    )


def load_question(folder: Path) -> Question:
    """Import ``question.py`` of a folder and return its ``QUESTION``.

    Raises:
        InputError: there is no such file or it defines no question.
    """
    path = folder / "question.py"
    name = f"scenarios_{folder.name}_question"
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path):
        module = sys.modules[name]
    else:
        _forget(name)
        spec = importlib.util.spec_from_file_location(
            # A package, so that a question may lie in several files of its folder.
            name,
            path,
            submodule_search_locations=[str(folder)],
        )
        if spec is None or spec.loader is None or not path.exists():
            raise InputError(f"there is no question in {folder}", why=f"{path} does not exist")
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            _forget(name)
            raise InputError(
                f"{path} cannot be loaded", why=f"{type(error).__name__}: {error}"
            ) from error
    question = getattr(module, "QUESTION", None)
    if question is None:
        raise InputError(f"{path} defines no QUESTION")
    return question  # type: ignore[no-any-return]


def _forget(name: str) -> None:
    """Unload a question and the files that it is made of."""
    for module in [m for m in sys.modules if m == name or m.startswith(f"{name}.")]:
        del sys.modules[module]


def load_parameters(path: Path) -> dict[str, Any]:
    """Return a parameter file as a mapping.

    Raises:
        InputError: not readable, not YAML, or not a mapping.
    """
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:  # ValueError: not even text
        raise InputError(f"{path} cannot be read", why=str(error)) from error
    if not isinstance(document, dict):
        raise InputError(f"{path} is not a parameter file", why="it holds no mapping")
    return document


def checked_parameters(question: Question, values: dict[str, Any]) -> Any:
    """Return the question's parameters from plain values.

    Raises:
        InputError: an unknown name, a missing or mistyped value, or an impossible
            combination, before anything runs.
    """
    try:
        parameters = msgspec.convert(values, question.parameters)
    except msgspec.ValidationError as error:
        raise InputError(
            f"the parameters do not fit the question {question.name}",
            why=str(error),
            hint="allowed: " + _names(msgspec.inspect.type_info(question.parameters)),
        ) from error
    question.validate(parameters)
    return parameters


def _names(shape: msgspec.inspect.Type) -> str:
    """Return the names that a shape has, those of the shapes in it in braces.

    Where only some values can be, they stand there: ``policy {default | force}``.
    """
    if isinstance(shape, msgspec.inspect.LiteralType):
        return " | ".join(map(str, shape.values))
    if isinstance(shape, msgspec.inspect.CollectionType):
        return _names(shape.item_type)
    if isinstance(shape, msgspec.inspect.StructType):
        inner = [(field.encode_name, _names(field.type)) for field in shape.fields]
        return ", ".join(f"{name} {{{names}}}" if names else name for name, names in inner)
    if isinstance(shape, msgspec.inspect.DictType):
        return _names(shape.value_type)
    return ""
