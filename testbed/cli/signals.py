"""What ends a command: each end signal unwinds it once, so that it cleans up after itself."""

from __future__ import annotations

import os
import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_AGAIN = b"already ending: what was started is being taken down\n"


def install() -> None:
    """Turn the first signal into ``KeyboardInterrupt``; later ones only say so.

    A second Ctrl-C, or the SIGTERM that a CI system sends after its SIGINT, would
    otherwise stop the clean-up half-way. The clean-up is bounded, and SIGKILL ends
    it: the next command clears what that leaves.
    """
    for each in _SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:  # nohup
            signal.signal(each, _first)


def _first(number: int, frame: FrameType | None) -> None:
    del number, frame
    for each in _SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _later)
    raise KeyboardInterrupt


def _later(number: int, frame: FrameType | None) -> None:
    del number, frame
    os.write(2, _AGAIN)
