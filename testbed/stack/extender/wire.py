"""What kube-scheduler sends and hears: filter, bind, preempt (``k8s.io/kube-scheduler``
extender/v1). Its types carry no JSON tags there, so keys are taken in any case."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from testbed.errors import CodecError
from testbed.stack.extender.pods import FilterPod

NULL = msgspec.Raw(b"null")


class FilterArgs(msgspec.Struct):
    """ExtenderArgs. The names stay bytes: mostly nobody needs them decoded."""

    Pod: dict[str, Any] | None = None
    Nodes: msgspec.Raw = NULL
    NodeNames: msgspec.Raw = NULL


class FilterResult(msgspec.Struct, omit_defaults=False):
    """ExtenderFilterResult: reasons only where nothing fits (nobody reads others)."""

    Nodes: dict[str, Any] | None = None
    NodeNames: list[str] | msgspec.Raw | None = []
    FailedNodes: dict[str, str] = {}
    FailedAndUnresolvableNodes: dict[str, str] = {}
    Error: str = ""


class BindArgs(msgspec.Struct, kw_only=True, frozen=True):
    """ExtenderBindingArgs."""

    podname: str
    podnamespace: str
    poduid: str
    node: str


class _Quick(msgspec.Struct):
    """ExtenderArgs as kube-scheduler writes them, of the pod only what is read."""

    Pod: FilterPod
    NodeNames: msgspec.Raw
    Nodes: None = None


_quick_decoder = msgspec.json.Decoder(_Quick)
_filter_decoder = msgspec.json.Decoder(FilterArgs)
_loose_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def decode_filter(body: bytes) -> FilterArgs:
    """Return a filter request; its keys in any case.

    Raises:
        CodecError: it is not one.
    """
    try:
        quick = _quick_decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # another form, or a fault, which is told below
    else:
        return FilterArgs(Pod=cast("dict[str, Any]", quick.Pod), NodeNames=quick.NodeNames)
    try:
        args = _filter_decoder.decode(body)
        if args.Pod is None:
            loose = {key.lower(): raw for key, raw in _loose_decoder.decode(body).items()}
            args = FilterArgs(
                Pod=msgspec.json.decode(loose.get("pod", NULL), type=dict[str, Any] | None),
                Nodes=loose.get("nodes", NULL),
                NodeNames=loose.get("nodenames", NULL),
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
