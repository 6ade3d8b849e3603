"""Which cards a node gets, and what is mounted and run there."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from testbed.card.spec import parse_nodes
from testbed.errors import ClusterError, InputError
from testbed.lab.cluster.kind import gpu, gpu_cards, gpu_scripts, toolkit
from testbed.lab.cluster.kind.gpu_assign import assign

DATA = Path(__file__).parents[2] / "data/toolkit"
H200 = "GPU-70fdb96f-f37a-30df-7b71-24f4b3cfaa1c"


def text(name: str) -> str:
    return (DATA / name).read_text()


EIGHT = gpu_cards.parse_list(text("made/smi-list-8.txt"))
MIG = gpu_cards.joined(
    gpu_cards.parse_list(text("made/smi-list-mig.txt")),
    gpu_cards.parse_query(text("made/smi-query-mig.txt")),
    [(f"GPU-11111111-aaaa-bbbb-cccc-00000000000{n}", n) for n in range(3)],
)
PROGRAMS = {"/usr/bin/nvidia-ctk": "/usr/bin/nvidia-ctk"}


def kit(version: str, config: str = "", listed: str = "") -> toolkit.Toolkit:
    major, minor, patch = map(int, version.split("."))
    return toolkit.Toolkit(
        version=(major, minor, patch),
        config=toolkit.parse_config(config),
        listed=toolkit.parse_cdi_list(listed),
        programs=PROGRAMS,
    )


def h200(version: str) -> gpu.GpuHost:
    return gpu.GpuHost(
        cards=(gpu_cards.RealCard(index=0, uuid=H200, name="NVIDIA H200", minor=0),),
        toolkit=kit(version),
        parts=toolkit.parse_specification(text(f"h200/specification-{version}.json")),
    )


def wish(cards: str, nodes: int | None = None):
    return parse_nodes(cards, nodes)[1]


def indices(cards: str, nodes: int | None = None):
    return [[card.index for card, _ in each] for each in assign(wish(cards, nodes), EIGHT)]


@pytest.mark.parametrize(
    ("cards", "nodes", "expected"),
    [
        ("nvidia", 1, [list(range(8))]),
        ("nvidia", 2, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("nvidia:2", 3, [[0, 1], [2, 3], [4, 5]]),
        ("nvidia:0,1;nvidia:2", None, [[0, 1], [2]]),
        ("nvidia:7,0;nvidia:2", None, [[7, 0], [2]]),
        ("nvidia:1;nvidia:2", None, [[0], [1, 2]]),
        ("nvidia:device=0;nvidia", None, [[0], [1, 2, 3, 4, 5, 6, 7]]),
        ("nvidia;nvidia:device=0,3;nvidia", None, [[1, 2, 4], [0, 3], [5, 6, 7]]),
        ("nvidia:GPU-b1028956,GPU-4cf8;nvidia:device=3", None, [[7, 0], [3]]),
    ],
)
def test_cards_are_shared_out(cards, nodes, expected):
    assert indices(cards, nodes) == expected


@pytest.mark.parametrize(
    ("cards", "nodes", "why"),
    [
        ("nvidia:device=0", 2, "asked for by two nodes"),
        ("nvidia:0,1;nvidia:1,2", None, "asked for by two nodes"),
        ("nvidia:GPU-4cf8;nvidia:device=0", None, "asked for by two nodes"),
        ("nvidia:5", 2, "asks for 5 .*3 of 8 are left"),
        ("nvidia", 3, "cannot be shared out evenly"),
        ("nvidia:8;nvidia", None, "0 cards cannot be shared out"),
        ("nvidia:device=8", None, "no card 8"),
    ],
)
def test_cards_that_cannot_be_shared_out(cards, nodes, why):
    with pytest.raises(InputError, match=why):
        indices(cards, nodes)


def test_a_card_in_mig_mode_is_its_devices():
    first, second = assign(wish("nvidia:device=0;nvidia:device=1"), MIG)
    assert [mig.uuid[-1] for _, mig in first if mig] == ["0", "1"]
    assert [(card.index, mig) for card, mig in second] == [(1, None)]
    with pytest.raises(InputError, match="has no MIG device") as failed:
        assign(wish("nvidia:device=2"), MIG)
    assert "nvidia-smi mig -i 2 -cgi" in failed.value.hint
    with pytest.raises(InputError, match="asked for by two nodes"):
        assign(wish("nvidia:device=0;nvidia:0:1"), MIG)


def test_emulated_and_real_cards_in_one_cluster():
    assert gpu.wanted(wish("nvidia", 2)) and not gpu.wanted(wish("t4", 2))
    with pytest.raises(InputError, match="one driverRoot"):
        gpu.wanted(wish("nvidia:0;t4"))


@pytest.mark.parametrize("version", ["1.14.6", "1.17.8", "1.18.1", "1.20.0"])
def test_the_driver_s_files_of_a_real_card(version):
    plan = gpu.plan(wish("nvidia"), h200(version))
    (node,) = plan.nodes
    assert plan.way == "files" and node.cards == (H200,) and not plan.warnings
    assert (plan.gpu_access, plan.driver_root) == ("privileged", "/")
    sources = {mount.source: mount for mount in node.mounts}
    library = "/usr/local/nvidia/lib64/libcuda.so.580.159.04"
    assert sources[library].target == library and sources[library].read_only
    assert sources["/usr/bin/nvidia-ctk"].target == "/usr/bin/nvidia-ctk"
    assert "/dev/null" not in sources
    loader = node.scripts[0].text
    assert "/usr/local/nvidia/lib64 > /etc/ld.so.conf.d/" in loader
    # nvidia-smi is called by its name, wherever the driver put it.
    assert "ln -s /usr/local/nvidia/bin/nvidia-smi /usr/bin/nvidia-smi" in loader
    assert ("ln -sfn libcuda.so.1" in loader) is (version != "1.14.6")
    # Its only card: no device node is another's.
    assert not [script for script in node.scripts if "remove" in script.what]


def test_requests_by_mounts_of_older_toolkits():
    setting = "accept-nvidia-visible-devices-as-volume-mounts = true"
    host = gpu.GpuHost(cards=EIGHT, toolkit=kit("1.12.1", setting))
    plan = gpu.plan(wish("nvidia:2", 2), host)
    assert plan.way == "requests"
    asked = [[m.target for m in node.mounts if m.source == "/dev/null"] for node in plan.nodes]
    folder = "/var/run/nvidia-container-devices"
    assert asked[0] == [f"{folder}/{card.uuid}" for card in EIGHT[:2]]
    assert asked[1] == [f"{folder}/{card.uuid}" for card in EIGHT[2:4]]
    assert "see each other's cards" in " ".join(plan.warnings)  # nobody told minor numbers
    assert not any("libraries" in script.what for script in plan.nodes[0].scripts)


@pytest.mark.parametrize(
    ("version", "listed", "asked"),
    [
        ("1.14.6", "made/list-index-only.txt", "1"),
        ("1.18.1", "made/list-mig.txt", "GPU-11111111-aaaa-bbbb-cccc-000000000001"),
    ],
)
def test_a_request_names_the_card_as_the_specification_does(version, listed, asked):
    host = gpu.GpuHost(
        cards=MIG, toolkit=kit(version, text("made/config-mounts.toml"), text(listed))
    )
    (node,) = gpu.plan(wish("nvidia:device=1"), host, way="requests").nodes
    assert node.mounts[0].target == f"/var/run/nvidia-container-devices/{asked}"


@pytest.mark.parametrize("listed", ["made/list-index-only.txt", ""])
def test_a_mig_device_that_no_engine_can_be_asked_for(listed):
    said = text(listed) if listed else ""
    host = gpu.GpuHost(cards=MIG, toolkit=kit("1.14.6", text("made/config-mounts.toml"), said))
    with pytest.raises(InputError, match="does not name MIG-") as failed:
        gpu.plan(wish("nvidia:0:1"), host, way="requests")
    assert "--device-name-strategy=uuid" in failed.value.hint


@pytest.mark.parametrize(
    ("found", "hint"),
    [(None, "nvidia-container-toolkit-base"), (kit("1.12.0"), "accept-nvidia-visible-devices")],
)
def test_machines_on_which_neither_way_is_open(found, hint):
    with pytest.raises(InputError, match="cannot be given to kind's nodes") as failed:
        gpu.plan(wish("nvidia"), gpu.GpuHost(cards=EIGHT, toolkit=found))
    assert hint in failed.value.hint


def test_device_nodes_of_others_are_removed_by_what_the_specification_names():
    parts = toolkit.parse_specification(text("made/specification-mig.json"))
    host = gpu.GpuHost(cards=MIG[:2], toolkit=kit("1.18.1"), parts=parts)
    first, second, third = assign(wish("nvidia:0:0;nvidia:0:1;nvidia:device=1"), MIG[:2])
    foreign = [
        gpu_scripts.foreign_nodes(each, host.cards, parts) for each in (first, second, third)
    ]
    caps = "/dev/nvidia-caps/nvidia-cap"
    assert foreign[0] == (*_card(1), f"{caps}12", f"{caps}13", "/dev/nvidia1")
    assert foreign[1] == (*_card(1), f"{caps}66", f"{caps}67", "/dev/nvidia1")
    assert foreign[2] == (f"{caps}12", f"{caps}13", f"{caps}66", f"{caps}67", "/dev/nvidia0")
    # What every card needs is nobody's own.
    assert not {"/dev/nvidiactl", "/dev/nvidia-uvm"} & {path for each in foreign for path in each}
    assert "whole cards" in gpu.plan(wish("nvidia:0:0;nvidia:device=1"), host).warnings[0]


def _card(number: int) -> tuple[str, ...]:
    return (f"/dev/dri/card{number}", f"/dev/dri/renderD{127 + number}")


def test_minor_numbers_are_not_indices():
    cards = tuple(replace(card, minor=7 - card.index) for card in EIGHT)
    (first,) = assign(wish("nvidia:device=0,1"), cards)
    foreign = gpu_scripts.foreign_nodes(first, cards, None)
    assert foreign == tuple(f"/dev/nvidia{minor}" for minor in range(6))


def test_a_node_is_asked_what_it_sees():
    (node,) = gpu.plan(wish("nvidia"), h200("1.20.0")).nodes
    node.check("n", text("h200/smi-list.txt"))
    with pytest.raises(ClusterError, match="does not see the cards"):
        node.check("n", text("made/smi-list-8.txt"))
    with pytest.raises(ClusterError, match="sees no card") as failed:
        node.check("n", text("made/smi-unknown-error.txt"))
    assert failed.value.hint
    with pytest.raises(ClusterError, match="sees no card"):
        node.check("n", "")


def test_scripts_are_what_a_shell_reads():
    parts = toolkit.parse_specification(text("made/specification-mig.json"))
    host = gpu.GpuHost(cards=MIG[:2], toolkit=kit("1.18.1"), parts=parts)
    scripts = gpu.plan(wish("nvidia:0:0;nvidia:device=1"), host).nodes[0].scripts
    assert len(scripts) == 5
    for script in scripts:
        checked = subprocess.run(
            ["sh", "-n", "-c", script.text], capture_output=True, text=True, check=False
        )
        assert checked.returncode == 0, (script, checked.stderr)


def test_paths_are_quoted():
    parts = toolkit.DriverParts(
        files={"/opt/a b/bin/nvidia-smi": "/opt/a b/bin/nvidia-smi"},
        links={"/opt/a b/lib/$x.so": "y; rm -rf /"},
        folders=("/opt/a b/lib",),
    )
    host = gpu.GpuHost(cards=EIGHT, toolkit=kit("1.18.1"), parts=parts)
    loader = gpu.plan(wish("nvidia"), host).nodes[0].scripts[0].text
    assert "ln -sfn 'y; rm -rf /' '/opt/a b/lib/$x.so'" in loader
    assert "ln -s '/opt/a b/bin/nvidia-smi' /usr/bin/nvidia-smi" in loader
