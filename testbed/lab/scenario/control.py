"""What a run without the limiter must show (pure)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from testbed.lab.scenario.record import Check, Control


def _sure(check: Check) -> str:
    del check
    return ""


def control_of(checks: Sequence[Check], doubt: Callable[[Check], str] = _sure) -> Control:
    """Judge the checks of a control: what must fail without the limiter has failed.

    Args:
        checks: Made of the control's trial as they were of the run's.
        doubt: Returns why a check that failed may have failed for another reason than the
            missing limiter, nothing where it cannot have.
    """
    reasons = []
    for check in checks:
        what = check.name
        what += f" of {check.pod}" if check.pod else ""
        what += f" ({check.variant})" if check.variant else ""
        if check.verdict == "error":
            reasons.append(f"{what}: {check.reason}")
        elif check.control != "fail":
            continue
        elif check.verdict != "fail":
            reasons.append(f"{what} held")
        elif why := doubt(check):
            reasons.append(f"{what}: {why}")
    return Control(
        verdict="error" if reasons else "pass", checks=tuple(checks), reason="; ".join(reasons)
    )
