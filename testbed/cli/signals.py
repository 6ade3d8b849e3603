"""What ends a command: each end signal unwinds it once, so that it cleans up after itself."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
#: How soon an interrupt that came in the middle of an import is tried again.
_AGAIN_S = 0.01
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
    # The launcher (tools/setup-venv) holds them back while Python starts.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Let the body, a clean-up, come to its end; what would have ended it does so then."""
    before = {each: signal.getsignal(each) for each in _SIGNALS}
    waiting: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        waiting.append(number)
        _later(number, frame)

    for each in _SIGNALS:
        if before[each] is _first:
            signal.signal(each, note)
    try:
        yield
    finally:
        for each in _SIGNALS:
            if before[each] is _first:
                signal.signal(each, _later if waiting else _first)
    if waiting:
        raise KeyboardInterrupt


def _first(number: int, frame: FrameType | None) -> None:
    del number
    if _importing(frame):
        # Libraries swallow what is raised while they are imported; an import is soon over.
        signal.signal(signal.SIGALRM, _first)
        signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)
        return
    for each in _SIGNALS:
        if signal.getsignal(each) is not signal.SIG_IGN:
            signal.signal(each, _later)
    raise KeyboardInterrupt


def _importing(frame: FrameType | None) -> bool:
    """Whether what was interrupted is, or was called by, the import of a module."""
    while frame is not None:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _later(number: int, frame: FrameType | None) -> None:
    del number, frame
    os.write(2, _AGAIN)
