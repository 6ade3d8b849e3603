"""The container list of ``hami.io/vgpu-devices-to-allocate`` and ``…-allocated``.

HAMi v2.10: a device is ``UUID,TYPE,MiB,cores:``; each container ends with ``;``;
init containers first; a container without a GPU is empty::

    ;GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,3000,30:;;

HAMi's decoder keeps the tail after the last ``;`` and so adds one per round trip.
Ours reads exactly as many containers as there are ``;`` and writes them back
exactly; text without a final ``;`` (older writers) counts its tail as a container.
"""

from __future__ import annotations

import re
from sys import intern

from testbed.errors import CodecError
from testbed.stack.model import ContainerShares, PodShares, Share

_MOST = 2**31 - 1  # HAMi's numbers are int32

#: One container with one device, as we write it.
_ONE = re.compile(r"([^,:;]+),([^,:;]*),([0-9]{1,9}),([0-9]{1,9}):;")

#: Amounts of memory that were met, each kept as one object.
_AMOUNTS: dict[int, int] = {}
_MOST_AMOUNTS = 16384


def encode_pod_shares(shares: PodShares) -> str:
    """Return the annotation text, one ``;`` for each container."""
    return "".join(_encode_container(container) + ";" for container in shares)


def decode_pod_shares(text: str, containers: int | None = None) -> PodShares:
    """Return the shares of every container.

    Args:
        text: The annotation's value.
        containers: How many containers the pod has, where that is known: extra
            empty entries at the end (HAMi's growing tail) are dropped, missing
            ones are added.

    Raises:
        CodecError: a device has not four fields, a number is not one, or there
            are more non-empty entries than containers.
    """
    one = _ONE.fullmatch(text) if containers == 1 else None
    if one is not None:
        # Nearly all of a large list: what follows would take three times as long.
        uuid, vendor, mem_mib, core_pct = one.groups()
        return ((_share(uuid, vendor, int(mem_mib), int(core_pct)),),)
    parts = text.split(";")
    if parts and parts[-1] == "":
        parts.pop()
    shares = tuple(_decode_container(part, text) for part in parts)
    if containers is None:
        return shares
    if any(shares[containers:]):
        raise CodecError(
            f"device list {text!r} names more than the pod's {containers} containers",
            hint="delete the pod so that it is scheduled again",
        )
    return (shares + ((),) * containers)[:containers]


def pop_container(shares: PodShares) -> tuple[int, ContainerShares, PodShares] | None:
    """Take the first container that still waits for its devices.

    Returns:
        Its position, its shares and the list with that entry emptied; None when
        every entry is empty.
    """
    for position, entry in enumerate(shares):
        if entry:
            return position, entry, (*shares[:position], (), *shares[position + 1 :])
    return None


def _encode_container(container: ContainerShares) -> str:
    return "".join(f"{s.uuid},{s.vendor},{s.mem_mib},{s.core_pct}:" for s in container)


def _decode_container(part: str, whole: str) -> ContainerShares:
    items = part.split(":")
    if not items[-1]:
        items.pop()
    return tuple([_decode_device(item, whole) for item in items if item.strip()])


def _decode_device(item: str, whole: str) -> Share:
    fields = item.split(",")
    if len(fields) != 4 or not fields[0]:
        raise CodecError(
            f"device list {whole!r} cannot be read",
            why=f"{item!r} has {len(fields)} fields, not UUID,TYPE,MiB,cores",
        )
    try:
        mem_mib, core_pct = int(fields[2]), int(fields[3])
    except ValueError as error:
        raise CodecError(
            f"device list {whole!r} cannot be read", why=f"{item!r} holds a non-number"
        ) from error
    if not (0 <= mem_mib <= _MOST and 0 <= core_pct <= _MOST):
        raise CodecError(
            f"device list {whole!r} cannot be read", why=f"{item!r} is not from 0 to {_MOST}"
        )
    return _share(fields[0], fields[1], mem_mib, core_pct)


def _share(uuid: str, vendor: str, mem_mib: int, core_pct: int) -> Share:
    # A large cluster names each card in many pods, few vendors and few amounts.
    if len(_AMOUNTS) < _MOST_AMOUNTS:
        mem_mib = _AMOUNTS.setdefault(mem_mib, mem_mib)
    else:
        mem_mib = _AMOUNTS.get(mem_mib, mem_mib)
    return Share(uuid=intern(uuid), vendor=intern(vendor), mem_mib=mem_mib, core_pct=core_pct)
