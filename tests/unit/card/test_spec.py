"""What users write for cards."""

import pytest

from testbed.card.spec import CardSpec, cards_text, parse_cards, parse_nodes
from testbed.errors import InputError
from testbed.lab.cluster.protocol import ClusterSpec
from testbed.lab.testbed import cluster_spec

A80, A40 = "a100-80gb", "a100-40gb"


def spec(profile, count=1):
    return CardSpec(profile=profile, count=count)


@pytest.mark.parametrize(
    ("text", "cards"),
    [
        (A80, (spec(A80),)),
        (f"{A80}:2", (spec(A80, 2),)),
        (f" {A80}:2 , {A40} ", (spec(A80, 2), spec(A40))),
        (f"{A80}:16", (spec(A80, 16),)),
        (f"{A80},{A80}", (spec(A80), spec(A80))),
    ],
)
def test_the_cards_of_a_node(text, cards):
    assert parse_cards(text) == cards


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "does not name cards"),
        (f"{A80},", "does not name cards"),
        (f"{A80}:0", "does not name cards"),
        (f"{A80}:", "does not name cards"),
        (f"{A80}:-1", "does not name cards"),
        (f"{A80}:two", "does not name cards"),
        (f"{A80}:²", "does not name cards"),
        (f"{A80}:17", "16 at most"),
        (f"{A80}:9,{A40}:8", "17 cards on a node"),
        ("a100-80g", "a100-80gb"),  # the nearest one is named
        (f"{A80};{A40}", "gives cards for 2 nodes"),
    ],
)
def test_cards_that_there_cannot_be(text, why):
    with pytest.raises(InputError, match=why):
        parse_cards(text)


def test_one_list_is_for_every_node():
    assert parse_nodes(A80) == (1, ((spec(A80),),))
    assert parse_nodes(A80, 3) == (3, ((spec(A80),),) * 3)


def test_lists_are_for_one_node_each():
    lists = ((spec(A80, 8),), (spec(A40, 16),))
    assert parse_nodes(f"{A80}:8;{A40}:16") == (2, lists)
    assert parse_nodes(f"{A80}:8;{A40}:16", 2) == (2, lists)
    with pytest.raises(InputError, match="for 2 nodes, and --nodes says 3"):
        parse_nodes(f"{A80};{A40}", 3)
    with pytest.raises(InputError, match="does not name cards"):
        parse_nodes(f"{A80};")


@pytest.mark.parametrize("text", [f"{A80}:1", f"{A80}:2,{A40}:1", f"{A80}:8;{A40}:16"])
def test_the_text_of_cards_reads_back(text):
    _, lists = parse_nodes(text)
    assert cards_text(lists) == text
    assert cards_text(lists * 1) == text


def test_a_cluster_from_words():
    assert cluster_spec(A80, 2).by_node() == ((spec(A80),),) * 2
    assert cluster_spec(f"{A80}:8;{A40}").by_node() == ((spec(A80, 8),), (spec(A40),))
    assert cluster_spec(f"{A80}:8;{A40}").nodes == 2
    assert cluster_spec(f"{A80};{A80}") == cluster_spec(A80, 2)


def test_lists_for_another_number_of_nodes_are_refused():
    lists = ((spec(A80),), (spec(A40),))
    with pytest.raises(InputError, match="for 2 nodes, and there are 3"):
        ClusterSpec(nodes=3, each_node=lists).by_node()


def own(*devices, count=None):
    return CardSpec(
        profile="nvidia", count=len(devices) if count is None else count, devices=devices
    )


GPU, MIG = "GPU-4cf8db2d-06c0-7d70-1a51-e59b25b2c16c", "MIG-7f3a1c52-0000-5555-8888-0123456789ab"


@pytest.mark.parametrize(
    ("text", "lists"),
    [
        ("nvidia", [own(count=0)]),
        (" nvidia:2 ", [own(count=2)]),
        ("nvidia:0", [own("0")]),
        ("nvidia:0,1", [own("0", "1")]),
        ("nvidia:0,nvidia:1", [own("0", "1")]),
        ("nvidia:device=2", [own("2")]),
        ("nvidia:device=0,1", [own("0", "1")]),
        (f"nvidia:{GPU},{MIG}", [own(GPU, MIG)]),
        ("nvidia:GPU-4cf8", [own("GPU-4cf8")]),
        ("nvidia:0:1", [own("0:1")]),
        ("nvidia:0:1,0:2", [own("0:1", "0:2")]),
        ("nvidia:1;nvidia:2", [own(count=1), own(count=2)]),
        # One list names cards, so that numbers are indices everywhere.
        ("nvidia:0,1;nvidia:2", [own("0", "1"), own("2")]),
        ("nvidia:2;nvidia:device=0", [own("2"), own("0")]),
        ("nvidia:0;nvidia", [own("0"), own(count=0)]),
        (f"nvidia:{GPU};t4:2", [own(GPU), spec("t4", 2)]),
    ],
)
def test_the_machine_s_own_cards(text, lists):
    count, found = parse_nodes(text)
    assert found == tuple((each,) for each in lists)
    assert count == len(lists)
    # Written out it is read as the same, whatever numbers meant.
    assert parse_nodes(cards_text(found), count)[1] == found


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("nvidia,t4", "mixes emulated cards"),
        ("t4:2,nvidia", "does not name cards|mixes"),
        ("nvidia:", "no index and no uuid"),
        ("nvidia:two", "no index and no uuid"),
        ("nvidia:0,", "does not name cards"),
        ("nvidia:0,0", "names a card twice"),
        ("nvidia:17", "16 at most"),
        ("nvidia:-1", "no index and no uuid"),
        ("nvidia:²", "no index and no uuid"),
        ("nvidia:00", "no index and no uuid"),
        ("nvidia:all,0", "no index and no uuid"),
        ("nvidia:GPU-1;nvidia:x y", "no index and no uuid"),
        ("nvidia:../0", "no index and no uuid"),
    ],
)
def test_own_cards_that_there_cannot_be(text, why):
    with pytest.raises(InputError, match=why):
        parse_nodes(text)


def test_where_only_emulated_cards_can_be():
    with pytest.raises(InputError, match="emulated ones only"):
        parse_cards("nvidia:0")
