"""The record of a case and the report of a run: schema and verdict arithmetic.

The verdict of a case is this record, written by the notebook's last cell, and
never an exit code: papermill ends with 0 in four ways in which nothing was
checked (nteract/papermill, 2.7.0).
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Literal

import msgspec

from testbed.errors import InputError

SCHEMA: Final = "vgpu-testbed.dev/record/v1"
REPORT_SCHEMA: Final = "vgpu-testbed.dev/report/v1"

Verdict = Literal["pass", "fail", "skipped", "error"]

_RANK: dict[str, int] = {"skipped": 0, "pass": 1, "fail": 2, "error": 3}
EXIT_CODES: dict[str, int] = {"pass": 0, "fail": 1, "skipped": 1, "error": 2}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst of error > fail > pass > skipped; nothing at all is error."""
    ordered = sorted(verdicts, key=_RANK.__getitem__)
    return ordered[-1] if ordered else "error"


class Check(msgspec.Struct, frozen=True, kw_only=True):
    """One comparison of what was asked, what the workload saw, what the card saw."""

    name: str  # a stable word: memory_cap, visible_size, card_bytes, …
    verdict: Verdict
    pod: str = ""
    variant: str = ""  # which of several ways, such as the allocator
    asked: float | str | None = None
    workload: float | str | None = None
    card: float | str | None = None
    tolerance: float | None = None
    unit: str = ""
    source: str = ""  # where the card's figure came from
    reason: str = ""  # why it failed, was skipped or could not be judged
    #: What the same check must answer in the control; ``any``: either will do; empty:
    #: nothing is said, and a limit's check that the control makes must fail there.
    control: Literal["", "fail", "pass", "any"] = ""

    @property
    def identity(self) -> tuple[str, str, str]:
        """What names the check within its run; a control's check has the same."""
        return (self.name, self.pod, self.variant)


class Control(msgspec.Struct, frozen=True, kw_only=True):
    """The same pods without the limiter. ``pass`` means: it failed where it must."""

    verdict: Verdict
    checks: tuple[Check, ...] = ()
    reason: str = ""


class Environment(msgspec.Struct, frozen=True, kw_only=True):
    provider: str
    card: str
    kubernetes: str
    torch: str
    stack: str
    shim: str
    python: str = ""
    host: str = ""  # kernel, processors and memory of the machine that ran it
    load: str = ""  # of that machine: programs that wanted to run, the most over a minute


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """What one case found."""

    case: str  # question/case
    verdict: Verdict
    asserts_limit: bool
    checks: tuple[Check, ...]
    control: Control | None
    environment: Environment
    started: str  # RFC 3339, UTC
    seconds: float
    artifacts: dict[str, str] = {}
    parameters: dict[str, Any] = {}
    reason: str = ""
    title: str = ""  # the question in a sentence
    meanings: dict[str, str] = {}  # a sentence for each check's name
    schema: Literal["vgpu-testbed.dev/record/v1"] = SCHEMA


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What ``testbed run -o json`` prints and ``runs/latest/report.json`` holds."""

    verdict: Verdict
    cases: tuple[Record, ...]
    started: str = ""  # RFC 3339, UTC
    seconds: float = 0.0
    reproduce: str = ""  # the command that runs the same again
    schema: Literal["vgpu-testbed.dev/report/v1"] = REPORT_SCHEMA


def case_verdict(
    checks: Iterable[Check],
    control: Control | None,
    *,
    asserts_limit: bool,
    budget_hits: int = 0,
) -> Verdict:
    """Return the verdict of a case from its checks and its control.

    No checks, or a limit asserted without a control that was run and failed as it
    must, is ``error``. So is a case in which an emulated card refused something for
    want of the host's memory: to the workload that looked like the card's own limit.
    """
    verdicts = [check.verdict for check in checks]
    if not verdicts or budget_hits:
        return "error"
    if asserts_limit:
        if control is None:
            return "error"
        # A control that does not fail where it must proves nothing: neither pass nor fail.
        if control.verdict != "pass":
            return "error"
    return worst(verdicts)


def plain(parameters: Any) -> dict[str, Any]:
    """Return a question's parameters as a file would hold them: mappings, lists, scalars."""
    found: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(parameters))
    return found


def no_verdict(
    case: str, reason: str, *, asserts_limit: bool, parameters: dict[str, Any] | None = None
) -> Record:
    """Return the record of a case that came to no verdict."""
    return Record(
        case=case,
        verdict="error",
        asserts_limit=asserts_limit,
        checks=(),
        control=None,
        environment=Environment(provider="", card="", kubernetes="", torch="", stack="", shim=""),
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=0.0,
        parameters=parameters or {},
        reason=reason,
    )


def budget_reason(hits: int) -> str:
    """Return why a case with refusals by the host's memory budget is an error."""
    if not hits:
        return ""
    return (
        f"the emulated card refused {hits} times for want of the host's memory"
        " (VGPU_EMU_MEMORY_BUDGET raises its budget, with the next `testbed up`)"
    )


def read_record(path: Path) -> Record:
    """Return a record file.

    Raises:
        InputError: missing or not of this schema.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Record)
    except OSError as error:
        raise InputError(f"record {path} cannot be read", why=str(error)) from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise InputError(f"{path} is not a record", why=str(error)) from error


def write_json(path: Path, value: Record | Report) -> None:
    """Write a record or report atomically, indented for people."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    temporary.replace(path)
