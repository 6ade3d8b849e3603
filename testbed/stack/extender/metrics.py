"""Metrics in Prometheus' text form: HAMi's names for cards and promises, ours for work.

Written by hand: a cluster of 40,000 cards has 200,000 lines, and a scrape must not hold
up decisions for longer than it takes to join them.
"""

from __future__ import annotations

from collections.abc import Iterator

from testbed import __version__
from testbed.stack.extender.histogram import Histogram
from testbed.stack.extender.state import State
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
    return "\n".join([*_own(state, times, load_s), *_cards(state), *_pods(state), *_quotas(state)])


def _own(state: State, times: Histogram, load_s: float | None) -> Iterator[str]:
    name = "vgpu_extender_request_seconds"
    yield from _head(name, "How long answers took", "histogram")
    yield from times.lines(name)
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
    lines: dict[str, list[str]] = {name: [] for name, _ in _CARDS}
    for node in state.ledger.nodes():
        at = f'node="{_text(node)}",'
        for card, used in state.ledger.usage(node):
            labels = (
                f'{at}device_uuid="{_text(card.uuid)}",device_index="{card.index}",'
                f'device_type="{_text(card.model)}"'
            )
            limit, taken = card.mem_mib * MIB, used.mem_mib * MIB
            overview = (
                f'{labels},device_cores="{used.core_pct}",shared_containers="{used.slots}",'
                f'device_memory_limit="{card.mem_mib}"'
            )
            cores = f'{labels},device_cores="{used.core_pct}"'
            values = (
                (labels, limit),
                (labels, card.core_pct / 100),
                (cores, taken),
                (labels, used.core_pct / 100),
                (labels, used.slots),
                (overview, taken),
                (labels, taken / limit if limit else 0),
            )
            for (name, _), (which, value) in zip(_CARDS, values, strict=True):
                lines[name].append(f"{name}{{{which}}} {value:.15g}")
    yield from _families(_CARDS, lines)


def _pods(state: State) -> Iterator[str]:
    lines: dict[str, list[str]] = {name: [] for name, _ in _PODS}
    for bound in state.bound.values():
        pod = f'namespace="{_text(bound.pod.namespace)}",node="{_text(bound.node)}",'
        pod += f'pod="{_text(bound.pod.name)}",'
        for position, container in enumerate(bound.shares):
            for share in container:
                labels = f'{pod}container_index="{position}",device_uuid="{_text(share.uuid)}"'
                values = (share.mem_mib * MIB, share.core_pct / 100)
                for (name, _), value in zip(_PODS, values, strict=True):
                    lines[name].append(f"{name}{{{labels}}} {value:.15g}")
    yield from _families(_PODS, lines)


def _quotas(state: State) -> Iterator[str]:
    limits, used_lines = [], []
    for namespace, quotas in sorted(state.quotas.hard().items()):
        used = state.quotas.used(namespace)
        for name, hard in sorted(quotas.items()):
            for key, bound, taken in (
                (state.config.resourceMemoryName, hard.mem_mib, used.mem_mib),
                (state.config.resourceCoreName, hard.core_pct, used.core_pct),
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
    yield ""


def _families(names: tuple[tuple[str, str], ...], lines: dict[str, list[str]]) -> Iterator[str]:
    for name, text in names:
        yield from _head(name, text)
        yield from lines[name]


def _head(name: str, text: str, kind: str = "gauge") -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"


def _text(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
