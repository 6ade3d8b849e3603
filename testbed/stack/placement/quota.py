"""What a namespace may have of cards: ``ResourceQuota`` with HAMi's two keys.

``spec.hard["limits.nvidia.com/gpumem"]`` counts MiB (times ``memoryFactor``, as requests
do) and ``limits.nvidia.com/gpucores`` percent; each vendor has keys of its own, and its
cards count against those alone. A pod uses what its final placement takes
of all cards together, a percentage of memory as MiB of its card, two cards twice; init
containers count where they need more than the rest. An explicit 0 forbids, a key that is
not there allows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from testbed.stack.model import VENDOR_NVIDIA
from testbed.stack.placement.effective import Charge


class Amount(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Memory and cores, of a quota or of what is used; None is no bound."""

    mem_mib: int | None = None
    core_pct: int | None = None

    @property
    def unbounded(self) -> bool:
        return self.mem_mib is None and self.core_pct is None


UNBOUNDED = Amount()

#: A namespace and the word of a vendor.
Scope = tuple[str, str]


class Quotas:
    """Quotas and use by namespace and vendor; a pod counts once, however often it is told."""

    def __init__(self) -> None:
        self._hard: dict[Scope, dict[str, Amount]] = {}
        self._used: dict[Scope, list[int]] = {}
        #: Use by pod, as one number where it fits: a hundred thousand tuples would need
        #: three times the memory.
        self._pods: dict[str, int | tuple[int, int, int]] = {}
        self._scopes: dict[Scope, int] = {}
        self._scope_of: list[Scope] = []

    def set(self, namespace: str, name: str, hard: Amount, vendor: str = VENDOR_NVIDIA) -> None:
        """Take a quota's bounds for a vendor; one without any of the two keys is none."""
        scope = (namespace, vendor)
        if hard.unbounded:
            self._drop(scope, name)
        else:
            self._hard.setdefault(scope, {})[name] = hard

    def remove(self, namespace: str, name: str) -> None:
        """Forget a quota, of whatever vendors it spoke."""
        for scope in [scope for scope in self._hard if scope[0] == namespace]:
            self._drop(scope, name)

    def _drop(self, scope: Scope, name: str) -> None:
        quotas = self._hard.get(scope, {})
        quotas.pop(name, None)
        if not quotas:
            self._hard.pop(scope, None)

    def charge(
        self, uid: str, namespace: str, charges: Iterable[Charge], vendor: str = VENDOR_NVIDIA
    ) -> None:
        """Count a pod's shares, in place of what it counted before."""
        mem = core = 0
        for charge in charges:
            mem += charge.mem_mib
            core += charge.core_pct
        self.count(uid, namespace, mem, core, vendor)

    def count(self, uid: str, namespace: str, mem: int, core: int, vendor: str) -> None:
        """Count MiB and percent of a pod, in place of what it counted before."""
        if uid in self._pods:
            self.release(uid)
        scope = (namespace, vendor)
        number = self._scopes.get(scope)
        if number is None:
            number = self._scopes[scope] = len(self._scope_of)
            self._scope_of.append(scope)
        self._pods[uid] = _packed(number, mem, core)
        self.add(namespace, mem, core, vendor)

    def add(self, namespace: str, mem: int, core: int, vendor: str) -> None:
        """Count MiB and percent of a pod that the caller remembers, or, below 0, what it
        gives back: of the many pods that are on their nodes nothing is kept twice."""
        scope = (namespace, vendor)
        used = self._used.get(scope)
        if used is None:
            used = self._used[scope] = [0, 0]
        used[0] += mem
        used[1] += core
        if used == [0, 0]:
            del self._used[scope]

    def release(self, uid: str) -> bool:
        """Give a pod's use back, once; False where nothing is remembered of it."""
        held = self._pods.pop(uid, None)
        if held is None:
            return False
        number, mem, core = _unpacked(held)
        namespace, vendor = self._scope_of[number]
        self.add(namespace, -mem, -core, vendor)
        return True

    def used(self, namespace: str, vendor: str = VENDOR_NVIDIA) -> Amount:
        mem, core = self._used.get((namespace, vendor), (0, 0))
        return Amount(mem_mib=mem, core_pct=core)

    def room(self, namespace: str, vendor: str = VENDOR_NVIDIA) -> Amount:
        """Return what is left of a vendor's cards in a namespace, under the tightest quota."""
        quotas = self._hard.get((namespace, vendor))
        if not quotas:
            return UNBOUNDED
        mem, core = self._used.get((namespace, vendor), (0, 0))
        mem_left = core_left = None
        for quota in quotas.values():
            mem_left = _less(mem_left, quota.mem_mib)
            core_left = _less(core_left, quota.core_pct)
        return Amount(
            mem_mib=None if mem_left is None else mem_left - mem,
            core_pct=None if core_left is None else core_left - core,
        )

    def hard(self) -> Mapping[Scope, Mapping[str, Amount]]:
        """Return the quotas by namespace and vendor, and by name."""
        return self._hard


_NUMBERS, _CORES = 1 << 20, 1 << 16


def _packed(number: int, mem: int, core: int) -> int | tuple[int, int, int]:
    if 0 <= number < _NUMBERS and 0 <= core < _CORES and mem >= 0:
        return (mem * _CORES + core) * _NUMBERS + number
    return number, mem, core


def _unpacked(held: int | tuple[int, int, int]) -> tuple[int, int, int]:
    if isinstance(held, tuple):
        return held
    rest, number = divmod(held, _NUMBERS)
    return number, *divmod(rest, _CORES)


def _less(one: int | None, other: int | None) -> int | None:
    """Return the tighter of two bounds."""
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)
