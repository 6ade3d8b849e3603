"""What kube-scheduler sends and hears: filter, bind, preempt (``k8s.io/kube-scheduler``
extender/v1). Its types carry no JSON tags there, so keys are taken in any case."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from testbed.errors import CodecError
from testbed.stack.extender.pods import FilterPod
from testbed.stack.placement.offer import Offer
from testbed.stack.placement.reasons import NodeTexts

NULL = msgspec.Raw(b"null")


@dataclass(slots=True)
class FilterArgs:
    """ExtenderArgs. The names stay bytes: mostly nobody needs them decoded.

    Attributes:
        Nodes: The node objects as they were sent; ``null`` where names are.
        offer: The names; None where node objects are.
    """

    Pod: dict[str, Any]
    Nodes: msgspec.Raw
    offer: Offer | None


class FilterResult(msgspec.Struct, omit_defaults=False):
    """ExtenderFilterResult: reasons only where nothing fits (nobody reads others)."""

    Nodes: dict[str, Any] | None = None
    NodeNames: list[str] | msgspec.Raw | None = []
    FailedNodes: Mapping[str, str] = {}
    FailedAndUnresolvableNodes: Mapping[str, str] = {}
    Error: str = ""


def _raw(value: object) -> msgspec.Raw:
    if isinstance(value, NodeTexts):
        return msgspec.Raw(value.json())
    raise NotImplementedError(f"{type(value).__name__} has no JSON form")


#: Encodes an answer; thousands of texts are written as they are kept.
encode = msgspec.json.Encoder(enc_hook=_raw).encode


class BindArgs(msgspec.Struct, kw_only=True, frozen=True):
    """ExtenderBindingArgs."""

    podname: str
    podnamespace: str
    poduid: str
    node: str


class _Args(msgspec.Struct):
    """ExtenderArgs as they are named."""

    Pod: dict[str, Any] | None = None
    Nodes: msgspec.Raw = NULL
    NodeNames: msgspec.Raw = NULL


class _Quick(msgspec.Struct):
    """What is before the names, of the pod only what is read."""

    Pod: FilterPod
    Nodes: None = None


#: How kube-scheduler begins the names, which it writes last.
_NAMES = b',"NodeNames":['
_quick_decoder = msgspec.json.Decoder(_Quick)
_filter_decoder = msgspec.json.Decoder(_Args)
_loose_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_filter(body: bytes) -> FilterArgs:
    """Return a filter request; its keys in any case.

    Raises:
        CodecError: it is not one.
    """
    quick = _quick(body)
    if quick is not None:
        return quick
    try:
        args = _filter_decoder.decode(body)
        if args.Pod is None:
            loose = {key.lower(): raw for key, raw in _loose_decoder.decode(body).items()}
            args = _Args(
                Pod=msgspec.json.decode(loose.get("pod", NULL), type=dict[str, Any] | None),
                Nodes=loose.get("nodes", NULL),
                NodeNames=loose.get("nodenames", NULL),
            )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError("the filter request cannot be read", why=str(error)) from error
    if args.Pod is None:
        raise CodecError("the filter request carries no pod")
    names = bytes(args.NodeNames)
    return FilterArgs(args.Pod, args.Nodes, None if names == b"null" else Offer(names))


def _quick(body: bytes) -> FilterArgs | None:
    """Read a request as kube-scheduler writes it, without a look at each name; None where
    it is of another form, or faulty, which ``decode_filter`` tells.

    What is before the names must be a whole object once it is closed, so they are not
    part of anything else; and a list without brackets, braces and escapes in it ends where
    the request does, so nothing follows.
    """
    at = body.find(_NAMES)
    begin, end = at + len(_NAMES) - 1, len(body) - 1
    if at < 0 or body[-2:] != b"]}" or body.find(b"]", begin) != end - 1:
        return None
    if body.find(b"{", begin) >= 0 or body.find(b"\\", begin) >= 0:
        return None
    try:
        quick = _quick_decoder.decode(body[:at] + b"}")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return FilterArgs(cast("dict[str, Any]", quick.Pod), NULL, Offer(body, begin, end))


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


class MetaPod(msgspec.Struct):
    """A victim by its uid."""

    UID: str


class MetaVictims(msgspec.Struct):
    """The victims of a node."""

    Pods: list[MetaPod] | None = None
    NumPDBViolations: int = 0


class PreemptArgs(msgspec.Struct):
    """ExtenderPreemptionArgs, as a scheduler sends it to an extender that knows nodes."""

    Pod: dict[str, Any] | None = None
    NodeNameToMetaVictims: dict[str, MetaVictims] | None = None


class PreemptResult(msgspec.Struct):
    """ExtenderPreemptionResult."""

    NodeNameToMetaVictims: dict[str, MetaVictims] = {}


_preempt_decoder = msgspec.json.Decoder(PreemptArgs)


def decode_preempt(body: bytes) -> PreemptArgs:
    """Return a preemption request.

    Raises:
        CodecError: it is not one.
    """
    try:
        args = _preempt_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CodecError("the preemption request cannot be read", why=str(error)) from error
    if args.Pod is None or args.NodeNameToMetaVictims is None:
        raise CodecError(
            "the preemption request lacks Pod or NodeNameToMetaVictims",
            hint="set nodeCacheCapable: true in the scheduler's extender",
        )
    return args
