"""Several nodes, mixed models, sixteen cards: every pod gets the cards that it was promised."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys

import pytest

from testbed.card import profiles
from testbed.errors import InputError
from testbed.lab import bundle
from testbed.lab.deploy import enforcement
from testbed.lab.explain import explain, gather
from testbed.lab.progress import ConsoleProgress
from testbed.lab.testbed import cluster_spec
from testbed.lab.wait import wait_until
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares, decode_register
from testbed.units import MIB

from .places import brought_up, own_namespace, sample_pod

A100, T4 = "NVIDIA A100-SXM4-80GB", "Tesla T4"
CARDS = "a100-80gb:2,t4:1;t4:8,a100-80gb:8"
MODELS = ([A100, A100, T4], [T4] * 8 + [A100] * 8)


def size_mib(profile):
    """Return what programs can have of a card."""
    figures = profiles.load(profile).figures
    return (figures["memory_bytes"].value - figures["reserved_bytes"].value) // MIB


SIZES = {A100: size_mib("a100-80gb"), T4: size_mib("t4")}

#: What a container finds, card by card; and whether the cap holds on each.
LOOK = """
import json, torch
found = []
for i in range(torch.cuda.device_count()):
    free, total = torch.cuda.mem_get_info(i)
    try:
        torch.empty(total + (64 << 20), dtype=torch.int8, device=f"cuda:{i}")
        refused = False
    except torch.OutOfMemoryError:
        refused = True
    kept = torch.empty(total - (1 << 30), dtype=torch.int8, device=f"cuda:{i}")
    found.append({
        "name": torch.cuda.get_device_name(i),
        "uuid": "GPU-" + str(torch.cuda.get_device_properties(i).uuid),
        "total": total,
        "refused": refused,
    })
print("FOUND", json.dumps(found), flush=True)
"""


@pytest.fixture(scope="module")
def nodes(request, tmp_path_factory):
    """A testbed of two nodes with cards of their own."""
    folder = tmp_path_factory.mktemp
    with brought_up(f"n{os.getpid()}", cluster_spec(CARDS), request.session, folder) as found:
        yield found


@pytest.fixture
def space(nodes):
    """A namespace of the test's own on the two nodes."""
    with own_namespace(nodes.kube) as name:
        yield name


def pod(nodes, space, name, limits, *, node="", annotations=None):
    """Return a pod that looks at its cards and ends."""
    command = ["/opt/testbed/pytorch/bin/python", "-c", LOOK]
    spec = {"nodeSelector": {"kubernetes.io/hostname": node}} if node else {}
    return sample_pod(nodes, space, name, command, limits, annotations=annotations, **spec)


def looked(nodes, space, name):
    """Wait until a pod has ended well; return its object and what it found."""
    kube = nodes.kube
    ended = wait_until(
        f"pod {name} has ended",
        lambda: kube.get("v1", "Pod", name, space),
        ready=lambda found: found["status"]["phase"] in ("Succeeded", "Failed"),
        describe=lambda found: json.dumps(found["status"])[:600],
        timeout_s=300,
    )
    text = kube.logs(space, name)
    assert ended["status"]["phase"] == "Succeeded", text
    (line,) = [line for line in text.splitlines() if line.startswith("FOUND ")]
    return ended, json.loads(line.removeprefix("FOUND "))


def registered(nodes):
    """Return each node's cards as it registers them, by name."""
    return {
        node["metadata"]["name"]: decode_register(
            node["metadata"]["annotations"][names.NODE_REGISTER]
        )
        for node in nodes.kube.list("v1", "Node")
    }


def promised(found):
    """Return the shares of a pod's only container."""
    (shares,) = decode_pod_shares(found["metadata"]["annotations"][names.POD_ALLOCATED], 1)
    return shares


def test_each_node_has_its_own_cards_in_order(nodes):
    status = nodes.cluster.status()
    cards = registered(nodes)
    for node, models in zip(status.nodes, MODELS, strict=True):
        mine = sorted(cards[node.name], key=lambda card: card.index)
        assert [card.model.removeprefix("NVIDIA-") for card in mine] == models
        assert [card.uuid for card in mine] == list(node.cards)
        assert [card.mem_mib for card in mine] == [SIZES[model] for model in models]
        found = nodes.kube.get("v1", "Node", node.name)
        assert found["status"]["allocatable"][names.RESOURCE_COUNT] == str(10 * len(models))
    assert len({card.uuid for each in cards.values() for card in each}) == 19


def test_pods_get_the_model_and_the_cap_that_they_ask_for_on_every_node(nodes, space):
    cases = {}
    for number, node in enumerate(nodes.cluster.status().nodes):
        for model in (A100, T4):
            name = f"p{number}-{model.split()[1].lower()}"
            cases[name] = (node.name, model)
            limits = {names.RESOURCE_COUNT: 1, names.RESOURCE_MEMORY: 3000 + number}
            wish = {names.USE_TYPE: model.removeprefix("NVIDIA ")}
            nodes.kube.create(pod(nodes, space, name, limits, node=node.name, annotations=wish))
    for name, (node, model) in cases.items():
        found, (card,) = looked(nodes, space, name)
        assert found["spec"]["nodeName"] == node
        assert card["name"] == model
        assert card["uuid"] == promised(found)[0].uuid
        assert card["uuid"] in {each.uuid for each in registered(nodes)[node]}
        assert card["total"] == (3000 + int(name[1])) * MIB and card["refused"]


def test_a_percentage_is_of_each_card_s_own_memory(nodes, space):
    limits = {names.RESOURCE_COUNT: 3, names.RESOURCE_MEMORY_PERCENTAGE: 50}
    first = nodes.cluster.status().nodes[0].name
    nodes.kube.create(pod(nodes, space, "mixed", limits, node=first))
    found, cards = looked(nodes, space, "mixed")
    assert [card["name"] for card in cards] == MODELS[0]
    assert [card["uuid"] for card in cards] == [share.uuid for share in promised(found)]
    assert [card["total"] for card in cards] == [SIZES[model] // 2 * MIB for model in MODELS[0]]
    assert all(card["refused"] for card in cards)


def test_without_the_limiter_the_same_pod_sees_whole_cards(nodes, space):
    """The control: what the tests above call a cap is the limiter's doing."""
    limits = {names.RESOURCE_COUNT: 3, names.RESOURCE_MEMORY_PERCENTAGE: 50}
    first = nodes.cluster.status().nodes[0].name
    with enforcement(nodes.kube, "off", ConsoleProgress(stream=sys.__stderr__)):
        nodes.kube.create(pod(nodes, space, "mixed", limits, node=first))
        _, cards = looked(nodes, space, "mixed")
    assert [card["total"] for card in cards] == [SIZES[model] * MIB for model in MODELS[0]]


def test_a_pod_with_sixteen_cards_has_them_in_the_node_s_order(nodes, space):
    limits = {names.RESOURCE_COUNT: 16, names.RESOURCE_MEMORY: 2500}
    nodes.kube.create(pod(nodes, space, "all", limits))
    found, cards = looked(nodes, space, "all")
    node = nodes.cluster.status().nodes[1]
    assert found["spec"]["nodeName"] == node.name
    assert [card["uuid"] for card in cards] == list(node.cards)
    assert [card["name"] for card in cards] == MODELS[1]
    assert {card["total"] for card in cards} == {2500 * MIB}
    assert all(card["refused"] for card in cards)


GANG = 40


def test_a_gang_of_forty_on_one_node_starts_and_each_has_its_own_cap(nodes, space):
    """L11: turns between bind and Allocate, forty times, whatever order kubelet asks in.

    The promise of 20 s is kept with 9 s on two idle cores; here the time only bounds the
    test, since a busy machine starts forty containers as fast as it can.
    """
    kube, (_, wide) = nodes.kube, nodes.cluster.status().nodes
    show = ["sh", "-c", f"echo ${names.ENV_MEMORY_LIMIT}_0; exec sleep 3600"]
    for number in range(GANG):
        limits = {names.RESOURCE_COUNT: 1, names.RESOURCE_MEMORY: 1000 + number}
        one = pod(nodes, space, f"g{number}", limits, node=wide.name)
        one["metadata"]["labels"] = {"scheduling.x-k8s.io/pod-group": "gang"}
        one["spec"]["containers"][0]["command"] = show
        kube.create(one)
    found = wait_until(
        "the gang runs",
        lambda: kube.list("v1", "Pod", space),
        ready=lambda pods: all(pod["status"].get("phase") == "Running" for pod in pods),
        describe=lambda pods: ", ".join(
            f"{pod['metadata']['name']} {pod['status'].get('phase')}"
            for pod in pods
            if pod["status"].get("phase") != "Running"
        ),
        timeout_s=400,
    )
    assert len(found) == GANG
    for each in found:
        name, (share,) = each["metadata"]["name"], promised(each)
        mib = 1000 + int(name.removeprefix("g"))
        assert share.mem_mib == mib
        assert each["metadata"]["annotations"][names.POD_BIND_PHASE] == names.PHASE_SUCCESS
        text = wait_until(
            f"{name} has said its cap", lambda n=name: kube.logs(space, n), ready=bool,
            timeout_s=120,
        )  # fmt: skip
        assert text.strip() == f"{mib}m", name


def test_a_pod_that_waits_is_explained_and_the_advice_holds(nodes, space):
    def submit(name, mib):
        limits = {names.RESOURCE_COUNT: 9, names.RESOURCE_MEMORY: mib}
        nodes.kube.create(pod(nodes, space, name, limits))

    submit("many", 50_000)  # only eight cards of one node are that large
    waiting = wait_until(
        "the scheduler has refused it",
        lambda: explain(gather(nodes.kube, "many", space)),
        ready=lambda found: bool(found.scheduler),
        timeout_s=120,
    )
    assert waiting.state == "waiting"
    assert waiting.nodes[0].node == nodes.cluster.status().nodes[1].name
    assert "8 of 9 cards found" in waiting.says
    assert f"{SIZES[T4]:,} MiB free of the 50,000 MiB asked" in waiting.says
    what = [remedy.what for remedy in waiting.remedies]
    assert what == [f"it asked for at most {SIZES[T4]:,} MiB", "it asked for 8 cards"]
    # Events expire, and what is known of the pod does not.
    kube = nodes.kube
    wait_until(
        "it is told as an event, too",
        lambda: {each["reason"] for each in kube.list("v1", "Event", space)},
        ready=lambda told: "FailedScheduling" in told,
        timeout_s=120,
    )
    for each in kube.list("v1", "Event", space):
        kube.delete("v1", "Event", each["metadata"]["name"], space)
    later = explain(gather(kube, "many", space))
    assert (later.says, later.counts, later.remedies) == (
        waiting.says, waiting.counts, waiting.remedies,
    )  # fmt: skip
    assert later.refused is not None and later.refused.attempts >= 1
    submit("fewer", SIZES[T4])
    _, cards = looked(nodes, space, "fewer")
    assert len(cards) == 9
    assert explain(gather(nodes.kube, "fewer", space)).state == "ended"


def test_up_with_other_cards_is_refused_and_the_same_again_changes_nothing(nodes):
    progress = ConsoleProgress(stream=sys.__stderr__)
    before = nodes.cluster.status()
    with pytest.raises(InputError, match="is up with other nodes, cards or port") as refused:
        nodes.up(cluster_spec("a100-80gb:1"), progress)
    assert f"'{CARDS}'" in refused.value.why
    assert nodes.up(cluster_spec(CARDS), progress) == before


def test_a_bundle_has_every_card_and_no_secret(nodes, tmp_path):
    kube = nodes.kube
    folder = bundle.write(tmp_path / "bundle", nodes.cluster, kube)
    for node in nodes.cluster.status().nodes:
        cards = {path.stem for path in (folder / "nodes" / node.name / "cards").iterdir()}
        assert cards == set(node.cards)
    assert not (folder / "problems.txt").exists(), (folder / "problems.txt").read_text()
    secrets = {
        value
        for secret in kube.list("v1", "Secret")
        for key, value in (secret.get("data") or {}).items()
        if "key" in key or "token" in key
    }
    admin = nodes.cluster.kubeconfig().read_text()
    secrets |= {line.split()[1] for line in admin.splitlines() if "client-key-data:" in line}
    assert len(secrets) >= 4  # the three leaves' keys and the administrator's
    needles = [base64.b64decode(value).strip() for value in secrets]
    needles += [value.encode() for value in secrets]
    for path in folder.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            assert not any(needle in data for needle in needles), path
            assert b"PRIVATE KEY" not in data, path


def test_logs_of_a_component_come_from_every_node(nodes):
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from testbed.cli import main; main()"),
            *("logs", "kubelet", "--tail", "1", "-o", "json", "--name", nodes.name),
        ],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    sources = {json.loads(line)["source"] for line in done.stdout.splitlines()}
    assert sources == {f"{node.name}-kubelet" for node in nodes.cluster.status().nodes}
