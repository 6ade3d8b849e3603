"""Whose a process is, and the forgeries that must not work.

The mount tables are as containerd and kubelet make them, shortened.
"""

from __future__ import annotations

import pytest

from testbed.stack.monitor.whose import (
    NOBODY,
    Anchor,
    Owner,
    ProcessFacts,
    anchor_of,
    owner,
    owner_by_mounts,
    pod_by_cgroup,
)

OWN = "aaaaaaaa-0000-0000-0000-000000000001"
POD = "bbbbbbbb-0000-0000-0000-000000000002"
VICTIM = "cccccccc-0000-0000-0000-000000000003"
ID = "ab" * 32

#: /var/lib is a mount of its own here, so roots do not begin with /var/lib.
ANCHOR = Anchor(device="0:45", prefix="/kubelet/pods/")


def mounts(*lines: tuple[str, str, str]) -> str:
    """A mount table of (device, root, target), among lines that every container has."""
    table = [
        "600 500 0:99 / / rw,relatime - overlay overlay rw",
        "601 600 0:100 / /proc rw - proc proc rw",
    ]
    table += [
        f"{700 + number} 600 {device} {root} {target} rw,relatime - tmpfs tmpfs rw,size=1024k"
        for number, (device, root, target) in enumerate(lines)
    ]
    return "\n".join(table) + "\n"


def log(uid: str, name: str, *, device: str = "0:45", prefix: str = "/kubelet/pods/") -> str:
    return mounts((device, f"{prefix}{uid}/containers/{name}/0f3a", "/dev/termination-log"))


class Table:
    """Processes by pid."""

    def __init__(self, **rows: ProcessFacts) -> None:
        self.rows = {int(name.removeprefix("p")): row for name, row in rows.items()}

    def __call__(self, pid: int) -> ProcessFacts | None:
        return self.rows.get(pid)


def process(
    parent: int, mountinfo: str = mounts(), *, comm: str = "python3", cgroup: str = "0::/\n"
) -> ProcessFacts:
    return ProcessFacts(parent=parent, comm=comm, cgroup=cgroup, mountinfo=mountinfo)


def no_name(uid: str, runtime_id: str) -> str:
    return ""


SHIM = process(1, comm="containerd-shim")


def test_anchor_is_our_own_line() -> None:
    assert anchor_of(log(OWN, "monitor")) == ANCHOR
    assert anchor_of(log(OWN, "m", device="8:1", prefix="/var/lib/kubelet/pods/")) == Anchor(
        device="8:1", prefix="/var/lib/kubelet/pods/"
    )
    # kubelet's folder itself is the root of its file system
    assert anchor_of(log(OWN, "m", prefix="/pods/")) == Anchor(device="0:45", prefix="/pods/")
    assert anchor_of(mounts()) is None
    assert anchor_of("") is None


def test_the_target_does_not_matter() -> None:
    """terminationMessagePath moves it."""
    table = mounts(("0:45", f"/kubelet/pods/{POD}/containers/main/1", "/tmp/msg"))
    assert owner_by_mounts(table, ANCHOR) == Owner(pod_uid=POD, container="main")


def test_a_static_pods_uid() -> None:
    uid = "0123456789abcdef" * 2
    assert owner_by_mounts(log(uid, "etcd"), ANCHOR) == Owner(pod_uid=uid, container="etcd")


@pytest.mark.parametrize(
    "table",
    [
        pytest.param(log(VICTIM, "cb", device="0:77"), id="a tmpfs of the tenant"),
        pytest.param(log(VICTIM, "cb", prefix="/pods/"), id="same device, other folder"),
        pytest.param(log(VICTIM, "cb", prefix="/Kubelet/pods/"), id="same length"),
        pytest.param(log(VICTIM, "cb", prefix="/x/kubelet/pods/"), id="longer prefix"),
        pytest.param(
            log(
                VICTIM, "cb", prefix=f"/kubelet/pods/{POD}/volumes/kubernetes.io~empty-dir/v/pods/"
            ),
            id="a folder in the tenant's own volume",
        ),
        pytest.param(
            mounts(("0:45", f"/kubelet/pods/{VICTIM}/containers/cb", "/x")), id="no log file"
        ),
        pytest.param(
            mounts(("0:45", f"/kubelet/pods/{VICTIM}/containers/cb/0f/0f", "/x")), id="deeper"
        ),
        pytest.param(
            mounts(("0:45", f"/kubelet/pods/{VICTIM}/containers/cb/zz", "/x")), id="not hex"
        ),
        pytest.param(
            mounts(("0:45", f"/kubelet/pods/{VICTIM}/volumes/cb/0f", "/x")), id="not containers"
        ),
        pytest.param(
            mounts(("0:99", "/x", f"/kubelet/pods/{VICTIM}/containers/cb/0f")), id="only the target"
        ),
        pytest.param(f"1 2 0:45 /kubelet/pods/{VICTIM}/containers/cb/0f\n", id="half a line"),
    ],
)
def test_forged_lines_do_not_count(table: str) -> None:
    assert owner_by_mounts(table, ANCHOR) is None
    # The forger is found by its parent, which still has its own table.
    facts = Table(p50=process(40, table), p40=process(30, log(POD, "main")), p30=SHIM)
    assert owner(50, facts, ANCHOR, no_name) == Owner(pod_uid=POD, container="main")
    # A forger without a parent in the container ends at the shim.
    assert owner(50, Table(p50=process(30, table), p30=SHIM), ANCHOR, no_name) == NOBODY


def test_two_different_containers_in_one_table_are_nobodys() -> None:
    both = mounts(
        ("0:45", f"/kubelet/pods/{POD}/containers/main/1", "/dev/termination-log"),
        ("0:45", f"/kubelet/pods/{VICTIM}/containers/cb/2", "/mnt"),
    )
    assert owner_by_mounts(both, ANCHOR) == NOBODY
    assert owner(50, Table(p50=process(30, both), p30=SHIM), ANCHOR, no_name) == NOBODY


def test_walk_ends() -> None:
    assert owner(50, Table(p50=process(1)), ANCHOR, no_name) == NOBODY
    assert owner(50, Table(p50=process(0)), ANCHOR, no_name) == NOBODY
    assert owner(50, Table(p50=process(49)), ANCHOR, no_name) == NOBODY, "the parent has ended"
    loop = Table(p50=process(51), p51=process(50))
    assert owner(50, loop, ANCHOR, no_name) == NOBODY
    # A shim's own table is the node's: not looked at, whatever it shows.
    shim = process(1, log(VICTIM, "cb"), comm="containerd-shim")
    assert owner(50, Table(p50=process(40), p40=shim), ANCHOR, no_name) == NOBODY


@pytest.mark.parametrize("pid", [0, -1, 50])
def test_no_such_process(pid: int) -> None:
    assert owner(pid, Table(), ANCHOR, no_name) == NOBODY


SLICE = POD.replace("-", "_")
CGROUPS = {
    "cgroupfs v2": f"0::/kubepods/burstable/pod{POD}/{ID}\n",
    "systemd v2": (
        "0::/kubepods.slice/kubepods-burstable.slice/"
        f"kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope\n"
    ),
    "guaranteed": f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope\n",
    "private namespace": f"0::/../../pod{POD}/{ID}\n",
    "v1": (
        f"12:pids:/kubepods/besteffort/pod{POD}/{ID}\n"
        f"3:cpu,cpuacct:/kubepods/besteffort/pod{POD}/{ID}\n"
    ),
    "kind": (
        "0::/kubelet.slice/kubelet-kubepods.slice/"
        f"kubelet-kubepods-besteffort-pod{SLICE}.slice/cri-containerd-{ID}.scope\n"
    ),
    "folders of the pod": f"0::/kubepods/pod{POD}/{ID}/kubepods/pod{VICTIM}/{'cd' * 32}\n",
}


@pytest.mark.parametrize("text", CGROUPS.values(), ids=CGROUPS.keys())
def test_cgroup_names_pod_and_container(text: str) -> None:
    assert pod_by_cgroup(text) == (POD, ID)


@pytest.mark.parametrize(
    "text",
    ["", "0::/\n", "0::/user.slice/user-0.slice\n", f"0::/x-pod{POD}x/{ID}\n"],
)
def test_cgroup_that_names_none(text: str) -> None:
    assert pod_by_cgroup(text) is None


def test_cgroups_that_disagree_name_none() -> None:
    assert pod_by_cgroup(f"1:a:/pod{POD}/{ID}\n2:b:/pod{VICTIM}/{ID}\n") is None


def test_cgroup_wins_over_mounts() -> None:
    cgroup = CGROUPS["cgroupfs v2"]
    forged = Table(p50=process(30, log(VICTIM, "cb"), cgroup=cgroup), p30=SHIM)
    assert owner(50, forged, ANCHOR, no_name) == Owner(pod_uid=POD)
    named = owner(50, forged, ANCHOR, lambda uid, runtime_id: "main")
    assert named == Owner(pod_uid=POD, container="main")


def test_container_by_status_else_by_mounts() -> None:
    facts = Table(p50=process(30, log(POD, "main"), cgroup=CGROUPS["cgroupfs v2"]), p30=SHIM)
    assert owner(50, facts, ANCHOR, no_name) == Owner(pod_uid=POD, container="main")
    assert owner(50, facts, None, lambda uid, runtime_id: "side") == Owner(
        pod_uid=POD, container="side"
    )
    asked: list[tuple[str, str]] = []

    def name(uid: str, runtime_id: str) -> str:
        asked.append((uid, runtime_id))
        return "main"

    assert owner(50, facts, None, name).container == "main"
    assert asked == [(POD, ID)]


def test_outside_a_pod_only_cgroups_tell() -> None:
    assert owner(50, Table(p50=process(30, log(POD, "main"))), None, no_name) == NOBODY
