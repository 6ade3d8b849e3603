"""The frozen values of the stack: cards, shares, requests.

No wire format here (that is ``codec``), no vendor (``devices``), no policy
(``placement``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

VENDOR_NVIDIA = "NVIDIA"
MODE_HAMI_CORE = "hami-core"


# Values that are made for every card and pod of a large cluster are structs, which are made,
# compared and hashed several times as fast as frozen dataclasses.
class Card(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A card as its node registers it.

    Attributes:
        uuid: The driver's name of the card, ``GPU-…``.
        index: Order on the node (by PCI bus id, as the driver counts).
        slots: How many containers may share the card ("count", deviceSplitCount).
        mem_mib: Memory that may be promised, MiB, after scaling.
        core_pct: Compute that may be promised, percent, after scaling.
        model: Model name with HAMi's prefix, such as ``NVIDIA A100-SXM4-80GB``.
        numa: NUMA node of the card.
        mode: ``hami-core``, ``mig`` or ``mps``.
        healthy: False keeps new pods away.
        extra: Fields of the register annotation that we do not interpret.
    """

    uuid: str
    index: int = 0
    slots: int = 10
    mem_mib: int
    core_pct: int = 100
    model: str
    numa: int = 0
    mode: str = MODE_HAMI_CORE
    healthy: bool = True
    vendor: str = VENDOR_NVIDIA
    extra: Mapping[str, object] = msgspec.field(default_factory=dict)


class Share(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """What one container was promised of one card."""

    uuid: str
    vendor: str = VENDOR_NVIDIA
    mem_mib: int
    core_pct: int


#: The shares of one container, in the order of the cards' index; empty without a GPU.
#: Entry i is the container's device i: limit i, region entry i, CUDA ordinal i.
ContainerShares = tuple[Share, ...]

#: One entry for each container, init containers first, then app containers.
PodShares = tuple[ContainerShares, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What one container asks for.

    Exactly one of ``mem_mib`` and ``mem_pct`` is set (gpumem wins over the
    percentage; neither given means the whole card, ``mem_pct=100``). ``vendor`` is the
    word of the cards that it is asked of (``stack.devices.vendor``).
    """

    count: int
    mem_mib: int | None = None
    mem_pct: int | None = None
    core_pct: int = 0
    vendor: str = VENDOR_NVIDIA


NO_REQUEST = Request(count=0, mem_mib=0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """The cards that a pod accepts, from its annotations (empty = no constraint)."""

    use_types: tuple[str, ...] = ()
    nouse_types: tuple[str, ...] = ()
    use_uuids: tuple[str, ...] = ()
    nouse_uuids: tuple[str, ...] = ()
    #: All cards of a container on one NUMA node.
    numa_bind: bool = False


class PodKey(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A pod by name and identity; ``uid`` decides, the rest is for people."""

    namespace: str
    name: str
    uid: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"
