"""The device list of the annotations: golden strings and exact round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import CodecError
from testbed.stack.codec import decode_pod_shares, encode_pod_shares, pop_container
from testbed.stack.model import Share

A = Share(uuid="GPU-a", mem_mib=3000, core_pct=30)
B = Share(uuid="GPU-b", mem_mib=3000, core_pct=30)

GOLDEN = [
    ((), ""),
    (((),), ";"),
    (((), (), ()), ";;;"),
    (((A,),), "GPU-a,NVIDIA,3000,30:;"),
    # HAMi's own example: init without a card, an app with two, an app without.
    (((), (A, B), ()), ";GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,3000,30:;;"),
    (((A,), (), (B,)), "GPU-a,NVIDIA,3000,30:;;GPU-b,NVIDIA,3000,30:;"),
]


@pytest.mark.parametrize(("shares", "text"), GOLDEN)
def test_golden(shares, text):
    assert encode_pod_shares(shares) == text
    assert decode_pod_shares(text) == shares


names = st.from_regex(r"[A-Za-z0-9-]{1,20}", fullmatch=True)
shares = st.builds(
    Share,
    uuid=names,
    vendor=names,
    mem_mib=st.integers(0, 2**31 - 1),
    core_pct=st.integers(0, 100),
)
pods = st.lists(st.lists(shares, max_size=3).map(tuple), max_size=5).map(tuple)


@given(pods)
def test_r13_round_trip_is_exact(pod):
    text = encode_pod_shares(pod)
    assert decode_pod_shares(text) == pod
    assert encode_pod_shares(decode_pod_shares(text)) == text  # no growing tail
    assert text.count(";") == len(pod)


@given(pods, st.integers(0, 4))
def test_any_number_of_trailing_separators_is_read(pod, more):
    text = encode_pod_shares(pod) + ";" * more
    assert decode_pod_shares(text, len(pod)) == pod


@given(pods)
def test_popping_empties_one_container_after_the_other(pod):
    order, rest = [], pod
    while (popped := pop_container(rest)) is not None:
        position, entry, rest = popped
        order.append(position)
        assert entry == pod[position]
        assert len(rest) == len(pod)
    assert order == [i for i, container in enumerate(pod) if container]
    assert encode_pod_shares(rest) == ";" * len(pod)


def test_missing_containers_are_added_and_a_tail_without_separator_counts():
    assert decode_pod_shares("GPU-a,NVIDIA,3000,30:", 3) == ((A,), (), ())
    assert decode_pod_shares("GPU-a,NVIDIA,3000,30", 1) == ((A,),)


@pytest.mark.parametrize(
    ("text", "containers"),
    [
        ("GPU-a", None), ("GPU-a,NVIDIA,3000:;", None), ("GPU-a,NVIDIA,3000,30,1:;", None),
        (",NVIDIA,3000,30:;", None), ("GPU-a,NVIDIA,x,30:;", None), ("GPU-a,NVIDIA,1,x:;", None),
        ("GPU-a,NVIDIA,-1,30:;", None), ("GPU-a,NVIDIA,1,-1:;", None),
        ("GPU-a,NVIDIA,1.5,1:;", None), (";GPU-a,NVIDIA,1,1:;", 1),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused(text, containers):
    with pytest.raises(CodecError) as caught:
        decode_pod_shares(text, containers)
    assert text in caught.value.text()


@given(st.text())
def test_any_text_is_read_or_refused(text):
    try:
        decode_pod_shares(text)
    except CodecError:
        return


@pytest.mark.parametrize(
    "text",
    [
        "GPU-a,NVIDIA,3000,30:;", "GPU-a,NVIDIA,0,0:;", "GPU-a,,1,1:;", " ,x,1,1:;",
        "GPU-a,NVIDIA,2147483647,100:;", "GPU-a,NVIDIA, 5,+5:;", "GPU-a,NVIDIA,3000,30;",
        "GPU-a,NVIDIA,1,1:GPU-b,NVIDIA,2,2:;", ";", "GPU-a,NVIDIA,3000,30:",
    ],
)  # fmt: skip
def test_one_container_is_read_as_any_number_of_them(text):
    """There is a short way for it."""
    assert decode_pod_shares(text, 1) == decode_pod_shares(text)


@pytest.mark.parametrize("text", ["GPU-a,NVIDIA,2147483648,0:;", "GPU-a,NVIDIA,-1,0:;", ",x,1,1:;"])
def test_one_container_with_numbers_that_no_card_has_is_refused(text):
    with pytest.raises(CodecError):
        decode_pod_shares(text, 1)
