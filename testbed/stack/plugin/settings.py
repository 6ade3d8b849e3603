"""The configuration file, watched: kubelet swaps a ConfigMap's link while we run."""

from __future__ import annotations

import logging
from pathlib import Path

from testbed.errors import InputError
from testbed.stack.config import DeviceConfig, parse

_log = logging.getLogger(__name__)


class Settings:
    """The configuration in force, and why the file's present text is not.

    A text that cannot be used leaves the last good one in force.
    """

    def __init__(self, path: Path | None) -> None:
        """Read the file; None means the defaults.

        Raises:
            InputError: the file cannot be read or used.
        """
        self._path = path
        self.error = ""
        try:
            self._text = b"" if path is None else path.read_bytes()
        except OSError as error:
            raise InputError(
                f"device configuration {path} cannot be read", why=str(error)
            ) from error
        self.config: DeviceConfig = parse(self._text)

    def poll(self) -> bool:
        """Read the file again; return whether the configuration changed.

        The text is compared, not the time: a ConfigMap's files are links whose target
        changes, and a restored value may bear an old time.
        """
        if self._path is None:
            return False
        try:
            text = self._path.read_bytes()
        except OSError as error:
            return self._bad(str(error))
        if text == self._text and not self.error:
            return False
        try:
            fresh = parse(text)
        except InputError as error:
            self._text = text
            return self._bad(error.text())
        self._text, self.error = text, ""
        changed = fresh != self.config
        self.config = fresh
        if changed:
            _log.info(
                "configuration generation=%d enforcement=%s", fresh.generation, fresh.enforcement
            )
        return changed

    def _bad(self, why: str) -> bool:
        if why != self.error:
            _log.error("configuration %s is not used: %s", self._path, why)
        self.error = why
        return False
