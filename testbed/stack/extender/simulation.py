"""Filter for autoscalers: whole node objects are given, and nothing is reserved.

An autoscaler asks whether a pod would fit on nodes, some of which are only templates.
What a node offers is read from its own annotations, what is taken of it from the ledger
where it is known by that name; a template is empty.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import numpy as np

from testbed.errors import CodecError
from testbed.stack import names
from testbed.stack.codec.links import decode_links
from testbed.stack.devices.vendor import vendors
from testbed.stack.extender.pods import NodePart
from testbed.stack.extender.registers import offers
from testbed.stack.extender.state import State
from testbed.stack.extender.wire import FilterResult
from testbed.stack.placement.fit import place
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.reasons import explain
from testbed.stack.placement.request import pod_request


def simulate(state: State, pod: Mapping[str, Any], nodes: msgspec.Raw) -> FilterResult:
    """Return every node that the pod would fit on, and why not on the others.

    Raises:
        CodecError: the nodes, or what one of them registers, cannot be read.
        InputError: the pod cannot be used.
    """
    try:
        given = msgspec.json.decode(nodes, type=dict[str, Any])
        items = [dict(item) for item in given.get("items") or ()]
        msgspec.convert(items, type=list[NodePart])
        by_name = {str(item["metadata"]["name"]): item for item in items}
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise CodecError("Nodes cannot be read", why=str(error)) from error
    request = pod_request(pod, state.config)
    if not request.asks:
        return FilterResult(Nodes=given, NodeNames=None)
    ledger = _ledger(state, by_name)
    namespace = str((pod.get("metadata") or {}).get("namespace") or "default")
    room = state.quotas.room(namespace, request.vendor)
    rows = [row for name in by_name if (row := ledger.row_of(name)) is not None]
    placement = place(ledger, request, np.array(rows, np.int64), room)
    fitting = {ledger.name_of(row) for row, good in zip(rows, placement.good, strict=True) if good}
    failed = [name for name in by_name if name not in fitting]
    reasons = explain(ledger, request, failed, room)
    return FilterResult(
        Nodes={**given, "items": [item for name, item in by_name.items() if name in fitting]},
        NodeNames=None,
        FailedNodes=reasons.failed,
        FailedAndUnresolvableNodes=reasons.unresolvable,
    )


def _ledger(state: State, by_name: Mapping[str, Mapping[str, Any]]) -> Ledger:
    ledger = Ledger(rows=len(by_name))
    for name, node in by_name.items():
        annotations = (node.get("metadata") or {}).get("annotations") or {}
        cards = []
        for vendor in vendors(state.config):
            offered = offers(node, vendor.count)
            for card in vendor.decode(annotations.get(vendor.register) or ""):
                cards.append(card if offered else msgspec.structs.replace(card, healthy=False))
        cordon = str(annotations.get(names.DEVICE_CORDON) or "").split(",")
        links = decode_links(str(annotations.get(names.NODE_SCORE) or ""))
        ledger.set_node(name, cards, [uuid.strip() for uuid in cordon], links)
        for uid in state.ledger.promises_on(name):
            held = state.ledger.promised(uid)
            if held is not None:
                ledger.promise(uid, name, dict(held.charges))
    return ledger
