"""MIG instances that a card has and is to have: cases M4 to M7, without a card."""

import dataclasses
from collections import Counter
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_what_is_wanted_may_not_overlap_itself():
    inside = ("1g.5gb", Place(start=3, size=1))
    for wanted in ([HALF.laid, inside], [inside, HALF.laid], [ONE.laid, ONE.laid]):
        for there in ((), (HALF,), (HALF, ONE)):
            with pytest.raises(InputError, match="cannot be divided so"):
                change(card(*there), wanted)


#: Places of an A100's profiles, in eighths of its memory.
PLACES = [
    (name, Place(start=start, size=size))
    for name, size, starts in (
        ("1g.5gb", 1, range(7)),
        ("2g.10gb", 2, (0, 2, 4)),
        ("3g.20gb", 4, (0, 4)),
        ("7g.40gb", 8, (0,)),
    )
    for start in starts
]


def apart(laid):
    return not any(one.overlaps(other) for (_, one), (_, other) in combinations(laid, 2))


@given(
    there=st.lists(st.sampled_from(PLACES), max_size=7).filter(apart),
    users=st.lists(st.booleans(), min_size=7, max_size=7),
    wanted=st.lists(st.sampled_from(PLACES), max_size=7),
)
def test_after_any_change_all_that_is_wanted_is_there_and_nothing_in_use_is_gone(
    there, users, wanted
):
    instances = [
        made(name, place.start, place.size, user=f"pod-{number}" if users[number] else "")
        for number, (name, place) in enumerate(there)
    ]
    held = [one for one in instances if one.user]
    blocked = any(
        one.laid not in wanted and any(one.place.overlaps(place) for _, place in wanted)
        for one in held
    )
    try:
        found = change(card(*instances), wanted)
    except InputError:
        assert blocked or not apart(wanted)
        return
    assert apart(wanted) and not blocked
    kept = [one for one in instances if one not in found.destroy]
    after = [*(one.laid for one in kept), *found.make]
    assert apart(after)
    assert not Counter(wanted) - Counter(after)
    assert all(one in kept for one in held)
    # Nothing is destroyed that is in nobody's way.
    assert all(any(one.place.overlaps(place) for _, place in found.make) for one in found.destroy)
    verify(card(*kept, *(made(n, p.start, p.size) for n, p in found.make)), wanted)
