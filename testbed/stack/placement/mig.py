"""MIG: which profile a container gets of a card, and where on it.

The contract is HAMi 2.10's dynamic MIG: of the profiles with enough memory and a free
place the one with the least memory (then the fewest slices); profiles of one and of three
slices take the highest free start, so that they leave the low ones to profiles that fit
nowhere else, all others the lowest. Places are half-open intervals of memory slices.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from testbed.errors import CodecError

_HIGHEST_START = (1, 3)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class Place:
    """Memory slices ``start`` to ``start + size``."""

    start: int
    size: int

    def overlaps(self, other: Place) -> bool:
        return self.start < other.start + other.size and other.start < self.start + self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """A profile as the node registers it.

    Attributes:
        mem_mib: What an instance really has.
        core_pct: Its share of the card's multiprocessors, percent, rounded up.
        slices: Compute slices.
        places: Where the driver can make it.
    """

    name: str
    mem_mib: int
    core_pct: int
    slices: int
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A profile at a place."""

    profile: Profile
    place: Place


def choose(profiles: Iterable[Profile], taken: Sequence[Place], mem_mib: int) -> Instance | None:
    """Return the instance for a container; None where no profile has memory and place.

    Args:
        profiles: What the card offers.
        taken: Places of the instances that are there or promised.
        mem_mib: What the container asks for.
    """
    large = [profile for profile in profiles if profile.mem_mib >= mem_mib]
    for profile in sorted(large, key=lambda p: (p.mem_mib, p.slices, p.name)):
        free = [p for p in profile.places if not any(p.overlaps(other) for other in taken)]
        if free:
            highest = profile.slices in _HIGHEST_START
            return Instance(profile=profile, place=max(free) if highest else min(free))
    return None


def choose_all(
    profiles: Sequence[Profile], taken: Sequence[Place], mems_mib: Sequence[int]
) -> list[Instance] | None:
    """Return the instances of several containers, each beside those before it."""
    places, found = list(taken), []
    for mem_mib in mems_mib:
        instance = choose(profiles, places, mem_mib)
        if instance is None:
            return None
        places.append(instance.place)
        found.append(instance)
    return found


def decode_profiles(entries: object) -> tuple[Profile, ...]:
    """Return the profiles of ``migProfiles`` in the register annotation.

    Raises:
        CodecError: it is no such list.
    """
    try:
        if not isinstance(entries, list):
            raise TypeError("it is not a list")
        return tuple(
            Profile(
                name=str(entry["name"]),
                mem_mib=int(entry["memoryMB"]),
                core_pct=int(entry.get("core", 0)),
                slices=int(entry.get("sliceCount", 0)),
                places=tuple(
                    Place(start=int(place.get("start", 0)), size=int(place["size"]))
                    for place in entry.get("placements") or ()
                ),
            )
            for entry in entries
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CodecError("migProfiles cannot be read", why=repr(error)) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Allocation:
    """One entry of ``hami.io/vgpu-mig-allocations``.

    Attributes:
        container: Position among init and app containers.
        device: Position among the container's devices.
        runtime: ``migUUID``, ``gpuInstanceID``, ``computeInstanceID`` once made.
    """

    container: int
    device: int
    uuid: str
    profile: str
    place: Place
    runtime: tuple[str, int, int] | None = None


def encode_allocations(allocations: Sequence[Allocation]) -> str:
    """Return the annotation's text."""
    return json.dumps([_encode(each) for each in allocations], separators=(",", ":"))


def decode_allocations(text: str) -> tuple[Allocation, ...]:
    """Return the entries of the annotation.

    Raises:
        CodecError: it is no such list, names a device twice, or carries only some of the
            three fields of an instance that was made.
    """
    try:
        found = tuple(_decode(entry) for entry in json.loads(text))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CodecError("MIG allocations cannot be read", why=repr(error)) from error
    keys = [(each.container, each.device) for each in found]
    if len(set(keys)) < len(keys):
        raise CodecError("MIG allocations cannot be read", why="a device is named twice")
    return found


_RUNTIME = ("migUUID", "gpuInstanceID", "computeInstanceID")


def _encode(each: Allocation) -> dict[str, object]:
    entry: dict[str, object] = {
        "containerIndex": each.container,
        "deviceIndex": each.device,
        "gpuUUID": each.uuid,
        "profile": each.profile,
        "placement": {"start": each.place.start, "size": each.place.size},
    }
    if each.runtime is not None:
        entry.update(zip(_RUNTIME, each.runtime, strict=True))
    return entry


def _decode(entry: dict[str, object]) -> Allocation:
    place = entry["placement"]
    there = [key in entry for key in _RUNTIME]
    if any(there) != all(there):
        raise ValueError(f"only some of {', '.join(_RUNTIME)} are given")
    if not isinstance(place, dict):
        raise TypeError("placement is not a map")
    return Allocation(
        container=_whole(entry["containerIndex"]),
        device=_whole(entry["deviceIndex"]),
        uuid=str(entry["gpuUUID"]),
        profile=str(entry["profile"]),
        place=Place(start=_whole(place["start"]), size=_whole(place["size"])),
        runtime=(
            (str(entry[_RUNTIME[0]]), _whole(entry[_RUNTIME[1]]), _whole(entry[_RUNTIME[2]]))
            if all(there)
            else None
        ),
    )


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"{value!r} is not a whole number")
    return value
