"""What a node tells of its cards: registers by vendor, cordon, links."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import msgspec

from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import vendors
from testbed.stack.model import Card
from testbed.units import quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class Registers:
    """What was last read of a node."""

    registers: tuple[tuple[str, str, bool], ...]  # by vendor: word, text, kubelet offers it
    cordon: str
    links: str

    @classmethod
    def of(cls, node: Mapping[str, Any], config: DeviceConfig) -> Registers:
        annotations = (node.get("metadata") or {}).get("annotations") or {}
        return cls(
            registers=tuple(
                (vendor.word, annotations.get(vendor.register) or "", offers(node, vendor.count))
                for vendor in vendors(config)
            ),
            cordon=annotations.get(names.DEVICE_CORDON) or "",
            links=annotations.get(names.NODE_SCORE) or "",
        )

    def digest(self) -> bytes:
        """Return what is kept of it: texts of a large cluster would be seven megabytes."""
        return blake2b(repr(self).encode(), digest_size=16).digest()

    def cards(self, config: DeviceConfig) -> tuple[Card, ...]:
        """Return the node's cards; those that its kubelet does not offer take no pods.

        Raises:
            CodecError: a register cannot be read.
        """
        found: list[Card] = []
        for vendor, (_, text, offered) in zip(vendors(config), self.registers, strict=True):
            for card in vendor.decode(text):
                found.append(card if offered else msgspec.structs.replace(card, healthy=False))
        return tuple(found)

    def cordoned(self) -> list[str]:
        """Return the uuids of the cards that take no new pods."""
        return [uuid.strip() for uuid in self.cordon.split(",") if uuid.strip()]


def offers(node: Mapping[str, Any], resource: str) -> bool:
    """Tell whether a node's kubelet hands out a resource."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    try:
        return quantity(allocatable.get(resource, 0)) > 0
    except InputError:
        return False
