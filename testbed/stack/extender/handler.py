"""Filter and bind as functions of the state: values in, values out, no await."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import msgspec

from testbed.errors import CodecError, InputError
from testbed.stack import names
from testbed.stack.codec import encode_pod_shares
from testbed.stack.extender.pods import pod_key
from testbed.stack.extender.reservations import Reservation, Stage
from testbed.stack.extender.state import State
from testbed.stack.model import PodKey
from testbed.stack.placement.decide import Offer, decide
from testbed.stack.placement.reasons import explain
from testbed.stack.placement.request import pod_request

_NULL = msgspec.Raw(b"null")
#: How many distinct reasons an event names.
_EVENT_REASONS = 5


class FilterArgs(msgspec.Struct):
    """ExtenderArgs. The names stay bytes: mostly nobody needs them decoded."""

    Pod: dict[str, Any] | None = None
    Nodes: msgspec.Raw = _NULL
    NodeNames: msgspec.Raw = _NULL


class FilterResult(msgspec.Struct):
    """ExtenderFilterResult: reasons only where nothing fits (nobody reads others)."""

    NodeNames: list[str] | msgspec.Raw = []
    FailedNodes: dict[str, str] = {}
    FailedAndUnresolvableNodes: dict[str, str] = {}
    Error: str = ""


class BindArgs(msgspec.Struct, kw_only=True, frozen=True):
    """ExtenderBindingArgs."""

    podname: str
    podnamespace: str
    poduid: str
    node: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Filtered:
    """A filter's answer, and the event that its pod shall show, if any."""

    result: FilterResult
    pod: PodKey | None = None
    event: str = ""


_filter_decoder = msgspec.json.Decoder(FilterArgs)
_loose_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_filter(body: bytes) -> FilterArgs:
    """Return a filter request; its keys in any case.

    Raises:
        CodecError: it is not one.
    """
    try:
        args = _filter_decoder.decode(body)
        if args.Pod is None:
            loose = {key.lower(): raw for key, raw in _loose_decoder.decode(body).items()}
            args = FilterArgs(
                Pod=msgspec.json.decode(loose.get("pod", _NULL), type=dict[str, Any] | None),
                Nodes=loose.get("nodes", _NULL),
                NodeNames=loose.get("nodenames", _NULL),
            )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError("the filter request cannot be read", why=str(error)) from error
    if args.Pod is None:
        raise CodecError("the filter request carries no pod")
    return args


def decode_bind(body: bytes) -> BindArgs:
    """Return a bind request; its keys in any case.

    Raises:
        CodecError: it is not one.
    """
    try:
        document = msgspec.json.decode(body, type=dict[str, Any])
        lowered = {key.lower(): value for key, value in document.items()}
        args = msgspec.convert(lowered, BindArgs)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError("the bind request cannot be read", why=str(error)) from error
    if not (args.podname and args.podnamespace and args.poduid and args.node):
        raise CodecError("the bind request lacks the pod's name, namespace, uid or node")
    return args


def filter_pods(state: State, args: FilterArgs) -> Filtered:
    """Choose a node for the pod and reserve its shares there.

    A pod that fits nowhere gets a reason for every node; one that cannot be
    understood gets ``Error``, and the scheduler shows it and tries again later.
    """
    if not state.synced:
        return _error(None, "the extender has not read all nodes and pods yet")
    try:
        return _filter(state, args)
    except (InputError, CodecError) as error:
        pod = _key_or_none(args.Pod)
        text = error.what if not error.why else f"{error.what}: {error.why}"
        return _error(pod, f"{text} ({error.hint})" if error.hint else text)


def _filter(state: State, args: FilterArgs) -> Filtered:
    pod: dict[str, Any] = args.Pod or {}
    key = pod_key(pod)
    if bytes(args.NodeNames) == b"null":
        raise InputError(
            "the scheduler sent no NodeNames", hint="set nodeCacheCapable: true in its extender"
        )
    offer = Offer(bytes(args.NodeNames))
    request = pod_request(pod, state.config)
    spec = pod.get("spec") or {}
    if not request.asks:
        return Filtered(result=FilterResult(NodeNames=args.NodeNames), pod=key)
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
    state.release(key.uid)
    choice = decide(state.ledger, request, offer)
    if choice is not None:
        state.reserve(key, choice, request.kinds)
        return Filtered(result=FilterResult(NodeNames=[choice.node]), pod=key)
    state.waiting.refused(key, state.clock())
    reasons = explain(state.ledger, request, offer.names)
    return Filtered(
        result=FilterResult(
            NodeNames=[],
            FailedNodes=reasons.failed,
            FailedAndUnresolvableNodes=reasons.unresolvable,
        ),
        pod=key,
        event=summary(reasons.failed),
    )


def _already_bound(key: PodKey, node: str, offer: Offer) -> Filtered:
    if node in offer.names:
        return Filtered(result=FilterResult(NodeNames=[node]), pod=key)
    failed = dict.fromkeys(offer.names, f"NodeUnfitPod: the pod is on node {node}")
    return Filtered(result=FilterResult(NodeNames=[], FailedNodes=failed), pod=key)


def summary(failed: dict[str, str]) -> str:
    """Return the reasons of all nodes as one line, the most frequent first."""
    groups = Counter(failed.values()).most_common()
    parts = [f"{count} x {text}" for text, count in groups[:_EVENT_REASONS]]
    if len(groups) > _EVENT_REASONS:
        parts.append(f"{len(groups) - _EVENT_REASONS} more reasons")
    return f"0/{len(failed)} nodes fit: {'; '.join(parts)}" if parts else "no node was offered"


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


def binding(reservation: Reservation, now_unix: int, *, label: bool) -> dict[str, Any]:
    """Return the Binding that carries the whole promise.

    The API server merges its metadata into the pod in the transaction that sets the
    node, so nobody ever sees the one without the other.

    Args:
        reservation: What was promised.
        now_unix: The time of the bind.
        label: Also set the label; API servers before 1.35 do not merge labels.
    """
    devices = encode_pod_shares(reservation.shares)
    metadata: dict[str, Any] = {
        "name": reservation.pod.name,
        "namespace": reservation.pod.namespace,
        "uid": reservation.pod.uid,
        "annotations": {
            names.POD_NODE: reservation.node,
            names.POD_TIME: str(reservation.created_unix),
            names.POD_TO_ALLOCATE: devices,
            names.POD_ALLOCATED: devices,
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
        and annotations.get(names.POD_ALLOCATED)
        == sent["metadata"]["annotations"][names.POD_ALLOCATED]
    )


def expire_patch(uid: str) -> list[dict[str, Any]]:
    """Return the JSON patch that ends a turn: only if the pod is still allocating."""
    phase = "/metadata/annotations/" + names.POD_BIND_PHASE.replace("/", "~1")
    return [
        {"op": "test", "path": "/metadata/uid", "value": uid},
        {"op": "test", "path": phase, "value": names.PHASE_ALLOCATING},
        {"op": "replace", "path": phase, "value": names.PHASE_FAILED},
    ]
