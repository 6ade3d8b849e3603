"""The rows of many names from their bytes, held against a dictionary."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from testbed.errors import CodecError
from testbed.stack.model import Card
from testbed.stack.placement import offer as offer_module
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.offer import Offer


def ledger_of(names):
    ledger = Ledger()
    for name in names:
        ledger.set_node(name, [Card(uuid=f"GPU-{name}", index=0, mem_mib=1000, model="x")])
    return ledger


def some_names(rng, count):
    """Names of all lengths, many of which begin alike, or end where another goes on."""
    alphabet = "ab-.0123456789"
    stems = ["node-", "ip-10-0-", "x", "a" * 60 + "-", "gpu.example.node-"]
    found = set()
    while len(found) < count:
        tail = "".join(rng.choice(alphabet) for _ in range(rng.choice((1, 3, 8, 9, 40))))
        found.add(rng.choice(stems) + tail)
    return sorted(found)


@pytest.mark.parametrize("seed", range(5))
def test_rows_are_those_of_the_dictionary(seed, monkeypatch):
    monkeypatch.setattr(Ledger, "rows_of", lambda *_: pytest.fail("names were looked up"))
    rng = random.Random(seed)
    names = some_names(rng, 900)
    known, strangers = names[::2], names[1::2]
    ledger = ledger_of(known)
    for name in known[::7]:
        ledger.remove_node(name)
    offered = rng.sample(known, 300) + rng.sample(strangers, 200)
    offered += [name + "\0" for name in known[1:9]]  # padding is no part of a name
    offered += [name + "x" * 70 for name in known[1:9]] + ["x", ""]
    rng.shuffle(offered)
    expected = [-1 if (row := ledger.row_of(name)) is None else row for name in offered]
    assert sum(row >= 0 for row in expected) > 200
    raw = json.dumps([n.replace("\0", "~") for n in offered], separators=(",", ":"))
    offer = Offer(raw.replace("~", "\0").encode())
    rows = offer.rows(ledger)
    assert rows.tolist() == expected
    assert len(offer) == len(offered)


@pytest.mark.parametrize("length", [7, 8, 9, 16, 17, 24])
def test_rows_of_names_of_one_length(length, monkeypatch):
    monkeypatch.setattr(Ledger, "rows_of", lambda *_: pytest.fail("names were looked up"))
    names = [f"{i:0{length}d}" for i in range(400)]
    ledger = ledger_of([*names[:300], "x" * 30])
    offered = random.Random(1).sample(names, 400)
    expected = [-1 if (row := ledger.row_of(name)) is None else row for name in offered]
    assert offer_of(offered).rows(ledger).tolist() == expected


def test_offered_rows():
    names = [f"node-{i:04d}" for i in range(300)]
    ledger = ledger_of(names[:200])
    offer = Offer.of(names[100:])
    assert offer.offered(ledger).tolist() == [False] * 100 + [True] * 100
    rows = offer.rows(ledger)
    assert np.array_equal(rows, ledger.rows_of(names[100:]))


def test_a_list_that_is_written_otherwise_is_decoded():
    names = [f"node-{i}" for i in range(100)]
    ledger = ledger_of(names)
    for text in (
        json.dumps(names),
        json.dumps(names, indent=1),
        json.dumps(names, separators=(",", ":")).replace("node", "\\u006eode"),
    ):
        offer = Offer(text.encode())
        assert offer.rows(ledger).tolist() == list(range(100))
        assert len(offer) == 100
    for text in ('["a""b"]', '["a",,"b"]', '["a"]x', "{}", '["a', '["a\\"'):
        offer = Offer(text.encode())
        with pytest.raises(CodecError):
            offer.rows(ledger)


def test_an_index_without_a_place_for_each_row_is_not_used(monkeypatch):
    monkeypatch.setattr(offer_module, "_MOST_TABLES", 0)
    names = [f"node-{i}" for i in range(100)]
    ledger = ledger_of(names)
    assert Offer.of(names).rows(ledger).tolist() == list(range(100))


def test_a_name_is_found_at_every_place_of_a_long_list():
    names = [f"node-{i:05d}" for i in range(3000)]
    offer = Offer.of(names)  # several windows of the search
    assert len(offer.raw) > 4 * offer_module._WINDOW
    assert all(offer.holds(f'"{name}"'.encode()) for name in names)
    assert not offer.holds(b'"node-0000"')


def offer_of(names):
    return Offer(json.dumps(names, separators=(",", ":")).encode())


def quoted(name):
    return json.dumps(name).encode()


@pytest.mark.parametrize(
    "names",
    [
        [f"node-{i:05d}.example" for i in range(900)],  # all of one length
        [f"{i:05d}" for i in range(900)],  # short ones
        [f"n{i}" for i in range(900)],  # of several lengths
        [f"a-long-beginning-{i % 100:03d}-{i:09d}-and-end" for i in range(900)],
        [f"{i % 90:04d}same{i // 90:02d}" for i in range(900)],
    ],
)
def test_a_name_is_found_exactly_if_it_is_offered(names):
    rng = random.Random(1)
    offered, others = names[::2], names[1::2]
    rng.shuffle(offered)
    offer = offer_of(offered)
    assert all(offer.holds(quoted(name)) for name in offered)
    assert not any(offer.holds(quoted(name)) for name in others)
    assert not offer.holds(quoted(names[0][:-1]))
    assert not offer.holds(quoted(names[0] + "x"))


def test_a_name_is_found_among_names_whose_lengths_only_add_up():
    names = [f"{'x' * (9 + (-1) ** i)}-{i:04d}" for i in range(200)]  # mean 14, as the others
    stranger = "y" * 9 + "-0007"
    offer = offer_of([*names, stranger])
    assert offer.holds(quoted(stranger))
    assert offer.holds(quoted(names[3]))
    assert not offer.holds(quoted("y" * 9 + "-0008"))


def test_a_name_that_is_part_of_another_is_not_found():
    offer = offer_of([f"node-{i:04d}-x" for i in range(200)])
    assert not offer.holds(quoted("node-0007"))
    assert not offer.holds(quoted("ode-0007-x"))


@pytest.mark.parametrize(
    "names",
    [
        [f"node-{i:05d}.example" for i in range(300)],  # all of one length
        [f"ip-10-{i % 3}-{i}.eu.example" for i in range(300)],  # of several lengths
        [f"n{i:07d}" for i in range(300)],  # of one word
        [f"{'x' * (10 + i % 7)}{i:06d}" for i in range(300)],  # of two or three
        [f"node-{i}" for i in range(900, 1200)],
    ],
)
def test_the_list_of_all_nodes_is_known_in_any_order_and_no_other_is(names):
    rng, ledger = random.Random(2), ledger_of(names)
    stranger = names[7][:-1] + "z"
    parted = names.copy()  # the same words, of other names
    parted[0], parted[1] = names[0][:8] + names[1][8:], names[1][:8] + names[0][8:]
    for _ in range(3):
        rng.shuffle(names)
        assert offer_of(names).is_all(ledger)
        assert not offer_of(names[1:]).is_all(ledger)
        assert not offer_of([*names[1:], names[1]]).is_all(ledger)
        assert not offer_of([*names, names[1]]).is_all(ledger)
        assert not offer_of([*names[1:], stranger]).is_all(ledger)
        if sorted(parted) != sorted(names):
            assert not offer_of(parted).is_all(ledger)
    ledger.remove_node(names[0])
    assert not offer_of(names).is_all(ledger)
    assert offer_of(names[1:]).is_all(ledger)
    ledger.set_node(stranger, [Card(uuid="GPU-s", index=0, mem_mib=1000, model="x")])
    assert offer_of([stranger, *names[1:]]).is_all(ledger)


@pytest.mark.parametrize("names", [["a"], ["a", "b" * 60], [f"n{i}" for i in range(200)], []])
def test_of_a_list_whose_names_cannot_be_read_as_words_nothing_is_said(names):
    assert not offer_of(names).is_all(ledger_of(names))


def test_of_a_list_that_is_written_otherwise_nothing_is_said():
    names = [f"node-{i:05d}" for i in range(100)]
    ledger = ledger_of(names)
    assert Offer(json.dumps(names, separators=(",", ":")).encode()).is_all(ledger)
    assert not Offer(json.dumps(names).encode()).is_all(ledger)


@pytest.mark.parametrize("length", [1, 2, 8, 30])
def test_names_of_one_length_are_found_where_they_stand(length):
    names = [f"{i:0{length}d}"[-length:] for i in range(70)]
    offer = Offer(b"before" + offer_of(names).raw + b"after", 6, 6 + 70 * (length + 3) + 1)
    begins, ends = offer._even_spans()
    assert [offer.raw[b:e].decode() for b, e in zip(begins, ends, strict=True)] == names
    for wrong in ("x" * length + "y", "x" * (length - 1), 'x"' * (length // 2 or 1)):
        text = json.dumps([*names[:40], "#", *names[41:]], separators=(",", ":"))
        assert Offer(text.replace("#", wrong).encode())._even_spans() is None
