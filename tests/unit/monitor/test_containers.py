"""The document of /v1/containers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec

from testbed.native.region import Policy, RegionConstant, RegionDevice, StateFlag
from testbed.native.region_watch import Counters
from testbed.stack.model import PodKey, Share
from testbed.stack.monitor.containers import Watched, document
from testbed.stack.monitor.counters import Rates
from testbed.stack.monitor.pods import MonitoredPod
from testbed.stack.monitor.samples import Sample, Tick
from testbed.units import MIB

WHO = ("u", "main")
POD = MonitoredPod(
    key=PodKey(namespace="ns", name="p", uid="u"),
    runtime_ids={},
    shares={"main": (Share(uuid="GPU-a", mem_mib=1024, core_pct=30),)},
    started=frozenset({"main"}),
)
COUNTERS = Counters(
    constant=RegionConstant(
        devices=(RegionDevice(uuid="GPU-a", memory_limit_bytes=1024 * MIB, sm_limit_pct=30),),
        policy=Policy.FORCE,
        priority=0,
    ),
    state=StateFlag(0),
    denied=(2,),
    launches=(1000,),
    granted_ns=(5_000,),
    waited_ns=(9_000,),
    waited_queue_ns=(0,),
    waited_priority_ns=(0,),
)
RATES = Rates(launches_per_s=200, waited=0.7, waited_queue=0.2, waited_priority=0, denied=0)


def tick(time: float, busy: int) -> Tick:
    sample = Sample(uuid="GPU-a", pid=7, pod_uid="u", container="main", bytes=77, busy_ns=busy)
    return Tick(time=time, samples=(sample,))


SEEN = Watched(
    pods=[POD],
    ticks=[tick(0, 0), tick(5, 1_500_000_000)],
    counters={WHO: COUNTERS},
    rates={(WHO, 0): RATES},
    unenforced={},
)


def container(**change: Any) -> dict[str, Any]:
    found = json.loads(json.dumps(document("n1", 1.0, 5.0, replace(SEEN, **change))))
    assert (found["node"], found["now"], found["span_s"]) == ("n1", 1.0, 5.0)
    (entry,) = found["containers"]
    assert isinstance(entry, dict)
    return entry


def test_asked_got_and_waited() -> None:
    entry = container()
    assert {k: entry[k] for k in ("namespace", "pod", "pod_uid", "container", "running")} == {
        "namespace": "ns",
        "pod": "p",
        "pod_uid": "u",
        "container": "main",
        "running": True,
    }
    assert (entry["policy"], entry["priority"], entry["flags"]) == ("force", 0, [])
    (device,) = entry["devices"]
    assert device == {
        "uuid": "GPU-a",
        "number": 0,
        "asked": {"bytes": 1024 * MIB, "core_pct": 30},
        "limit": {"bytes": 1024 * MIB, "core_pct": 30},
        "got": {"bytes": 77, "swapped_bytes": None, "processes": 1, "share_pct": 30.0},
        "waited": 0.7,
        "waited_for": {"budget": 0.5, "queue": 0.2, "priority": 0},
        "launches_per_s": 200,
        "launches": 1000,
        "granted_ns": 5000,
        "waited_ns": 9000,
        "denied": 2,
    }


def test_without_a_region_nothing_is_made_up() -> None:
    entry = container(counters={}, rates={}, unenforced={WHO: "no-region"})
    assert (entry["policy"], entry["priority"]) == (None, None)
    assert (entry["flags"], entry["unenforced"]) == (["unenforced"], "no-region")
    (device,) = entry["devices"]
    for key in ("limit", "waited", "launches_per_s", "launches", "denied"):
        assert device[key] is None
    assert device["got"]["bytes"] == 77, "what the card counts is known all the same"


def test_memory_outside_the_card() -> None:
    (device,) = container(counted={(WHO, 0): 100})["devices"]
    assert device["got"]["swapped_bytes"] == 100 - 77


def test_flags() -> None:
    degraded = replace(COUNTERS, state=StateFlag.DEGRADED)
    assert container(counters={WHO: degraded})["flags"] == ["degraded"]
    above = replace(RATES, waited_priority=0.4)
    assert container(rates={(WHO, 0): above})["flags"] == ["paused"]
    denied = replace(RATES, denied=1)
    assert container(rates={(WHO, 0): denied})["flags"] == ["denied"]


def test_a_region_with_fewer_devices_than_were_promised() -> None:
    (share,) = POD.shares["main"]
    two = replace(
        POD, shares={"main": tuple(msgspec.structs.replace(share, uuid=uuid) for uuid in "ab")}
    )
    assert [d["launches"] for d in container(pods=[two])["devices"]] == [1000, None]


def test_init_containers_are_shown_while_they_run() -> None:
    shares = POD.shares["main"]
    pod = replace(POD, init_shares={"sidecar": shares, "first": shares})
    assert [
        e["container"] for e in document("n1", 1, 5, replace(SEEN, pods=[pod]))["containers"]
    ] == ["main"]
    pod = replace(pod, started=frozenset({"main", "sidecar"}))
    assert [
        e["container"] for e in document("n1", 1, 5, replace(SEEN, pods=[pod]))["containers"]
    ] == [
        "sidecar",
        "main",
    ]
