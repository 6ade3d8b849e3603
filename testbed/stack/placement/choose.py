"""Which of the fitting cards a container gets: fullness, NUMA nodes, links.

All rows at once; one row is one node, one column one card. Fullness is a whole number
(parts per million times thousandths of weight), so that equal cards are exactly equal
and the lowest index among them is what everybody finds.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import combinations
from math import comb

import numpy as np
from numpy.typing import NDArray

from testbed.stack.placement.arrays import Mask, Numbers, count_true, numa_nodes
from testbed.stack.policy import CardPolicy, Weights

PPM = 1_000_000
#: Larger than every fullness, small enough for the sum of a node's cards.
_NEVER = np.int64(1) << 56
#: NUMA nodes that are told apart; a machine with more has them counted together.
NUMA_NODES = 64
#: Sets of cards that are looked at one by one: all of eight among sixteen. A wider
#: node's best links are found step by step, each time the card that adds most.
_MOST_SETS = 13_000
#: Rows that are looked at together, so that the sets of wide nodes need no more than
#: some ten megabytes.
_SET_CELLS = 2_000_000


def fullness(
    weights: Weights,
    slots: Numbers,
    slots_total: Numbers,
    cores: Numbers,
    cores_total: Numbers,
    mem: Numbers,
    mem_total: Numbers,
) -> Numbers:
    """Return each card's fullness: the weighted sum of used by total, request included."""
    full: Numbers = (
        weights.slot * (slots * PPM // np.maximum(slots_total, 1))
        + weights.core * (cores * PPM // np.maximum(cores_total, 1))
        + weights.memory * (mem * PPM // np.maximum(mem_total, 1))
    )
    return full


def choose(
    policy: CardPolicy,
    bound_to_numa: bool,
    fits: Mask,
    count: int,
    full: Numbers,
    numa: Numbers,
    links: Numbers | None,
) -> tuple[Numbers, Mask]:
    """Return each row's cards for one container, and where there are enough of them.

    Args:
        policy: What decides.
        bound_to_numa: All cards must be of one NUMA node.
        fits: The cards that take the container.
        count: How many it needs.
        full: Fullness with the request on the card.
        numa: NUMA node of each card.
        links: Links between the cards (rows by cards by cards), where they decide.

    Returns:
        Columns, ascending (rows by count; meaningless where there are too few), and
        the rows that have enough cards.
    """
    enough: Mask = count_true(fits) >= count
    cost = -full if policy.fullest else full
    if policy.tie:
        cost = cost * (4 * NUMA_NODES) + _numa_rank(fits, count, numa)
    if not (policy.group or bound_to_numa):
        return _pick(fits, count, cost, links)[0], enough
    group, there = _best_group(fits, count, cost, numa, links)
    if bound_to_numa:
        return group, there
    anyhow = _pick(fits, count, cost, links)[0]
    picks: Numbers = np.where(there[:, None], group, anyhow)
    return picks, enough


def numa_groups(fits: Mask, count: int, numa: Numbers) -> Mask:
    """Return the cards that fit and whose NUMA node has enough that do."""
    held: Mask = np.zeros_like(fits)
    for node in numa_nodes(numa, fits):
        here = fits & (numa == node)
        held |= here & (count_true(here) >= count)[:, None]
    return held


def _numa_rank(fits: Mask, count: int, numa: Numbers) -> Numbers:
    """Return an order of equal cards: NUMA nodes that hold the whole container first."""
    held = numa_groups(fits, count, numa)
    rank: Numbers = np.clip(numa, 0, NUMA_NODES - 1) + np.where(held, 0, NUMA_NODES)
    return rank


def _best_group(
    fits: Mask, count: int, cost: Numbers, numa: Numbers, links: Numbers | None
) -> tuple[Numbers, Mask]:
    """Return the cards of the best NUMA node of each row: links, then cost, then number."""
    rows = len(fits)
    best: Numbers = np.zeros((rows, count), np.int64)
    best_key = (np.full(rows, -1, np.int64), np.zeros(rows, np.int64))
    there: Mask = np.zeros(rows, np.bool_)
    for node in numa_nodes(numa, fits):
        here = fits & (numa == node)
        holds = count_true(here) >= count
        if not holds.any():
            continue
        picks, linked = _pick(here, count, cost, links)
        spent = np.take_along_axis(cost, picks, axis=1).sum(axis=1)
        better = holds & (
            ~there | (linked > best_key[0]) | ((linked == best_key[0]) & (spent < best_key[1]))
        )
        best[better] = picks[better]
        best_key[0][better], best_key[1][better] = linked[better], spent[better]
        there |= holds
    return best, there


def _pick(fits: Mask, count: int, cost: Numbers, links: Numbers | None) -> tuple[Numbers, Numbers]:
    """Return the best cards of each row, and how well they are linked (larger is better)."""
    nothing: Numbers = np.zeros(len(fits), np.int64)
    if links is None:
        key = np.where(fits, cost, _NEVER)
        if count == 1:
            return key.argmin(axis=1)[:, None], nothing
        order: NDArray[np.int64] = np.argsort(key, axis=1, kind="stable")[:, :count]
        return np.sort(order, axis=1), nothing
    if count == 1:
        return _worst_linked(fits, cost, links)
    if comb(fits.shape[1], count) > _MOST_SETS:
        return _linked_stepwise(fits, count, cost, links)
    return _linked_sets(fits, count, cost, links)


def _worst_linked(fits: Mask, cost: Numbers, links: Numbers) -> tuple[Numbers, Numbers]:
    """One card: the one whose links to the other fitting ones are worth least."""
    worth = np.where(fits[:, None, :], links, 0).sum(axis=2)
    worth = np.where(fits, worth, _NEVER)
    least = worth.min(axis=1)
    key = np.where(worth == least[:, None], cost, _NEVER)
    return key.argmin(axis=1)[:, None], -least


@lru_cache(maxsize=64)
def _sets(width: int, count: int) -> NDArray[np.int64]:
    """Return every set of columns, in the order of their indices (sets by count)."""
    return np.array(list(combinations(range(width), count)), np.int64)


def _linked_sets(fits: Mask, count: int, cost: Numbers, links: Numbers) -> tuple[Numbers, Numbers]:
    """Several cards: of all sets the one with the largest sum of links."""
    sets = _sets(fits.shape[1], count)
    picks: Numbers = np.zeros((len(fits), count), np.int64)
    linked: Numbers = np.zeros(len(fits), np.int64)
    step = max(1, _SET_CELLS // sets.size)
    for start in range(0, len(fits), step):
        part = slice(start, start + step)
        valid = fits[part][:, sets].all(axis=2)
        worth = np.zeros(valid.shape, np.int64)
        for a, b in combinations(range(count), 2):
            worth += links[part][:, sets[:, a], sets[:, b]]
        worth = np.where(valid, worth, -1)
        most = worth.max(axis=1)
        spent = np.where(worth == most[:, None], cost[part][:, sets].sum(axis=2), _NEVER)
        picks[part] = sets[spent.argmin(axis=1)]
        linked[part] = most
    return picks, linked


def _linked_stepwise(
    fits: Mask, count: int, cost: Numbers, links: Numbers
) -> tuple[Numbers, Numbers]:
    """Several cards of a wide node: the best pair, then each time the card that adds most."""
    picks, linked = _linked_sets(fits, 2, cost, links)
    rows = np.arange(len(fits))
    while picks.shape[1] < count:
        free = fits.copy()
        free[rows[:, None], picks] = False
        gain = np.where(free, links[rows[:, None], picks].sum(axis=1), -1)
        most = gain.max(axis=1)
        key = np.where(gain == most[:, None], cost, _NEVER)
        picks = np.concatenate([picks, key.argmin(axis=1)[:, None]], axis=1)
        linked = linked + most
    return np.sort(picks, axis=1), linked
