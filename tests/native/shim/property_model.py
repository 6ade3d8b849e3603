"""What a process holds on the cards, in plain arithmetic: the third opinion beside the library's
counters and the card's own book.

Sizes are bytes. The rules are those of docs/architecture.md ("What the card counts"): more than
1 MiB in whole 2 MiB, the rest in 512 bytes whose sum per process and card is rounded to 2 MiB;
rows of pitched memory are 512 bytes each; physical memory lives while a handle or a mapping does.
"""

from __future__ import annotations

from dataclasses import dataclass, field

MIB = 1 << 20
GRANULE = 2 * MIB
ROW = 512


def granules(size: int) -> int:
    return (size + GRANULE - 1) // GRANULE * GRANULE


def pitched(width: int, height: int) -> int:
    return (width + ROW - 1) // ROW * ROW * height


@dataclass(frozen=True)
class Block:
    """Something that was allocated; `slot` is where the program keeps its handle."""

    slot: int
    value: int
    card: int
    size: int
    context: int = 0  # it goes with it


@dataclass
class Physical:
    card: int
    size: int
    charged: bool  # not: imported
    handles: list[int] = field(default_factory=list)  # slots
    maps: dict[int, int] = field(default_factory=dict)  # address: slot of the address

    @property
    def alive(self) -> bool:
        return bool(self.handles or self.maps)


@dataclass
class Context:
    slot: int
    value: int
    card: int
    primary: bool = False
    references: int = 1


@dataclass
class Holding:
    """All that one process holds. What pools and graphs keep reserved only the driver knows."""

    contexts: dict[int, Context] = field(default_factory=dict)  # by handle
    blocks: list[Block] = field(default_factory=list)
    arrays: list[Block] = field(default_factory=list)
    physical: list[Physical] = field(default_factory=list)
    current: int = 0  # a context's handle

    @property
    def card(self) -> int:
        return self.contexts[self.current].card

    def gone(self, context: int) -> None:
        """A context was destroyed, and with it what lay in it."""
        del self.contexts[context]
        self.blocks = [block for block in self.blocks if block.context != context]
        self.arrays = [array for array in self.arrays if array.context != context]
        if self.current == context:
            self.current = 0

    def small(self, card: int) -> int:
        sizes = [b.size for b in (*self.blocks, *self.arrays) if b.card == card and b.size <= MIB]
        return sum((size + 511) // 512 * 512 for size in sizes)

    def bytes(self, card: int, context_bytes: int) -> int:
        """All but what pools and graphs keep reserved."""
        large = [b.size for b in (*self.blocks, *self.arrays) if b.card == card and b.size > MIB]
        large += [p.size for p in self.physical if p.card == card and p.charged and p.alive]
        contexts = sum(context.card == card for context in self.contexts.values())
        return (
            contexts * context_bytes
            + sum(granules(size) for size in large)
            + granules(self.small(card))
        )

    def growth(self, card: int, size: int) -> int:
        """By how much a plain allocation of `size` would make it grow."""
        if size > MIB:
            return granules(size)
        small = self.small(card)
        return granules(small + (size + 511) // 512 * 512) - granules(small)
