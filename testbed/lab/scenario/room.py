"""Whether a case's pods can have their cards at all, told before anything is submitted.

A pod that no card is large enough for would wait for half a minute until the trial gives
up on it. The testbed's cards are known, and nothing else runs on them; so each pod is
placed on them, empty, by the extender's own functions, and what all ask for together is
held against what all cards have. A case that passes may still not fit (ten pods of 60 % on
ten cards do, on nine they do not); a case that is refused never does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from testbed.errors import InputError
from testbed.stack.config import DeviceConfig
from testbed.stack.model import Card, PodShares
from testbed.stack.placement.decide import decide
from testbed.stack.placement.effective import Charge, fold
from testbed.stack.placement.ledger import Ledger
from testbed.stack.placement.offer import Offer
from testbed.stack.placement.reasons import explain
from testbed.stack.placement.request import PodRequest, pod_request
from testbed.stack.webhook.mutate import admit

_HINT = "ask for less, or bring up other cards (testbed up --cards; testbed card list)"


def check_room(
    manifests: Iterable[Mapping[str, Any]],
    registered: Mapping[str, Sequence[Card]],
    config: DeviceConfig | None = None,
) -> None:
    """Refuse pods that could not be placed on these cards were nothing else there.

    Args:
        manifests: What is to be created; pods of other schedulers are left out, and those
            that admission would refuse: it says why.
        registered: The cards by node; without any nothing is judged.
        config: Names resources and defaults.

    Raises:
        InputError: names the pod, or what all pods lack together.
    """
    config = config or DeviceConfig()
    cards = [card for each in registered.values() for card in each]
    if not cards:
        return
    ledger = Ledger()
    for node, found in registered.items():
        ledger.set_node(node, found)
    nodes = list(registered)
    total: list[Charge] = []
    for manifest in manifests:
        request = _request(manifest, config)
        if request is None:
            continue
        choice = decide(ledger, request, Offer.of(nodes))
        if choice is None:
            reasons = explain(ledger, request, nodes)
            raise InputError(
                f"pod {manifest['metadata']['name']} fits no node of this testbed,"
                " were nothing else there",
                why="; ".join([*reasons.counts, *_too_large(request, cards)]),
                hint=_HINT,
            )
        total.append(_least(choice.shares, request, cards))
    _check_together(total, cards)


def _request(manifest: Mapping[str, Any], config: DeviceConfig) -> PodRequest | None:
    """Return what a pod asks for once it is admitted; None where that is not ours to say."""
    if manifest.get("kind") != "Pod":
        return None
    try:
        pod = admit(manifest, config).pod
        request = pod_request(pod, config)
    except InputError:
        return None
    ours = pod["spec"].get("schedulerName") == config.schedulerName
    return request if ours and request.asks else None


def _too_large(request: PodRequest, cards: Sequence[Card]) -> list[str]:
    most = max((one.mem_mib or 0 for one in request.containers), default=0)
    largest = max(card.mem_mib for card in cards)
    if most <= largest:
        return []
    return [f"{most:,} MiB are asked for, the largest card has {largest:,} MiB for programs"]


def _least(shares: PodShares, request: PodRequest, cards: Sequence[Card]) -> Charge:
    """Return the least that a pod takes of all cards together, wherever it goes.

    Init containers may go to the cards of the others, which then hold the larger of both;
    a percentage is less on a smaller card.
    """
    on_one = tuple(tuple(replace(share, uuid="any") for share in each) for each in shares)
    found = fold(on_one, request.kinds).get("any", Charge())
    percent = any(one.count and one.mem_mib is None for one in request.containers)
    if percent and len({card.mem_mib for card in cards}) > 1:
        return Charge(slots=found.slots, core_pct=found.core_pct)
    return found


def _check_together(pods: Sequence[Charge], cards: Sequence[Card]) -> None:
    asked = sum(pods, Charge())
    for what, ask, have in (
        ("MiB of memory", asked.mem_mib, sum(card.mem_mib for card in cards)),
        ("% of compute", asked.core_pct, sum(card.core_pct for card in cards)),
        ("shares", asked.slots, sum(card.slots for card in cards)),
    ):
        if ask > have:
            raise InputError(
                f"the pods of this case do not fit together: they ask for {ask:,} {what}",
                why=f"this testbed's cards have {have:,} in all",
                hint=_HINT,
            )
