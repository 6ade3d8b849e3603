"""The monitor's edges tied together: NVML in the main thread, watch and HTTP beside it."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.devices import CardReading, DriverRoot, Nvml, budget_hits, find_driver_root
from testbed.stack.httpserver import HttpServer, Query, Reply, json_reply
from testbed.stack.kubeapi import ApiError, KubeApi
from testbed.stack.monitor.metrics import Observed, exposition
from testbed.stack.monitor.pods import PodIndex
from testbed.stack.monitor.processes import Processes
from testbed.stack.monitor.regions import regions_of
from testbed.stack.monitor.samples import Ring, answer, samples_of
from testbed.stack.monitor.whose import UNKNOWN

_log = logging.getLogger(__name__)

KEEP_S = 600.0
RETRY_S = 1.0


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
        self._errors: dict[str, str] = {}
        #: Where the answers are served once ``run`` has begun.
        self.http_port = 0
        if self._processes.anchor is None:
            _log.warning("not in a pod of kubelet: processes are told by their cgroups alone")

    def run(self, stop: threading.Event) -> None:
        """Sample until told to stop."""
        routes = {"/v1/cards": self._cards, "/metrics": self._metrics, "/healthz": self._healthz}
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
            due = time.monotonic()
            while not stop.is_set():
                self._tick()
                # Skip ticks that are over rather than catch up in a burst.
                due = max(due + self._options.period_s, time.monotonic())
                stop.wait(due - time.monotonic())
        finally:
            http.close()

    def _tick(self) -> None:
        readings = [self._nvml.read(device.uuid) for device in self._devices]
        owners = self._processes.owners(p.pid for r in readings for p in r.processes)
        self._ring.add(samples_of(readings, owners))
        errors = {reading.uuid: reading.error for reading in readings if reading.error}
        for uuid in errors.keys() - self._errors.keys():
            _log.error("card %s cannot be read: %s", uuid, errors[uuid])
        for uuid in self._errors.keys() - errors.keys():
            _log.info("card %s can be read again", uuid)
        self._errors = errors
        self._readings = {reading.uuid: reading for reading in readings}

    def _cards(self, query: Query) -> Reply:
        try:
            since = float(query.get("since", "0"))
        except ValueError as error:
            raise InputError("since is not a number of seconds", why=str(error)) from error
        hits = {device.uuid: budget_hits(self._root, device.uuid) for device in self._devices}
        now, ticks = self._ring.since(since)
        document = answer(
            node=self._options.node,
            source=self._source,
            devices=self._devices,
            errors=self._errors,
            budget_hits={uuid: count for uuid, count in hits.items() if count is not None},
            now=now,
            ticks=ticks,
            key=self._pods.key,
        )
        return json_reply(document)

    def _metrics(self, _query: Query) -> Reply:
        pods = [pod for pod in self._pods.alive() if pod.shares]
        last = self._ring.last()
        seen = Observed(
            node=self._options.node,
            devices=self._devices,
            readings=self._readings,
            pods=pods,
            regions=regions_of(
                self._options.hook_path,
                [(pod.key.uid, container) for pod in pods for container in pod.shares],
            ),
            on_card=frozenset(
                (sample.pod_uid, sample.container)
                for sample in (last.samples if last else ())
                if sample.pod_uid not in ("", UNKNOWN)
            ),
        )
        return Reply(content_type="text/plain; version=0.0.4; charset=utf-8", body=exposition(seen))

    def _healthz(self, _query: Query) -> Reply:
        last = self._ring.last()
        document = {
            "node": self._options.node,
            "source": self._source,
            "cards": [device.uuid for device in self._devices],
            "errors": self._errors,
            "last": last.time if last else None,
            "pods_known": self._pods.synced,
        }
        return json_reply(document, status=200 if last and self._pods.synced else 503)


def follow_pods(api: KubeApi, node: str, pods: PodIndex, stop: threading.Event) -> None:
    """Keep the index equal to the API server's pods of a node, until told to stop."""
    path, mine = "/api/v1/pods", {"fieldSelector": f"spec.nodeName={node}"}
    complaint = ""
    while not stop.is_set():
        try:
            listed = api.get(path, mine)
            pods.replace(listed["items"])
            version = listed["metadata"]["resourceVersion"]
            complaint = ""
            while not stop.is_set():
                opened = time.monotonic()
                asked = {**mine, "resourceVersion": version, "allowWatchBookmarks": "true"}
                for event, item in api.watch(path, asked):
                    version = item["metadata"]["resourceVersion"]
                    if event != "BOOKMARK":
                        pods.apply(event, item)
                if time.monotonic() - opened < RETRY_S:
                    stop.wait(RETRY_S)  # a server that ends every watch at once
        except ApiError as error:
            # 410: the version is too old, which a new list mends; the rest is waited out.
            if error.status != 410 and error.why != complaint:
                _log.warning("pods are not followed: %s", error.text())
                complaint = error.why
            stop.wait(RETRY_S)


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
