"""Waiting for a condition: a predicate, an error predicate and a deadline.

A wait tells what it sees only when that changes, and its time-out carries the last
status, so that a failure reads like a sentence and not like a log.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from testbed.errors import TestbedError, WaitTimeout

T = TypeVar("T")


def wait_until(
    what: str,
    observe: Callable[[], T],
    *,
    ready: Callable[[T], bool],
    timeout_s: float,
    failed: Callable[[T], TestbedError | None] | None = None,
    describe: Callable[[T], str] = str,
    transient: tuple[type[TestbedError], ...] = (),
    report: Callable[[str], None] | None = None,
    hint: str = "",
    interval_s: float = 0.2,
    clock: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> T:
    """Observe until the observation is ready and return it.

    Args:
        what: The condition as a clause, such as ``node n1 is Ready``.
        observe: Looks once. It bounds its own time.
        ready: Tells whether an observation ends the wait.
        timeout_s: Seconds until the wait gives up; at least one look is taken.
        failed: Returns the error to raise when waiting on is pointless.
        describe: An observation as one line.
        transient: Errors of ``observe`` that count as "not yet".
        report: Told the status when it differs from the one told before.
        hint: Added to the time-out.
        interval_s: Pause between looks.
        clock: Monotonic seconds.
        sleep: Waits for seconds.

    Raises:
        WaitTimeout: the deadline passed; the text holds the last status.
        TestbedError: what ``failed`` returned, or a non-transient error of ``observe``.
    """
    deadline = clock() + timeout_s
    told: str | None = None
    while True:
        try:
            seen = observe()
        except transient as error:
            status = error.what if not error.why else f"{error.what}: {error.why}"
        else:
            if ready(seen):
                return seen
            problem = failed(seen) if failed is not None else None
            if problem is not None:
                raise problem
            status = describe(seen)
        if status != told:
            told = status
            if report is not None:
                report(status)
        left = deadline - clock()
        if left <= 0:
            raise WaitTimeout(
                f"gave up waiting after {timeout_s:g} s until {what}",
                why=f"last seen: {status}",
                hint=hint,
            )
        sleep(min(interval_s, left))
