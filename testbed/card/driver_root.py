"""The driver root of a node with emulated cards.

::

    <folder>/EMULATION                      what this is
    <folder>/driver/libcuda.so.1            the emulated driver
    <folder>/driver/libnvidia-ml.so.1
    <folder>/cards/<uuid>/state             shared by all processes on the card, 0666
    <folder>/cards/<uuid>/cuda.lock         record locks of libcuda, 0666
    <folder>/cards/<uuid>/nvml.lock         record locks of libnvidia-ml, 0666
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from testbed.card import profiles
from testbed.card.spec import MAX_CARDS, CardSpec
from testbed.errors import InputError, MissingTool
from testbed.native import artifacts, card
from testbed.units import GIB

MARK = "EMULATION"
LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
#: Names of environment variables and what they do are part of the user's interface.
BUDGET_VARIABLE = "VGPU_EMU_MEMORY_BUDGET"
CLOCK_VARIABLE = "VGPU_EMU_CLOCK"
SAMPLES_VARIABLE = "VGPU_EMU_PROCESS_SAMPLES"
_Value = TypeVar("_Value", int, int | None)
SAMPLES: Mapping[str, int | None] = {
    "profile": None,
    "each": card.SAMPLES_EACH,
    "one": card.SAMPLES_ONE,
    "off": card.SAMPLES_NONE,
}
CLOCKS = {"slices": card.CLOCK_SLICES, "sharing": card.CLOCK_SHARING}
DRIVER_TEXT = "595.45.04+emulated"

_MARK_TEXT = """\
This folder is an emulation of a driver root, made by vgpu-testbed. Nothing in it is
NVIDIA software, and no card is behind it.
"""


def make(
    folder: Path, cards: Sequence[CardSpec], *, budget_bytes: int | None = None
) -> tuple[str, ...]:
    """Make a driver root with its cards.

    Args:
        folder: Must not hold cards already.
        cards: Which; their order is the cards' order on the node.
        budget_bytes: The host's memory that all cards of this root together may fill;
            the smaller of 8 GiB and half of the memory where it is None, shared out
            evenly.

    Returns:
        The cards' uuids in order.

    Raises:
        InputError: an unknown profile, no or too many cards, a root that is there, or an
            environment variable that says something else than it may.
        MissingTool: the emulated driver has not been built.
    """
    models = [profiles.load(spec.profile) for spec in cards for _ in range(spec.count)]
    if any(spec.count < 1 for spec in cards) or not 1 <= len(models) <= MAX_CARDS:
        raise InputError(
            f"{len(models)} emulated cards on a node", why=f"there must be 1 to {MAX_CARDS}"
        )
    libraries = {name: artifacts.library(name) for name in LIBRARIES}
    if (folder / "cards").exists():
        raise InputError(
            f"the driver root {folder} exists already", hint="take the cluster down first"
        )
    (folder / "driver").mkdir(parents=True, exist_ok=True)
    (folder / MARK).write_text(_MARK_TEXT)
    for name, source in libraries.items():
        shutil.copyfile(source, folder / "driver" / name)
        (folder / "driver" / name).chmod(0o755)
    clock = _choice(CLOCK_VARIABLE, CLOCKS, "slices")
    samples = _choice(SAMPLES_VARIABLE, SAMPLES, "profile")
    share = (default_budget() if budget_bytes is None else budget_bytes) // len(models)
    uuids = []
    for index, model in enumerate(models):
        name = f"GPU-{uuid.uuid4()}"
        place = folder / "cards" / name
        place.mkdir(parents=True)
        for lock in ("cuda.lock", "nvml.lock"):
            (place / lock).touch()
            (place / lock).chmod(0o666)  # a write lock needs a writable descriptor
        card.make(
            place / "state",
            card.CardDescription(
                uuid=name,
                name=model.model,
                pci_bus_id=f"00000000:{0x10 + index:02X}:00.0",
                index=index,
                minor=index,
                driver_text=DRIVER_TEXT,
                budget_bytes=share,
                clock_mode=clock,
                **{
                    **{field: figure.value for field, figure in model.figures.items()},
                    **({} if samples is None else {"process_samples": samples}),
                },
            ),
        )
        uuids.append(name)
    for path in (folder, folder / "driver", folder / "cards", *(folder / "cards").iterdir()):
        path.chmod(0o755)  # readable whatever the umask: containers run as any user
    (folder / MARK).chmod(0o644)
    return tuple(uuids)


def build() -> str:
    """Return the name of the driver's build, empty where there is none."""
    try:
        return artifacts.build_of(b"".join(artifacts.library(n).read_bytes() for n in LIBRARIES))
    except MissingTool:
        return ""


def _choice(variable: str, values: Mapping[str, _Value], default: str) -> _Value:
    given = os.environ.get(variable) or default
    if given not in values:
        raise InputError(f"{variable}={given!r} is not known", hint=f"write {' or '.join(values)}")
    return values[given]


def default_budget() -> int:
    """Return how much of the host's memory cards may fill when nobody says."""
    given = os.environ.get(BUDGET_VARIABLE)
    if given:
        return _bytes(given)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return min(8 * GIB, memory // 2)


def _bytes(text: str) -> int:
    # As libcuda reads it: a number and one of k, m, g, t (powers of 1024).
    units = {"k": 10, "m": 20, "g": 30, "t": 40}
    number = text.strip().lower().removesuffix("b").removesuffix("i")
    shift = units.get(number[-1:], 0)
    try:
        value = float(number[:-1] if shift else number)
    except ValueError:
        value = 0.0
    if value <= 0:
        raise InputError(f"{BUDGET_VARIABLE}={text!r} is no size", hint="write 8G, for example")
    return int(value * (1 << shift))
