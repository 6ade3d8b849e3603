"""docs/json.md names what ``-o json`` prints, key by key."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.main import get_command

from testbed.cli.main import app
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


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, bool]]:
    """Yield each command's name, and whether it takes ``-o``."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name)), any("-o" in p.opts for p in command.params)


@pytest.mark.parametrize(("name", "json"), [*commands(get_command(app))])
def test_the_page_names_every_command_that_prints_json(name: str, json: bool) -> None:
    assert json == (name not in ("kubectl", "card shell")), "the page says which do not"
    table = re.findall(r"^\| ([a-z ,]+?)(?::.*)? \|", TEXT, re.MULTILINE)
    listed = {each.strip() for row in table for each in row.split(",")}
    others = TEXT.partition("Others:")[2]
    assert not json or name in listed or re.search(rf"`{name}[` ]", others), "what it prints"


@pytest.mark.parametrize("what", PRINTED)
def test_the_page_names_every_key_and_no_other(what):
    [row] = re.findall(rf"^\| {re.escape(what)} \| (.*) \|$", TEXT, re.MULTILINE)
    fields = msgspec.inspect.type_info(PRINTED[what]).fields
    assert re.findall(r"`(\w+)`", row) == [field.encode_name for field in fields]
