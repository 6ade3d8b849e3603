"""The state as documents for people and checks: ``/debug/ledger``, ``/debug/reservations``."""

from __future__ import annotations

import dataclasses
from typing import Any

from testbed.stack.codec import encode_pod_shares
from testbed.stack.extender.bound import Bound
from testbed.stack.extender.reservations import Reservation
from testbed.stack.extender.state import State
from testbed.stack.extender.waiting import Refusal
from testbed.stack.placement.nearest import nearest, remedies


def ledger(state: State) -> dict[str, Any]:
    """Return every card with what is taken of it, and every pod that holds shares."""
    return {
        "synced": state.synced,
        "leads": state.leads,
        "nodes": {name: {"cards": _cards(state, name)} for name in state.ledger.nodes()},
        "pods": [
            *(_pod(held, bound=False) for held in state.reservations),
            *(_pod(held, bound=True) for held in state.bound.values()),
        ],
    }


def reservations(state: State) -> dict[str, Any]:
    """Return the promises to pending pods, and whose turn it is on each node."""
    now = state.clock()
    turns = state.turns
    return {
        "reservations": [
            {
                **_pod(held, bound=False),
                "stage": str(held.stage),
                "age_seconds": round(now - held.created, 3),
            }
            for held in state.reservations
        ],
        "turns": {
            node: {"holders": turns.holders(node), "waiting": turns.waiting(node)}
            for node in turns.nodes()
        },
    }


def waiting(state: State) -> dict[str, Any]:
    """Return the pods that fitted nowhere: asked, reasons, nearest miss, what would fit.

    Reasons are those of the last attempt; the nearest miss and what would fit are of now.
    """
    return {"pods": [_waiting(state, refusal) for refusal in state.waiting]}


def _waiting(state: State, refusal: Refusal) -> dict[str, Any]:
    now, request = state.clock(), refusal.request
    nodes = list(refusal.nodes) or state.ledger.nodes()
    room = state.quotas.room(refusal.pod.namespace, request.vendor)
    near = nearest(state.ledger, request, nodes)
    kept = state.nominations.get(refusal.pod.uid)
    return {
        "namespace": refusal.pod.namespace,
        "name": refusal.pod.name,
        "uid": refusal.pod.uid,
        "asked": [
            {
                "container": position,
                "cards": one.count,
                "mem_mib": one.mem_mib,
                "mem_pct": one.mem_pct,
                "core_pct": one.core_pct,
            }
            for position, one in enumerate(request.containers)
            if one.count
        ],
        "waits_seconds": round(now - refusal.first, 3),
        "refused_seconds_ago": round(now - refusal.last, 3),
        "attempts": refusal.attempts,
        "offered": refusal.offered,
        "reasons": refusal.counts,
        "nearest": None
        if near is None
        else {
            "node": near.node,
            "container": near.container,
            "cards": [dataclasses.asdict(card) for card in near.cards],
        },
        "quota_left": None
        if room.unbounded
        else {"mem_mib": room.mem_mib, "core_pct": room.core_pct},
        "would_fit_with": list(remedies(state.ledger, request, nodes, room)),
        "evicts": None if kept is None else {"node": kept.node, "victims": sorted(kept.victims)},
    }


def _cards(state: State, name: str) -> list[dict[str, Any]]:
    cordoned = state.ledger.cordoned(name)
    return [
        {
            "uuid": card.uuid,
            "index": card.index,
            "model": card.model,
            "mode": card.mode,
            "numa": card.numa,
            "vendor": card.vendor,
            "healthy": card.healthy,
            "cordoned": card.uuid in cordoned,
            "slots": {"used": used.slots, "total": card.slots},
            "mem_mib": {"used": used.mem_mib, "total": card.mem_mib},
            "core_pct": {"used": used.core_pct, "total": card.core_pct},
        }
        for card, used in state.ledger.usage(name)
    ]


def _pod(held: Reservation | Bound, *, bound: bool) -> dict[str, Any]:
    return {
        "namespace": held.pod.namespace,
        "name": held.pod.name,
        "uid": held.pod.uid,
        "node": held.node,
        "bound": bound,
        "devices": encode_pod_shares(held.shares),
    }
