"""Place pods on simulated nodes, step by step, and bring home the ledger after each.

For questions about what scheduler and extender decide. All of them are the testbed's own,
and so is the admission before them; only the nodes are simulated, so no pod runs.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import msgspec

from testbed.errors import TestbedError, WaitTimeout
from testbed.lab.cluster.protocol import Step
from testbed.lab.deploy import ledger
from testbed.lab.kube import ApiError, Kube, Unreachable
from testbed.lab.scenario.pods import namespace_manifest
from testbed.lab.scenario.question import ContainerTrace, PodTrace, Trial
from testbed.lab.scenario.simulated import LABEL, Nodes, SimulatedNode
from testbed.lab.scenario.submission import set_quota
from testbed.lab.wait import wait_until
from testbed.stack import names
from testbed.stack.model import Card

#: Until a pod is bound, or is said to wait.
DECIDED_S = 60.0
#: Until the ledger follows, or a pod that waited moves up; a control waits as long for
#: what must not come.
FOLLOWS_S = 20.0
#: What of every card one look at the ledger tells: (slots, MiB, percent) taken.
Taken = tuple[int, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPod:
    """A pod to place.

    Attributes:
        name: Of the pod.
        group: Of the nodes that it may go to.
        manifest: The pod, without name, namespace and what leads it to its nodes.
    """

    name: str
    group: str
    manifest: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One step.

    Attributes:
        kind: ``submit`` the pod, ``delete`` it, say that its init containers are ``done``, or
            ``hold``: nothing is done (in a control).
        pod: Which.
        then: Pods that wait and move up by it; they are waited for.
    """

    kind: Literal["submit", "delete", "done", "hold"]
    pod: str
    then: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """What is played."""

    nodes: tuple[SimulatedNode, ...]
    pods: tuple[StagedPod, ...]
    moves: tuple[Move, ...]
    quota: Mapping[str, str] = field(default_factory=dict)


def stage(kube: Kube, plugin: Kube, staging: Staging, *, mode: str, step: Step) -> Trial:
    """Play the moves and return what became of the pods.

    A pod's events are ``refused`` (by admission), ``bound`` and ``waits``; the first pod of
    a move has the event ``moved`` too. Each holds ``move``, its number from 0, and ``cards``:
    of each card by ``node/index`` what the extender's ledger says is taken, after the move.

    Args:
        kube: The cluster.
        plugin: The same in the name of the device plugin.
        staging: Nodes, pods, moves.
        mode: ``on``, or ``off`` for a control.
        step: Told what is done.

    Raises:
        ApiError, Unreachable: the API server does not take nodes, a namespace or a quota.
        WaitTimeout: the extender does not learn of the nodes, or a pod is not decided on.
    """
    trial = uuid.uuid4().hex[:8]
    named = [(f"sim-{trial}-{node.name}", _told_apart(node, trial)) for node in staging.nodes]
    with Nodes(kube, plugin, named, group_of=lambda group: f"{trial}-{group}") as nodes:
        play = _Play(kube, plugin, staging, trial, dict(named), nodes)
        try:
            return play.run(mode, step)
        finally:
            play.clear()


def _told_apart(node: SimulatedNode, trial: str) -> SimulatedNode:
    """Return the node with uuids that no other trial has."""
    return replace(
        node,
        cards=tuple(
            msgspec.structs.replace(card, uuid=f"{card.uuid}-{trial}") for card in node.cards
        ),
    )


class _Play:
    def __init__(
        self,
        kube: Kube,
        plugin: Kube,
        staging: Staging,
        trial: str,
        named: Mapping[str, SimulatedNode],
        nodes: Nodes,
    ) -> None:
        self._kube, self._plugin, self._staging, self._nodes = kube, plugin, staging, nodes
        self._trial, self._named = trial, named
        self._space = f"trial-{trial}"
        self._pods = {pod.name: pod for pod in staging.pods}
        self._events: dict[str, list[dict[str, Any]]] = {pod.name: [] for pod in staging.pods}
        self._objects: dict[str, Mapping[str, Any]] = {}
        self._cards: Mapping[str, Taken] = {}
        self._last: Mapping[str, Any] = {}

    def run(self, mode: str, step: Step) -> Trial:
        started = time.time()
        self._kube.create(namespace_manifest(self._space))
        if self._staging.quota:
            set_quota(self._kube, self._space, self._staging.quota, asked=True)
        self._until("the simulated nodes are taken for ready", self._untainted, DECIDED_S)
        self._until(
            "the extender knows the simulated nodes",
            lambda: all(name in self._ledger()["nodes"] for name in self._named),
            DECIDED_S,
        )
        self._probe()
        self._look()
        moves = self._staging.moves
        for number, move in enumerate(moves):
            step.update(f"{number + 1}/{len(moves)} {move.kind} {move.pod}")
            self._move(number, move)
        return Trial(
            enforcement=mode,
            pods={name: self._trace(name) for name in self._pods},
            samples=(),
            source="api-server",
            registered=self._registered(),
            ledger=self._last,
            started=started,
            ended=time.time(),
        )

    def clear(self) -> None:
        """Remove the pods, which no kubelet would, and the namespace."""
        with contextlib.suppress(TestbedError):  # the next run's tidying finds what is left
            for pod in self._kube.list("v1", "Pod", self._space):
                self._kube.delete("v1", "Pod", pod["metadata"]["name"], self._space, grace_s=0)
            self._kube.delete("v1", "Namespace", self._space)

    def _untainted(self) -> bool:
        """Tell whether the cluster's own taints are off the nodes."""
        taints = [
            (self._kube.get("v1", "Node", name).get("spec") or {}).get("taints") or ()
            for name in self._named
        ]
        return all(taint["key"] == LABEL for each in taints for taint in each)

    def _probe(self) -> None:
        """Wait until the scheduler takes each node for one that is up, by a pod without a card."""
        probes = {f"probe-{number}": name for number, name in enumerate(self._named)}
        for probe, name in probes.items():
            spec = {
                "schedulerName": names.SCHEDULER_NAME,
                "nodeSelector": {"kubernetes.io/hostname": name},
                "containers": [{"name": "probe", "image": "example.test/none:1"}],
            }
            self._kube.create(
                self._manifest(StagedPod(name=probe, group="", manifest={"spec": spec}))
            )
        self._until(
            "the scheduler knows the simulated nodes",
            lambda: all(self._objects.get(p, {}).get("spec", {}).get("nodeName") for p in probes),
            DECIDED_S,
        )
        for probe in probes:
            self._kube.delete("v1", "Pod", probe, self._space, grace_s=0)

    # --- moves ------------------------------------------------------------------
    def _move(self, number: int, move: Move) -> None:
        play = {
            "submit": self._submit, "delete": self._delete, "done": self._done,
            "hold": self._hold,
        }  # fmt: skip
        told = play[move.kind](move.pod)
        found = [(move.pod, told)]
        for name in move.then:
            if name not in self._objects:
                continue  # it was refused, against what the question expects
            with contextlib.suppress(WaitTimeout):
                self._until(f"pod {name} is bound", partial(self._bound, name), FOLLOWS_S)
            found.append((name, self._decision(name)))
        self._look()
        self._add(move.pod, number, {"event": "moved"})
        for name, event in found:
            self._add(name, number, event)

    def _submit(self, name: str) -> dict[str, Any]:
        try:
            self._kube.create(self._manifest(self._pods[name]))
        except ApiError as error:
            return {"event": "refused", "reason": error.message}
        self._until(f"pod {name} is decided on", lambda: self._decided(name), DECIDED_S)
        return self._decision(name)

    def _delete(self, name: str) -> dict[str, Any]:
        uid = self._objects.get(name, {}).get("metadata", {}).get("uid", "")
        self._kube.delete("v1", "Pod", name, self._space, grace_s=0)
        with contextlib.suppress(WaitTimeout):  # then the ledger shows it, and a check fails
            gone = f"the ledger forgets pod {name}"
            self._until(gone, lambda: uid not in self._ledger()["pods"], FOLLOWS_S)
        return {"event": "deleted"}

    def _done(self, name: str) -> dict[str, Any]:
        """Write what kubelet writes when all plain init containers have ended well."""
        spec = self._kube.get("v1", "Pod", name, self._space)["spec"]
        statuses = [_ended(one) for one in spec.get("initContainers") or ()]
        body = {"status": {"initContainerStatuses": statuses}}
        before = self._cards
        self._kube.patch("v1", "Pod", name, body, self._space, subresource="status")
        with contextlib.suppress(WaitTimeout):  # where nothing shrinks, the ledger shows it
            self._until("the ledger shrinks", lambda: self._look() != before, FOLLOWS_S)
        return {"event": "done"}

    def _hold(self, _name: str) -> dict[str, Any]:
        return {"event": "held"}

    # --- looks ------------------------------------------------------------------
    def _decided(self, name: str) -> bool:
        return self._bound(name) or bool(self._why(name))

    def _bound(self, name: str) -> bool:
        """Tell whether a pod is bound, and answered for by its node's plugin."""
        notes = self._objects.get(name, {}).get("metadata", {}).get("annotations") or {}
        return notes.get(names.POD_BIND_PHASE) == names.PHASE_SUCCESS

    def _answer(self) -> None:
        """Look at the pods, and say for the bound ones what their nodes' plugins would.

        Else a node's turn would not pass on to its next pod.
        """
        body = {"metadata": {"annotations": {names.POD_BIND_PHASE: names.PHASE_SUCCESS}}}
        for pod in self._kube.list("v1", "Pod", self._space):
            name, notes = pod["metadata"]["name"], pod["metadata"].get("annotations") or {}
            bound = pod["spec"].get("nodeName") and names.POD_ALLOCATED in notes
            if bound and notes.get(names.POD_BIND_PHASE) != names.PHASE_SUCCESS:
                pod = self._plugin.patch("v1", "Pod", name, body, self._space)
            self._objects[name] = pod

    def _why(self, name: str) -> str:
        """Return the scheduler's words about a pod that it could not place."""
        for condition in (self._objects.get(name, {}).get("status") or {}).get("conditions") or ():
            if condition["type"] == "PodScheduled" and condition.get("reason") == "Unschedulable":
                return str(condition.get("message") or "no reason was given")
        return ""

    def _decision(self, name: str) -> dict[str, Any]:
        pod = self._objects[name]
        node = pod["spec"].get("nodeName", "")
        if not node:
            return {"event": "waits", "reason": self._why(name)}
        notes = pod["metadata"].get("annotations") or {}
        return {
            "event": "bound",
            "node": self._named[node].name if node in self._named else node,
            "devices": str(notes.get(names.POD_ALLOCATED, "")),
        }

    def _look(self) -> Mapping[str, Taken]:
        nodes = self._ledger()["nodes"]
        self._cards = {
            f"{node.name}/{card['index']}": (
                card["slots"]["used"], card["mem_mib"]["used"], card["core_pct"]["used"],
            )
            for name, node in self._named.items()
            for card in nodes.get(name, {"cards": ()})["cards"]
        }  # fmt: skip
        return self._cards

    def _ledger(self) -> Mapping[str, Any]:
        self._last = ledger(self._kube)
        return self._last

    def _until(self, what: str, observe: Callable[[], bool], timeout_s: float) -> None:
        def look() -> bool:
            self._nodes.beat()
            self._answer()
            return observe()

        wait_until(
            what, look, ready=bool, timeout_s=timeout_s, transient=(Unreachable,), interval_s=0.1
        )

    # --- what is brought home -----------------------------------------------------
    def _add(self, name: str, number: int, event: Mapping[str, Any]) -> None:
        cards = {label: list(taken) for label, taken in self._cards.items()}
        self._events[name].append({"time": time.time(), "move": number, "cards": cards, **event})

    def _trace(self, name: str) -> PodTrace:
        pod = self._objects.get(name, {})
        node = (pod.get("spec") or {}).get("nodeName", "")
        return PodTrace(
            name=name,
            uid=str((pod.get("metadata") or {}).get("uid", "")),
            node=self._named[node].name if node in self._named else node,
            object=pod,
            containers=(ContainerTrace(name="placement", events=tuple(self._events[name])),),
        )

    def _registered(self) -> dict[str, tuple[Card, ...]]:
        return {node.name: node.cards for node in self._named.values()}

    def _manifest(self, pod: StagedPod) -> dict[str, Any]:
        group = f"{self._trial}-{pod.group}"
        metadata = {**(pod.manifest.get("metadata") or {}), "name": pod.name}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {**metadata, "namespace": self._space},
            "spec": {
                "automountServiceAccountToken": False,
                "terminationGracePeriodSeconds": 0,
                "nodeSelector": {LABEL: group},
                "tolerations": [{"key": LABEL, "operator": "Exists"}],
                **pod.manifest["spec"],
            },
        }


def _ended(container: Mapping[str, Any]) -> dict[str, Any]:
    """Return the status of an init container: ended well, or up where it is a sidecar."""
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    sidecar = container.get("restartPolicy") == "Always"
    ended = {"exitCode": 0, "reason": "Completed", "startedAt": now, "finishedAt": now}
    return {
        "name": container["name"],
        "image": container["image"],
        "imageID": "",
        "ready": True,
        "started": sidecar,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}} if sidecar else {"terminated": ended},
    }


# --- for questions: what a trial's events say ---------------------------------------


def container(
    name: str, *, mem_mib: int = 0, mem_pct: int = 0, core_pct: int = 0, cards: int = 1
) -> dict[str, Any]:
    """Return a container that asks for a share; its image is never pulled."""
    limits = {names.RESOURCE_COUNT: str(cards)}
    if mem_mib:
        limits[names.RESOURCE_MEMORY] = str(mem_mib)
    if mem_pct:
        limits[names.RESOURCE_MEMORY_PERCENTAGE] = str(mem_pct)
    if core_pct:
        limits[names.RESOURCE_CORES] = str(core_pct)
    return {"name": name, "image": "example.test/none:1", "resources": {"limits": limits}}


def snapshots(trial: Trial) -> list[Mapping[str, Taken]]:
    """Return the ledger after each move, by ``node/index``."""
    found: dict[int, Mapping[str, Taken]] = {}
    for pod in trial.pods.values():
        for event in pod.events:
            if event["event"] == "moved":
                found[event["move"]] = {k: tuple(v) for k, v in event["cards"].items()}
    return [found[number] for number in sorted(found)]


def times(trial: Trial) -> list[float]:
    """Return when each move was over, in seconds since the trial began."""
    found = {
        event["move"]: event["time"] - trial.started
        for pod in trial.pods.values()
        for event in pod.events
        if event["event"] == "moved"
    }
    return [round(found[number], 3) for number in sorted(found)]


def outcome(trial: Trial, pod: str, move: int) -> Mapping[str, Any] | None:
    """Return what was decided on a pod by a move: refused, waits or bound; None: nothing."""
    if pod not in trial.pods:
        return None
    for event in trial.pods[pod].events:
        if event["move"] == move and event["event"] in ("refused", "waits", "bound"):
            return event
    return None


def places(trial: Trial, event: Mapping[str, Any]) -> Sequence[str]:
    """Return the cards that a bound pod was given, as ``node/index``, each once."""
    cards = {
        card.uuid: f"{node}/{card.index}" for node, own in trial.registered.items() for card in own
    }
    uuids = [
        part.split(",")[0]
        for one in str(event.get("devices", "")).split(";")
        for part in one.split(":")
        if part
    ]
    return tuple(dict.fromkeys(cards.get(each, each) for each in uuids))
