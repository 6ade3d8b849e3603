"""Calls to a cluster that are made again after a blip.

An API server that restarts, a kubelet that is away, a monitor that is replaced: for
all of them a trial waits a while, since its pods run on meanwhile. Only calls that
may be made twice are given here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from testbed.errors import DeployError, TestbedError, WaitTimeout
from testbed.lab.kubetypes import ApiError, Unreachable

T = TypeVar("T")

#: How long a silence is taken for a blip.
BLIP_SECONDS = 60.0
PAUSE_SECONDS = 0.5


def passing(error: TestbedError) -> bool:
    """Tell whether an error may be gone at the next try."""
    if isinstance(error, ApiError):
        return error.status in (408, 429) or error.status >= 500
    # DeployError: a monitor or the extender does not answer; WaitTimeout: an exec that hung.
    return isinstance(error, Unreachable | DeployError | WaitTimeout)


class Patience:
    """Makes calls again for as long as a blip may take.

    Args:
        clock: Seconds.
        pause: Waits for seconds.
        tell: Told what is waited for.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        pause: Callable[[float], None],
        tell: Callable[[str], None] | None = None,
    ) -> None:
        self._clock, self._pause, self._tell = clock, pause, tell

    def __call__(self, call: Callable[[], T]) -> T:
        """Return what the call gives, once it does.

        Raises:
            TestbedError: it failed for longer than a blip, or for good.
        """
        since = self._clock()
        while True:
            try:
                return call()
            except TestbedError as error:
                waited = self._clock() - since
                if not passing(error) or waited > BLIP_SECONDS:
                    if waited > BLIP_SECONDS:
                        error.add_note(f"tried again for {waited:.0f} s")
                    raise
                if self._tell is not None:
                    self._tell(f"trying again: {error.what}")
                self._pause(PAUSE_SECONDS)
