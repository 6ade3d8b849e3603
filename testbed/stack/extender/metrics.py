"""Metrics in Prometheus' text form: HAMi's names for cards and promises, ours for work.

Written by hand: a cluster of 40,000 cards and 100,000 pods has half a million lines. A
scrape must neither hold up decisions nor need the memory of all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from testbed import __version__
from testbed.stack.devices.vendor import vendors
from testbed.stack.extender.histogram import Histogram
from testbed.stack.extender.state import State
from testbed.stack.model import Card, Share
from testbed.stack.placement.effective import Charge
from testbed.units import MIB

_CARDS = (
    ("hami_gpu_memory_limit_bytes", "Memory of a card that may be promised, bytes"),
    ("hami_gpu_core_limit_ratio", "Compute of a card that may be promised, 1 = one card"),
    ("hami_gpu_memory_allocated_bytes", "Memory of a card that is promised, bytes"),
    ("hami_gpu_core_allocated_ratio", "Compute of a card that is promised, 1 = one card"),
    ("hami_gpu_shared_count", "Containers that share a card"),
    ("hami_node_gpu_overview", "Memory of a card that is promised, bytes, with its limits"),
    ("hami_node_gpu_memory_allocated_ratio", "Promised part of a card's memory"),
)
_PODS = (
    ("hami_vgpu_memory_allocated_bytes", "Memory that a container was promised, bytes"),
    ("hami_vgpu_core_allocated_ratio", "Compute that a container was promised, 1 = one card"),
)


def exposition(state: State, times: Histogram, load_s: float | None) -> str:
    """Return all metrics.

    Args:
        state: What the extender knows.
        times: How long its answers took.
        load_s: How long the first reading took; None while it goes on.
    """
    return "\n".join(lines(state, times, load_s)) + "\n"


def lines(state: State, times: Histogram, load_s: float | None) -> Iterator[str]:
    """Yield ``exposition`` line by line: a large cluster's is a hundred megabytes."""
    yield from _own(state, times, load_s)
    yield from _cards(state)
    yield from _pods(state)
    yield from _quotas(state)


def _own(state: State, times: Histogram, load_s: float | None) -> Iterator[str]:
    name = "vgpu_extender_request_seconds"
    yield from _head(name, "How long answers took", "histogram")
    yield from times.lines(name)
    name = "vgpu_extender_connections_total"
    yield from _head(name, "Connections that the scheduler's port took", "counter")
    for protocol, count in sorted(state.connections.items()):
        yield f'{name}{{protocol="{_text(protocol)}"}} {count}'
    gauges = (
        ("vgpu_extender_synced", "Whether everything was read", int(state.synced)),
        ("vgpu_extender_leader", "Whether this extender may promise", int(state.leads)),
        ("vgpu_extender_nodes", "Nodes with cards", len(state.ledger.nodes())),
        ("vgpu_extender_pods", "Pods that hold shares", len(state.bound)),
        ("vgpu_extender_reservations", "Promises to pending pods", len(state.reservations)),
        ("vgpu_extender_nominations", "Pods that wait for victims", len(state.nominations)),
        ("vgpu_extender_waiting_pods", "Pods that fitted nowhere", len(state.waiting)),
        (
            "vgpu_extender_turns_waiting",
            "Pods that wait for their node's turn",
            sum(len(state.turns.waiting(node)) for node in state.turns.nodes()),
        ),
    )
    for gauge, text, value in gauges:
        yield from _head(gauge, text)
        yield f"{gauge} {value}"
    if load_s is not None:
        yield from _head("vgpu_extender_load_seconds", "How long the first reading took")
        yield f"vgpu_extender_load_seconds {load_s:.3f}"
    yield from _head("vgpu_build_info", "Version of this program")
    yield f'vgpu_build_info{{component="extender",version="{__version__}"}} 1'


def _cards(state: State) -> Iterator[str]:
    seen = []
    for node in state.ledger.nodes():
        at = f'node="{_text(node)}",'
        for card, used in state.ledger.usage(node):
            labels = (
                f'{at}device_uuid="{_text(card.uuid)}",device_index="{card.index}",'
                f'device_type="{_text(card.model)}"'
            )
            seen.append((labels, card, used))
    for (name, text), of in zip(_CARDS, _CARD_VALUES, strict=True):
        yield from _head(name, text)
        for labels, card, used in seen:
            more, value = of(card, used)
            yield f"{name}{{{labels}{more}}} {value:.15g}"


def _overview(card: Card, used: Charge) -> tuple[str, float]:
    more = (
        f',device_cores="{used.core_pct}",shared_containers="{used.slots}",'
        f'device_memory_limit="{card.mem_mib}"'
    )
    return more, used.mem_mib * MIB


#: Further labels and the value of each of ``_CARDS``.
_CARD_VALUES: tuple[Callable[[Card, Charge], tuple[str, float]], ...] = (
    lambda card, _: ("", card.mem_mib * MIB),
    lambda card, _: ("", card.core_pct / 100),
    lambda _, used: (f',device_cores="{used.core_pct}"', used.mem_mib * MIB),
    lambda _, used: ("", used.core_pct / 100),
    lambda _, used: ("", used.slots),
    _overview,
    lambda card, used: ("", used.mem_mib / card.mem_mib if card.mem_mib else 0),
)


def _pods(state: State) -> Iterator[str]:
    pods = list(state.bound.values())
    values: tuple[Callable[[Share], float], ...] = (
        lambda share: share.mem_mib * MIB,
        lambda share: share.core_pct / 100,
    )
    for (name, text), of in zip(_PODS, values, strict=True):
        yield from _head(name, text)
        for bound in pods:
            pod = f'namespace="{_text(bound.pod.namespace)}",node="{_text(bound.node)}",'
            pod += f'pod="{_text(bound.pod.name)}",'
            for position, container in enumerate(bound.shares):
                for share in container:
                    labels = f'{pod}container_index="{position}",device_uuid="{_text(share.uuid)}"'
                    yield f"{name}{{{labels}}} {of(share):.15g}"


def _quotas(state: State) -> Iterator[str]:
    limits, used_lines = [], []
    named = {vendor.word: vendor for vendor in vendors(state.config)}
    for (namespace, word), quotas in sorted(state.quotas.hard().items()):
        used = state.quotas.used(namespace, word)
        for name, hard in sorted(quotas.items()):
            for key, bound, taken in (
                (named[word].memory, hard.mem_mib, used.mem_mib),
                (named[word].cores, hard.core_pct, used.core_pct),
            ):
                if bound is None:
                    continue
                labels = f'namespace="{_text(namespace)}",quota_name="{_text(name)}"'
                labels += f',limit="limits.{key}"'
                limits.append(f"hami_resource_quota_limit{{{labels}}} {bound}")
                used_lines.append(f"hami_resource_quota_used{{{labels}}} {taken}")
    yield from _head("hami_resource_quota_limit", "What a namespace may be promised (MiB, percent)")
    yield from limits
    yield from _head("hami_resource_quota_used", "What a namespace is promised (MiB, percent)")
    yield from used_lines


def _head(name: str, text: str, kind: str = "gauge") -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
