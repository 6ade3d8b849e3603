"""The kernel that a notebook runs in: who drives it, and what must not be passed over.

papermill 2.7 ends with 0 when a cell calls ``sys.exit(0)`` and when a shell line
fails, and only warns of a parameter that the notebook does not know. What can be
told from inside the kernel is told here, so that plain papermill fails as well.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from typing import Any

from testbed.errors import InputError, TestbedError, known_hint

#: First line of the cell that papermill injects (its Python translator's comment).
_INJECTED = "# Parameters"


class NotebookLeft(TestbedError):
    """A notebook was left before it came to a verdict."""


def current() -> Any | None:
    """Return IPython's shell, None in a plain Python program."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()  # type: ignore[no-untyped-call,unused-ignore]


def attended(shell: Any | None) -> bool:
    """Tell whether a person looks on: a front end that could answer a question.

    JupyterLab, VS Code and terminals let a cell ask (``allow_stdin`` of the Jupyter
    message ``execute_request``); papermill and nbconvert, which only execute, do not.
    """
    if shell is None:
        return False
    kernel = getattr(shell, "kernel", None)
    if kernel is None:
        return True  # IPython in a terminal
    try:
        request = kernel.get_parent("shell")
        return bool(request["content"]["allow_stdin"])
    except (AttributeError, KeyError, TypeError):
        return False


def injected_names(cells: Iterable[str]) -> list[str]:
    """Return the names that papermill's injected cells assign, of the cells run so far."""
    names: dict[str, None] = {}
    for cell in cells:
        if not cell.lstrip().startswith(_INJECTED):
            continue
        try:
            tree = ast.parse(cell)
        except SyntaxError:
            continue
        for statement in tree.body:
            targets = statement.targets if isinstance(statement, ast.Assign) else ()
            names.update((each.id, None) for each in targets if isinstance(each, ast.Name))
    return list(names)


def check_injected(shell: Any | None, known: Iterable[str]) -> None:
    """Refuse what papermill injected and nothing reads.

    Args:
        shell: IPython's shell.
        known: Names that the notebook hands on.

    Raises:
        InputError: names the unknown parameters; nothing has been started.
    """
    cells = [] if shell is None else [str(cell) for cell in shell.user_ns.get("In", ())]
    names = set(known)
    unknown = [name for name in injected_names(cells) if name not in names]
    if unknown:
        words = "parameter" if len(unknown) == 1 else "parameters"
        raise InputError(
            f"the notebook does not know the {words} {', '.join(unknown)}",
            why="papermill handed over what nothing reads",
            hint=known_hint(unknown[0], names, listed="it knows"),
        )


class Guard:
    """Makes an unattended notebook fail where papermill would not.

    Args:
        shell: IPython's shell.
        failed: Called once, with the error that ended a cell, of any kind.
    """

    def __init__(self, shell: Any, failed: Callable[[BaseException], None]) -> None:
        self._shell = shell
        self._failed: Callable[[BaseException], None] | None = failed
        self._system = shell.system
        _check_exit_code(shell, "an earlier shell line")
        shell.system = self._checked_system
        shell.events.register("post_run_cell", self._after_cell)

    def lift(self) -> None:
        """Let the notebook go: it has come to its verdict."""
        self._failed = None
        self._shell.system = self._system
        try:
            self._shell.events.unregister("post_run_cell", self._after_cell)
        except ValueError:  # lifted already
            return

    def _checked_system(self, command: str) -> Any:
        result = self._system(command)
        _check_exit_code(self._shell, f"`!{command}`")
        return result

    def _after_cell(self, result: Any) -> None:
        error = result.error_before_exec or result.error_in_exec
        if error is None:
            return
        if isinstance(error, SystemExit):
            code = "" if error.code is None else error.code
            left = NotebookLeft(
                f"the notebook was left by sys.exit({code})",
                why="there is no verdict before its last cell",
                hint="let it run to its end",
            )
            # papermill passes over SystemExit, and looks for further errors.
            result.error_in_exec = error = left
            self._shell.showtraceback((type(left), left, None))
        failed, self._failed = self._failed, None
        if failed is not None:
            failed(error)


def _check_exit_code(shell: Any, what: str) -> None:
    code = shell.user_ns.get("_exit_code", 0)
    if code:
        shell.user_ns["_exit_code"] = 0
        raise NotebookLeft(f"{what} ended with status {code}", hint="correct or remove the line")
