"""A real kube-scheduler with our extender, and what stands for the device plugins."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
import urllib.error
import urllib.request

import msgspec
import yaml

from testbed.lab.deploy import StackImages, StackValues
from testbed.lab.deploy.scheduler import scheduler_configuration
from testbed.stack import names
from testbed.stack.config import DeviceConfig

RBAC = "/apis/rbac.authorization.k8s.io/v1"
#: The rights of the extender, all of them (design decision 17).
RULES = [
    {
        "apiGroups": [""],
        "resources": ["pods", "nodes", "resourcequotas"],
        "verbs": ["get", "list", "watch"],
    },
    {"apiGroups": [""], "resources": ["pods/binding"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods/eviction"], "verbs": ["create"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["patch"]},
    {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch"]},
    {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["get"]},
]


class Stack:
    """One extender and one kube-scheduler, as they are deployed for a configuration."""

    def __init__(self, plane, processes, tools, python, config=None, rules=RULES):
        self.plane, self.processes, self.tools, self.python = plane, processes, tools, python
        self.config, self.rules = config or DeviceConfig(), rules
        self.port, self.observe_port = tools.free_port(), tools.free_port()
        self.serving = plane.serving("extender")
        plane.identity("vgpu-extender")
        self.client = plane.identity("system:kube-scheduler", "system:kube-scheduler")
        self.kubeconfig = plane.kubeconfig_of("vgpu-extender")

    def start(self):
        self.grant(self.rules)
        self.plane.request(
            "POST",
            f"{RBAC}/clusterrolebindings",
            {
                "metadata": {"name": "vgpu-extender"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io",
                    "kind": "ClusterRole",
                    "name": "vgpu-extender",
                },
                "subjects": [{"kind": "User", "name": "vgpu-extender"}],
            },
        )
        self.start_extender()
        self.start_scheduler()

    def grant(self, rules):
        role = {"metadata": {"name": "vgpu-extender"}, "rules": rules}
        try:
            self.plane.request("PUT", f"{RBAC}/clusterroles/vgpu-extender", role)
        except self.tools.ApiStatus as error:
            assert error.status == 404
            self.plane.request("POST", f"{RBAC}/clusterroles", role)

    def start_extender(self):
        cert, key = self.serving
        config = self.processes.folder / "device-config.yaml"
        config.write_bytes(msgspec.yaml.encode(self.config))
        self.processes.start(
            "extender", self.python, "-m", "testbed.stack.extender", f"--config={config}",
            f"--kubeconfig={self.kubeconfig}", f"--cert={cert}", f"--key={key}",
            f"--client-ca={self.plane.ca}", f"--port={self.port}",
            "--observe-host=127.0.0.1", f"--observe-port={self.observe_port}",
            "--log-level=debug",
        )  # fmt: skip
        self.wait_synced()

    def wait_synced(self):
        def ready():
            self.processes.check()
            try:
                return self.observe("/readyz") == "ok"
            except OSError:
                return False

        self.tools.wait_for(ready, 120, "the extender has read everything")

    def start_scheduler(self):
        cert, key = self.client
        kubeconfig = self.plane.kubeconfig_of("system:kube-scheduler")
        # What is deployed, but for where things are.
        images = StackImages(base="test:1", kube_scheduler="test:1")
        configuration = scheduler_configuration(StackValues(images=images, config=self.config))
        configuration["clientConnection"]["kubeconfig"] = str(kubeconfig)
        configuration["leaderElection"] = {"leaderElect": False}
        configuration |= {"podInitialBackoffSeconds": 1, "podMaxBackoffSeconds": 2}
        (extender,) = configuration["extenders"]
        extender["urlPrefix"] = f"https://127.0.0.1:{self.port}"
        extender["tlsConfig"] = {
            "caFile": str(self.plane.ca), "certFile": str(cert), "keyFile": str(key),
        }  # fmt: skip
        path = self.plane.folder / "scheduler.yaml"
        path.write_text(yaml.safe_dump(configuration))
        port = self.tools.free_port()
        self.processes.start(
            "scheduler", self.plane.tools / "kube-scheduler", f"--config={path}",
            "--bind-address=127.0.0.1", f"--secure-port={port}",
            "--authentication-skip-lookup=true", f"--cert-dir={self.plane.folder}",
        )  # fmt: skip

    def observe(self, path):
        url = f"http://127.0.0.1:{self.observe_port}{path}"
        try:
            with urllib.request.urlopen(url, timeout=30) as answer:
                raw = answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.read().decode()
        return raw if path in ("/readyz", "/healthz") else json.loads(raw)

    def observe_text(self, path):
        url = f"http://127.0.0.1:{self.observe_port}{path}"
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.read().decode()

    def cards(self, node):
        return self.observe("/debug/ledger")["nodes"][node]["cards"]

    def wait_registered(self, node):
        self.tools.wait_for(
            lambda: node in self.observe("/debug/ledger")["nodes"], 120, f"{node} is registered"
        )


class Plugin(threading.Thread):
    """Stands for all device plugins: says ``success`` to what is allocating, and notes
    whether two pods of a node were ever allocating at one time."""

    def __init__(self, plane, refusal):
        super().__init__(daemon=True)
        self.plane = plane
        # What may happen while the API server is being restarted.
        self.passing = (OSError, ValueError, http.client.HTTPException, refusal)
        self.serving = True
        self.stopping = False
        self.together = []
        self._allocating = {}

    def run(self):
        while not self.stopping:
            try:
                self._watch()
            except self.passing:
                continue

    def _watch(self):
        found = self.plane.request("GET", "/api/v1/pods")
        self._allocating.clear()
        for pod in found["items"]:
            self._see(pod)
        version = found["metadata"]["resourceVersion"]
        url = f"{self.plane.url}/api/v1/pods?watch=true&resourceVersion={version}&timeoutSeconds=1"
        with urllib.request.urlopen(url, context=self.plane._tls, timeout=240) as stream:
            for line in stream:
                event = json.loads(line)
                if event["type"] == "DELETED":
                    self._drop(event["object"])
                elif event["type"] in ("ADDED", "MODIFIED"):
                    self._see(event["object"])

    def _see(self, pod):
        node = pod["spec"].get("nodeName")
        phase = (pod["metadata"].get("annotations") or {}).get(names.POD_BIND_PHASE)
        if not node or phase != names.PHASE_ALLOCATING:
            self._drop(pod)
            return
        here = self._allocating.setdefault(node, set())
        here.add(pod["metadata"]["uid"])
        if len(here) > 1:
            self.together.append((node, sorted(here)))
        if self.serving:
            self._answer(pod)

    def _drop(self, pod):
        for here in self._allocating.values():
            here.discard(pod["metadata"]["uid"])

    def _answer(self, pod):
        metadata = pod["metadata"]
        patch = {"metadata": {"annotations": {names.POD_BIND_PHASE: names.PHASE_SUCCESS}}}
        path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        try:
            self.plane.request("PATCH", path, patch, "application/merge-patch+json")
        except self.passing as error:
            if getattr(error, "status", None) != 404:  # deleted meanwhile
                raise


def bound(pods):
    return [pod for pod in pods if pod["spec"].get("nodeName")]


def message(pod):
    for condition in pod["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return condition["message"]
    return ""


def annotations_of(pod):
    return pod["metadata"].get("annotations") or {}


@contextlib.contextmanager
def running_stack(plane, tools, python, folder, config=None, rules=RULES):
    """A stack of its own on the module's API server; ended with its rights."""
    processes = type(plane.processes)(folder)
    found = Stack(plane, processes, tools, python, config, rules)
    try:
        found.start()
        yield found
    finally:
        processes.stop_all()
        for kind in ("clusterroles", "clusterrolebindings"):
            try:
                plane.request("DELETE", f"{RBAC}/{kind}/vgpu-extender")
            except tools.ApiStatus as error:
                assert error.status == 404


@contextlib.contextmanager
def running_plugin(thread):
    """A plugin while it serves; no two pods of a node may ever have been allocating."""
    thread.start()
    yield thread
    thread.stopping = True
    thread.join(120)
    assert not thread.is_alive()
    assert thread.together == []
