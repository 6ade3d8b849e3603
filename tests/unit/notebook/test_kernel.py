"""What is told of the kernel: who looks on, what papermill injected, how a cell ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from testbed.errors import InputError
from testbed.lab import kernel


def shell(allow_stdin: Any = None, *, cells: tuple[str, ...] = (), **names: Any) -> Any:
    found = SimpleNamespace(user_ns={"In": ["", *cells], **names}, shown=[])
    if allow_stdin is not None:
        request = {"content": {"allow_stdin": allow_stdin}}
        found.kernel = SimpleNamespace(get_parent=lambda channel: request)
    found.hooks = []
    found.events = SimpleNamespace(
        register=lambda event, hook: found.hooks.append(hook),
        unregister=lambda event, hook: found.hooks.remove(hook),
    )
    found.codes = []

    def system(command: str) -> None:
        found.user_ns["_exit_code"] = found.codes.pop(0)

    found.system = system
    found.showtraceback = lambda error: found.shown.append(error[1])
    return found


def ended(error: BaseException | None = None, before: BaseException | None = None) -> Any:
    return SimpleNamespace(error_in_exec=error, error_before_exec=before)


def test_who_looks_on() -> None:
    assert kernel.attended(shell(True))
    assert not kernel.attended(shell(False))
    assert not kernel.attended(None)
    assert kernel.attended(shell())  # a terminal
    silent = shell(True)
    silent.kernel = SimpleNamespace(get_parent=lambda channel: {})
    assert not kernel.attended(silent)


@pytest.mark.parametrize(
    ("cells", "names"),
    [
        (["x = 1", "# Parameters\na = 1\nb = {'c': 2}\n"], ["a", "b"]),
        (["# Parameters\n", "# other\ny = 1"], []),
        (["# Parameters\na = = 1"], []),
        ([], []),
    ],
)
def test_injected_names(cells: list[str], names: list[str]) -> None:
    assert kernel.injected_names(cells) == names


def test_an_injected_name_that_nothing_reads_is_refused() -> None:
    found = shell(False, cells=("# Parameters\nallocator = 1\npods = 2\n",))
    kernel.check_injected(found, ["pods", "allocator"])
    with pytest.raises(InputError, match=r"parameter allocator.*\n.*did you mean allocators"):
        kernel.check_injected(found, ["pods", "allocators"])
    kernel.check_injected(None, [])


def test_a_failing_shell_line_is_an_error_until_the_guard_is_lifted() -> None:
    found = shell(False)
    guard = kernel.Guard(found, lambda error: None)
    found.codes = [0, 3, 3]
    found.system("true")
    with pytest.raises(kernel.NotebookLeft, match="`!boom` ended with status 3"):
        found.system("boom")
    guard.lift()
    found.system("boom")
    assert found.hooks == []
    guard.lift()  # twice does no harm


def test_a_shell_line_that_failed_before_counts_once() -> None:
    found = shell(False, _exit_code=1)
    with pytest.raises(kernel.NotebookLeft, match="earlier shell line ended with status 1"):
        kernel.Guard(found, lambda error: None)
    assert found.hooks == []


@pytest.mark.parametrize("code", [0, None, "enough"])
def test_an_exit_becomes_an_error_that_papermill_sees(code: Any) -> None:
    found, told = shell(False), []
    kernel.Guard(found, told.append)
    (hook,) = found.hooks
    result = ended(SystemExit(code))
    hook(result)
    assert isinstance(result.error_in_exec, kernel.NotebookLeft)
    assert found.shown == told == [result.error_in_exec]
    hook(ended(ValueError("later")))
    assert len(told) == 1


def test_a_failed_cell_is_told_once_and_a_good_one_never() -> None:
    found, told = shell(False), []
    kernel.Guard(found, told.append)
    (hook,) = found.hooks
    hook(ended())
    assert told == []
    syntax = SyntaxError("x")
    hook(ended(before=syntax))
    assert told == [syntax] and found.shown == []


def test_our_errors_are_one_message_in_a_notebook() -> None:
    error = InputError("no such card", why="x", hint="y")
    assert error._render_traceback_() == ["InputError: no such card: x\n  to fix: y"]
