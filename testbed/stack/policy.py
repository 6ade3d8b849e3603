"""How a container's cards are chosen among those that fit: words, chains, weights.

A policy is one word or several with commas, the earlier ones deciding first:

==================  ================================================================
``binpack``         the fullest card first
``spread``          the emptiest card first
``mutex``           only cards that nobody uses
``numa``            the cards of one NUMA node, where one has enough of them
``topology-aware``  the cards that are linked best; for one card the one linked worst
==================  ================================================================

Fullness is HAMi's card score with the request on the card (HAMi #1699), weighted by
``hami.io/device-scoring-weights``: weight times the share of slots, cores and memory.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from testbed.errors import InputError

NODE_POLICIES = ("binpack", "spread")
CARD_POLICIES = ("binpack", "spread", "mutex", "numa", "topology-aware")

_WEIGHT_KEYS = ("slot", "core", "memory")
#: Weights are kept in thousandths, so that scores are whole numbers and ties are exact.
_THOUSANDTHS = 1000
_HEAVIEST = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
    """How much slots, cores and memory count in a card's fullness, in thousandths."""

    slot: int = _THOUSANDTHS
    core: int = _THOUSANDTHS
    memory: int = _THOUSANDTHS


EQUAL = Weights()


@dataclass(frozen=True, slots=True, kw_only=True)
class CardPolicy:
    """A chain of words, taken apart.

    Attributes:
        words: The chain as written.
        fullest: Binpack; otherwise the emptiest card comes first.
        mutex: Only cards that nobody uses.
        group: One NUMA node is looked for before fullness and links decide.
        tie: Equal cards are told apart by NUMA node.
        linked: Links decide, then fullness.
    """

    words: tuple[str, ...]
    fullest: bool
    mutex: bool
    group: bool
    tie: bool
    linked: bool


def card_policy(text: str, what: str = "the card policy") -> CardPolicy:
    """Return the meaning of a policy, one word or a chain.

    Args:
        text: The words, with commas.
        what: Who says so, for the error.

    Raises:
        InputError: a word is unknown or comes twice, or two contradict each other.
    """
    words = tuple(word.strip().lower() for word in text.split(","))
    unknown = [word for word in words if word not in CARD_POLICIES]
    if unknown:
        raise InputError(
            f"{what} {text!r} is not supported",
            why=f"{unknown[0]!r} is no policy",
            hint=f"use {', '.join(CARD_POLICIES)}, or several of them with commas",
        )
    if len(set(words)) < len(words) or {"binpack", "spread"} <= set(words):
        raise InputError(
            f"{what} {text!r} contradicts itself",
            why="each word may come once, and binpack excludes spread",
        )
    ranking = ("binpack", "spread", "topology-aware")
    order = min((words.index(word) for word in ranking if word in words), default=len(words))
    numa = words.index("numa") if "numa" in words else None
    return CardPolicy(
        words=words,
        fullest="binpack" in words,
        mutex="mutex" in words,
        group=numa is not None and numa < order,
        tie=numa is not None and numa > order,
        linked="topology-aware" in words,
    )


def node_policy(text: str, what: str = "the node policy") -> str:
    """Return a node policy.

    Raises:
        InputError: there is none of that name.
    """
    word = text.strip().lower()
    if word not in NODE_POLICIES:
        raise InputError(
            f"{what} {text!r} is not supported", hint=f"use {' or '.join(NODE_POLICIES)}"
        )
    return word


def weights(text: str, what: str = "the weights") -> Weights:
    """Return the weights of ``slot=1,core=1,memory=3``.

    Raises:
        InputError: a key is missing, unknown or comes twice; a weight is negative, no
            number or over 1,000; all are zero.
    """
    found: dict[str, int] = {}
    for key, value in _pairs(text, what):
        if key not in _WEIGHT_KEYS or key in found:
            raise _weights_error(text, what, f"{key!r} is unknown or comes twice")
        try:
            number = float(value)
        except ValueError:
            raise _weights_error(text, what, f"{value!r} is no number") from None
        if not math.isfinite(number) or not 0 <= number <= _HEAVIEST:
            raise _weights_error(text, what, f"{value} is not from 0 to {_HEAVIEST}")
        found[key] = round(number * _THOUSANDTHS)
    if len(found) < len(_WEIGHT_KEYS):
        missing = sorted(set(_WEIGHT_KEYS) - set(found))
        raise _weights_error(text, what, f"{' and '.join(missing)} is missing")
    if not any(found.values()):
        raise _weights_error(text, what, "all are zero")
    return Weights(slot=found["slot"], core=found["core"], memory=found["memory"])


def _pairs(text: str, what: str) -> Iterable[tuple[str, str]]:
    for part in text.split(","):
        key, sign, value = part.partition("=")
        if not sign:
            raise _weights_error(text, what, f"{part.strip()!r} is not KEY=NUMBER")
        yield key.strip().lower(), value.strip()


def _weights_error(text: str, what: str, why: str) -> InputError:
    return InputError(
        f"{what} {text[:80]!r} cannot be used", why=why, hint="write slot=1,core=1,memory=3"
    )
