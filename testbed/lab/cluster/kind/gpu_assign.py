"""Which of the machine's cards each node gets. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from testbed.card.spec import CardSpec
from testbed.errors import InputError
from testbed.lab.cluster.kind.gpu_cards import MigDevice, RealCard, find_device

#: A card, or one of its MIG devices.
Given = tuple[RealCard, MigDevice | None]


def assign(
    nodes: Sequence[Sequence[CardSpec]], cards: Sequence[RealCard]
) -> tuple[tuple[Given, ...], ...]:
    """Return which cards and MIG devices each node gets.

    Named ones first, then numbers (the lowest indices left), then what is left is shared
    out evenly among the nodes that ask for all. A card in MIG mode is its MIG devices.

    Raises:
        InputError: a card that there is not or that two nodes ask for, or too few.
    """
    made: list[tuple[Given, ...]] = [()] * len(nodes)
    owner: dict[str, int] = {}
    wishes = [specs[0] for specs in nodes]

    def take(node: int, devices: Iterable[Given]) -> None:
        for card, mig in devices:
            uuid = mig.uuid if mig else card.uuid
            if owner.setdefault(uuid, node) != node:
                raise InputError(
                    f"card {uuid} is asked for by two nodes",
                    why="two device plugins would promise the same card",
                    hint="name other cards, or use one node",
                )
            made[node] = (*made[node], (card, mig))

    for node, wish in enumerate(wishes):
        for word in wish.devices:
            card, device = find_device(cards, word)
            take(node, [(card, device)] if device else _whole(card))
    touched = {card.uuid for devices in made for card, _ in devices}
    left = [card for card in cards if card.uuid not in touched]
    for node, wish in enumerate(wishes):
        if wish.count and not wish.devices:
            if len(left) < wish.count:
                raise InputError(
                    f"node {node + 1} asks for {wish.count} of the machine's cards",
                    why=f"{len(left)} of {len(cards)} are left",
                    hint="nvidia-smi -L lists them",
                )
            for card in left[: wish.count]:
                take(node, _whole(card))
            left = left[wish.count :]
    rest = [node for node, wish in enumerate(wishes) if not wish.count]
    if rest and (not left or len(left) % len(rest)):
        raise InputError(
            f"{len(left)} cards cannot be shared out evenly among {len(rest)} nodes",
            hint=f"say how many each gets: --cards nvidia:{max(1, len(left) // len(rest))}",
        )
    for place, node in enumerate(rest):
        each = len(left) // len(rest)
        for card in left[place * each : (place + 1) * each]:
            take(node, _whole(card))
    return tuple(made)


def _whole(card: RealCard) -> list[Given]:
    if not card.mig:
        return [(card, None)]
    if not card.devices:
        raise InputError(
            f"card {card.index} ({card.name}) is in MIG mode and has no MIG device",
            hint=f"sudo nvidia-smi mig -i {card.index} -cgi 0 -C   makes one of the whole card;"
            f" sudo nvidia-smi -i {card.index} -mig 0   leaves MIG mode",
        )
    return [(card, device) for device in card.devices]
