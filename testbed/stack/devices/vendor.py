"""What differs between vendors of shared cards, for admission and placement.

A vendor is data: the names of its resources and annotations, the unit of its memory,
and whether our library keeps its limits. Whoever adds one adds an entry here. Source of
the names: HAMi v2.10 (``pkg/device/nvidia``, ``pkg/device/hygon``) and its default
device configuration.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import msgspec

from testbed.errors import CodecError
from testbed.stack import names
from testbed.stack.codec.devices import decode_pod_shares, encode_pod_shares
from testbed.stack.codec.register import decode_register, encode_register, encode_register_text
from testbed.stack.config import DeviceConfig
from testbed.stack.model import VENDOR_NVIDIA, Card, PodShares

VENDOR_HYGON = "DCU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Vendor:
    """One vendor.

    Attributes:
        word: Names it in device lists, ``UUID,WORD,MiB,cores``.
        count: Resource that counts cards.
        memory: Resource of memory a card, in units of ``unit_mib``.
        percentage: Resource of memory a card in percent; empty where there is none.
        cores: Resource of compute a card, percent.
        priority: Resource of the priority, 0 or 1; empty where there is none.
        unit_mib: MiB that one of ``memory`` means.
        register: Node annotation with its cards.
        handshake: Node annotation by which HAMi's scheduler asks for a sign of life.
        to_allocate: Pod annotation that its plugin consumes.
        allocated: Pod annotation that stays.
        use_type: Pod annotation: types wanted (and ``nouse_type``, ``use_uuid``,
            ``nouse_uuid``).
        default_count: Cards where only a share is asked for; 0 refuses that.
        default_memory: Of ``memory``, where none is asked for; 0 is the whole card.
        default_cores: Percent, where none are asked for.
        library: Our library keeps its limits, so its variables are looked after.
        text: The register annotation is written in the text form.
    """

    word: str
    count: str
    memory: str
    percentage: str = ""
    cores: str
    priority: str = ""
    unit_mib: int = 1
    register: str
    handshake: str
    to_allocate: str
    allocated: str
    use_type: str
    nouse_type: str
    use_uuid: str
    nouse_uuid: str
    default_count: int = 1
    default_memory: int = 0
    default_cores: int = 0
    library: bool = False
    text: bool = False

    @property
    def resources(self) -> tuple[str, ...]:
        """The names of its resources."""
        every = (self.count, self.memory, self.percentage, self.cores, self.priority)
        return tuple(name for name in every if name)

    def decode(self, text: str) -> tuple[Card, ...]:
        """Return the cards of its register annotation, each with the vendor's word.

        Raises:
            CodecError: it cannot be read.
        """
        cards = decode_register(text)
        if all(card.vendor == self.word for card in cards):
            return cards
        return tuple(msgspec.structs.replace(card, vendor=self.word) for card in cards)

    def encode(self, cards: Iterable[Card]) -> str:
        """Return its register annotation."""
        return encode_register_text(cards) if self.text else encode_register(cards)


def _nvidia(config: DeviceConfig) -> Vendor:
    return Vendor(
        word=VENDOR_NVIDIA,
        count=config.resourceCountName,
        memory=config.resourceMemoryName,
        percentage=config.resourceMemoryPercentageName,
        cores=config.resourceCoreName,
        priority=config.resourcePriorityName,
        unit_mib=config.memoryFactor,
        register=names.NODE_REGISTER,
        handshake=names.NODE_HANDSHAKE,
        to_allocate=names.POD_TO_ALLOCATE,
        allocated=names.POD_ALLOCATED,
        use_type=names.USE_TYPE,
        nouse_type=names.NOUSE_TYPE,
        use_uuid=names.USE_UUID,
        nouse_uuid=names.NOUSE_UUID,
        default_count=config.defaultGPUNum,
        default_memory=config.defaultMemory,
        default_cores=config.defaultCores,
        library=True,
    )


#: Hygon's DCUs; their own plugin serves them and keeps the limits.
HYGON = Vendor(
    word=VENDOR_HYGON,
    count="hygon.com/dcunum",
    memory="hygon.com/dcumem",
    cores="hygon.com/dcucores",
    register="hami.io/node-dcu-register",
    handshake="hami.io/node-handshake-dcu",
    to_allocate="hami.io/dcu-devices-to-allocate",
    allocated="hami.io/dcu-devices-allocated",
    use_type="hygon.com/use-dcutype",
    nouse_type="hygon.com/nouse-dcutype",
    use_uuid="hygon.com/use-gpuuuid",
    nouse_uuid="hygon.com/nouse-gpuuuid",
    text=True,
)

_last: tuple[DeviceConfig, tuple[Vendor, ...]] | None = None


def vendors(config: DeviceConfig) -> tuple[Vendor, ...]:
    """Return the vendors whose cards are shared, in the order of the configuration."""
    global _last
    found = _last
    if found is None or found[0] is not config:
        # Asked for with each decision, by few configurations at a time.
        every = {"nvidia": _nvidia(config), "hygon": HYGON}
        found = _last = (config, tuple(every[name] for name in dict.fromkeys(config.vendors)))
    return found[1]


def resource_names(config: DeviceConfig) -> tuple[str, ...]:
    """Return the names of all resources that a pod can ask for."""
    return tuple(dict.fromkeys(name for vendor in vendors(config) for name in vendor.resources))


def stack_keys(config: DeviceConfig) -> tuple[str, ...]:
    """Return the annotations and labels of pods that only the stack may write."""
    own = (key for vendor in vendors(config) for key in (vendor.to_allocate, vendor.allocated))
    return tuple(dict.fromkeys((*names.STACK_ANNOTATIONS, *own)))


def stack_node_keys(config: DeviceConfig) -> tuple[str, ...]:
    """Return the annotations of nodes that only the stack may write."""
    own = (key for vendor in vendors(config) for key in (vendor.register, vendor.handshake))
    return tuple(dict.fromkeys((*names.STACK_NODE_ANNOTATIONS, *own)))


def share_annotations(shares: PodShares, config: DeviceConfig) -> dict[str, str]:
    """Return the annotations that carry a promise: a pair for each vendor in it.

    Every list has an entry for each container, empty where it has no card of that vendor.
    """
    found: dict[str, str] = {}
    for vendor in vendors(config):
        own = tuple(tuple(s for s in entry if s.vendor == vendor.word) for entry in shares)
        if any(own):
            found[vendor.to_allocate] = found[vendor.allocated] = encode_pod_shares(own)
    return found


def read_shares(
    annotations: Mapping[str, str], containers: int, config: DeviceConfig
) -> PodShares | None:
    """Return what a pod was promised of all vendors' cards; None without a promise.

    Raises:
        CodecError: a list cannot be read, or names another vendor's cards.
    """
    found: PodShares | None = None
    for vendor in vendors(config):
        text = annotations.get(vendor.allocated)
        if not text:
            continue
        own = decode_pod_shares(text, containers)
        for entry in own:
            for share in entry:
                if share.vendor != vendor.word:
                    raise CodecError(
                        f"device list {text!r} cannot be read",
                        why=f"{share.vendor!r} is not {vendor.word}",
                    )
        found = own if found is None else tuple(a + b for a, b in zip(found, own, strict=True))
    return found
