"""The stack on a cluster: rendered in Python, applied, waited for, switched, read.

``render``/``render_text`` are pure; everything else talks to one ``Kube``.
"""

from testbed.lab.deploy.manifests import render, render_text
from testbed.lab.deploy.ready import NodeCards
from testbed.lab.deploy.samples import (
    CardInfo,
    Reading,
    Sample,
    cards,
    container_series,
    ledger,
    reservations,
    unknown_bytes,
)
from testbed.lab.deploy.stack import Deployment, deploy, undeploy
from testbed.lab.deploy.switch import (
    PluginState,
    enforcement,
    plugin_states,
    set_enforcement,
)
from testbed.lab.deploy.values import StackImages, StackValues
from testbed.stack.certificates.sets import Certificates

__all__ = [
    "CardInfo",
    "Certificates",
    "Deployment",
    "NodeCards",
    "PluginState",
    "Reading",
    "Sample",
    "StackImages",
    "StackValues",
    "cards",
    "container_series",
    "deploy",
    "enforcement",
    "ledger",
    "plugin_states",
    "render",
    "render_text",
    "reservations",
    "set_enforcement",
    "undeploy",
    "unknown_bytes",
]
