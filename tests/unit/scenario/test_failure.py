"""What a record says when the notebook failed."""

from __future__ import annotations

import pytest

from testbed.lab.scenario.failure import last_error

HEAD = """Traceback (most recent call last):
  File "x.py", line 3, in f
    raise WaitTimeout(
papermill.exceptions.PapermillExecutionError:
Exception encountered at "In [3]":
"""


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        (
            "WaitTimeout: the pods did not end: a: Pending\n  to fix: look\n  see: /b\n\n",
            "the pods did not end: a: Pending\n  to fix: look\n  see: /b",
        ),
        ("RuntimeError: on fire", "RuntimeError: on fire"),
        (
            "nbclient.exceptions.DeadKernelError: Kernel died",
            "nbclient.exceptions.DeadKernelError: Kernel died",
        ),
        ("ImportError: no module\n\n  hint", "ImportError: no module\n  hint"),
    ],
)
def test_the_cause_comes_first(tail: str, expected: str) -> None:
    assert last_error(HEAD + tail) == expected


def test_a_log_without_an_error() -> None:
    assert last_error("") == ""
    assert last_error("something\nelse went wrong\n") == "else went wrong"
