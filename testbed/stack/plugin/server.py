"""The device plugin's edges tied together: one loop beside kubelet's calls."""

from __future__ import annotations

import logging
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import DeployError
from testbed.native.page import make_page
from testbed.stack import names
from testbed.stack.codec import encode_register
from testbed.stack.devices import (
    DriverRoot,
    Nvml,
    emulated_spec,
    find_driver_root,
    registered_cards,
    sync_specs,
)
from testbed.stack.devices.cdi import hardware_specs
from testbed.stack.devices.xid import XidPolicy, xid_policy
from testbed.stack.httpserver import HttpServer, Query, Reply, json_reply
from testbed.stack.kubeapi import ApiError, KubeApi
from testbed.stack.model import Card
from testbed.stack.plugin import region_file
from testbed.stack.plugin.allocator import Allocator
from testbed.stack.plugin.answer import ContainerAnswer, HostPaths
from testbed.stack.plugin.healthwatch import HealthWatch
from testbed.stack.plugin.kubelet import pod_resources_view, register
from testbed.stack.plugin.metrics import Shown, exposition
from testbed.stack.plugin.pods import NodePod
from testbed.stack.plugin.service import DevicePluginService, Inventory, SocketServer
from testbed.stack.plugin.settings import Settings
from testbed.stack.plugin.store import install_library, prepare_folder, sweep

_log = logging.getLogger(__name__)

TICK_S = 0.5
HEALTH_S = 5.0
SWEEP_S = 60.0
#: The annotation is written on change, and again now and then: the node object may
#: have been made anew. An equal patch changes nothing on the server.
REGISTER_S = 300.0
RETRY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the command line says."""

    node: str
    driver_root: str | None
    hook_path: Path
    library: Path
    config: Path | None = None
    kubeconfig: Path | None = None
    cdi_root: Path = Path(names.CDI_ROOT)
    plugin_root: Path = Path(names.DEVICE_PLUGIN_ROOT)
    pod_resources: Path = Path(names.POD_RESOURCES_SOCKET)
    port: int = names.PORT_PLUGIN_HEALTH


class NodeApi:
    """The calls that the plugin makes: its node's pods, and its node."""

    def __init__(self, api: KubeApi, node: str) -> None:
        self._api = api
        self._node = node

    def list_pods(self, *, timeout_s: float = 5.0) -> list[dict[str, Any]]:
        # No resourceVersion: the server answers with what is true now.
        mine = {"fieldSelector": f"spec.nodeName={self._node}"}
        answer = self._api.get("/api/v1/pods", mine, timeout_s=timeout_s)
        items: list[dict[str, Any]] = answer["items"]
        return items

    def patch_pod(self, pod: NodePod, metadata: dict[str, Any], *, timeout_s: float) -> None:
        precondition = {"uid": pod.key.uid, "resourceVersion": pod.resource_version}
        self._api.patch(
            f"/api/v1/namespaces/{pod.key.namespace}/pods/{pod.key.name}",
            {"metadata": {**precondition, **metadata}},
            timeout_s=timeout_s,
        )

    def patch_node(self, annotations: dict[str, str | None]) -> dict[str, str]:
        """Merge annotations into the node's (None removes one); return what it has then."""
        node = self._api.patch(
            f"/api/v1/nodes/{self._node}", {"metadata": {"annotations": annotations}}
        )
        found: dict[str, str] = node["metadata"].get("annotations") or {}
        return found


class Plugin:
    """Everything that happens without kubelet asking: registration, health, sweeps."""

    def __init__(self, options: Options, api: KubeApi, nvml: Nvml, root: DriverRoot) -> None:
        """Discover the cards, install library and CDI specs.

        Raises:
            TestbedError: of the part that failed.
        """
        self._options = options
        self._api = NodeApi(api, options.node)
        self._nvml = nvml
        self._settings = Settings(options.config)
        self._devices = nvml.devices()
        uuids = [device.uuid for device in self._devices]
        specs = (
            tuple(emulated_spec(root, uuid) for uuid in uuids)
            if root.emulated
            else hardware_specs(root, uuids)
        )
        if changed := sync_specs(options.cdi_root, specs):
            _log.info("cdi specs changed: %s", ", ".join(changed))
        build = install_library(options.hook_path, options.library)
        _log.info("library build=%s cards=%s", build, ",".join(uuids))
        self._build = build
        paths = HostPaths(hook=str(options.hook_path), build=build)
        for uuid in uuids:
            make_page(Path(paths.page(uuid)), uuid)
        self._policy()  # a variable that cannot be used is said now
        self._health = HealthWatch(
            nvml,
            tuple(uuids),
            file=options.hook_path / "health.json",
            cleared=self._operators_word,
        )
        self._inventory = Inventory(self._cards())
        self._allocator = Allocator(
            api=self._api,
            view=lambda: pod_resources_view(options.pod_resources, self._resource),
            prepare=_prepare,
            config=lambda: self._settings.config,
            cards=lambda: frozenset(uuids),
            paths=paths,
            node=options.node,
        )
        self._service = DevicePluginService(self._inventory, self._allocator)
        self._server: SocketServer | None = None
        self._kubelet: tuple[int, int] | None = None
        self._resource = self._settings.config.resourceCountName
        self._written = ""
        self._due = {"health": 0.0, "register": 0.0, "sweep": 0.0}
        self._complaint = ""
        self._ready = False
        self._word = ""  # an operator's, which is being taken away
        #: Where /healthz is served once ``run`` has begun.
        self.http_port = 0

    def run(self, stop: threading.Event) -> None:
        """Work until told to stop."""
        routes = {"/healthz": self._healthz, "/metrics": self._metrics}
        http = HttpServer(("", self._options.port), routes)
        self.http_port = http.port
        try:
            while not stop.is_set():
                self._tick(time.monotonic())
                stop.wait(TICK_S)
        finally:
            if self._server is not None:
                self._server.close()
            http.close()

    def _tick(self, now: float) -> None:
        self._settings.poll()
        if self._health.events(self._policy()) or now >= self._due["health"]:
            self._health.look(now)
            self._due["health"] = now + HEALTH_S
        self._inventory.set(self._cards())
        self._keep_registered()
        self._write_node(now)
        if now >= self._due["sweep"]:
            self._sweep()
            self._due["sweep"] = now + SWEEP_S

    def _cards(self) -> tuple[Card, ...]:
        return registered_cards(
            self._devices, self._settings.config, unhealthy=self._health.unhealthy
        )

    def _policy(self) -> XidPolicy:
        config = self._settings.config
        return xid_policy(config.xidPolicy, config.xidDefault, os.environ)

    def _operators_word(self) -> str:
        """Take the annotation that says which cards are well again."""
        try:
            # Our rights are to patch the node, and a patch answers with what it has.
            text = self._api.patch_node({}).get(names.NODE_CARDS_RECOVERED, "")
            if text:
                self._word = text
                self._api.patch_node({names.NODE_CARDS_RECOVERED: None})
            else:
                text = self._word  # it was taken away by a call that got no answer
            self._word = ""
            if text:
                _log.info("annotation %s=%s read and taken away", names.NODE_CARDS_RECOVERED, text)
        except ApiError as error:
            _log.warning("the node cannot be read: %s", error.text())
            return ""
        return text

    def _keep_registered(self) -> None:
        """Serve and register, anew when kubelet is another one or wiped its folder."""
        socket = self._options.plugin_root / names.DEVICE_PLUGIN_SOCKET
        kubelet = self._options.plugin_root / "kubelet.sock"
        try:
            state = kubelet.stat()
            seen = (state.st_ino, state.st_ctime_ns)
        except OSError:
            return  # between two kubelets
        ours = self._server is not None and _inode(socket) == self._server.inode
        if ours and seen == self._kubelet:
            return
        if self._server is not None:
            self._server.close()
            self._server = None
        try:
            # Before the new kubelet can ask: it knows nothing of what the old one was told.
            self._allocator.kubelet_restarted()
            self._server = SocketServer(socket, self._service)
            register(kubelet, endpoint=socket.name, resource=self._resource)
        except DeployError as error:
            if error.text() != self._complaint:
                _log.warning("not registered: %s", error.text())
            self._complaint = error.text()
            self._kubelet = None
            return
        self._kubelet, self._complaint = seen, ""
        _log.info("registered resource=%s cards=%d", self._resource, len(self._inventory.cards))

    def _write_node(self, now: float) -> None:
        text = encode_register(self._inventory.cards)
        if now < self._due["register"] and text == self._written:
            return
        if now < self._due.get("retry", 0.0):
            return
        try:
            self._api.patch_node({names.NODE_REGISTER: text})
        except ApiError as error:
            _log.warning("node annotation not written: %s", error.text())
            self._due["retry"] = now + RETRY_S
            return
        if text != self._written:
            _log.info("node annotation written: %s", text)
        self._written = text
        self._due["register"] = now + REGISTER_S

    def _sweep(self) -> None:
        try:
            uids = {item["metadata"]["uid"] for item in self._api.list_pods()}
        except ApiError as error:
            _log.warning("no sweep: %s", error.text())
            return
        if gone := sweep(self._options.hook_path, uids):
            _log.info("folders of vanished pods removed: %s", ", ".join(gone))

    def _healthz(self, _query: Query) -> Reply:
        config = self._settings.config
        ready = self._kubelet is not None and bool(self._written)
        self._ready = self._ready or ready
        document = {
            "enforcement": config.enforcement,
            "generation": config.generation,
            "cards": [card.uuid for card in self._inventory.cards],
            "unhealthy": dict(self._health.unhealthy),
            "registered": ready,
            "build": self._build,
            "config_error": self._settings.error,
        }
        # Not ready until first registered; afterwards an outage of kubelet or API server
        # is told, but is no reason to restart the plugin.
        return json_reply(document, status=200 if self._ready else 503)

    def _metrics(self, _query: Query) -> Reply:
        shown = Shown(
            node=self._options.node,
            devices=self._devices,
            unhealthy=self._health.unhealthy,
            xids=self._health.xids,
            registered=self._kubelet is not None,
        )
        body = exposition(shown)
        return Reply(content_type="text/plain; version=0.0.4; charset=utf-8", body=body)


def serve(options: Options, stop: threading.Event) -> None:
    """Run the plugin until told to stop.

    Raises:
        TestbedError: it cannot start.
    """
    root = find_driver_root(options.driver_root)
    nvml = Nvml(root)
    try:
        api = KubeApi.connect(options.kubeconfig)
        try:
            Plugin(options, api, nvml, root).run(stop)
        finally:
            api.close()
    finally:
        nvml.close()


def _prepare(answer: ContainerAnswer) -> None:
    for uuid, page in answer.pages.items():
        make_page(Path(page), uuid)
    if answer.region is not None:
        prepare_folder(answer.region, region_file.make)


def _inode(path: Path) -> int:
    try:
        return path.stat().st_ino
    except OSError:
        return -1
