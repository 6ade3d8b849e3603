"""HAMi's two fields by HAMi's rules (protocol: monitor loops)."""

from __future__ import annotations

from testbed.stack.monitor.mirror import HIGH, LOW, HamiFields, Tenant, hami_fields

A, B, C = ("a", "main"), ("b", "main"), ("c", "main")
FREE = HamiFields(utilization_switch=0, recent_kernel=2)
LIMITED = HamiFields(utilization_switch=1, recent_kernel=2)
PAUSED = HamiFields(utilization_switch=1, recent_kernel=-1)
IDLE = HamiFields(utilization_switch=0, recent_kernel=0)


def tenant(priority: int = LOW, **active: bool) -> Tenant:
    return Tenant(priority=priority, active=active)


def test_a_lone_tenant_runs_free() -> None:
    assert hami_fields({A: tenant(gpu=True)}) == {A: FREE}
    assert hami_fields({A: tenant(gpu=True), B: tenant(gpu=False)})[A] == FREE


def test_two_of_one_priority_are_limited() -> None:
    found = hami_fields({A: tenant(gpu=True), B: tenant(gpu=True)})
    assert found == {A: LIMITED, B: LIMITED}


def test_a_high_one_pauses_the_low_and_is_not_limited_by_it() -> None:
    found = hami_fields({A: tenant(HIGH, gpu=True), B: tenant(gpu=True)})
    assert found == {A: FREE, B: PAUSED}
    assert found[B].paused and not found[A].paused
    quiet = hami_fields({A: tenant(HIGH, gpu=False), B: tenant(gpu=True)})
    assert quiet == {A: IDLE, B: FREE}


def test_other_cards_do_not_count() -> None:
    found = hami_fields({A: tenant(HIGH, one=True), B: tenant(two=True), C: tenant(two=True)})
    assert found == {A: FREE, B: LIMITED, C: LIMITED}


def test_one_shared_card_of_several_is_enough() -> None:
    found = hami_fields({A: tenant(HIGH, one=True, two=False), B: tenant(one=False, two=True)})
    assert found[B] == PAUSED, "the high one is active on a card that they share"
