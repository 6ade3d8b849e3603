"""MIG instances that a card has and is to have: cases M4 to M7, without a card."""

import dataclasses

import pytest

from testbed.errors import ClusterError, InputError
from testbed.stack.placement.mig import Allocation, Place
from testbed.stack.placement.mig_geometry import Made, MigCard, change, changes, device_of, verify


def made(profile, start, size, user="", number=0):
    return Made(
        profile=profile, place=Place(start=start, size=size), uuid=f"MIG-{profile}-{start}",
        gpu_instance=number, compute_instance=0, user=user,
    )  # fmt: skip


ONE = made("1g.5gb", 6, 1, user="ns/trains")
HALF = made("3g.20gb", 0, 4)


def card(*instances, index=0, enabled=True):
    return MigCard(uuid=f"GPU-{index}", index=index, enabled=enabled, made=instances)


def test_m4_an_instance_in_use_stays_or_the_change_is_refused_with_its_user():
    whole = ("7g.40gb", Place(start=0, size=8))
    with pytest.raises(InputError) as caught:
        change(card(ONE, HALF), [whole])
    assert "1g.5gb at 6 is in use by ns/trains" in caught.value.text()
    # Free, it gives way: the control.
    free = dataclasses.replace(ONE, user="")
    assert change(card(free, HALF), [whole]).destroy == (free, HALF)
    # A change beside it keeps it, wanted or not.
    two = ("2g.10gb", Place(start=0, size=2))
    for wanted in ([two], [two, ONE.laid]):
        found = change(card(ONE, HALF), wanted)
        assert (found.destroy, found.make) == ((HALF,), (two,))


def test_m4_what_is_there_is_not_made_twice():
    found = change(card(ONE, HALF), [HALF.laid, ONE.laid])
    assert (found.destroy, found.make) == ((), ())
    twice = made("1g.5gb", 5, 1)
    found = change(card(twice), [twice.laid, ONE.laid])
    assert (found.destroy, found.make) == ((), (ONE.laid,))


@pytest.mark.parametrize("turned", [False, True])
def test_m5_only_the_second_card_has_mig_on(turned):
    cards = [card(index=0, enabled=False), card(HALF, index=1)]
    if turned:
        cards.reverse()
    (found,) = changes(cards, {"GPU-1": [ONE.laid]})
    assert (found.uuid, found.index, found.make) == ("GPU-1", 1, (ONE.laid,))
    with pytest.raises(InputError, match=r"card 0 .*GPU-0") as caught:
        changes(cards, {"GPU-0": [ONE.laid]})
    assert "MIG mode is off" in caught.value.text()
    with pytest.raises(InputError, match="GPU-2"):
        changes(cards, {"GPU-2": []})
    assert changes(cards, {"GPU-1": [HALF.laid]}) == []


def test_m6_what_a_tool_says_to_have_made_is_read_back():
    wanted = [ONE.laid, HALF.laid]
    verify(card(HALF, ONE), wanted)
    for there in ((), (HALF,), (HALF, made("1g.5gb", 5, 1)), (HALF, made("1g.10gb", 6, 1))):
        with pytest.raises(ClusterError) as caught:
            verify(card(*there), wanted)
        assert "1g.5gb at 6" in caught.value.text()
    with pytest.raises(ClusterError):
        verify(card(ONE), [ONE.laid, ONE.laid])


def test_m7_a_new_instance_is_looked_up_in_lists_that_are_newer():
    promised = Allocation(
        container=0, device=0, uuid="GPU-1", profile="1g.5gb", place=Place(start=6, size=1)
    )
    old, new = [card(index=0), card(HALF, index=1)], [card(index=0), card(HALF, ONE, index=1)]
    with pytest.raises(ClusterError, match=r"no instance 1g\.5gb at 6") as caught:
        device_of(promised, old, [HALF.uuid])
    assert "read the devices anew" in caught.value.text()
    with pytest.raises(ClusterError, match="not in the CDI specification"):
        device_of(promised, new, [HALF.uuid])
    assert device_of(promised, new, [HALF.uuid, ONE.uuid]) == ONE
    # One that was made later at the same place is another one.
    before = dataclasses.replace(promised, runtime=("MIG-gone", 3, 0))
    with pytest.raises(ClusterError, match="no instance"):
        device_of(before, new, [ONE.uuid])
    same = dataclasses.replace(promised, runtime=(ONE.uuid, 0, 0))
    assert device_of(same, new, [ONE.uuid]) == ONE
