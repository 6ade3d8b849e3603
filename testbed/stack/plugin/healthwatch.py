"""Keeps the cards' health: events and answers of the driver, a file, an operator's word."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from testbed.stack.devices import Nvml
from testbed.stack.devices.xid import XidPolicy
from testbed.stack.plugin.health import Fault, Health, after_look, after_xid, named

_log = logging.getLogger(__name__)

#: Between attempts to open a driver anew that has lost a card.
REOPEN_S = 30.0
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


class HealthWatch:
    """The health of one node's cards. One thread uses it; others read ``unhealthy``."""

    def __init__(
        self,
        nvml: Nvml,
        cards: tuple[str, ...],
        *,
        file: Path,
        cleared: Callable[[], str],
        boot_id: str | None = None,
    ) -> None:
        """Take up what an earlier plugin knew, unless the machine was restarted since.

        Args:
            nvml: The driver.
            cards: Their uuids.
            file: Where faults outlast the plugin.
            cleared: Takes an operator's word (uuids or ``all``) from where he wrote it.
            boot_id: The kernel's, for tests.
        """
        self._nvml = nvml
        self._cards = cards
        self._file = file
        self._cleared = cleared
        self._boot_id = _BOOT_ID.read_text().strip() if boot_id is None else boot_id
        self._health = Health(faults=self._remembered())
        self._reopen_at = 0.0
        #: (uuid, xid, action) -> how often, since this plugin began.
        self.xids: Counter[tuple[str, int, str]] = Counter()
        self.unhealthy: Mapping[str, str] = self._health.unhealthy
        for uuid, why in self.unhealthy.items():
            _log.error("card %s is still unhealthy: %s", uuid, why)
        if not nvml.watch_errors():
            _log.warning("the driver tells no XID errors: only its silence is noticed")

    def events(self, policy: XidPolicy) -> bool:
        """Take the XIDs that came since the last time.

        Returns:
            Whether the cards should be looked at now: one that is lost and reset between
            two looks would never have been seen away.
        """
        came = False
        for source, xid in self._nvml.errors():
            # The driver could not say which card it was: any may be it.
            for uuid in self._cards if source is None else (source,):
                health, action = after_xid(self._health, uuid, xid, policy)
                self.xids[uuid, xid, action] += 1
                came = True
                level = logging.ERROR if action == "unhealthy" else logging.WARNING
                _log.log(level, "card %s: XID %d, by the policy %s", uuid, xid, action)
                self._set(health)
        return came

    def look(self, now: float) -> None:
        """Ask the driver for every card.

        Args:
            now: Monotonic seconds.
        """
        silent = self._nvml.unhealthy()
        if silent and now >= self._reopen_at:
            # A card that was reset is seen by a driver that is opened anew.
            if self._reopen_at:
                self._nvml.reopen()
                silent = self._nvml.unhealthy()
            self._reopen_at = now + REOPEN_S
        elif not silent:
            self._reopen_at = 0.0
        text = self._cleared() if self._health.faults else ""
        cleared = named(text, self._cards)
        for word in text.split(",") if text else ():
            if not named(word, self._cards):
                _log.warning("%r is no card of this node, so none is well for it", word.strip())
        for uuid in cleared & silent.keys():
            _log.warning("card %s is not well for an operator's word: %s", uuid, silent[uuid])
        actions = self._nvml.recovery_actions() if self._health.faults else {}
        for uuid in silent.keys() - self._health.silent.keys():
            _log.error("card %s is unhealthy: %s", uuid, silent[uuid])
        health, recovered = after_look(self._health, silent, actions, cleared)
        for uuid, how in recovered.items():
            _log.info("card %s is healthy again: %s", uuid, how)
        self._set(health)

    def _set(self, health: Health) -> None:
        changed = health.faults != self._health.faults
        self._health = health
        self.unhealthy = health.unhealthy
        if changed:
            self._remember()

    def _remembered(self) -> dict[str, Fault]:
        try:
            kept = json.loads(self._file.read_bytes())
            if kept["boot_id"] != self._boot_id:
                return {}
            faults = msgspec.convert(kept["faults"], dict[str, Fault])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, msgspec.ValidationError) as error:
            _log.warning("%s is not used: %s", self._file, error)
            return {}
        return {uuid: fault for uuid, fault in faults.items() if uuid in self._cards}

    def _remember(self) -> None:
        document = {"boot_id": self._boot_id, "faults": dict(self._health.faults)}
        fresh = self._file.with_name(f".{self._file.name}.{os.getpid()}")
        try:
            fresh.write_bytes(msgspec.json.encode(document))
            fresh.replace(self._file)
        except OSError as error:
            _log.warning("%s is not written: %s", self._file, error)
