"""What kubelet is told of the cards."""

from __future__ import annotations

import threading

from testbed.stack.model import Card
from testbed.stack.plugin.service import HEALTHY, UNHEALTHY, Inventory, advertised


def card(uuid: str, *, healthy: bool = True, slots: int = 2) -> Card:
    return Card(uuid=uuid, slots=slots, mem_mib=1, model="NVIDIA X", healthy=healthy)


def test_a_card_is_listed_once_for_each_slot() -> None:
    assert advertised((card("GPU-a"), card("GPU-b", healthy=False, slots=1))) == (
        ("GPU-a-0", HEALTHY),
        ("GPU-a-1", HEALTHY),
        ("GPU-b-0", UNHEALTHY),
    )


def test_inventory_wakes_who_waits() -> None:
    inventory = Inventory((card("GPU-a"),))
    version, _ = inventory.after(-1, timeout_s=0)
    assert not inventory.set((card("GPU-a"),)), "equal cards are no change"
    assert inventory.after(version, timeout_s=0)[0] == version
    found: list[tuple[Card, ...]] = []
    waiter = threading.Thread(
        target=lambda: found.append(inventory.after(version, timeout_s=120)[1])
    )
    waiter.start()
    assert inventory.set((card("GPU-a", healthy=False),))
    waiter.join(120)
    assert [c.healthy for c in found[0]] == [False]
