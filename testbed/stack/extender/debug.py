"""The state as documents for people and checks: ``/debug/ledger``, ``/debug/reservations``."""

from __future__ import annotations

from typing import Any

from testbed.stack.codec import encode_pod_shares
from testbed.stack.extender.reservations import Reservation
from testbed.stack.extender.state import Bound, State


def ledger(state: State) -> dict[str, Any]:
    """Return every card with what is taken of it, and every pod that holds shares."""
    return {
        "synced": state.synced,
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


def _cards(state: State, name: str) -> list[dict[str, Any]]:
    cordoned = state.ledger.cordoned(name)
    return [
        {
            "uuid": card.uuid,
            "index": card.index,
            "model": card.model,
            "mode": card.mode,
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
