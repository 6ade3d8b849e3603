"""The machine's own cards, as ``nvidia-smi`` and /proc tell them. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from testbed.errors import InputError

_CARD = re.compile(r"GPU (\d+): (.+) \(UUID: (GPU-[0-9a-f-]+)\)", re.ASCII)
_MIG = re.compile(r"MIG (\S+)\s+Device\s+(\d+): \(UUID: (MIG-[\w/-]+)\)", re.ASCII)
#: What `nvidia-smi` says instead of cards → what helps.
_FAILURES = (
    (
        "couldn't communicate with the NVIDIA driver",
        "sudo modprobe nvidia   (after an update of the kernel: install its headers and"
        " the driver's dkms package, or reboot)",
    ),
    (
        "Driver/library version mismatch",
        "reboot, or unload the older module: sudo rmmod nvidia_drm nvidia_modeset nvidia_uvm"
        " nvidia && sudo modprobe nvidia",
    ),
    (
        "Unknown Error",
        "the cards were taken from this container: restart it (nvidia-container-toolkit #48);"
        " on a machine: sudo dmesg | grep -i nvrm",
    ),
    ("No devices were found", "sudo dmesg | grep -i nvrm"),
    ("Insufficient Permissions", "sudo chmod 0666 /dev/nvidia*, or run as root"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MigDevice:
    """One MIG device of a card."""

    uuid: str
    number: int
    profile: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RealCard:
    """One card of the machine.

    Attributes:
        index: As ``nvidia-smi`` counts.
        minor: Of ``/dev/nvidia<minor>``, which need not be the index.
        mig: Whether it is in MIG mode: then only its MIG devices can be used.
    """

    index: int
    uuid: str
    name: str
    minor: int | None = None
    mig: bool = False
    devices: tuple[MigDevice, ...] = ()


def parse_list(text: str) -> tuple[RealCard, ...]:
    """Return the cards of ``nvidia-smi -L``.

    Raises:
        InputError: it lists none; the hint is that for what it says instead.
    """
    found: list[RealCard] = []
    for line in text.splitlines():
        if card := _CARD.fullmatch(line.strip()):
            found.append(RealCard(index=int(card[1]), name=card[2], uuid=card[3]))
        elif (device := _MIG.fullmatch(line.strip())) and found:
            mig = MigDevice(uuid=device[3], number=int(device[2]), profile=device[1])
            found[-1] = replace(found[-1], mig=True, devices=(*found[-1].devices, mig))
    if found:
        return tuple(found)
    said = text.strip()
    hint = next((help_ for word, help_ in _FAILURES if word in said), "")
    raise InputError(
        "nvidia-smi lists no card",
        why=said.splitlines()[0] if said else "it said nothing",
        hint=hint or "install NVIDIA's driver, and look at: nvidia-smi -L",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Queried:
    """One line of ``nvidia-smi --query-gpu`` with the fields of ``QUERY``."""

    uuid: str
    driver: str
    memory_mib: int | None
    mig: bool


#: Fields asked for, always with ``--format=csv,noheader,nounits``.
QUERY = "index,uuid,name,driver_version,memory.total,mig.mode.current"


def parse_query(text: str) -> tuple[Queried, ...]:
    """Return the lines of ``nvidia-smi --query-gpu=QUERY --format=csv,noheader,nounits``.

    A field that a card has not is ``[N/A]`` (``[Not Supported]`` in older drivers).
    """
    found = []
    for line in text.splitlines():
        words = [word.strip() for word in line.split(",")]
        # A name may hold a comma: the fields behind it are counted from the end.
        if len(words) >= 6 and words[1].startswith("GPU-"):
            memory = words[-2]
            found.append(
                Queried(
                    uuid=words[1],
                    driver=words[-3],
                    memory_mib=int(memory) if memory.isdecimal() else None,
                    mig=words[-1] == "Enabled",
                )
            )
    return tuple(found)


def parse_information(text: str) -> tuple[str, int] | None:
    """Return (uuid, minor) of ``/proc/driver/nvidia/gpus/*/information``."""
    values = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        values[key.strip()] = value.strip()
    uuid, minor = values.get("GPU UUID", ""), values.get("Device Minor", "")
    return (uuid, int(minor)) if uuid.startswith("GPU-") and minor.isdecimal() else None


def joined(
    cards: Iterable[RealCard], queried: Iterable[Queried], minors: Iterable[tuple[str, int]]
) -> tuple[RealCard, ...]:
    """Return the cards with what the other sources know of them."""
    by_uuid, minor = {each.uuid: each for each in queried}, dict(minors)
    return tuple(
        replace(
            card,
            minor=minor.get(card.uuid),
            # A card in MIG mode without any MIG device looks like any other in the list.
            mig=card.mig or (card.uuid in by_uuid and by_uuid[card.uuid].mig),
        )
        for card in cards
    )


def masked(params: str) -> bool | None:
    """Whether /proc/driver/nvidia/params keeps device nodes from being made; None if unread."""
    if "ModifyDeviceFiles: 0" in params.splitlines():
        return True
    return False if "ModifyDeviceFiles: 1" in params.splitlines() else None


def find_device(cards: Sequence[RealCard], word: str) -> tuple[RealCard, MigDevice | None]:
    """Return the card, or a card's MIG device, that a word of ``--cards`` means.

    Raises:
        InputError: there is none, or several begin so.
    """
    known = ", ".join(f"{card.index} ({card.uuid})" for card in cards)
    every: list[tuple[RealCard, MigDevice | None]]
    if word[0].isdigit():
        index, colon, number = word.partition(":")
        every = [(card, None) for card in cards if card.index == int(index)]
        if colon:
            devices = [(card, mig) for card, _ in every for mig in card.devices]
            every = [(card, mig) for card, mig in devices if mig.number == int(number)]
    elif word.startswith("MIG-"):
        every = [(card, mig) for card in cards for mig in card.devices if mig.uuid.startswith(word)]
    else:
        every = [(card, None) for card in cards if card.uuid.startswith(word)]
    if len(every) == 1:
        return every[0]
    raise InputError(
        f"this machine has no card {word}" if not every else f"{word} means several cards",
        why=f"it has {known}",
        hint="nvidia-smi -L lists cards and MIG devices",
    )
