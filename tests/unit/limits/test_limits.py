"""``testbed limits`` and ``testbed region``: what may be set, and how it gets to the node."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from testbed.errors import ClusterError, InputError
from testbed.lab import limits as lab
from testbed.lab.kubectl import ExecResult
from testbed.native.region import (
    Policy,
    RegionConstant,
    RegionDevice,
    make_region,
    read_region,
)
from testbed.stack import names
from testbed.stack.codec import region_name
from testbed.units import MIB


def pod(**changes: Any) -> dict[str, Any]:
    notes = {names.POD_ALLOCATED: ";GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,3000,30:;"}
    return {
        "metadata": {"name": "p", "namespace": "ns", "uid": "uid-1", "annotations": notes},
        "spec": {"nodeName": "n1", "containers": [{"name": "side"}, {"name": "main"}]},
    } | changes


class Kube:
    """A cluster of one pod; ``exec`` runs the node's program here, on a folder of ours."""

    def __init__(self, hook: Path, *, node: str = "n1", found: dict[str, Any] | None = None):
        self.pods = [found or pod()]
        self.plugin = {
            "metadata": {"name": "vgpu-plugin-x"},
            "spec": {
                "nodeName": node,
                "volumes": [{"name": "hook", "hostPath": {"path": str(hook)}}],
                "containers": [{"name": "plugin", "command": [sys.executable, "-m", "…"]}],
            },
        }
        self.asked: list[dict[str, Any]] = []

    def list(self, _version: str, _kind: str, _namespace: str = "", *, labels: str = "") -> Any:
        return [self.plugin] if labels else self.pods

    def exec(
        self, _namespace: str, _pod: str, command: list[str], *, stdin: str, **_: Any
    ) -> ExecResult:
        self.asked.append(json.loads(stdin))
        done = subprocess.run(
            command, input=stdin, capture_output=True, text=True, timeout=240, check=False
        )
        return ExecResult(rc=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture
def region(tmp_path: Path) -> Path:
    folder = tmp_path / "containers" / "uid-1_main"
    folder.mkdir(parents=True)
    devices = tuple(
        RegionDevice(uuid=f"GPU-{i}", memory_limit_bytes=3000 * MIB, sm_limit_pct=30) for i in "ab"
    )
    constant = RegionConstant(devices=devices, pod_uid="uid-1", container_name="main")
    return make_region(folder, region_name("uid-1", "main"), constant)


def test_a_change_reaches_the_region_and_comes_back(region: Path, tmp_path: Path) -> None:
    kube: Any = Kube(tmp_path)
    wanted = lab.Wanted(gpumem_mib=1000, gpucores_pct=10, policy="force")
    (held,) = lab.set_limits(kube, "ns/p", wanted)
    constant = read_region(region).constant
    assert [d.memory_limit_bytes for d in constant.devices] == [1000 * MIB] * 2
    assert [d.sm_limit_pct for d in constant.devices] == [10, 10]
    assert constant.policy is Policy.FORCE
    assert [d.memory_limit_bytes for d in held.region.devices] == [1000 * MIB] * 2
    assert held.promised == (("GPU-a", 3000, 30), ("GPU-b", 3000, 30))
    # What is not named stays; and up again to the promise.
    lab.set_limits(kube, "p", lab.Wanted(gpumem_mib=3000), container="main")
    constant = read_region(region).constant
    assert [d.memory_limit_bytes for d in constant.devices] == [3000 * MIB] * 2
    assert (constant.policy, constant.devices[0].sm_limit_pct) == (Policy.FORCE, 10)
    table = lab.limits_text(lab.show(kube, "p"))
    assert "GPU-b" in table and "3,000 MiB" in table and "force" in table
    assert "no process uses the library" in lab.region_text(lab.show(kube, "p"))


def test_a_limit_below_what_is_held_says_so(region: Path, tmp_path: Path) -> None:
    kube: Any = Kube(tmp_path)
    (held,) = lab.set_limits(kube, "p", lab.Wanted(gpumem_mib=1000))
    first, second = held.region.devices
    full = msgspec.structs.replace(first, unexplained_bytes=1200 * MIB)
    answer = msgspec.structs.replace(held.region, devices=(full, second))
    text = lab.limits_text([msgspec.structs.replace(held, region=answer)])
    assert "1,200 MiB (over)" in text
    assert "main holds 200 MiB more of GPU-a than its limit" in text and "GPU-b than" not in text
    assert "more of" not in lab.limits_text([held])


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (lab.Wanted(gpumem_mib=3001), "3,000 MiB"),
        (lab.Wanted(gpumem_mib=0), "1 or more"),
        (lab.Wanted(gpucores_pct=31), "promised 30 %"),
        (lab.Wanted(gpucores_pct=0), "promised 30 %"),
        (lab.Wanted(gpucores_pct=101), "0 \\(none\\) to 100"),
        (lab.Wanted(policy="forced"), "did you mean force"),
        (lab.Wanted(), "--gpumem"),
    ],
)
def test_more_than_was_promised_is_refused_before_anything_changes(
    region: Path, tmp_path: Path, wanted: lab.Wanted, says: str
) -> None:
    before = region.read_bytes()
    kube: Any = Kube(tmp_path)
    with pytest.raises(InputError, match=says):
        lab.set_limits(kube, "p", wanted)
    assert kube.asked == [] and region.read_bytes() == before


def test_a_share_that_was_not_limited_may_be_limited_and_freed(
    region: Path, tmp_path: Path
) -> None:
    found = pod()
    found["metadata"]["annotations"] = {
        names.POD_ALLOCATED: ";GPU-a,NVIDIA,3000,0:GPU-b,NVIDIA,3000,0:;"
    }
    kube: Any = Kube(tmp_path, found=found)
    for percent in (50, 0):
        lab.set_limits(kube, "p", lab.Wanted(gpucores_pct=percent))
        assert read_region(region).constant.devices[1].sm_limit_pct == percent


def test_what_cannot_be_reached_is_said(region: Path, tmp_path: Path) -> None:
    kube: Any = Kube(tmp_path)
    with pytest.raises(InputError, match="container side of pod p holds no card"):
        lab.show(kube, "p", container="side")
    with pytest.raises(InputError, match="holds no card"):
        found = pod(metadata={"name": "p", "namespace": "ns", "uid": "u"})
        lab.show(Kube(tmp_path, found=found), "p")  # type: ignore[arg-type]
    with pytest.raises(ClusterError, match="no device plugin runs on node n1"):
        lab.show(Kube(tmp_path, node="n2"), "p")  # type: ignore[arg-type]
    region.write_bytes(b"")
    with pytest.raises(ClusterError, match="the file is too short"):
        lab.show(kube, "p")
    region.unlink()
    with pytest.raises(ClusterError, match="has no region on this node"):
        lab.show(kube, "p")


@pytest.mark.parametrize(
    "request_",
    [
        {"hook": "/x", "pod_uid": "../..", "container": "c"},
        {"hook": "/x", "pod_uid": "u", "container": ""},
        {"hook": "/x", "pod_uid": "u", "container": "c", "extra": 1},
        {"hook": "/x", "pod_uid": "u"},
    ],
)
def test_the_program_on_the_node_takes_nothing_on_trust(
    request_: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from testbed.stack.plugin import limits as node

    stdin = io.TextIOWrapper(io.BytesIO(json.dumps(request_).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert node.main() == 2
    assert capsys.readouterr().err.strip()
