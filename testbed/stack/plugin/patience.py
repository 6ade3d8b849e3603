"""How long an Allocate may take, and which failures of the API server are worth another try."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from testbed.stack.kubeapi import ApiError

#: kubelet sets Allocate no deadline, but the extender takes a pod's turn back 30 s after its
#: Binding or its last served container (``extender.turns.TURN_S``): then the next pod asks.
ALLOCATE_S = 20.0
#: Answers that no later try changes. Others, 401 and 403 among them, a server gives while
#: it starts.
_FOR_GOOD = frozenset({400, 404, 405, 413, 415, 422})
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
#: A call gets no less, so that the last one is not bound to fail.
_LEAST_S = 1.0


@dataclass(slots=True)
class Patience:
    """The time of one Allocate.

    Args:
        clock: Monotonic seconds.
        sleep: Waits.
        wanted: Whether somebody still waits for the answer.
    """

    clock: Callable[[], float]
    sleep: Callable[[float], object]
    wanted: Callable[[], bool]
    _end: float = field(init=False)
    _pause_s: float = field(init=False, default=_FIRST_PAUSE_S)

    def __post_init__(self) -> None:
        self._end = self.clock() + ALLOCATE_S

    def call_s(self) -> float:
        """Return the time for a call: half of what is left, so that another one follows it."""
        return max((self._end - self.clock()) / 2, _LEAST_S)

    def after(self, error: ApiError) -> bool:
        """Wait a little after a failure; False if another try is no use."""
        return error.status not in _FOR_GOOD and self.pause()

    def pause(self) -> bool:
        """Wait a little; False if there is no time, or nobody waits for the answer."""
        if not self.wanted() or self.clock() + self._pause_s >= self._end:
            return False
        self.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        return True
