"""Doubles of what the node programs talk to: an API server, and kubelet's two sockets."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import grpc
import pytest
import yaml

from testbed.stack import names
from testbed.stack.plugin.api import deviceplugin_pb2 as deviceplugin
from testbed.stack.plugin.api import deviceplugin_pb2_grpc as deviceplugin_grpc
from testbed.stack.plugin.api import podresources_pb2 as podresources
from testbed.stack.plugin.api import podresources_pb2_grpc as podresources_grpc

from .waiting import DEADLINE_S

RESOURCE = names.RESOURCE_COUNT


class FakeApi:
    """Pods and nodes with resource versions, list, watch and merge patch, over HTTP."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.version = 10
        self.pods: dict[str, dict[str, Any]] = {}
        self.nodes: dict[str, dict[str, Any]] = {"n1": {"metadata": {"name": "n1"}}}
        self.events: list[tuple[int, str, dict[str, Any]]] = []
        self.node_patches = 0
        self.closing = False
        #: Watches that are older end with 410, as after a compaction.
        self.oldest = 0
        #: Text of patches that are done and never answered, each once.
        self.stalls: list[str] = []
        fake = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                query = {k: v[-1] for k, v in parse_qs(url.query).items()}
                assert url.path == "/api/v1/pods", url.path
                assert query["fieldSelector"] == "spec.nodeName=n1"
                if query.get("watch"):
                    self._watch(int(query["resourceVersion"]))
                else:
                    self._send(200, fake.listing())

            def do_PATCH(self) -> None:
                assert self.headers["Content-Type"] == "application/merge-patch+json"
                raw = self.rfile.read(int(self.headers["Content-Length"])).decode()
                status, document = fake.patch(self.path, json.loads(raw))
                if not fake.stall(raw):
                    self._send(status, document)

            def _send(self, status: int, document: object) -> None:
                body = json.dumps(document).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _watch(self, version: int) -> None:
                self.send_response(200)
                self.send_header("Transfer-Encoding", "chunked")
                self.end_headers()
                while True:
                    with fake.changed:
                        while not fake.closing and fake.version <= version:
                            if not fake.changed.wait(DEADLINE_S):
                                break
                        fresh = [e for e in fake.events if e[0] > version]
                        version = fake.version
                        if fake.closing:
                            break
                        if version < fake.oldest or any(e[0] < fake.oldest for e in fresh):
                            gone = {"code": 410, "message": "too old resource version"}
                            fresh = [(0, "ERROR", gone)]
                    for _, kind, item in fresh:
                        line = json.dumps({"type": kind, "object": item}).encode() + b"\n"
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                    self.wfile.flush()
                self.wfile.write(b"0\r\n\r\n")

            def log_message(self, format: str, *args: Any) -> None: ...

        class Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: Any, client_address: Any) -> None: ...

        self._server = Server(("127.0.0.1", 0), Handler)
        threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()

    def close(self) -> None:
        with self.changed:
            self.closing = True
            self.changed.notify_all()
        self._server.shutdown()
        self._server.server_close()

    def kubeconfig(self, path: Path) -> Path:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "x",
            "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            "clusters": [
                {
                    "name": "x",
                    "cluster": {"server": f"http://127.0.0.1:{self._server.server_address[1]}"},
                }
            ],
            "users": [{"name": "x", "user": {"token": "t"}}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    def listing(self) -> dict[str, Any]:
        with self.changed:
            return {
                "metadata": {"resourceVersion": str(self.version)},
                "items": list(self.pods.values()),
            }

    def put(self, pod: dict[str, Any]) -> dict[str, Any]:
        """Create or replace a pod."""
        with self.changed:
            uid = pod["metadata"]["uid"]
            kind = "MODIFIED" if uid in self.pods else "ADDED"
            self.pods[uid] = pod
            self._event(kind, pod)
            return pod

    def delete(self, uid: str) -> None:
        with self.changed:
            self._event("DELETED", self.pods.pop(uid))

    def patch(self, path: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        asked = body["metadata"]
        with self.changed:
            *_, kind, name = path.split("/")
            if kind == "nodes":
                # An empty patch is how the plugin reads its node.
                self.node_patches += bool(asked.get("annotations"))
                target = self.nodes[name]
            else:
                found = [p for p in self.pods.values() if p["metadata"]["name"] == name]
                if not found:
                    return 404, {"message": f"pod {name} not found"}
                target = found[0]
            held = target["metadata"]
            for key in ("uid", "resourceVersion"):
                if key in asked and asked[key] != held[key]:
                    return 409, {"message": f"{key} differs"}
            for key in ("annotations", "labels"):
                values = held.setdefault(key, {})
                for name, value in asked.get(key, {}).items():
                    if value is None:
                        values.pop(name, None)
                    else:
                        values[name] = value
            if kind == "pods":
                self._event("MODIFIED", target)
            return 200, target

    def stall(self, body: str) -> bool:
        """Wait until everything ends, if this patch is to get no answer; tell whether it was."""
        with self.changed:
            found = next((text for text in self.stalls if text in body), None)
            if found is None:
                return False
            self.stalls.remove(found)
            while not self.closing:
                if not self.changed.wait(DEADLINE_S):
                    break
            return True

    def annotation(self, uid: str, key: str) -> str | None:
        with self.changed:
            value: str | None = self.pods[uid]["metadata"]["annotations"].get(key)
            return value

    def _event(self, kind: str, pod: dict[str, Any]) -> None:
        self.version += 1
        pod["metadata"]["resourceVersion"] = str(self.version)
        self.events.append((self.version, kind, json.loads(json.dumps(pod))))
        self.changed.notify_all()


class FakeKubelet(
    deviceplugin_grpc.RegistrationServicer, podresources_grpc.PodResourcesListerServicer
):  # type: ignore[misc]
    """One life of kubelet: takes a registration, follows the devices, allocates."""

    def __init__(self, folder: Path, *, wipe: bool = True) -> None:
        self.folder = folder
        self.changed = threading.Condition()
        self.devices: dict[str, str] = {}
        self.updates = 0
        #: (namespace, pod) -> container -> ids
        self.pods: dict[tuple[str, str], dict[str, list[str]]] = {}
        self.registered: list[Any] = []
        # A starting kubelet wipes its folder.
        for path in folder.glob("*.sock" if wipe else "kubelet.sock"):
            path.unlink()
        self._server = grpc.server(futures.ThreadPoolExecutor(4))
        deviceplugin_grpc.add_RegistrationServicer_to_server(self, self._server)
        podresources_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{folder}/kubelet.sock")
        self._server.start()
        self._channel: grpc.Channel | None = None
        self._follower: threading.Thread | None = None

    def close(self) -> None:
        if self._channel is not None:
            self._channel.close()
        if self._follower is not None:
            self._follower.join(DEADLINE_S)
        self._server.stop(None).wait()

    def Register(self, request: Any, context: Any) -> Any:
        with self.changed:
            self.registered.append(request)
            self._channel = grpc.insecure_channel(f"unix://{self.folder}/{request.endpoint}")
            self._follower = threading.Thread(target=self._follow, daemon=True)
            self._follower.start()
        return deviceplugin.Empty()

    def List(self, request: Any, context: Any) -> Any:
        with self.changed:
            return podresources.ListPodResourcesResponse(
                pod_resources=[
                    podresources.PodResources(
                        namespace=namespace,
                        name=name,
                        containers=[
                            podresources.ContainerResources(
                                name=container,
                                devices=[
                                    podresources.ContainerDevices(
                                        resource_name=RESOURCE, device_ids=ids
                                    )
                                ]
                                if ids
                                else [],
                            )
                            for container, ids in containers.items()
                        ],
                    )
                    for (namespace, name), containers in self.pods.items()
                ]
            )

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        with self.changed:
            assert self.changed.wait_for(condition, DEADLINE_S), f"not within the deadline: {what}"

    @property
    def plugin(self) -> Any:
        assert self._channel is not None
        return deviceplugin_grpc.DevicePluginStub(self._channel)

    def admit(self, namespace: str, name: str, *containers: tuple[str, int]) -> list[Any]:
        """Admit a pod: list it, then ask for its containers one by one."""
        with self.changed:
            self.pods[namespace, name] = {container: [] for container, _ in containers}
        answers = []
        try:
            for container, count in containers:
                with self.changed:
                    taken = {i for p in self.pods.values() for ids in p.values() for i in ids}
                    ids = [i for i in self.devices if i not in taken][:count]
                request = deviceplugin.AllocateRequest(
                    container_requests=[deviceplugin.ContainerAllocateRequest(devices_ids=ids)]
                )
                answer = self.plugin.Allocate(request, timeout=DEADLINE_S)
                answers.append(answer.container_responses[0])
                with self.changed:
                    self.pods[namespace, name][container] = ids
        except grpc.RpcError:
            with self.changed:  # refused: the pod is failed and no longer active
                del self.pods[namespace, name]
            raise
        return answers

    def _follow(self) -> None:
        try:
            for answer in self.plugin.ListAndWatch(deviceplugin.Empty()):
                with self.changed:
                    self.devices = {device.ID: device.health for device in answer.devices}
                    self.updates += 1
                    self.changed.notify_all()
        except (grpc.RpcError, ValueError):
            with self.changed:
                self.devices = {}
                self.changed.notify_all()


@pytest.fixture
def api() -> Iterator[FakeApi]:
    fake = FakeApi()
    yield fake
    fake.close()


@pytest.fixture
def start_kubelet(tmp_path: Path) -> Iterator[Callable[..., FakeKubelet]]:
    """Start a life of kubelet; the one before it ends."""
    folder = tmp_path / "kubelet"
    folder.mkdir()
    lives: list[FakeKubelet] = []

    def start(*, wipe: bool = True) -> FakeKubelet:
        if lives:
            lives.pop().close()
        lives.append(FakeKubelet(folder, wipe=wipe))
        return lives[-1]

    yield start
    for life in lives:
        life.close()


@pytest.fixture
def bound_pod() -> Callable[..., dict[str, Any]]:
    """Make a pod as the extender binds it."""

    def make(name: str, text: str, *, count: int = 1, uid: str = "", **more: str) -> dict[str, Any]:
        return {
            "metadata": {
                "name": name,
                "namespace": "ns",
                "uid": uid or f"{abs(hash(name)) % 10**8:08d}-0000-0000-0000-000000000000",
                "annotations": {
                    names.POD_TO_ALLOCATE: text,
                    names.POD_ALLOCATED: text,
                    names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
                    **more,
                },
            },
            "spec": {
                "nodeName": "n1",
                "containers": [{"name": "main", "resources": {"limits": {RESOURCE: str(count)}}}],
            },
            "status": {"phase": "Pending"},
        }

    return make
