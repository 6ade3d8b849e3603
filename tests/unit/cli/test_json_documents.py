"""docs/json.md names what ``-o json`` prints, key by key."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from testbed.lab.cluster.protocol import ClusterStatus, NodeStatus
from testbed.lab.doctor import Finding
from testbed.lab.explain.model import Ask, Explanation, Lack, NodeRoom, Remedy, Room
from testbed.lab.limits import Held
from testbed.lab.listing import Listed
from testbed.lab.testbed import Info
from testbed.lab.top.model import CardRow, ContainerRow, Node, Pending, View
from testbed.native.region import ComputeUse, DeviceUse
from testbed.stack.plugin.limits import Answer, Device, Process

TEXT = (Path(__file__).parents[3] / "docs" / "json.md").read_text()
#: What is printed -> its type.
PRINTED = {
    "up, status": ClusterStatus,
    "up, status: nodes": NodeStatus,
    "deploy": Info,
    "ls": Listed,
    "doctor": Finding,
    "top": View,
    "top: nodes": Node,
    "top: cards": CardRow,
    "top: containers": ContainerRow,
    "top: pending": Pending,
    "explain": Explanation,
    "explain: asked": Ask,
    "explain: nodes": NodeRoom,
    "explain: nodes: cards": Room,
    "explain: nodes: cards: lack": Lack,
    "explain: remedies": Remedy,
    "limits show, limits set, region show": Held,
    "limits: region": Answer,
    "limits: region: devices": Device,
    "limits: region: devices: used": DeviceUse,
    "limits: region: devices: compute": ComputeUse,
    "limits: region: processes": Process,
}


@pytest.mark.parametrize("what", PRINTED)
def test_the_page_names_every_key_and_no_other(what):
    [row] = re.findall(rf"^\| {re.escape(what)} \| (.*) \|$", TEXT, re.MULTILINE)
    fields = msgspec.inspect.type_info(PRINTED[what]).fields
    assert re.findall(r"`(\w+)`", row) == [field.encode_name for field in fields]
