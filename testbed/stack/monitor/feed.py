"""Writes what NVML saw into the containers' regions, and HAMi's fields once a second."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from testbed.errors import CodecError
from testbed.native.region_watch import Counters, Feedback, RegionWatch
from testbed.stack.devices import CardReading
from testbed.stack.monitor.mirror import LOW, ContainerId, HamiFields, Tenant, hami_fields
from testbed.stack.monitor.regions import region_path
from testbed.stack.monitor.utilization import Window, shares
from testbed.stack.monitor.whose import Owner

_log = logging.getLogger(__name__)

#: How long a container counts as active after NVML saw it busy (HAMi: two rounds).
ACTIVE_NS = 2_000_000_000


class Feed:
    """The regions of one node, as the monitor writes them."""

    def __init__(self, hook: Path) -> None:
        self._hook = hook
        self._regions: dict[ContainerId, RegionWatch] = {}
        self._counters: dict[ContainerId, Counters] = {}
        self._busy_ns: dict[tuple[ContainerId, str], int] = {}
        self._failed: dict[ContainerId, str] = {}

    def look(self, containers: Iterable[ContainerId]) -> dict[ContainerId, Counters]:
        """Return the counters of the containers whose region validates.

        Only these get feedback until the next look; the others are told by the metrics.
        """
        wanted = set(containers)
        self._regions = {
            who: self._regions.get(who) or RegionWatch(region_path(self._hook, who))
            for who in wanted
        }
        found = {}
        for who, region in self._regions.items():
            try:
                counters = region.counters()
            except CodecError as error:
                # Before its first container starts there is none: no news.
                if who in self._counters:
                    self._complain(who, error)
                continue
            # A copy of another container's region is valid in itself.
            if (counters.constant.pod_uid, counters.constant.container_name) == who:
                found[who] = counters
                self._failed.pop(who, None)
        self._counters = found
        self._failed = {who: why for who, why in self._failed.items() if who in wanted}
        self._busy_ns = {key: seen for key, seen in self._busy_ns.items() if key[0] in wanted}
        return found

    def feed(
        self,
        uuid: str,
        window: Window,
        owners: Mapping[int, Owner],
        reading: CardReading | None,
    ) -> int:
        """Write one window into the regions of a card's containers; return how many.

        Args:
            uuid: The card.
            window: Its newest sample.
            owners: Of every pid in it and on the card.
            reading: The card's newest reading, for bytes.
        """
        written = 0
        for who, counters in self._counters.items():
            device = _device(counters, uuid)
            if device is None:
                continue
            own = frozenset(
                pid for pid, owner in owners.items() if (owner.pod_uid, owner.container) == who
            )
            used = shares(window, own, frozenset(owners) - own)
            if used is None:
                continue
            mine, others = used
            if mine:
                self._busy_ns[who, uuid] = window.stamp_ns
            processes = reading.processes if reading else ()
            own_bytes = sum(process.bytes for process in processes if process.pid in own)
            given = Feedback(
                stamp_ns=window.stamp_ns,
                interval_ns=window.interval_ns,
                own_util_pm=mine,
                other_util_pm=others,
                own_bytes=own_bytes,
                other_bytes=sum(process.bytes for process in processes) - own_bytes,
            )
            written += self._write(who, partial(RegionWatch.feed, device=device, given=given))
        return written

    def feed_bytes(
        self, uuid: str, owners: Mapping[int, Owner], reading: CardReading, now_ns: int
    ) -> int:
        """Write a card's new reading into the regions of its containers; return how many."""
        written = 0
        for who, counters in self._counters.items():
            device = _device(counters, uuid)
            if device is None:
                continue
            own = other = 0
            for process in reading.processes:
                owner = owners.get(process.pid)
                if owner is not None and (owner.pod_uid, owner.container) == who:
                    own += process.bytes
                else:
                    other += process.bytes
            given = partial(
                RegionWatch.feed_bytes, device=device, own=own, other=other, stamp_ns=now_ns
            )
            written += self._write(who, given)
        return written

    def mirror(self, now_ns: int) -> dict[ContainerId, HamiFields]:
        """Write HAMi's two fields; return them."""
        fields = hami_fields(
            {
                who: Tenant(
                    priority=min(counters.constant.priority, LOW),
                    active={
                        device.uuid: now_ns - self._busy_ns.get((who, device.uuid), -ACTIVE_NS)
                        < ACTIVE_NS
                        for device in counters.constant.devices
                    },
                )
                for who, counters in self._counters.items()
            }
        )
        for who, wanted in fields.items():
            self._write(
                who,
                partial(
                    RegionWatch.mirror,
                    utilization_switch=wanted.utilization_switch,
                    recent_kernel=wanted.recent_kernel,
                ),
            )
        return fields

    def _write(self, who: ContainerId, write: Callable[[RegionWatch], None]) -> int:
        try:
            write(self._regions[who])
        except CodecError as error:
            self._complain(who, error)
            return 0
        return 1

    def _complain(self, who: ContainerId, error: CodecError) -> None:
        if self._failed.get(who) != error.why:
            self._failed[who] = error.why
            _log.warning("region of container %s of pod %s: %s", who[1], who[0], error.why)


def _device(counters: Counters, uuid: str) -> int | None:
    for number, device in enumerate(counters.constant.devices):
        if device.uuid == uuid:
            return number
    return None
