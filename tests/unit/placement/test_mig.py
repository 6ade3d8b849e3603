"""MIG profiles and places: the contract of HAMi's dynamic MIG, without a card."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import CodecError
from testbed.stack.placement.mig import (
    Allocation,
    Place,
    choose,
    choose_all,
    decode_allocations,
    decode_profiles,
    encode_allocations,
)


def entry(name, memory, slices, starts, size):
    places = [{"start": start, "size": size} for start in starts]
    return {
        "name": name,
        "memoryMB": memory,
        "core": 15,
        "sliceCount": slices,
        "placements": places,
    }


#: As NVIDIA's MIG user guide lists them for the A100 40 GB.
A100_40 = [
    entry("1g.5gb", 4864, 1, range(7), 1),
    entry("2g.10gb", 9856, 2, (0, 2, 4), 2),
    entry("3g.20gb", 19968, 3, (0, 4), 4),
    entry("4g.20gb", 19968, 4, (0,), 4),
    entry("7g.40gb", 40192, 7, (0,), 8),
]


def profiles():
    return decode_profiles(json.loads(json.dumps(A100_40)))


def test_m1_the_smallest_profile_with_enough_memory_is_taken():
    assert choose(profiles(), [], 4800).profile.name == "1g.5gb"
    assert choose(profiles(), [], 4865).profile.name == "2g.10gb"
    assert choose(profiles(), [], 40193) is None


def test_m3_a_second_half_beside_a_seventh_does_not_fit():
    seventh = choose(profiles(), [], 4000)
    half = choose(profiles(), [seventh.place], 15000)
    assert half is not None
    assert choose(profiles(), [seventh.place, half.place], 15000) is None
    assert choose_all(profiles(), [], [4000, 15000, 15000]) is None


def test_ones_and_threes_take_the_highest_start_others_the_lowest():
    assert choose(profiles(), [], 4000).place == Place(start=6, size=1)
    assert choose(profiles(), [], 9000).place == Place(start=0, size=2)
    assert choose(profiles(), [], 15000).place == Place(start=4, size=4)
    # 4g and 3g have the same memory: the fewer slices.
    assert choose(profiles(), [], 15000).profile.name == "3g.20gb"
    taken = [Place(start=4, size=4)]
    assert choose(profiles(), taken, 15000).place == Place(start=0, size=4)


def test_a_profile_without_a_free_place_gives_way_to_the_next():
    taken = [Place(start=i, size=1) for i in (1, 3, 5)]
    assert choose(profiles(), taken, 4000).place.start == 6
    full = [Place(start=i, size=1) for i in range(1, 7)]
    assert choose(profiles(), full, 4000).place.start == 0
    assert choose(profiles(), [*full, Place(start=0, size=1)], 4000) is None


@given(st.lists(st.integers(1, 41_000), max_size=9))
def test_instances_never_overlap_and_always_have_the_memory(mems):
    taken = []
    for mem in mems:
        found = choose(profiles(), taken, mem)
        if found is None:
            large = [p for p in profiles() if p.mem_mib >= mem]
            assert all(any(p.overlaps(t) for t in taken) for q in large for p in q.places)
            continue
        assert found.profile.mem_mib >= mem
        assert found.place in found.profile.places
        assert not any(found.place.overlaps(other) for other in taken)
        taken.append(found.place)


def test_allocations_keep_their_text():
    made = '[{"containerIndex":0,"deviceIndex":0,"gpuUUID":"GPU-b","profile":"1g.10gb","placement":{"start":6,"size":1},"migUUID":"MIG-1","gpuInstanceID":13,"computeInstanceID":0}]'  # noqa: E501
    (found,) = decode_allocations(made)
    assert found == Allocation(
        container=0,
        device=0,
        uuid="GPU-b",
        profile="1g.10gb",
        place=Place(start=6, size=1),
        runtime=("MIG-1", 13, 0),
    )
    assert encode_allocations([found]) == made


def test_allocations_that_say_half_of_it_are_refused():
    one = json.loads(
        encode_allocations(
            [Allocation(container=0, device=0, uuid="G", profile="p", place=Place(start=0, size=1))]
        )
    )
    with pytest.raises(CodecError):
        decode_allocations(json.dumps([one[0], one[0]]))
    with pytest.raises(CodecError):
        decode_allocations(json.dumps([{**one[0], "migUUID": "MIG-1"}]))
    for text in ("{", "5", "[5]", '[{"containerIndex":-1}]'):
        with pytest.raises(CodecError):
            decode_allocations(text)
