"""When a card is unfit, and how it comes back (HAMi #2200: there it never did)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from testbed.stack.devices.xid import XidPolicy, xid_policy
from testbed.stack.plugin.health import Fault, Health, after_look, after_xid, named

POLICY = xid_policy({}, "unhealthy", {})
LOST = {"a": "GPU is lost"}


def hit(xid: int, health: Health | None = None) -> Health:
    return after_xid(health or Health(), "a", xid, POLICY)[0]


def look(health: Health, silent: dict[str, str] | None = None, **asked: int) -> Health:
    return after_look(health, silent or {}, asked)[0]


def test_an_applications_error_leaves_the_card_alone() -> None:
    for xid, action in ((31, "ignore"), (94, "contained")):
        health, said = after_xid(Health(), "a", xid, POLICY)
        assert (health.unhealthy, said) == ({}, action)


def test_a_card_that_answers_is_not_well_for_that() -> None:
    health = look(look(hit(48)))
    assert health.unhealthy == {"a": "XID 48"}


def test_a_reset_card_comes_back() -> None:
    """N4: XID 79, the card is lost, it is reset."""
    health = look(hit(79), LOST)
    assert health.unhealthy == {"a": "XID 79, GPU is lost"}
    health, recovered = after_look(health, {}, {})
    assert health == Health() and recovered == {"a": "it was away and answers again"}


def test_a_silent_card_without_an_error_comes_back_by_answering() -> None:
    health, recovered = after_look(look(Health(), LOST), {}, {})
    assert health == Health() and recovered == {"a": "the driver answers again"}


def test_the_driver_says_when_its_action_was_taken() -> None:
    health = hit(95)
    assert look(health, a=0).unhealthy, "it may not have asked yet"
    asked = look(health, a=1)
    assert asked.unhealthy and look(asked, a=1).unhealthy
    assert not look(asked, a=0).unhealthy
    assert look(asked).unhealthy, "a driver that does not tell has not told"


def test_an_operators_word_counts_for_cards_that_answer() -> None:
    health, recovered = after_look(hit(48), {}, {}, frozenset("a"))
    assert health == Health() and recovered == {"a": "an operator says so"}
    health, recovered = after_look(hit(48), LOST, {}, frozenset("a"))
    assert health.unhealthy and not recovered


def test_a_second_error_begins_anew() -> None:
    health = look(hit(79), LOST)
    again = hit(48, health)
    assert again.faults == {"a": Fault(xid=48)}


def test_operators_words() -> None:
    assert named("a, c", "ab") == {"a"} and named("all", "ab") == {"a", "b"}
    assert named("", "ab") == frozenset()


EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("xid"), st.sampled_from("ab"), st.sampled_from([13, 48, 79, 94])),
        st.tuples(st.just("look"), st.frozensets(st.sampled_from("ab")), st.integers(0, 2)),
        st.tuples(st.just("clear"), st.frozensets(st.sampled_from("ab")), st.just(0)),
    ),
    max_size=30,
)


@given(EVENTS)
def test_silent_cards_are_never_well_and_clearing_all_heals_all(events: list[tuple]) -> None:  # type: ignore[type-arg]
    health = Health()
    for kind, what, number in events:
        if kind == "xid":
            health, action = after_xid(health, what, number, POLICY)
            assert action != "unhealthy" or what in health.unhealthy
        elif kind == "look":
            silent = dict.fromkeys(what, "lost")
            health, recovered = after_look(health, silent, dict.fromkeys("ab", number))
            assert silent.keys() <= health.unhealthy.keys()
            assert not recovered.keys() & health.unhealthy.keys()
        else:
            health, _ = after_look(health, {}, {}, what)
            assert not what & health.unhealthy.keys()
    assert after_look(health, {}, {}, frozenset("ab"))[0] == Health()
    assert XidPolicy().action(1) == "unhealthy"
