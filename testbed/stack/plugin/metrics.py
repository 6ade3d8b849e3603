"""``/metrics`` of the plugin: which cards are well, and which errors they told."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from testbed import __version__
from testbed.stack.devices import Device
from testbed.stack.devices.nvidia import model_name

_CARD = ["zone", "node", "device_index", "device_uuid", "device_type"]
_ZONE = "vGPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What a scrape shows.

    Attributes:
        unhealthy: Cards that take no new pods, with the reason.
        xids: How often, by (uuid, XID, what the policy makes of it).
        registered: Kubelet has the plugin.
    """

    node: str
    devices: Sequence[Device]
    unhealthy: Mapping[str, str]
    xids: Mapping[tuple[str, int, str], int]
    registered: bool


def exposition(shown: Shown) -> bytes:
    """Return the text that Prometheus reads."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(list(_families(shown))))
    return generate_latest(registry)


def _families(shown: Shown) -> Iterable[Metric]:
    build = GaugeMetricFamily(
        "vgpu_build_info", "The plugin that answers", labels=["component", "version"]
    )
    build.add_metric(["plugin", __version__], 1.0)
    yield build
    yield GaugeMetricFamily(
        "vgpu_plugin_registered", "1 while kubelet has the plugin", value=float(shown.registered)
    )
    healthy = GaugeMetricFamily(
        "vgpu_card_healthy", "0 while a card takes no new pods", labels=_CARD
    )
    xids = CounterMetricFamily(
        "vgpu_card_xid_errors",
        "XID errors since the plugin began, by what the policy makes of them",
        labels=[*_CARD, "xid", "action"],
    )
    # Copied at once: the plugin's loop counts on meanwhile.
    counted = dict(shown.xids)
    for device in shown.devices:
        model = model_name(device.name)
        labels = [_ZONE, shown.node, str(device.index), device.uuid, model]
        healthy.add_metric(labels, float(device.uuid not in shown.unhealthy))
        for (uuid, xid, action), count in sorted(counted.items()):
            if uuid == device.uuid:
                xids.add_metric([*labels, str(xid), action], float(count))
    yield healthy
    yield xids


class _Fixed:
    """A collector of families that are already there."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families
