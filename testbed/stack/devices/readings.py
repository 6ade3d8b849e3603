"""What a driver tells of cards: the cards, what they hold, how busy they are."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A card as the driver describes it, before any policy.

    Attributes:
        reserved_bytes: Part of its memory that the driver keeps for itself.
    """

    uuid: str
    index: int
    name: str
    memory_bytes: int
    reserved_bytes: int = 0
    numa: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessBytes:
    """What the card counts for one process; ``pid`` in this process' namespace."""

    pid: int
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CardReading:
    """One look at one card; ``error`` says why it could not be read."""

    uuid: str
    used_bytes: int = 0
    processes: tuple[ProcessBytes, ...] = ()
    utilization_pct: int | None = None
    memory_utilization_pct: int | None = None
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSample:
    """How busy one process kept a card, as NVML sampled it.

    Attributes:
        pid: In this process' namespace.
        stamp_us: The sample's time by the driver's clock (Unix microseconds on hardware).
        sm_pct: Percent of the sample's interval in which its kernels ran.
    """

    pid: int
    stamp_us: int
    sm_pct: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilizationReading:
    """What NVML has sampled of one card since a stamp.

    Attributes:
        processes: Newest sample of each process that was busy; NVML tells nothing of
            those that were not, on some machines nothing at all (``NOT_FOUND``), and on
            an H200 under driver 580 of one process a period, as if it had had the card
            alone.
        card_stamp_us: Newest sample of the whole card since its stamp, None if there is
            none (or none are kept: then none ever comes).
        card_pct: Its value; without one the card's present rate, None where that is
            not told either.
        offered: False where the driver says that it samples no processes (MIG).
        error: Why NVML gave no answer.
    """

    processes: tuple[ProcessSample, ...] = ()
    card_stamp_us: int | None = None
    card_pct: int | None = None
    offered: bool = True
    error: str = ""
