"""Filter and bind as functions of the state: values in, values out, no await."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from testbed.errors import CodecError, InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import share_annotations
from testbed.stack.extender.pods import DEFAULTS, pod_key
from testbed.stack.extender.reservations import Reservation, Stage
from testbed.stack.extender.simulation import simulate
from testbed.stack.extender.state import State
from testbed.stack.extender.waiting import Refusal
from testbed.stack.extender.wire import (
    BindArgs,
    FilterArgs,
    FilterResult,
    MetaPod,
    MetaVictims,
    PreemptArgs,
    PreemptResult,
)
from testbed.stack.model import PodKey
from testbed.stack.placement.decide import decide
from testbed.stack.placement.offer import Offer
from testbed.stack.placement.preempt import Plan, Victim, on_node
from testbed.stack.placement.preempt import plan as plan_
from testbed.stack.placement.quota import Amount
from testbed.stack.placement.reasons import explain
from testbed.stack.placement.request import PodRequest, pod_request

#: How many distinct reasons an event names.
_EVENT_REASONS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """A filter's answer, the event that its pod shall show, and whom to evict for it."""

    result: FilterResult
    pod: PodKey | None = None
    event: str = ""
    plan: Plan | None = None


def filter_pods(state: State, args: FilterArgs) -> Filtered:
    """Choose a node for the pod and reserve its shares there.

    A pod that fits nowhere gets a reason for every node; one that cannot be
    understood gets ``Error``, and the scheduler shows it and tries again later.
    """
    refusal = refused(state)
    if refusal:
        return _error(None, refusal)
    try:
        return _filter(state, args)
    except (InputError, CodecError) as error:
        pod = _key_or_none(args.Pod)
        text = error.what if not error.why else f"{error.what}: {error.why}"
        return _error(pod, f"{text} ({error.hint})" if error.hint else text)


def refused(state: State) -> str:
    """Return why nothing can be decided now; empty if it can."""
    if not state.synced:
        return "the extender has not read all nodes and pods yet"
    if not state.leads:
        who = state.leader or "nobody"
        return f"this extender stands by ({who} holds the scheduler's lease)"
    return ""


def _filter(state: State, args: FilterArgs) -> Filtered:
    pod, offer = args.Pod, args.offer
    key = pod_key(pod)
    if offer is None:
        if bytes(args.Nodes) == b"null":
            raise InputError("the scheduler sent neither NodeNames nor Nodes")
        return Filtered(result=simulate(state, pod, args.Nodes), pod=key)
    request = pod_request(pod, state.config)
    spec = pod.get("spec") or {}
    if not request.asks:
        return Filtered(result=FilterResult(NodeNames=msgspec.Raw(offer.raw)), pod=key)
    scheduler = spec.get("schedulerName") or state.config.schedulerName
    if scheduler != state.config.schedulerName:
        raise InputError(
            f"the pod belongs to scheduler {scheduler!r}",
            why=f"this extender serves {state.config.schedulerName!r}",
        )
    known = state.bound.get(key.uid)
    node = spec.get("nodeName") or (known.node if known else "")
    if node:
        # Bound already (HAMi #987): what it holds is not decided again.
        return _already_bound(key, str(node), offer)
    before = state.reservations.get(key.uid)
    if before is not None and before.stage is not Stage.RESERVED:
        raise InputError(f"the pod's bind to {before.node} is still under way")
    if before is not None and before.unanswered:
        return _once_more(state, before, offer)
    state.release(key.uid)
    kept = state.unnominate(key.uid)
    room = state.quotas.room(key.namespace, request.vendor)
    priority = _priority(spec)
    choice = decide(state.ledger, request, offer, room)
    if choice is None and len(state.nominations) and state.nominations.below(priority):
        # What is kept for others is kept for their priority, too.
        below = state.nominations.below(priority)
        for nomination in below:
            state.unnominate(nomination.pod.uid)
        choice = decide(state.ledger, request, offer, room)
        if choice is None:
            for nomination in below:
                state.renominate(nomination)
    if choice is not None:
        state.reserve(key, choice, request.kinds, priority)
        return Filtered(result=FilterResult(NodeNames=[choice.node]), pod=key)
    reasons = explain(state.ledger, request, offer, room)
    plan = None
    if kept is not None and kept.victims:
        state.renominate(kept)
    elif spec.get("preemptionPolicy") != "Never":
        plan = _plan(state, request, offer, priority, room)
        if plan is not None:
            state.nominate(key, plan, request.kinds, priority)
    state.waiting.refused(key, state.clock(), request, reasons.counts, offer)
    return Filtered(
        plan=plan,
        result=FilterResult(
            NodeNames=[],
            FailedNodes=reasons.failed,
            FailedAndUnresolvableNodes=reasons.unresolvable,
        ),
        pod=key,
        event=summary(reasons.counts),
    )


def fitting(state: State) -> Callable[[Refusal], bool]:
    """Return what tells whether a refused pod fits by the books as they are now."""
    everywhere = Offer.of(state.ledger.nodes())

    def fits(refusal: Refusal) -> bool:
        room = state.quotas.room(refusal.pod.namespace, refusal.request.vendor)
        offer = Offer.of(refusal.nodes) if refusal.nodes else everywhere
        return decide(state.ledger, refusal.request, offer, room) is not None

    return fits


def _priority(spec: dict[str, Any]) -> int:
    found = spec.get("priority") or 0
    if isinstance(found, bool) or not isinstance(found, int):
        raise InputError(f"spec.priority of the pod is {str(found)[:80]!r}, not a whole number")
    return found


def _plan(
    state: State, request: PodRequest, offer: Offer, priority: int, room: Amount
) -> Plan | None:
    """Return whose end would make room for a pod; None where that is not done or no use."""
    lowest = state.lowest_priority()
    if not state.config.preemption or lowest is None or lowest >= priority:
        return None

    def candidates(node: str) -> list[Victim]:
        return victims_on(state, node, priority)

    return plan_(state.ledger, request, offer.names, candidates, room)


def victims_on(state: State, node: str, priority: int) -> list[Victim]:
    """Return the pods of a node that a priority goes before."""
    found = []
    for uid in state.ledger.promises_on(node):
        bound = state.bound.get(uid)
        if bound is not None and bound.priority < priority:
            found.append(Victim(uid=uid, priority=bound.priority, started=bound.since))
    return found


def _once_more(state: State, before: Reservation, offer: Offer) -> Filtered:
    """Return the same node as the last time: the Binding to it may still arrive."""
    if before.node not in offer.names:
        raise InputError(
            f"the pod's Binding to {before.node} got no answer and may still arrive",
            why="the scheduler does not offer that node now",
        )
    before.created, before.queued_since = state.clock(), None
    return Filtered(result=FilterResult(NodeNames=[before.node]), pod=before.pod)


def _already_bound(key: PodKey, node: str, offer: Offer) -> Filtered:
    if node in offer.names:
        return Filtered(result=FilterResult(NodeNames=[node]), pod=key)
    failed = dict.fromkeys(offer.names, f"NodeUnfitPod: the pod is on node {node}")
    return Filtered(result=FilterResult(NodeNames=[], FailedNodes=failed), pod=key)


def summary(counts: dict[str, int]) -> str:
    """Return the reasons of all nodes as one line, the most frequent first."""
    groups = list(counts.items())
    nodes = sum(counts.values())
    parts = [f"{count} x {text}" for text, count in groups[:_EVENT_REASONS]]
    if len(groups) > _EVENT_REASONS:
        parts.append(f"{len(groups) - _EVENT_REASONS} more reasons")
    return f"0/{nodes} nodes fit: {'; '.join(parts)}" if parts else "no node was offered"


def _error(pod: PodKey | None, text: str) -> Filtered:
    return Filtered(result=FilterResult(NodeNames=[], Error=text), pod=pod, event=text)


def _key_or_none(pod: dict[str, Any] | None) -> PodKey | None:
    try:
        return pod_key(pod or {})
    except InputError:
        return None


def bindable(state: State, args: BindArgs) -> Reservation | None:
    """Return the reservation to bind by; None if the pod is bound there already.

    Raises:
        InputError: there is none, it is for another node, or a bind is under way.
    """
    known = state.bound.get(args.poduid)
    if known is not None:
        if known.node == args.node:
            return None
        raise InputError(f"the pod is bound to {known.node}, not {args.node}")
    reservation = state.reservations.get(args.poduid)
    if reservation is None:
        raise InputError(
            "no shares are reserved for the pod",
            why="the extender was restarted, or the reservation expired or was given back",
        )
    if reservation.stage is not Stage.RESERVED:
        raise InputError(f"the pod's bind to {reservation.node} is still under way")
    if reservation.node != args.node:
        raise InputError(f"shares are reserved on {reservation.node}, not on {args.node}")
    return reservation


def binding(
    reservation: Reservation, now_unix: int, *, label: bool, config: DeviceConfig = DEFAULTS
) -> dict[str, Any]:
    """Return the Binding that carries the whole promise.

    The API server merges its metadata into the pod in the transaction that sets the
    node, so nobody ever sees the one without the other.

    Args:
        reservation: What was promised.
        now_unix: The time of the bind.
        label: Also set the label; API servers before 1.35 do not merge labels.
        config: Names the annotations of each vendor.
    """
    metadata: dict[str, Any] = {
        "name": reservation.pod.name,
        "namespace": reservation.pod.namespace,
        "uid": reservation.pod.uid,
        "annotations": {
            names.POD_NODE: reservation.node,
            names.POD_TIME: str(reservation.created_unix),
            **share_annotations(reservation.shares, config),
            names.POD_BIND_PHASE: names.PHASE_ALLOCATING,
            names.POD_BIND_TIME: str(now_unix),
        },
    }
    if label and len(reservation.node) <= 63:  # a label's value is no longer than that
        metadata["labels"] = {names.POD_NODE: reservation.node}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": metadata,
        "target": {"apiVersion": "v1", "kind": "Node", "name": reservation.node},
    }


def took_effect(pod: dict[str, Any] | None, sent: dict[str, Any]) -> bool:
    """Whether a pod, read back, is bound by exactly this Binding."""
    if pod is None:
        return False
    metadata = pod.get("metadata") or {}
    annotations = metadata.get("annotations") or {}
    return bool(
        metadata.get("uid") == sent["metadata"]["uid"]
        and (pod.get("spec") or {}).get("nodeName") == sent["target"]["name"]
        and all(
            annotations.get(key) == value
            for key, value in sent["metadata"]["annotations"].items()
            if key.endswith("-allocated")  # the plugin may have gone on with the others
        )
    )


def expire_patch(uid: str) -> list[dict[str, Any]]:
    """Return the JSON patch that ends a turn: only if the pod is still allocating."""
    phase = "/metadata/annotations/" + names.POD_BIND_PHASE.replace("/", "~1")
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": phase, "value": names.PHASE_ALLOCATING},
        {"op": "replace", "path": phase, "value": names.PHASE_FAILED},
    ]


def preempt(state: State, args: PreemptArgs) -> PreemptResult:
    """Add to each node's victims those whose end frees the cards as well.

    kube-scheduler calls this where its own resources, too, need victims. A node where
    nobody's end frees the cards is left out. Where only cards are short it finds no
    victims and calls nobody (1.37, preemption.go); ``filter`` plans for those pods.

    Raises:
        InputError: the pod cannot be used.
    """
    pod: dict[str, Any] = args.Pod or {}
    given = args.NodeNameToMetaVictims or {}
    request = pod_request(pod, state.config)
    if not request.asks:
        return PreemptResult(NodeNameToMetaVictims=given)
    key = pod_key(pod)
    room = state.quotas.room(key.namespace, request.vendor)
    priority = _priority(pod.get("spec") or {})
    kept = state.unnominate(key.uid)
    result = {}
    for node, victims in given.items():
        gone = [victim.UID for victim in victims.Pods or ()]
        others = [v for v in victims_on(state, node, priority) if v.uid not in gone]
        found = on_node(state.ledger, request, node, others, room, gone)
        if found is not None:
            pods = [MetaPod(UID=uid) for uid in (*gone, *(v.uid for v in found.victims))]
            result[node] = MetaVictims(Pods=pods, NumPDBViolations=victims.NumPDBViolations)
    if kept is not None:
        state.renominate(kept)
    return PreemptResult(NodeNameToMetaVictims=result)
