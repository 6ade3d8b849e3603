"""One command at a time on one testbed."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

from testbed.errors import ClusterError

_POLL_S = 0.1


@contextlib.contextmanager
def locked(path: Path, what: str, *, deadline_s: float = 300.0) -> Iterator[None]:
    """Hold a lock file while the body runs; the file goes with the lock.

    Raises:
        ClusterError: another command holds it for too long, or the folder cannot be
            written.
    """
    until = time.monotonic() + deadline_s
    fd = take(path)
    while fd is None:
        if time.monotonic() > until:
            raise ClusterError(
                f"{what} is held by another testbed command",
                why=f"it has not ended within {deadline_s:.0f} s",
                hint="wait for it, or end it",
            )
        time.sleep(_POLL_S)
        fd = take(path)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(fd)


def held(path: Path) -> bool:
    """Tell whether somebody holds the lock now."""
    try:
        fd = os.open(path, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(fd)
    return False


def take(path: Path) -> int | None:
    """Return a descriptor that holds the lock of the file that is there now.

    Raises:
        ClusterError: the folder cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o755)
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except FileNotFoundError:  # the folder went in between
        return None
    except OSError as error:
        raise _unwritable(path.parent, error) from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if path.stat().st_ino == os.fstat(fd).st_ino:
            return fd
    except (BlockingIOError, FileNotFoundError):
        pass
    os.close(fd)  # held by another, or unlinked by its last holder
    return None


def _unwritable(folder: Path, error: OSError) -> ClusterError:
    return ClusterError(
        f"the state folder {folder} cannot be written",
        why=error.strerror or str(error),
        hint="point XDG_STATE_HOME at a folder of yours",
    )
