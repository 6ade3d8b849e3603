"""The monitor's edges tied together: NVML in the main thread, watch and HTTP beside it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError, TestbedError
from testbed.stack import names
from testbed.stack.devices import (
    CardBook,
    CardReading,
    DriverRoot,
    Nvml,
    card_book,
    find_driver_root,
)
from testbed.stack.httpserver import HttpServer, Query, Reply, json_reply
from testbed.stack.kubeapi import KubeApi
from testbed.stack.monitor.containers import Watched, document
from testbed.stack.monitor.counters import CounterBook
from testbed.stack.monitor.feed import Feed
from testbed.stack.monitor.follow import follow_pods
from testbed.stack.monitor.metrics import Observed, exposition, unenforced
from testbed.stack.monitor.pods import PodIndex
from testbed.stack.monitor.processes import Processes, alive
from testbed.stack.monitor.regions import regions_of
from testbed.stack.monitor.samples import Ring, Tick, answer, samples_of
from testbed.stack.monitor.swapped import SwapBook
from testbed.stack.monitor.utilization import FRESH_NS, Sampler, Window
from testbed.stack.monitor.whose import UNKNOWN, Owner

_log = logging.getLogger(__name__)

KEEP_S = 600.0
#: HAMi's fields and the counters are looked after once a second.
REGIONS_S = 1.0
#: What rates and shares of /v1/containers are over; ``span`` asks for another.
SPAN_S = 5.0
LONGEST_SPAN_S = 60.0
#: Owners of processes are known a while longer: NVML's samples lag behind their end.
_OWNERS_NS = 3_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    node: str
    driver_root: str | None
    hook_path: Path
    kubeconfig: Path | None = None
    port: int = names.PORT_MONITOR
    period_s: float = 0.2


class Monitor:
    """Samples the cards and tells what it saw."""

    def __init__(self, options: Options, nvml: Nvml, root: DriverRoot, pods: PodIndex) -> None:
        self._options = options
        self._nvml = nvml
        self._root = root
        self._source = "emulated" if root.emulated else "nvml"
        self._devices = nvml.devices()
        self._pods = pods
        self._processes = Processes(pods.container_name)
        self._ring = Ring(keep_s=KEEP_S)
        self._readings: dict[str, CardReading] = {}
        self._books: dict[str, CardBook] = {}
        self._windows: dict[str, Window] = {}
        self._samplers = {device.uuid: Sampler() for device in self._devices}
        self._owners: dict[int, tuple[int, Owner]] = {}
        self._feed = Feed(options.hook_path)
        self._swaps = SwapBook()
        self._counters = CounterBook(keep_s=LONGEST_SPAN_S + 2 * REGIONS_S)
        self._errors: dict[str, str] = {}
        self._complaint = ""
        #: Where the answers are served once ``run`` has begun.
        self.http_port = 0
        if self._processes.anchor is None:
            _log.warning("not in a pod of kubelet: processes are told by their cgroups alone")

    def run(self, stop: threading.Event) -> None:
        """Sample until told to stop."""
        routes = {
            "/v1/cards": self._cards,
            "/v1/containers": self._containers,
            "/metrics": self._metrics,
            "/healthz": self._healthz,
        }
        http = HttpServer(("", self._options.port), routes)
        self.http_port = http.port
        _log.info(
            "sampling source=%s cards=%s period=%.3gs port=%d",
            self._source,
            ",".join(device.uuid for device in self._devices),
            self._options.period_s,
            self.http_port,
        )
        try:
            tick = regions = time.monotonic()
            while not stop.is_set():
                now = time.monotonic()
                if now >= tick:
                    self._tick()
                    # Skip ticks that are over rather than catch up in a burst.
                    tick = max(tick + self._options.period_s, time.monotonic())
                if now >= regions:
                    self._look_after_regions()
                    regions = max(regions + REGIONS_S, time.monotonic())
                self._sample_utilization()
                stop.wait(max(0.0, min(tick, regions, self._next_sample()) - time.monotonic()))
        finally:
            http.close()

    def _tick(self) -> None:
        readings = []
        for device in self._devices:
            readings.append(self._nvml.read(device.uuid))
            # At once: a share is the difference of two of these over that of their times.
            self._read_book(device.uuid)
        owners = self._owners_of(p.pid for r in readings for p in r.processes)
        self._ring.add(
            samples_of(readings, owners, windows=self._fresh_windows(), books=self._books)
        )
        errors = {reading.uuid: reading.error for reading in readings if reading.error}
        for uuid in errors.keys() - self._errors.keys():
            _log.error("card %s cannot be read: %s", uuid, errors[uuid])
        for uuid in self._errors.keys() - errors.keys():
            _log.info("card %s can be read again", uuid)
        self._errors = errors
        self._readings = {reading.uuid: reading for reading in readings}
        now_ns = time.monotonic_ns()
        for reading in readings:
            if not reading.error:
                self._feed.feed_bytes(reading.uuid, owners, reading, now_ns)

    def _read_book(self, uuid: str) -> None:
        try:
            book = card_book(self._root, uuid)
        except (TestbedError, OSError) as error:
            if str(error) != self._complaint:
                _log.error("books of card %s cannot be read: %s", uuid, error)
            self._complaint = str(error)
            book = None
        if book is None:
            self._books = {key: kept for key, kept in self._books.items() if key != uuid}
        else:
            self._books = {**self._books, uuid: book}

    def _sample_utilization(self) -> None:
        """Take NVML's new samples, and pass each on to the containers at once."""
        for uuid, sampler in self._samplers.items():
            if time.monotonic_ns() < sampler.due_ns:
                continue
            reading = self._nvml.utilization(uuid, sampler.since_us, sampler.card_since_us)
            window = sampler.take(reading, now_ns=time.monotonic_ns(), real_ns=time.time_ns())
            if window is None:
                continue
            self._windows = {**self._windows, uuid: window}
            card = self._readings.get(uuid)
            pids = {process.pid for process in (card.processes if card else ())}
            self._feed.feed(uuid, window, self._owners_of(pids | window.sm_pct.keys()), card)

    def _next_sample(self) -> float:
        return min((s.due_ns for s in self._samplers.values()), default=1 << 62) / 1e9

    def _look_after_regions(self) -> None:
        containers = [
            (pod.key.uid, container) for pod in self._pods.alive() for container in pod.promised
        ]
        now_ns = time.monotonic_ns()
        found = self._feed.look(containers)
        self._counters.add(now_ns, found)
        scaled = [who for who, counters in found.items() if counters.constant.oversubscribe]
        self._swaps.look(regions_of(self._options.hook_path, scaled))
        self._feed.mirror(now_ns)

    def _owners_of(self, pids: Iterable[int]) -> dict[int, Owner]:
        """Return the owners of pids, of ones that ended just now as they were known."""
        now_ns = time.monotonic_ns()
        kept = {p: held for p, held in self._owners.items() if now_ns - held[0] < _OWNERS_NS}
        wanted = set(pids)
        found = self._processes.owners(wanted | kept.keys())
        for pid in wanted:
            if found[pid].pod_uid != UNKNOWN or pid not in kept:
                kept[pid] = (now_ns, found[pid])
        self._owners = kept
        return {pid: kept[pid][1] for pid in wanted}

    def _fresh_windows(self) -> dict[str, Window]:
        now_ns = time.monotonic_ns()
        return {
            uuid: window
            for uuid, window in self._windows.items()
            if window.by_process and now_ns - window.stamp_ns < FRESH_NS
        }

    def _cards(self, query: Query) -> Reply:
        try:
            since = float(query.get("since", "0"))
        except ValueError as error:
            raise InputError("since is not a number of seconds", why=str(error)) from error
        books = {}
        for device in self._devices:
            # Read now and not taken from the last tick: a lost state is an error, no zero.
            book = card_book(self._root, device.uuid)
            if book is not None:
                books[device.uuid] = book
        now, ticks = self._ring.since(since)
        found = answer(
            node=self._options.node,
            source=self._source,
            devices=self._devices,
            readings=self._readings,
            books=books,
            process_samples={uuid: s.process_samples for uuid, s in self._samplers.items()},
            now=now,
            ticks=ticks,
            key=self._pods.key,
        )
        return json_reply(found)

    def _containers(self, query: Query) -> Reply:
        try:
            span_s = float(query.get("span", SPAN_S))
        except ValueError as error:
            raise InputError("span is not a number of seconds", why=str(error)) from error
        if not 0 < span_s <= LONGEST_SPAN_S:
            raise InputError(f"span is above 0 and at most {LONGEST_SPAN_S:.0f} seconds")
        # The clock of the ticks, which is not set back; a tick more to have the whole span.
        now, _ = self._ring.since(float("inf"))
        _, ticks = self._ring.since(now - span_s - self._options.period_s)
        seen = self._observed(ticks)
        watched = Watched(
            pods=seen.pods,
            ticks=ticks,
            counters=seen.counters,
            rates={
                (who, number): rates
                for who, counters in seen.counters.items()
                for number in range(len(counters.denied))
                if (rates := self._counters.rates(who, number, span_s)) is not None
            },
            unenforced={
                (pod.key.uid, container): reason for pod, container, reason in unenforced(seen)
            },
            counted=seen.counted,
        )
        return json_reply(document(self._options.node, now, span_s, watched))

    def _metrics(self, _query: Query) -> Reply:
        now, _ = self._ring.since(float("inf"))
        _, ticks = self._ring.since(now - SPAN_S - self._options.period_s)
        body = exposition(self._observed(ticks))
        return Reply(content_type="text/plain; version=0.0.4; charset=utf-8", body=body)

    def _observed(self, ticks: Sequence[Tick]) -> Observed:
        pods = [pod for pod in self._pods.alive() if pod.promised]
        containers = [(pod.key.uid, name) for pod in pods for name in pod.promised]
        counters = {who: found for who in containers if (found := self._counters.last(who))}
        last = ticks[-1].samples if ticks else ()
        return Observed(
            node=self._options.node,
            now_ns=time.monotonic_ns(),
            devices=self._devices,
            readings=self._readings,
            process_samples={uuid: s.process_samples for uuid, s in self._samplers.items()},
            pods=pods,
            regions=regions_of(self._options.hook_path, containers),
            counters=counters,
            ticks=ticks,
            # After the regions: who is there still was there when they were read.
            alive=frozenset(s.pid for s in last if s.pid and alive(s.pid)),
            counted={
                (who, number): count
                for who, found in counters.items()
                for number in range(len(found.constant.devices))
                if (count := self._swaps.counted(who, number)) is not None
            },
        )

    def _healthz(self, _query: Query) -> Reply:
        last = self._ring.last()
        found = {
            "node": self._options.node,
            "source": self._source,
            "cards": [device.uuid for device in self._devices],
            "errors": self._errors,
            "last": last.time if last else None,
            "pods_known": self._pods.synced,
        }
        return json_reply(found, status=200 if last and self._pods.synced else 503)


def serve(options: Options, stop: threading.Event) -> None:
    """Run the monitor until told to stop.

    Raises:
        TestbedError: it cannot start.
    """
    root = find_driver_root(options.driver_root)
    nvml = Nvml(root)
    try:
        api = KubeApi.connect(options.kubeconfig)
        pods = PodIndex(keep_s=KEEP_S)
        # A daemon: it may be inside a watch that has nothing to say for two minutes.
        threading.Thread(
            target=follow_pods, args=(api, options.node, pods, stop), name="pods", daemon=True
        ).start()
        Monitor(options, nvml, root, pods).run(stop)
    finally:
        nvml.close()
