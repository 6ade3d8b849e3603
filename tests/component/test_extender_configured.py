"""What is not the default, on a real API server and scheduler: a second vendor's cards
from admission to metrics, and the lock of nodes beside HAMi's plugin."""

from __future__ import annotations

import datetime
import json
import uuid

import pytest

from testbed.lab.deploy import StackImages, StackValues
from testbed.lab.explain import Facts, explain
from testbed.stack import names
from testbed.stack.codec import encode_register
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import HYGON
from testbed.stack.extender.nodelock import decode_lock
from testbed.stack.model import Card

from .scheduling import (
    RULES,
    Plugin,
    annotations_of,
    bound,
    message,
    running_plugin,
    running_stack,
)
from .test_webhook import CONFIGURATIONS, REGISTRATION, configuration
from .test_webhook import start as start_webhook

CONFIG = DeviceConfig(
    vendors=("nvidia", "hygon"),
    nodeLock=True,
    schedulerName="configured-scheduler",
    # The extender of these tests, and who stands for HAMi's plugin.
    trustedWriters=("vgpu-extender", "admin"),
)
VALUES = StackValues(images=StackImages(base="base:1", kube_scheduler="scheduler:1"), config=CONFIG)
LOCKING = [*RULES, {"apiGroups": [""], "resources": ["nodes"], "verbs": ["patch"]}]
MERGE = "application/merge-patch+json"


class HamisPlugin(Plugin):
    """Serves the pod that owns its node's lock, and takes the lock away (HAMi v2.10)."""

    def __init__(self, plane, refusal):
        super().__init__(plane, refusal)
        self.locks = {}  # by pod, when it was served first

    def _answer(self, pod):
        node = pod["spec"]["nodeName"]
        lock = lock_of(self.plane, node)
        metadata = pod["metadata"]
        self.locks.setdefault((metadata["namespace"], metadata["name"]), lock)
        super()._answer(pod)
        if lock is not None and (lock.namespace, lock.pod) == (
            metadata["namespace"],
            metadata["name"],
        ):
            write_lock(self.plane, node, None)


def lock_of(plane, node):
    found = plane.request("GET", f"/api/v1/nodes/{node}")
    return decode_lock(annotations_of(found).get(names.NODE_LOCK) or "")


def write_lock(plane, node, value):
    patch = {"metadata": {"annotations": {names.NODE_LOCK: value}}}
    plane.request("PATCH", f"/api/v1/nodes/{node}", patch, MERGE)


def ago(seconds):
    when = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=seconds)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.fixture(scope="module")
def stack(api_server, tools, python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("configured")
    with running_stack(api_server, tools, python, folder, CONFIG, LOCKING) as found:
        yield found


@pytest.fixture
def hami(api_server, tools):
    with running_plugin(HamisPlugin(api_server, tools.ApiStatus)) as thread:
        yield thread


@pytest.fixture
def node(api_server, stack, nodes):
    """Makes a node with one GPU and, where that is asked for, one DCU."""

    def make(dcu_mib=0):
        prefix = uuid.uuid4().hex[:8]
        gpu = Card(uuid=f"GPU-{prefix}", mem_mib=81920, model="NVIDIA A100-SXM4-80GB", slots=40)
        notes = {names.NODE_REGISTER: encode_register([gpu])}
        if dcu_mib:
            notes[HYGON.register] = f"DCU-{prefix},4,{dcu_mib},100,Z100L,0,true:"
        name = nodes(notes, 1, 40)
        if dcu_mib:
            status = {"capacity": {HYGON.count: "4"}, "allocatable": {HYGON.count: "4"}}
            api_server.request("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)
        stack.wait_registered(name)
        stack.tools.wait_for(
            lambda: len(stack.cards(name)) == 1 + bool(dcu_mib), 120, "its cards are known"
        )
        return name

    return make


def pod(name, limits, node=""):
    spec = {"containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]}
    if node:
        term = {"key": "metadata.name", "operator": "In", "values": [node]}
        spec["affinity"] = {
            "nodeAffinity": {
                "requiredDuringSchedulingIgnoredDuringExecution": {
                    "nodeSelectorTerms": [{"matchFields": [term]}]
                }
            }
        }
    return {"metadata": {"name": name}, "spec": spec}


@pytest.fixture
def create(api_server, namespace):
    def make(name, node, mem=100):
        body = pod(name, {names.RESOURCE_COUNT: "1", names.RESOURCE_MEMORY: str(mem)}, node)
        body["spec"]["schedulerName"] = CONFIG.schedulerName
        return api_server.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)

    return make


def events_of(api_server, namespace, reason):
    found = api_server.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    return [event for event in found if event["reason"] == reason]


# --- beside HAMi's plugin ---------------------------------------------------------------


def test_each_pod_owns_its_nodes_lock_when_it_is_served(
    api_server, stack, node, create, hami, namespace, tools
):
    where = node()
    for number in range(6):
        create(f"p{number}", where)
    tools.wait_for(lambda: len(bound(api_server.pods(namespace))) == 6, 120, "all are bound")
    pods = {(namespace, f"p{number}") for number in range(6)}
    tools.wait_for(lambda: pods <= hami.locks.keys(), 120, "all are served")
    tools.wait_for(lambda: lock_of(api_server, where) is None, 120, "the last lock is free")
    assert all((hami.locks[each].namespace, hami.locks[each].pod) == each for each in pods)


@pytest.mark.parametrize("stale", ["owner gone", "too old"])
def test_a_lock_that_nobody_will_give_back_is_taken_over(
    api_server, stack, node, create, hami, namespace, tools, stale
):
    where = node()
    owner = "gone"
    if stale == "too old":
        owner = "waits"
        body = pod(owner, {})
        body["spec"]["schedulerName"] = "nobody"
        api_server.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    taken = ago(CONFIG.nodeLockSeconds + 60 if stale == "too old" else 1)
    write_lock(api_server, where, f"{taken},{namespace},{owner}")
    create("a", where)
    tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound")
    tools.wait_for(lambda: (namespace, "a") in hami.locks, 120, "a is served")
    assert hami.locks[namespace, "a"].pod == "a"


def test_a_lock_that_is_held_is_respected_until_its_owner_ends(
    api_server, stack, node, create, hami, namespace, tools
):
    where = node()
    body = pod("owner", {})
    body["spec"]["schedulerName"] = "nobody"
    api_server.request("POST", f"/api/v1/namespaces/{namespace}/pods", body)
    write_lock(api_server, where, f"{ago(0)},{namespace},owner")
    create("a", where)
    (event, *_) = tools.wait_for(
        lambda: events_of(api_server, namespace, "BindingFailed"), 120, "the failure is told"
    )
    assert f"{namespace}/owner holds {names.NODE_LOCK}" in event["message"]
    assert not bound([api_server.pod(namespace, "a")])
    assert lock_of(api_server, where).pod == "owner"
    api_server.delete_pod(namespace, "owner")
    tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound")


def test_a_binding_that_fails_gives_the_lock_back(
    api_server, stack, node, create, hami, namespace, tools
):
    where = node()
    stack.grant([rule for rule in LOCKING if rule["resources"] != ["pods/binding"]])
    try:
        create("a", where)
        tools.wait_for(
            lambda: events_of(api_server, namespace, "BindingFailed"), 120, "the failure is told"
        )
        tools.wait_for(lambda: lock_of(api_server, where) is None, 120, "the lock is given back")
    finally:
        stack.grant(LOCKING)
    tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound after all")


# --- a second vendor ----------------------------------------------------------------------


@pytest.fixture
def dcu_node(node):
    """A node with a GPU and a DCU of 30,000 MiB, beside one with a GPU alone.

    Made before there is a webhook: it takes registers off nodes that anybody else creates.
    """
    node()
    return node(dcu_mib=30_000)


@pytest.fixture
def admitted(api_server, stack, dcu_node, programs, python, tools, tmp_path):
    """Creates pods through the webhook of this configuration, in a namespace of its own."""
    config = tmp_path / "device-config.yaml"
    config.write_bytes((stack.processes.folder / "device-config.yaml").read_bytes())
    serving = api_server.serving("webhook")
    url = start_webhook("webhook", api_server, programs, python, tools, config, serving)
    registered = configuration(url, api_server.ca_bundle, VALUES)
    api_server.request("POST", CONFIGURATIONS, registered)
    namespace = api_server.namespace({"test": "webhook"})

    def make(name, limits, query="", **meta):
        body = pod(name, limits)
        body["metadata"].update(meta)
        return api_server.request("POST", f"/api/v1/namespaces/{namespace}/pods{query}", body)

    def seen():
        probe = make("probe", {HYGON.memory: "1"}, "?dryRun=All")
        return probe["spec"]["schedulerName"] == CONFIG.schedulerName

    make.namespace = namespace
    try:
        tools.wait_for(seen, 120, "the API server calls the webhook")
        yield make
    finally:
        api_server.request("DELETE", f"{CONFIGURATIONS}/{REGISTRATION}")
        for found in api_server.pods(namespace):
            api_server.delete_pod(namespace, found["metadata"]["name"])


def facts_of(api_server, stack, found):
    """What ``testbed explain`` gathers, from the same documents."""
    return Facts(
        pod=found,
        config=CONFIG,
        books=stack.observe("/debug/ledger"),
        reservations=stack.observe("/debug/reservations"),
        waiting=stack.observe("/debug/waiting"),
        nodes=api_server.request("GET", "/api/v1/nodes")["items"],
        pods=api_server.request("GET", "/api/v1/pods")["items"],
    )


@pytest.mark.timeout(600)
def test_a_second_vendors_pod_from_admission_to_metrics(
    api_server, stack, dcu_node, admitted, hami, tools
):
    where, namespace = dcu_node, admitted.namespace
    quota = {
        "metadata": {"name": "dcus"},
        "spec": {"hard": {f"limits.{HYGON.memory}": "50000"}},
    }
    api_server.request("POST", f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    # Admission: the count by default, our scheduler; what cannot be meant is refused.
    made = admitted("a", {HYGON.memory: "20000", HYGON.cores: "30"})
    assert made["spec"]["containers"][0]["resources"]["limits"][HYGON.count] == "1"
    assert made["spec"]["schedulerName"] == CONFIG.schedulerName
    with pytest.raises(tools.ApiStatus, match=r"hygon\.com/dcumem.*not a whole number"):
        admitted("typo", {HYGON.memory: "500m"})
    with pytest.raises(tools.ApiStatus, match="vendor"):
        admitted("both", {HYGON.memory: "1", names.RESOURCE_MEMORY: "1"})
    # Scheduling: the node with the text register, and the annotations of its plugin alone.
    (found,) = tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound")
    assert found["spec"]["nodeName"] == where
    notes = annotations_of(found)
    (dcu,) = [card for card in stack.cards(where) if card["vendor"] == HYGON.word]
    assert notes[HYGON.allocated] == f"{dcu['uuid']},DCU,20000,30:;"
    assert names.POD_ALLOCATED not in notes and names.POD_TO_ALLOCATE not in notes
    assert dcu["mem_mib"] == {"used": 20_000, "total": 30_000}
    # The next one waits, and explain names the DCU, not a GPU that is free.
    admitted("b", {HYGON.memory: "15000"})
    waits = tools.wait_for(
        lambda: (p := api_server.pod(namespace, "b")) and message(p) and p, 120, "b waits"
    )
    assert "CardInsufficientMemory" in message(waits)
    said = explain(facts_of(api_server, stack, waits))
    assert "10,000 MiB free of the 15,000 MiB asked" in said.says, json.dumps(said.says)
    # Quota by the vendor's own key, early and late.
    with pytest.raises(tools.ApiStatus, match="quota"):
        tools.wait_for(
            lambda: not admitted("c", {HYGON.memory: "40000"}, "?dryRun=All"), 120, "told early"
        )
    metrics = stack.observe_text("/metrics")
    assert f'limit="limits.{HYGON.memory}"' in metrics
    assert f'deviceuuid="{dcu["uuid"]}"' in metrics or dcu["uuid"] in metrics
    # Its end gives everything back.
    api_server.delete_pod(namespace, "a")
    tools.wait_for(lambda: bound([api_server.pod(namespace, "b")]), 120, "b is bound")
    assert [c["mem_mib"]["used"] for c in stack.cards(where) if c["uuid"] == dcu["uuid"]] == [
        15_000
    ]
