"""What every form of a report says of a record, worked out once.

Pure: values in, values out; each form only writes them down in its own way.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from testbed.lab.scenario.record import Check, Record, Report, Verdict

#: Names as people read them; those of other programs keep theirs.
ENVIRONMENT = {
    "provider": "cluster",
    "card": "card",
    "kubernetes": "Kubernetes",
    "torch": "PyTorch",
    "stack": "sharing stack",
    "shim": "library in the pods",
    "python": "Python",
    "host": "host",
    "load": "load",
}
#: XML 1.0, production 2: what is none of these can stand in no XML and in no HTML,
#: escaped or not. Logs hold escape sequences, and file names half characters.
_UNPRINTABLE = re.compile(r"[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_WORST_FIRST: Mapping[str, int] = {"error": 0, "fail": 1, "pass": 2, "skipped": 3}


def figure(value: float | str | None, unit: str = "") -> str:
    """Return one figure for people; a dash where there is none."""
    if value is None or value == "":
        return "-"
    if isinstance(value, str):
        return value
    text = f"{value:,.1f}".removesuffix(".0")
    return f"{text} {unit}".strip()


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A check beside its control.

    Attributes:
        check: Of the run with the limiter; None where only the control made it.
        control: The same check in the control run, None where it was not made there.
        must: What the control must answer, None where it is not asked.
    """

    check: Check | None
    control: Check | None
    must: Verdict | None

    @property
    def shown(self) -> Check:
        """The check that names the line."""
        found = self.check or self.control
        assert found is not None
        return found

    @property
    def control_holds(self) -> bool | None:
        """Whether the control answered as it must; None where it is not asked."""
        if self.must is None:
            return None
        return self.control is not None and self.control.verdict == self.must


def lines(record: Record) -> tuple[Line, ...]:
    """Return every check beside its control, the worst verdicts first."""
    others = {} if record.control is None else {c.identity: c for c in record.control.checks}
    found, asserts = [], record.asserts_limit
    for check in record.checks:
        control = others.pop(check.identity, None)
        found.append(Line(check=check, control=control, must=must(check, control, asserts)))
    found.sort(key=lambda line: _WORST_FIRST[line.shown.verdict])
    rest = [
        Line(check=None, control=control, must=must(control, control, asserts))
        for control in others.values()
    ]
    return (*found, *rest)


def must(check: Check, control: Check | None, asserts_limit: bool) -> Verdict | None:
    """Return what the control must answer: as the check says, else a limit must fail."""
    if check.control == "any":
        return None
    if check.control:
        return check.control
    return "fail" if control is not None and asserts_limit else None


def counts(record: Record) -> dict[Verdict, int]:
    """Return how many checks of a record came to each verdict."""
    found: dict[Verdict, int] = {"pass": 0, "fail": 0, "error": 0, "skipped": 0}
    for check in record.checks:
        found[check.verdict] += 1
    return found


def counted(record: Record) -> str:
    """Return the counts as words, ``16 passed, 2 skipped``."""
    words: dict[Verdict, str] = {
        "error": "errors",
        "fail": "failed",
        "pass": "passed",
        "skipped": "skipped",
    }
    named = [
        f"{number} {'error' if verdict == 'error' and number == 1 else words[verdict]}"
        for verdict in words
        if (number := counts(record)[verdict])
    ]
    return ", ".join(named) or "no checks"


def control_text(record: Record) -> str:
    """Return what the control showed, in a sentence without its full stop."""
    control = record.control
    if control is None:
        return "no control was run" if record.asserts_limit else "not needed: no limit is asserted"
    asked = [line for line in lines(record) if line.must is not None]
    held = sum(bool(line.control_holds) for line in asked)
    if control.verdict == "pass":
        if not asked:
            return "answered as it must"
        if all(line.must == "fail" for line in asked):
            return f"without the limiter {held} of {len(asked)} limit checks fail, as they must"
        return f"in the control {held} of {len(asked)} checks answer as they must"
    return f"proves nothing: {control.reason or f'{held} of {len(asked)} answer as they must'}"


def summary(report: Report) -> str:
    """Return a run's outcome in a sentence without its full stop."""
    total = len(report.cases)
    if not total:
        return "no case was run"
    cases = "the case" if total == 1 else f"all {total} cases"
    if report.verdict == "pass":
        skipped = sum(record.verdict == "skipped" for record in report.cases)
        if skipped:
            return f"{total - skipped} of {total} cases held, {skipped} checked nothing"
        return f"{cases} held"
    if report.verdict == "skipped":
        return f"{cases} checked nothing: every check was skipped"
    failed = sum(record.verdict == "fail" for record in report.cases)
    broken = sum(record.verdict == "error" for record in report.cases)
    words = []
    if failed:
        words.append(f"{failed} of {total} cases failed")
    if broken:
        words.append(f"{broken} of {total} cases came to no verdict")
    return ", ".join(words)


def measured(check: Check) -> str:
    """Return what was measured, for a sentence: the workload's figure, and the card's."""
    parts = []
    if check.workload is not None:
        parts.append(f"workload {figure(check.workload, check.unit)}")
    if check.card is not None:
        parts.append(f"card {figure(check.card, check.unit)}")
    return ", ".join(parts) or "-"


def tolerance(check: Check) -> str:
    """Return a check's tolerance, a dash where it has none."""
    if check.tolerance is None:
        return "-"
    if check.tolerance:
        return f"± {figure(check.tolerance, check.unit)}"
    # What is asked in seconds is a deadline: sooner is no fault.
    return "at most" if check.unit == "s" else "exact"


def title(check: Check) -> str:
    """Return a check's name with whatever tells it from others of that name."""
    details = ", ".join(part for part in (check.pod, check.variant) if part)
    return f"{check.name} [{details}]" if details else check.name


def environment(record: Record) -> list[tuple[str, str]]:
    """Return the environment as label and value, without what is not known."""
    return [
        (label, getattr(record.environment, name))
        for name, label in ENVIRONMENT.items()
        if getattr(record.environment, name)
    ]


def duration(seconds: float) -> str:
    """Return a time for people: ``46 s``, ``3 min 12 s``."""
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s" if seconds < 10 else f"{whole} s"
    return f"{whole // 60} min {whole % 60} s"


def moment(started: str) -> str:
    """Return a time stamp for people; what is none stays as it is."""
    day, _, rest = started.partition("T")
    time, _, zone = rest.partition("+")
    return f"{day} {time} UTC" if time and zone == "00:00" else started


def flat(parameters: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Return nested parameters as ``pods.a.gpumem`` and text."""
    found: list[tuple[str, str]] = []
    for name, value in parameters.items():
        if isinstance(value, Mapping):
            found += flat(value, f"{prefix}{name}.")
        elif isinstance(value, (list, tuple)):
            found.append((f"{prefix}{name}", ", ".join(str(each) for each in value)))
        else:
            found.append((f"{prefix}{name}", str(value)))
    return found


def printable(text: str) -> str:
    """Return text with a replacement character for each that no document may hold."""
    return _UNPRINTABLE.sub("\ufffd", text)
