"""Which MIG instances a card is to have, against those that it has; no card is touched here.

What changes a card is not there yet. These are the rules by which it is to do so: an
instance in use stays, a card whose MIG is off is left alone, what was made is believed only
when it was read back, and what a container gets is looked up in a list that is newer than it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from testbed.errors import ClusterError, InputError
from testbed.stack.placement.mig import Allocation, Place

#: A profile's name and where it lies.
Laid = tuple[str, Place]


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """An instance that a card has.

    Attributes:
        uuid: Of the MIG device.
        user: What holds it, such as a pod's name; empty where nothing does.
    """

    profile: str
    place: Place
    uuid: str
    gpu_instance: int
    compute_instance: int
    user: str = ""

    @property
    def laid(self) -> Laid:
        return self.profile, self.place


@dataclass(frozen=True, slots=True, kw_only=True)
class MigCard:
    """A card as the driver tells of it.

    Attributes:
        index: The driver's number of the card, those without MIG counted too.
        enabled: Whether MIG is on.
    """

    uuid: str
    index: int
    enabled: bool
    made: tuple[Made, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What is to be done to one card, in this order; what is in neither stays as it is."""

    uuid: str
    index: int
    destroy: tuple[Made, ...]
    make: tuple[Laid, ...]


def change(card: MigCard, wanted: Sequence[Laid]) -> Change:
    """Return how a card comes to have instances; those that it has and that are wanted stay.

    Raises:
        InputError: MIG is off, what is wanted overlaps itself, or an instance in use is in
            the way; the text names its user.
    """
    if not card.enabled:
        raise InputError(
            f"card {card.index} ({card.uuid}) cannot be divided", why="its MIG mode is off"
        )
    for (one, here), (other, there) in combinations(wanted, 2):
        if here.overlaps(there):
            raise InputError(
                f"card {card.index} ({card.uuid}) cannot be divided so",
                why=f"{one} at {here.start} and {other} at {there.start} overlap",
            )
    missing, extra = list(wanted), []
    for made in card.made:
        if made.laid in missing:
            missing.remove(made.laid)
        else:
            extra.append(made)
    # What is in nobody's way may stay, in use or not: less is changed.
    gone = [made for made in extra if any(made.place.overlaps(place) for _, place in missing)]
    if held := [made for made in gone if made.user]:
        raise InputError(
            f"card {card.index} ({card.uuid}) cannot be divided otherwise now",
            why="; ".join(
                f"{made.profile} at {made.place.start} is in use by {made.user}" for made in held
            ),
            hint="wait until it is free, or choose another card",
        )
    return Change(uuid=card.uuid, index=card.index, destroy=tuple(gone), make=tuple(missing))


def changes(cards: Sequence[MigCard], wanted: Mapping[str, Sequence[Laid]]) -> list[Change]:
    """Return what is to be done on a node; cards of which nothing is wanted are left alone.

    Args:
        cards: The node's, in any order.
        wanted: Instances by the card's UUID.

    Raises:
        InputError: a card is not there, or see ``change``.
    """
    there = {card.uuid: card for card in cards}
    if unknown := sorted(set(wanted) - set(there)):
        raise InputError(f"no card {unknown[0]} on this node")
    found = [change(card, wanted[card.uuid]) for card in cards if card.uuid in wanted]
    return [each for each in found if each.destroy or each.make]


def verify(card: MigCard, wanted: Sequence[Laid]) -> None:
    """See that a card, read anew after a change, has what is wanted.

    Raises:
        ClusterError: something is missing, whatever the tool has said.
    """
    missing = list(wanted)
    for made in card.made:
        if made.laid in missing:
            missing.remove(made.laid)
    if missing:
        raise ClusterError(
            f"card {card.index} ({card.uuid}) has not got what was made",
            why="not there: " + ", ".join(f"{name} at {place.start}" for name, place in missing),
        )


def device_of(allocation: Allocation, cards: Sequence[MigCard], spec: Sequence[str]) -> Made:
    """Return the instance that a container is to get.

    Args:
        allocation: What it was promised.
        cards: The node's, read after the instance was made.
        spec: Names of the devices that the CDI specification offers now.

    Raises:
        ClusterError: the list or the specification is older than the instance: read or write
            it anew first. An instance of the same place is not taken for it.
    """
    for card in cards:
        for made in card.made:
            promised = allocation.uuid == card.uuid and made.laid == (
                allocation.profile, allocation.place,
            )  # fmt: skip
            runtime = (made.uuid, made.gpu_instance, made.compute_instance)
            if promised and allocation.runtime in (None, runtime):
                if made.uuid in spec:
                    return made
                raise ClusterError(
                    f"device {made.uuid} is not in the CDI specification",
                    why="it was made after the specification was written",
                    hint="write the specification anew",
                )
    raise ClusterError(
        f"no instance {allocation.profile} at {allocation.place.start} on card {allocation.uuid}",
        why="the list of devices is older than it, or it was destroyed",
        hint="read the devices anew",
    )
