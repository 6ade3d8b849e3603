"""The extender between a real kube-scheduler and a real API server."""

from __future__ import annotations

import asyncio
import json
import socket
import ssl
import urllib.error
import urllib.request
import uuid

import pytest
import trustme

from testbed.stack import names
from testbed.stack.codec import decode_pod_shares, encode_register
from testbed.stack.extender.api import Api, ApiError
from testbed.stack.extender.connection import from_kubeconfig
from testbed.stack.extender.handler import binding, expire_patch
from testbed.stack.extender.reservations import Reservation
from testbed.stack.extender.waiting import WINDOW_S
from testbed.stack.model import Card, PodKey, Share

from .scheduling import (
    RULES,
    Plugin,
    annotations_of,
    bound,
    message,
    running_plugin,
    running_stack,
)

GPU, MEM, CORES = names.RESOURCE_COUNT, names.RESOURCE_MEMORY, names.RESOURCE_CORES


@pytest.fixture(scope="module")
def stack(api_server, tools, python, tmp_path_factory):
    folder = tmp_path_factory.mktemp("stack")
    with running_stack(api_server, tools, python, folder) as found:
        yield found


@pytest.fixture
def plugin(api_server, tools):
    with running_plugin(Plugin(api_server, tools.ApiStatus)) as thread:
        yield thread


@pytest.fixture
def gpu_node(stack, nodes):
    """Makes nodes with cards and waits until the extender knows them."""

    def make(count=1, slots=10, mem=81920, wait=True):
        prefix = uuid.uuid4().hex[:8]
        cards = [
            Card(uuid=f"GPU-{prefix}-{i}", index=i, slots=slots, mem_mib=mem,
                 model="NVIDIA A100-SXM4-80GB")
            for i in range(count)
        ]  # fmt: skip
        name = nodes({names.NODE_REGISTER: encode_register(cards)}, count, slots)
        if wait:
            stack.wait_registered(name)
        return name

    return make


@pytest.fixture
def create(api_server, namespace):
    """Creates pods for our scheduler, held to one node by a selector-like affinity."""

    def make(name, node=None, mem=1000, cores=None, annotations=None, init=None, priority=None):
        def limits(mem):
            found = {GPU: "1", MEM: str(mem)}
            if cores is not None:
                found[CORES] = str(cores)
            return {"limits": found}

        spec = {
            "schedulerName": names.SCHEDULER_NAME,
            "containers": [{"name": "main", "image": "i", "resources": limits(mem)}],
        }
        if priority:
            spec["priorityClassName"] = priority
        if init:
            spec["initContainers"] = [{"name": "init", "image": "i", "resources": limits(init)}]
        if node:
            term = {"key": "metadata.name", "operator": "In", "values": [node]}
            spec["affinity"] = {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchFields": [term]}]
                    }
                }
            }
        return api_server.request(
            "POST",
            f"/api/v1/namespaces/{namespace}/pods",
            {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec},
        )

    return make


def test_binding_carries_the_promise(api_server, stack, gpu_node, create, plugin, namespace, tools):
    node = gpu_node(count=2)
    create("a", node, mem=30720, cores=50, init=40000)
    pod = tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound")[0]
    assert pod["spec"]["nodeName"] == node
    found = annotations_of(pod)
    init, main = decode_pod_shares(found[names.POD_ALLOCATED], 2)
    assert (init[0].mem_mib, main[0].mem_mib, main[0].core_pct) == (40000, 30720, 50)
    assert found[names.POD_TO_ALLOCATE] == found[names.POD_ALLOCATED]
    assert found[names.POD_NODE] == node
    assert found[names.POD_BIND_PHASE] in (names.PHASE_ALLOCATING, names.PHASE_SUCCESS)
    assert abs(int(found[names.POD_TIME]) - int(found[names.POD_BIND_TIME])) <= 300
    assert pod["metadata"]["labels"][names.POD_NODE] == node  # the server is 1.35 or later
    charged = {card["uuid"]: card["mem_mib"]["used"] for card in stack.cards(node)}
    assert sum(charged.values()) in (40000, 70720)  # on one card the larger, on two both


@pytest.mark.timeout(600)
def test_twenty_pods_race_for_ten_slots(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    node = gpu_node(slots=10)
    for i in range(20):
        create(f"p{i}", node, mem=100)

    def settled():
        pods = api_server.pods(namespace)
        waiting = [p for p in pods if "CardTimeSlicingExhausted" in message(p)]
        return len(bound(pods)) + len(waiting) == 20 and pods

    pods = tools.wait_for(settled, 120, "every pod is bound or told why not")
    assert len(bound(pods)) == 10
    assert "0/" in message(next(p for p in pods if message(p)))
    (card,) = stack.cards(node)
    assert card["slots"] == {"used": 10, "total": 10}
    assert card["mem_mib"]["used"] == 1000
    # A slot that is given back goes to one who waits.
    api_server.delete_pod(namespace, bound(pods)[0]["metadata"]["name"])
    tools.wait_for(
        lambda: len(bound(api_server.pods(namespace))) == 10, 120, "another pod is bound"
    )
    assert stack.cards(node)[0]["slots"]["used"] == 10

    def reasons():
        found = api_server.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return {e["reason"] for e in found if e["source"].get("component") == "vgpu-extender"}

    assert tools.wait_for(reasons, what="events are written") == {"FilteringFailed"}


@pytest.mark.timeout(600)
def test_l11_forty_pods_of_one_node_are_bound_one_after_the_other(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    node = gpu_node(slots=40)
    for i in range(40):
        create(f"p{i}", node, mem=100)
    # In how much time is the benchmark's affair (`testbed bench schedule`).
    tools.wait_for(lambda: len(bound(api_server.pods(namespace))) == 40, 120, "all are bound")
    assert stack.cards(node)[0]["slots"]["used"] == 40
    # The scheduler's binds wait side by side on connections of HTTP/2, not on one each.
    (line,) = [
        line
        for line in stack.observe_text("/metrics").splitlines()
        if line.startswith('vgpu_extender_connections_total{protocol="h2"}')
    ]
    assert 1 <= int(line.split()[1]) < 40


def test_memory_of_a_card_is_never_promised_twice(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    node = gpu_node(mem=24 * 1024)
    for i in range(3):
        create(f"p{i}", node, mem=12 * 1024)

    def settled():
        pods = api_server.pods(namespace)
        waiting = [p for p in pods if "CardInsufficientMemory" in message(p)]
        return (len(bound(pods)), len(waiting)) == (2, 1)

    tools.wait_for(settled, 120, "two are bound and one waits")
    assert stack.cards(node)[0]["mem_mib"] == {"used": 24576, "total": 24576}


def test_forged_promises_are_overwritten_by_the_binding(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    node = gpu_node()
    create("a", node, annotations={names.POD_ALLOCATED: "GPU-x,NVIDIA,9,9:;", names.POD_NODE: "x"})
    pod = tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound")[0]
    assert annotations_of(pod)[names.POD_NODE] == node
    assert "GPU-x" not in annotations_of(pod)[names.POD_ALLOCATED]


def test_use_gpuuuid_holds_a_pod_to_its_card(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    node = gpu_node(count=3)
    uuid_ = stack.cards(node)[1]["uuid"]
    for name in ("a", "b"):
        create(name, annotations={names.USE_UUID: uuid_})  # the card alone names the node
        pod = tools.wait_for(lambda n=name: bound([api_server.pod(namespace, n)]), 120, name)[0]
        assert pod["spec"]["nodeName"] == node
        assert decode_pod_shares(annotations_of(pod)[names.POD_ALLOCATED])[0][0].uuid == uuid_


@pytest.mark.timeout(600)
def test_the_one_fitting_node_of_many_is_found_at_once(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    # kube-scheduler's default would show the extender 45 % of 600.
    for _ in range(599):
        gpu_node(mem=1000, wait=False)
    node = gpu_node(mem=50000)
    # Whoever has seen the last of them, the scheduler as well, has seen all.
    create("first", node, mem=1000)
    tools.wait_for(lambda: bound([api_server.pod(namespace, "first")]), what="it is seen")
    create("a", mem=40000)
    pod = tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound")[0]
    assert pod["spec"]["nodeName"] == node
    events = api_server.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
    assert [
        event
        for event in events
        if event["reason"] == "FailedScheduling" and event["involvedObject"]["name"] == "a"
    ] == []


def test_l2_failed_bindings_give_everything_back(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    node = gpu_node()
    stack.grant([rule for rule in RULES if rule["resources"] != ["pods/binding"]])
    try:
        create("a", node)

        def told():
            path = f"/api/v1/namespaces/{namespace}/events"
            return [
                event
                for event in api_server.request("GET", path)["items"]
                if event["reason"] == "BindingFailed"
            ]

        (event, *_) = tools.wait_for(told, 120, "the failure is told")
        assert "403" in event["message"]
        assert event["involvedObject"]["name"] == "a"
        assert not api_server.pod(namespace, "a")["spec"].get("nodeName")

        def free():
            return stack.cards(node)[0]["slots"]["used"] == 0

        tools.wait_for(free, 120, "the reservation is given back")
    finally:
        stack.grant(RULES)
    tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound after all")


def test_extender_restart_rebuilds_the_ledger(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    node = gpu_node()
    create("a", node, mem=3000, cores=30)
    tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound")
    before = stack.cards(node)
    assert before[0]["mem_mib"]["used"] == 3000
    stack.processes.stop("extender")
    api_server.request("GET", "/readyz")
    create("b", node, mem=3000, cores=30)
    stack.start_extender()
    tools.wait_for(lambda: bound([api_server.pod(namespace, "b")]), 120, "b is bound")
    after = stack.cards(node)[0]
    assert (after["mem_mib"]["used"], after["core_pct"]["used"]) == (6000, 60)


def sleeps(stack, namespace):
    """Whether the namespace's pod was refused so long ago that only the extender wakes it."""
    found = [p for p in stack.observe("/debug/waiting")["pods"] if p["namespace"] == namespace]
    return found and found[0]["refused_seconds_ago"] > WINDOW_S + 1


def test_extender_restart_wakes_who_sleeps(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    node = gpu_node()
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    quota = {"metadata": {"name": "q"}, "spec": {"hard": {f"limits.{MEM}": "10"}}}
    api_server.request("POST", quotas, quota)
    tools.wait_for(
        lambda: f'namespace="{namespace}"' in stack.observe_text("/metrics"), 120, "it is known"
    )
    create("a", node)
    tools.wait_for(
        lambda: "ResourceQuotaNotFit" in message(api_server.pod(namespace, "a")), 120, "a waits"
    )
    tools.wait_for(lambda: sleeps(stack, namespace), 120, "a was refused long ago")
    stack.processes.stop("extender")
    # kube-scheduler watches no quotas, and nothing else happens.
    api_server.request("DELETE", f"{quotas}/q")
    stack.start_extender()
    tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound")


@pytest.mark.timeout(600)
def test_api_server_restart_is_survived(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    node = gpu_node()
    create("a", node, mem=3000)
    tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound")
    api_server.processes.stop("kube-apiserver")
    assert stack.observe("/healthz") == "ok"
    api_server.start_api_server()
    create("b", node, mem=4000)
    tools.wait_for(lambda: bound([api_server.pod(namespace, "b")]), 120, "b is bound")
    api_server.delete_pod(namespace, "a")
    tools.wait_for(
        lambda: stack.cards(node)[0]["mem_mib"]["used"] == 4000, 120, "a's share is given back"
    )
    other = gpu_node()  # waits until its registration was watched
    assert stack.cards(other)


# --- priorities, quotas, leadership ------------------------------------------------


@pytest.fixture
def priorities(api_server):
    """Two classes, ``low-…`` and ``high-…``."""
    suffix = uuid.uuid4().hex[:8]
    made = []
    for name, value in ((f"low-{suffix}", 10), (f"high-{suffix}", 1000)):
        api_server.request(
            "POST",
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": name}, "value": value},
        )
        made.append(name)
    yield made
    for name in made:
        api_server.request("DELETE", f"/apis/scheduling.k8s.io/v1/priorityclasses/{name}")


def finish_deletions(api_server, namespace):
    """What kubelets do: a pod that is being deleted is gone."""
    for pod in api_server.pods(namespace):
        if pod["metadata"].get("deletionTimestamp"):
            api_server.delete_pod(namespace, pod["metadata"]["name"])


def test_a_higher_priority_gets_the_card_of_the_lowest_that_frees_it(
    api_server, stack, gpu_node, create, plugin, namespace, priorities, tools
):
    low, high = priorities
    node = gpu_node(count=2, mem=24000)
    create("large", node, mem=20000, priority=low)
    create("small-a", node, mem=10000, priority=low)
    create("small-b", node, mem=10000, priority=low)
    tools.wait_for(lambda: len(bound(api_server.pods(namespace))) == 3, 120, "all are bound")
    create("urgent", node, mem=22000, priority=high)

    def placed():
        finish_deletions(api_server, namespace)
        return bound([api_server.pod(namespace, "urgent")])

    (pod,) = tools.wait_for(placed, 120, "the urgent pod is bound")
    names_ = {p["metadata"]["name"] for p in api_server.pods(namespace)}
    assert names_ == {"small-a", "small-b", "urgent"}  # one victim, not two
    assert pod["spec"]["nodeName"] == node

    def preempted():
        found = api_server.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return [e["involvedObject"]["name"] for e in found if e["reason"] == "Preempted"]

    assert tools.wait_for(preempted, what="the event is written") == ["large"]


def test_an_equal_priority_waits_with_one_event_and_says_what_it_lacks(
    api_server, stack, gpu_node, create, plugin, namespace, priorities, tools
):
    low, _ = priorities
    node = gpu_node(mem=24000)
    create("first", node, mem=20000, priority=low)
    tools.wait_for(lambda: bound(api_server.pods(namespace)), 120, "the first is bound")
    create("second", node, mem=10000, priority=low)

    def waiting():
        found = stack.observe("/debug/waiting")["pods"]
        return [pod for pod in found if (pod["namespace"], pod["name"]) == (namespace, "second")]

    (entry,) = tools.wait_for(waiting, 120, "the second is refused")
    assert entry["reasons"] == {"1/1 CardInsufficientMemory": 1}
    assert entry["asked"][0]["mem_mib"] == 10000
    assert entry["nearest"]["node"] == node
    assert entry["nearest"]["cards"][0]["mem_lack_mib"] == 6000
    assert entry["would_fit_with"] == ["memory of at most 4000 MiB a card"]

    def event():
        items = api_server.request("GET", f"/api/v1/namespaces/{namespace}/events")["items"]
        return [e for e in items if e["reason"] == "FilteringFailed"]

    tools.wait_for(event, 120, "the event is written")
    api_server.request(
        "PATCH",
        f"/api/v1/namespaces/{namespace}/pods/second",
        {"metadata": {"annotations": {"again": "1"}}},
        "application/merge-patch+json",
    )
    before = entry["attempts"]
    tools.wait_for(lambda: waiting()[0]["attempts"] > before, 120, "it was tried again")
    assert len(event()) == 1
    metrics = stack.observe_text("/metrics")
    assert f'hami_gpu_memory_allocated_bytes{{node="{node}"' in metrics
    assert 'vgpu_extender_request_seconds_count{verb="filter",outcome="unfit"}' in metrics


def test_a_quota_bounds_what_a_namespace_is_promised(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    node = gpu_node(count=2, mem=24000)
    quota = {
        "metadata": {"name": "cards"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "15000"}},
    }
    api_server.request("POST", f"/api/v1/namespaces/{namespace}/resourcequotas", quota)
    tools.wait_for(
        lambda: f'namespace="{namespace}"' in stack.observe_text("/metrics"), 120, "it is known"
    )
    create("a", node, mem=10000)
    tools.wait_for(lambda: bound([api_server.pod(namespace, "a")]), 120, "a is bound")
    create("b", node, mem=10000)
    tools.wait_for(
        lambda: "ResourceQuotaNotFit" in message(api_server.pod(namespace, "b")), 120, "b waits"
    )

    tools.wait_for(lambda: sleeps(stack, namespace), 120, "b was refused long ago")
    api_server.request(
        "PATCH",
        f"/api/v1/namespaces/{namespace}/resourcequotas/cards",
        {"spec": {"hard": {"limits.nvidia.com/gpumem": "20000"}}},
        "application/merge-patch+json",
    )
    tools.wait_for(lambda: bound([api_server.pod(namespace, "b")]), 120, "b is bound")


def test_of_two_replicas_one_serves_and_the_other_takes_over(
    api_server, stack, gpu_node, namespace, programs, python, tools
):
    gpu_node(mem=24000)
    name = f"lease-{uuid.uuid4().hex[:8]}"
    leases = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases"
    ports = {}
    for who in ("one", "two"):
        ports[who] = (tools.free_port(), tools.free_port())
        cert, key = stack.serving
        programs.start(
            who, python, "-m", "testbed.stack.extender",
            f"--kubeconfig={stack.kubeconfig}", f"--cert={cert}", f"--key={key}",
            f"--client-ca={stack.plane.ca}", f"--port={ports[who][0]}",
            "--observe-host=127.0.0.1", f"--observe-port={ports[who][1]}",
            f"--lease={namespace}/{name}", f"--identity={who}",
        )  # fmt: skip

    renewals = iter(range(10**6))

    def hold(holder):
        """What a kube-scheduler does that holds the lease."""
        spec = {
            "holderIdentity": f"{holder}_{uuid.UUID(int=7)}",
            "leaseDurationSeconds": 10,
            "renewTime": f"2026-01-01T00:00:00.{next(renewals):06d}Z",
        }
        try:
            api_server.request(
                "PATCH", f"{leases}/{name}", {"spec": spec}, "application/merge-patch+json"
            )
        except tools.ApiStatus as error:
            assert error.status == 404
            api_server.request("POST", leases, {"metadata": {"name": name}, "spec": spec})

    context = ssl.create_default_context(cafile=str(stack.plane.ca))
    context.load_cert_chain(*stack.client)

    def asks(who, pod):
        body = {
            "Pod": {
                "metadata": {"name": pod, "namespace": namespace, "uid": f"uid-{pod}"},
                "spec": {
                    "schedulerName": names.SCHEDULER_NAME,
                    "containers": [
                        {"name": "c", "resources": {"limits": {GPU: "1", MEM: "20000"}}}
                    ],
                },
            },
            "NodeNames": [n["metadata"]["name"] for n in api_server.request(
                "GET", "/api/v1/nodes")["items"]],
        }  # fmt: skip
        request = urllib.request.Request(
            f"https://127.0.0.1:{ports[who][0]}/filter", data=json.dumps(body).encode()
        )
        try:
            with urllib.request.urlopen(request, context=context, timeout=30) as answer:
                return json.loads(answer.read())
        except OSError as error:
            return {"Error": str(error), "NodeNames": []}

    def serves(who, pod):
        hold(who)
        return asks(who, pod)["NodeNames"]

    tools.wait_for(lambda: serves("one", "a"), 120, "the first serves")
    refusal = tools.wait_for(
        lambda: hold("one") or "stands by" in asks("two", "b")["Error"], 120, "the other refuses"
    )
    assert refusal
    programs.stop("one")
    tools.wait_for(lambda: serves("two", "c"), 120, "the other takes over")
    # Nobody renews any more: it stops by itself, before the lease is over.
    tools.wait_for(lambda: "stands by" in asks("two", "d")["Error"], 120, "it lets go")


# --- who may call -----------------------------------------------------------


def call(stack, path, certificate=None, authority=None):
    context = ssl.create_default_context(cafile=str(authority or stack.plane.ca))
    if certificate:
        context.load_cert_chain(*certificate)
    request = urllib.request.Request(f"https://127.0.0.1:{stack.port}{path}")
    if path in ("/filter", "/bind"):
        request.data, request.method = b"{}", "POST"
    try:
        with urllib.request.urlopen(request, context=context, timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        with error:
            return error.code


@pytest.mark.parametrize("path", ["/filter", "/bind", "/debug/ledger", "/healthz"])
def test_only_the_schedulers_certificate_is_let_in(stack, path, tmp_path):
    assert call(stack, path, stack.client) == (200 if path.startswith(("/d", "/h")) else 400)
    with pytest.raises((ssl.SSLError, OSError)):
        call(stack, path)  # none at all
    stranger = trustme.CA().issue_cert("x.test", common_name="system:kube-scheduler")
    stranger.private_key_and_cert_chain_pem.write_to_path(tmp_path / "stranger.pem")
    with pytest.raises((ssl.SSLError, OSError)):
        call(stack, path, (tmp_path / "stranger.pem",))  # another authority's
    assert call(stack, path, stack.plane.admin) == 403  # our authority's, another name


def ask(stack, verb, body):
    """Call a verb as the scheduler does, and return the answer."""
    context = ssl.create_default_context(cafile=str(stack.plane.ca))
    context.load_cert_chain(*stack.client)
    request = urllib.request.Request(
        f"https://127.0.0.1:{stack.port}/{verb}", data=json.dumps(body).encode()
    )
    with urllib.request.urlopen(request, context=context, timeout=60) as answer:
        return json.loads(answer.read())


def test_bind_refuses_a_node_other_than_the_chosen_one(
    api_server, stack, gpu_node, create, plugin, namespace, tools
):
    chosen, other = gpu_node(), gpu_node()
    pod = create("a", "no-such-node")  # kube-scheduler leaves it to this test
    bind = {"PodName": "a", "PodNamespace": namespace, "PodUID": pod["metadata"]["uid"]}
    assert "no shares are reserved" in ask(stack, "bind", {**bind, "Node": chosen})["Error"]
    asked = {"Pod": pod, "NodeNames": [chosen]}
    assert ask(stack, "filter", asked)["NodeNames"] == [chosen]
    refusal = ask(stack, "bind", {**bind, "Node": other})["Error"]
    assert f"reserved on {chosen}, not on {other}" in refusal
    assert not bound([api_server.pod(namespace, "a")])
    assert stack.cards(chosen)[0]["slots"]["used"] == 0  # given back
    assert ask(stack, "filter", asked)["NodeNames"] == [chosen]
    assert not ask(stack, "bind", {**bind, "Node": chosen}).get("Error")
    assert api_server.pod(namespace, "a")["spec"]["nodeName"] == chosen


def test_an_autoscaler_that_simulates_reserves_nothing(
    api_server, stack, gpu_node, create, namespace
):
    name = gpu_node(mem=5000)
    known = api_server.request("GET", f"/api/v1/nodes/{name}")
    small = json.loads(json.dumps(known))
    small["metadata"]["name"] = "would-be-small"
    card = Card(uuid="GPU-would-be", index=0, slots=10, mem_mib=900, model="NVIDIA A100")
    small["metadata"]["annotations"] = {names.NODE_REGISTER: encode_register([card])}
    large = json.loads(json.dumps(known))
    large["metadata"]["name"] = "would-be-large"
    pod = create("a", "no-such-node", mem=1000)
    for _ in range(8):  # more than the card has room for
        answer = ask(stack, "filter", {"Pod": pod, "Nodes": {"items": [known, small, large]}})
        fitting = [node["metadata"]["name"] for node in answer["Nodes"]["items"]]
        assert sorted(fitting) == sorted([name, "would-be-large"])
        assert "CardInsufficientMemory" in str(answer)
    held = stack.observe("/debug/reservations")["reservations"]
    assert [each for each in held if each["namespace"] == namespace] == []
    assert stack.cards(name)[0]["slots"]["used"] == 0


def test_onlookers_can_look_and_nothing_else(stack, tools):
    tools.wait_for(
        lambda: stack.observe("/debug/reservations")["reservations"] == [],
        what="what earlier tests reserved is given back",
    )
    for path in ("/filter", "/bind"):
        request = urllib.request.Request(
            f"http://127.0.0.1:{stack.observe_port}{path}", data=b"{}", method="POST"
        )
        with pytest.raises(urllib.error.HTTPError) as caught:
            urllib.request.urlopen(request, timeout=30)
        caught.value.close()
        assert caught.value.code == 404


# --- single calls against the real server -----------------------------------


def test_expiry_patch_fails_where_the_pod_is_no_longer_allocating(
    api_server, create, nodes, namespace
):
    node = nodes({})
    made = create("x", "nowhere")
    uid = made["metadata"]["uid"]
    reservation = Reservation(
        pod=PodKey(namespace=namespace, name="x", uid=uid),
        node=node,
        shares=((Share(uuid="GPU-0", mem_mib=5, core_pct=0),),),
        kinds=(),
        created=0,
        created_unix=1,
    )

    async def scene():
        api = Api(from_kubeconfig(api_server.kubeconfig))
        try:
            assert await api.version() >= (1, 35)
            await api.bind(binding(reservation, 2, label=True))
            with pytest.raises(ApiError) as again:
                await api.bind(binding(reservation, 2, label=True))
            assert again.value.status == 409
            with pytest.raises(ApiError):
                await api.patch_pod(namespace, "x", expire_patch("another uid"))
            await api.patch_pod(namespace, "x", expire_patch(uid))
            with pytest.raises(ApiError):
                await api.patch_pod(namespace, "x", expire_patch(uid))
            assert await api.read_pod(namespace, "absent") is None
            return await api.read_pod(namespace, "x")
        finally:
            await api.close()

    pod = asyncio.run(scene())
    assert annotations_of(pod)[names.POD_BIND_PHASE] == names.PHASE_FAILED
    assert pod["spec"]["nodeName"] == node


def test_sigterm_ends_with_0_and_a_busy_port_with_2(stack, programs, python, tools):
    cert, key = stack.serving
    options = [
        python, "-m", "testbed.stack.extender", f"--kubeconfig={stack.kubeconfig}",
        f"--cert={cert}", f"--key={key}", f"--client-ca={stack.plane.ca}", "--observe-port=0",
    ]  # fmt: skip
    busy = programs.start("busy", *options, f"--port={stack.port}")
    assert busy.wait(120) == 2
    assert f"cannot listen on 127.0.0.1:{stack.port}" in programs.tail("busy")
    port = tools.free_port()
    process = programs.start("other", *options, f"--port={port}")

    def listens():
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    tools.wait_for(listens, 120, "it serves")
    process.terminate()
    assert process.wait(120) == 0, programs.tail("other")
