"""A filter request is read without a look at its names only where that means the same."""

from __future__ import annotations

import json
import random

import msgspec
import pytest

from testbed.errors import CodecError
from testbed.stack.extender.wire import FilterResult, decode_filter, encode
from testbed.stack.model import Card, Constraint, Request
from testbed.stack.placement import Kind
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.reasons import NO_CARDS, NodeTexts, explain
from testbed.stack.placement.request import PodRequest

POD = '{"metadata":{"uid":"u"},"spec":{}}'


@pytest.mark.parametrize(
    "body",
    [
        f'{{"Pod":{POD},"Nodes":null,"NodeNames":["a","b"]}}',
        f'{{"Pod":{POD},"NodeNames":["a","b"]}}',
        f'{{"NodeNames":["a","b"],"Pod":{POD},"Nodes":null}}',
        f'{{"Pod": {POD}, "Nodes": null, "NodeNames": ["a", "b"]}}',
        f'{{"Pod":{POD},"NodeNames":["a","b"],"Nodes":null}}',
        f'{{"Pod":{POD},"NodeNames":["a","b"],"Other":["c"]}}',
        f'{{"pod":{POD},"nodenames":["a","b"]}}',
        f'{{"Pod":{POD},"NodeNames":["\\u0061","b"]}}',
        # A list of that name inside the pod is none of the scheduler's.
        '{"Pod":{"metadata":{"uid":"u"},"spec":{"x":1,"NodeNames":["z"]}},"NodeNames":["a","b"]}',
        '{"Pod":{"metadata":{"uid":"u","annotations":{"k":",\\"NodeNames\\":[\\"z\\"]}"}},'
        '"spec":{}},"NodeNames":["a","b"]}',
    ],
)
def test_names_are_those_of_the_request(body):
    assert json.loads(body)  # the test's own
    found = decode_filter(body.encode())
    assert found.Pod["metadata"]["uid"] == "u"
    assert found.offer.names == ["a", "b"]
    assert list(found.offer) == ["a", "b"] and len(found.offer) == 2
    assert json.loads(found.offer.raw) == ["a", "b"]
    assert found.offer.holds(b'"b"')
    assert not found.offer.holds(b'"z"')


@pytest.mark.parametrize(
    "body",
    [
        f'{{"Pod":{POD},"NodeNames":["a","b"]',
        f'{{"Pod":{POD},"NodeNames":["a","b"]]}}',
        f'{{"Pod":{POD},"NodeNames":["a","b"}}',
        f'{{"Pod":{POD},"Nodes":{{"x":1,"NodeNames":["a"]}}',
        f'"Pod":{POD},"NodeNames":["a","b"]}}',
        '{"Pod":null,"NodeNames":["a"]}',
        '{"Pod":[],"NodeNames":["a"]}',
        '{"Nodes":null,"NodeNames":["a"]}',
    ],
)
def test_what_is_no_request_is_refused(body):
    with pytest.raises(CodecError):
        decode_filter(body.encode())


@pytest.mark.parametrize("names", ["[1,2]", '["a",1]', '["a"b"]', '["a""b"]', '[{"a":"b"}]'])
def test_what_is_no_list_of_names_is_refused_when_it_is_read(names):
    body = f'{{"Pod":{POD},"Nodes":null,"NodeNames":{names}}}'.encode()
    with pytest.raises(CodecError):
        assert decode_filter(body).offer.names


def test_texts_are_written_as_the_map_that_they_are():
    ledger = Ledger()
    names = [f"n{i}" for i in range(200)] + ['odd "\\ näme']
    pod = PodRequest(containers=(Request(count=1, mem_mib=1),), kinds=(Kind.APP,))
    reasons = explain(ledger, pod, names)
    assert isinstance(reasons.failed, NodeTexts)
    result = FilterResult(FailedNodes=reasons.failed, NodeNames=[])
    written = msgspec.json.decode(encode(result))
    assert written["FailedNodes"] == dict.fromkeys(names, NO_CARDS) == reasons.failed
    assert written["FailedAndUnresolvableNodes"] == {}
    assert list(reasons.failed) == names


def test_texts_of_nodes_with_and_without_cards():
    ledger = Ledger()
    for i in range(100):
        model = "NVIDIA A100" if i % 3 else "NVIDIA-Tesla T4"
        card = Card(uuid=f"GPU-{i}", index=0, mem_mib=1000 + i, model=model, healthy=i % 5 != 0)
        ledger.set_node(f"n{i}", [card])
    ledger.remove_node("n7")
    names = [f"n{i}" for i in range(120)]
    random.Random(1).shuffle(names)
    pod = PodRequest(
        containers=(Request(count=1, mem_mib=5000),),
        kinds=(Kind.APP,),
        constraint=Constraint(use_types=("a100",)),
    )
    for some in (names, names[:40]):  # all are looked at, or those that are asked about
        reasons = explain(ledger, pod, some)
        written = msgspec.json.decode(encode(reasons.failed))
        assert written == reasons.failed and len(written) == len(some)
        assert msgspec.json.decode(encode(reasons.unresolvable)) == reasons.unresolvable
        for name, text in written.items():
            number = int(name[1:])
            if number == 7 or number >= 100:
                assert text == NO_CARDS
            elif number % 5 == 0:
                assert text == "1/1 CardNotHealth"
            elif number % 3 == 0:
                assert text == "1/1 CardTypeMismatch"
            else:
                assert text == "1/1 CardInsufficientMemory"
            assert (name in reasons.unresolvable) == ("Memory" not in text)
        assert sum(reasons.counts.values()) == len(some)


def test_what_has_no_json_form_is_not_written():
    with pytest.raises(NotImplementedError):
        encode(FilterResult(Nodes={"x": object()}))
