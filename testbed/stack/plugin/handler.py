"""Whom an Allocate serves, and with what: values in, a decision out.

Kubelet's Allocate names neither pod nor container, so the asker is found by
exclusion. A container can only be the asker if it is on this node, wants devices,
has not started, and kubelet's PodResources shows it without devices. Kubelet puts a
pod into that list before it admits it (``HandlePodAdditions`` adds to the pod
manager first) and drops a refused one, so normally exactly one pod is left. Device
ids say nothing but their number: after a lost checkpoint kubelet hands ids out twice.
What cannot be told apart is refused, with names; nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from testbed.errors import CodecError
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares, encode_pod_shares
from testbed.stack.model import ContainerShares, PodShares
from testbed.stack.plugin.pods import NodeContainer, NodePod

#: Kubelet's own view by (namespace, name): containers listed, True with devices.
KubeletView = Mapping[tuple[str, str], Mapping[str, bool]]

#: Containers that kubelet asked for since it started, by (pod uid, container).
Served = AbstractSet[tuple[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """What one container gets."""

    container: NodeContainer
    shares: ContainerShares


@dataclass(frozen=True, slots=True, kw_only=True)
class Serve:
    """Answer with these grants, after the pod's annotations say so.

    Attributes:
        to_allocate: The list that is left, None where nothing changes (asked again).
        complete: Every promised container has been served.
    """

    pod: NodePod
    grants: tuple[Grant, ...]
    to_allocate: str | None
    complete: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Refuse:
    """Answer with an error. ``blame`` is the asking pod, where that is certain."""

    reason: str
    blame: NodePod | None = None


def decide(
    counts: Sequence[int],
    pods: Sequence[NodePod],
    view: KubeletView | None,
    served: Served = frozenset(),
    *,
    cards: AbstractSet[str] | None = None,
) -> Serve | Refuse:
    """Return whom to serve.

    Args:
        counts: How many devices each container request asks for.
        pods: All pods of the node that want devices, as the API server has them now.
        view: Kubelet's view, None where it could not be asked: then every container
            that has not started counts.
        served: What kubelet has been told in its present life; it does not ask again.
        cards: The node's cards by uuid; a promise of another one is refused.
    """
    candidates = [pod for pod in pods if _may_ask(pod, counts, view, served)]
    if not candidates:
        return Refuse(reason=_nobody(counts, pods))
    plans = [_known(_plan(pod, counts, view, served), cards) for pod in candidates]
    if len(candidates) == 1:
        plan = plans[0]
        return plan if isinstance(plan, Serve) else Refuse(reason=plan, blame=candidates[0])
    servable = [plan for plan in plans if isinstance(plan, Serve)]
    if len(servable) == len(plans) and len({_promise(plan) for plan in servable}) == 1:
        # Whoever asks is owed the same.
        return min(servable, key=lambda plan: (plan.pod.bind_time, str(plan.pod.key)))
    listed = ", ".join(sorted(f"{pod.key} ({pod.bind_phase or 'no phase'})" for pod in candidates))
    return Refuse(
        reason=f"{len(candidates)} pods of this node wait for {names.RESOURCE_COUNT} and kubelet "
        f"does not say which one asks: {listed}"
    )


def annotation_patch(serve: Serve) -> dict[str, str]:
    """Return the annotations that record a decision; empty where nothing changes."""
    patch = {}
    if serve.to_allocate is not None:
        patch[names.POD_TO_ALLOCATE] = serve.to_allocate
    if serve.complete and serve.pod.bind_phase != names.PHASE_SUCCESS:
        patch[names.POD_BIND_PHASE] = names.PHASE_SUCCESS
    return patch


def _may_ask(pod: NodePod, counts: Sequence[int], view: KubeletView | None, served: Served) -> bool:
    """Whether the request could be this pod's: enough of its containers wait for so many."""
    if pod.finished:
        return False
    waiting = [c.count for c in _waiting(pod, view, served)]
    for count in counts:
        if count not in waiting:
            return False
        waiting.remove(count)
    return True


def _waiting(pod: NodePod, view: KubeletView | None, served: Served) -> tuple[NodeContainer, ...]:
    """Return the containers that kubelet may still ask for, in its order."""
    left = [
        c
        for c in pod.containers
        if c.count and not c.started and (pod.key.uid, c.name) not in served
    ]
    if view is None:
        return tuple(left)
    known = view.get((pod.key.namespace, pod.key.name))
    if known is None:
        return ()
    # Kubelet asks in order: what lies before a container with devices has been asked for.
    last = max((c.position for c in pod.containers if known.get(c.name)), default=-1)
    return tuple(
        c for c in left if (c.position > last if c.plain_init else not known.get(c.name, False))
    )


def _plan(
    pod: NodePod, counts: Sequence[int], view: KubeletView | None, served: Served
) -> Serve | str:
    """Return how to serve a pod, or why it cannot be served."""
    if not pod.allocated and not pod.to_allocate:
        return (
            f"pod {pod.key} asks for {names.RESOURCE_COUNT} but was not placed by the scheduler "
            f"{names.SCHEDULER_NAME} (no annotation {names.POD_TO_ALLOCATE})"
        )
    if pod.bind_phase not in (names.PHASE_ALLOCATING, names.PHASE_SUCCESS):
        return f"pod {pod.key} is not to be served: {names.POD_BIND_PHASE} is {pod.bind_phase!r}"
    try:
        total = len(pod.containers)
        open_shares = decode_pod_shares(pod.to_allocate, total)
        promised = decode_pod_shares(pod.allocated, total)
    except CodecError as error:
        return f"pod {pod.key}: {error.text()}"

    grants: list[Grant] = []
    changed = False
    waiting = list(_waiting(pod, view, served))
    for count in counts:
        container = _next(waiting, open_shares, promised)
        if container is None:
            return f"pod {pod.key}: all that it was promised has been served"
        if doubt := _doubt(container, waiting, open_shares, promised, view):
            return f"pod {pod.key}: {doubt}"
        shares = open_shares[container.position] or promised[container.position]
        if len(shares) != count:
            return (
                f"pod {pod.key}: device number not matched: kubelet asks for {count}, container "
                f"{container.name} was promised {len(shares)}"
            )
        if open_shares[container.position]:
            open_shares = _emptied(open_shares, container.position)
            changed = True
        waiting.remove(container)
        grants.append(Grant(container=container, shares=shares))
    return Serve(
        pod=pod,
        grants=tuple(grants),
        to_allocate=encode_pod_shares(open_shares) if changed else None,
        complete=not any(open_shares),
    )


def _known(plan: Serve | str, cards: AbstractSet[str] | None) -> Serve | str:
    """Turn down a plan that names a card which the node does not have (any more)."""
    if isinstance(plan, str) or cards is None:
        return plan
    missing = sorted({s.uuid for g in plan.grants for s in g.shares} - cards)
    if missing:
        return f"pod {plan.pod.key} was promised {', '.join(missing)}, not a card of this node"
    return plan


def _next(
    waiting: Sequence[NodeContainer], open_shares: PodShares, promised: PodShares
) -> NodeContainer | None:
    """Return the container that kubelet asks for: the first that waits and is promised.

    Its entry may have been taken before: kubelet lost its checkpoint and asks again.
    """
    for container in waiting:
        if open_shares[container.position] or promised[container.position]:
            return container
    return None


def _doubt(
    first: NodeContainer,
    waiting: Sequence[NodeContainer],
    open_shares: PodShares,
    promised: PodShares,
    view: KubeletView | None,
) -> str:
    """Return why the asker is not certain, or nothing.

    The first container's entry has been taken, so either kubelet asks again for it or
    it has its devices and kubelet asks for the next one. PodResources tells which,
    except where it does not answer and for init containers, which it does not list.
    """
    if open_shares[first.position] or not (view is None or first.plain_init):
        return ""
    others = [open_shares[c.position] for c in waiting if open_shares[c.position]]
    if not others or others[0] == promised[first.position]:
        return ""
    return f"kubelet does not say whether it asks for container {first.name} again"


def _emptied(shares: PodShares, position: int) -> PodShares:
    return (*shares[:position], (), *shares[position + 1 :])


def _promise(plan: Serve) -> tuple[ContainerShares, ...]:
    return tuple(grant.shares for grant in plan.grants)


def _nobody(counts: Sequence[int], pods: Sequence[NodePod]) -> str:
    asked = " + ".join(str(count) for count in counts)
    unfinished = sorted(str(pod.key) for pod in pods if not pod.finished)
    return (
        f"no pod of this node waits for {asked} {names.RESOURCE_COUNT}"
        f" (unfinished pods that want some: {', '.join(unfinished) or 'none'})"
    )
