"""The register annotation, in both forms."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testbed.errors import CodecError
from testbed.stack.codec import decode_register, encode_register, encode_register_text
from testbed.stack.model import Card

FIRST = Card(uuid="GPU-0000aaaa", slots=10, mem_mib=81920, model="NVIDIA A100-SXM4-80GB")
JSON = (
    '[{"id":"GPU-0000aaaa","count":10,"devmem":81920,"devcore":100,'
    '"type":"NVIDIA A100-SXM4-80GB","mode":"hami-core","health":true}]'
)


def test_golden_json():
    assert encode_register([FIRST]) == JSON
    assert decode_register(JSON) == (FIRST,)


def test_zero_fields_are_left_out_and_read_as_zero():
    sick = Card(uuid="g", index=0, slots=0, mem_mib=0, core_pct=0, model="m", healthy=False)
    assert json.loads(encode_register([sick])) == [{"id": "g", "type": "m", "mode": "hami-core"}]
    assert decode_register('[{"id":"g","type":"m"}]') == (sick,)


def test_hami_mig_card_with_its_profiles():
    text = (
        '[{"id":"GPU-0000bbbb","index":1,"count":7,"devmem":81920,"devcore":100,'
        '"type":"NVIDIA A100-SXM4-80GB","numa":1,"mode":"mig","health":true,"migProfiles":'
        '[{"name":"1g.10gb","memoryMB":9728,"core":15,"sliceCount":1,'
        '"placements":[{"start":0,"size":1}]}]}]'
    )
    (card,) = decode_register(text)
    assert (card.index, card.numa, card.mode, card.slots) == (1, 1, "mig", 7)
    assert card.extra["migProfiles"][0]["name"] == "1g.10gb"
    assert json.loads(encode_register([card])) == json.loads(text)


def test_golden_text_of_seven_and_nine_fields():
    text = (
        "GPU-0000aaaa,10,81920,100,NVIDIA-A100,0,true:"
        "GPU-0000bbbb,10,81920,100,NVIDIA-A100,1,false,1,hami-core:"
    )
    first, second = decode_register(text)
    assert (first.uuid, first.index, first.healthy, first.mode) == (
        "GPU-0000aaaa",
        0,
        True,
        "hami-core",
    )
    assert (second.index, second.healthy, second.numa) == (1, False, 1)
    nine = "GPU-0000aaaa,10,81920,100,NVIDIA A100-SXM4-80GB,0,true,0,hami-core:"
    assert encode_register_text([FIRST]) == nine
    assert decode_register(nine) == (FIRST,)


words = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9 -]{0,20}[A-Za-z0-9]", fullmatch=True)
cards = st.builds(
    Card,
    uuid=words,
    index=st.integers(0, 16),
    slots=st.integers(0, 100),
    mem_mib=st.integers(0, 2**31 - 1),
    core_pct=st.integers(0, 400),
    model=words,
    numa=st.integers(-1, 8),
    mode=st.sampled_from(["hami-core", "mig"]),
    healthy=st.booleans(),
)


@given(st.lists(cards, max_size=4).map(tuple))
def test_round_trips(found):
    assert decode_register(encode_register(found)) == found
    assert decode_register(encode_register_text(found)) == found


@pytest.mark.parametrize("text", ["", "  ", "[]", ":"])
def test_nothing_is_no_cards(text):
    assert decode_register(text) == ()


@pytest.mark.parametrize(
    "text",
    [
        "[", "[1]", "[{}]", '[{"id":5}]', '[{"id":""}]', '[{"id":"g","devmem":"x"}]',
        '[{"id":"g","index":1.5}]', '[{"id":"g","count":true}]', "GPU-a", "a,b,c,d,e,f,g",
        "a,1,1,1,m,0", ",1,1,1,m,0,true", "a,1,1,1,m,0,true,x",
        "[" * 5000, '[{"id":"g","devmem":2147483648}]', '[{"id":"g","count":-1}]',
        '[{"id":"g","devmem":99999999999999999999}]', '[{"id":"g","numa":-2}]',
        "a,1,99999999999999999999,1,m,0,true", "a,1,1,1,m,0,true,-1",
        '[{"id":"g"}' + ',{"id":"g"}' * 256 + "]", "a,1,1,1,m,0,true:" * 257,
    ],
)  # fmt: skip
def test_what_cannot_be_read_or_used_is_refused(text):
    with pytest.raises(CodecError, match="register annotation"):
        decode_register(text)


@given(st.text())
def test_any_text_is_read_or_refused(text):
    try:
        decode_register(text)
    except CodecError:
        return
