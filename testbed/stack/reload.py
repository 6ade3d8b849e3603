"""Values that follow the files they were read from.

Secrets and ConfigMaps are replaced under a running program (kubelet swaps a link).
The files are looked at when the value is asked for: no thread, and no delay.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)

_Stamp = tuple[tuple[int, int, int], ...]


class Reloading(Generic[T]):
    """A value made from files, made anew when one of them changes.

    A change that cannot be read (half written, wrong) is logged once and leaves the
    last good value in use.
    """

    def __init__(self, paths: tuple[Path, ...], make: Callable[[], T]) -> None:
        self._paths = paths
        self._make = make
        self._stamp = self._look()
        self._value = make()

    def get(self) -> T:
        """Return the value as the files have it now."""
        stamp = self._look()
        if stamp != self._stamp:
            self._stamp = stamp
            try:
                self._value = self._make()
            except Exception as error:  # noqa: BLE001 - whatever it is, the old value serves
                log.warning("kept the old %s: %s", ", ".join(map(str, self._paths)), error)
            else:
                log.info("read anew: %s", ", ".join(map(str, self._paths)))
        return self._value

    def _look(self) -> _Stamp:
        found = []
        for path in self._paths:
            try:
                status = path.stat()
                found.append((status.st_ino, status.st_mtime_ns, status.st_size))
            except OSError:
                found.append((0, 0, 0))
        return tuple(found)
