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
