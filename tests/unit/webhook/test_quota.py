"""What a namespace has left: quotas as they come and go, pods as they are promised cards."""

from __future__ import annotations

import threading

import pytest

from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import HYGON, vendors
from testbed.stack.kubeapi import ApiError
from testbed.stack.placement.quota import UNBOUNDED, Amount
from testbed.stack.webhook.follow import NamespaceQuotas
from testbed.stack.webhook.quota import hard_of, room_of

CONFIG = DeviceConfig()
(NVIDIA,) = vendors(CONFIG)
BOTH = DeviceConfig(vendors=("nvidia", "hygon"))
MEM, CORES = "limits.nvidia.com/gpumem", "limits.nvidia.com/gpucores"


def quota(name="q", namespace="ns", version="1", spec=None, **hard):
    hard = {{"mem": MEM, "cores": CORES}.get(k, k): v for k, v in hard.items()}
    metadata = {"name": name, "namespace": namespace, "resourceVersion": version}
    return {"metadata": metadata, "spec": {"hard": hard, **(spec or {})}}


def pod(uid, devices, *, scheduler=names.SCHEDULER_NAME, phase="Running", init=(), done=False):
    states = [{"name": n, "state": {"terminated": {"exitCode": 0}}} for n in init if done]
    return {
        "metadata": {"uid": uid, "annotations": {names.POD_ALLOCATED: devices}},
        "spec": {
            "schedulerName": scheduler,
            "containers": [{"name": "main"}],
            "initContainers": [{"name": name} for name in init],
        },
        "status": {"phase": phase, "initContainerStatuses": states},
    }


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (quota(mem="10k"), Amount(mem_mib=10_000)),
        (quota(mem="0"), Amount(mem_mib=0)),  # an explicit 0 is not unset
        (quota(cores="150", mem="16Ki"), Amount(mem_mib=16384, core_pct=150)),
        (quota(cpu="5"), UNBOUNDED),
        (quota(mem="lots"), UNBOUNDED),
        (quota(mem="5", spec={"scopes": ["BestEffort"]}), UNBOUNDED),
        (quota(mem="5", spec={"scopeSelector": {"matchExpressions": []}}), UNBOUNDED),
        ({"metadata": {}}, UNBOUNDED),
    ],
)
def test_bounds_of_a_quota(found, expected):
    assert hard_of(found, NVIDIA) == expected


def test_the_unit_of_requests_is_the_quotas_too():
    assert hard_of(quota(mem="10"), vendors(DeviceConfig(memoryFactor=256))[0]).mem_mib == 2560


@pytest.mark.parametrize(
    ("pods", "left"),
    [
        ([], 10_000),
        ([pod("a", "GPU-a,NVIDIA,3000,30:;")], 7_000),
        ([pod("a", "GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,3000,30:;")], 4_000),
        ([pod("a", "GPU-a,NVIDIA,3000,30:;", phase="Succeeded")], 10_000),
        ([pod("a", "GPU-a,NVIDIA,3000,30:;", scheduler="other")], 10_000),
        ([pod("a", "nonsense")], 10_000),
        ([pod("a", "GPU-a,NVIDIA,9000,0:;GPU-a,NVIDIA,1000,0:;", init=["i"])], 1_000),
        ([pod("a", "GPU-a,NVIDIA,9000,0:;GPU-a,NVIDIA,1000,0:;", init=["i"], done=True)], 9_000),
        ([pod("a", "GPU-a,NVIDIA,3000,30:;"), pod("b", "GPU-a,NVIDIA,8000,30:;")], -1_000),
    ],
)
def test_room_beside_promises(pods, left):
    assert room_of([quota(mem="10k")], pods, "ns", CONFIG, NVIDIA) == Amount(mem_mib=left)


def test_the_tightest_of_several_counts():
    quotas = [quota(mem="10k"), quota("r", mem="5k", cores="80")]
    assert room_of(quotas, [], "ns", CONFIG, NVIDIA) == Amount(mem_mib=5_000, core_pct=80)


def test_each_vendors_cards_count_against_its_own_keys():
    dcu = pod("d", "")
    dcu["metadata"]["annotations"] = {HYGON.allocated: "DCU-0,DCU,3000,30:;"}
    pods = [pod("a", "GPU-a,NVIDIA,1000,10:;"), dcu]
    both = {"limits.nvidia.com/gpumem": "10k", "limits.hygon.com/dcumem": "5k"}
    quotas = [quota(**both)]
    assert room_of(quotas, pods, "ns", BOTH, NVIDIA) == Amount(mem_mib=9_000)
    assert room_of(quotas, pods, "ns", BOTH, HYGON) == Amount(mem_mib=2_000)
    assert room_of([quota(mem="10k")], pods, "ns", BOTH, HYGON) == UNBOUNDED


class Api:
    """Answers a list and one watch after the other; then the test is over."""

    def __init__(self, listed, *watches, stop=None):
        self.listed, self.watches, self.stop = listed, list(watches), stop
        self.asked = []
        self.pods = []

    def get(self, path, query=None, *, timeout_s=5.0):
        self.asked.append(path)
        if path == "/api/v1/resourcequotas":
            return {"items": self.listed, "metadata": {"resourceVersion": "5"}}
        if self.pods is None:
            raise ApiError("GET failed", why="no answer")
        return {"items": self.pods}

    def watch(self, path, query, *, open_s=120):
        if not self.watches:
            self.stop.set()
            return
        found = self.watches.pop(0)
        if isinstance(found, ApiError):
            raise found
        yield from found


def followed(listed, *watches):
    stop = threading.Event()
    api = Api(listed, *watches, stop=stop)
    stop.wait = lambda _seconds: stop.is_set()  # nobody waits in a test
    quotas = NamespaceQuotas(api, lambda: CONFIG)
    quotas.follow(stop)
    return api, quotas


def test_quotas_are_followed_through_a_lost_watch():
    api, quotas = followed(
        [quota(mem="1k"), quota("gone", mem="1")],
        [("DELETED", quota("gone")), ("BOOKMARK", {"metadata": {"resourceVersion": "9"}})],
        ApiError("watch ended", why="too old", status=410),
        [("ADDED", quota("other", "elsewhere", mem="7")), ("MODIFIED", quota(mem="2k"))],
    )
    # After 410 everything is listed anew: what went meanwhile is in no event.
    assert api.asked.count("/api/v1/resourcequotas") == 2
    assert quotas.room("elsewhere", NVIDIA) == Amount(mem_mib=7)
    assert quotas.room("ns", NVIDIA) == Amount(mem_mib=1)


def test_a_namespace_without_a_quota_costs_nothing():
    api, quotas = followed([quota(mem="1k"), quota("cpu", "plain", cpu="5")])
    before = len(api.asked)
    assert quotas.room("plain", NVIDIA) == quotas.room("none", NVIDIA) == UNBOUNDED
    assert len(api.asked) == before
    api.pods = [pod("a", "GPU-a,NVIDIA,300,30:;")]
    assert quotas.room("ns", NVIDIA) == Amount(mem_mib=700)


def test_where_the_api_server_does_not_answer_the_scheduler_tells():
    api, quotas = followed([quota(mem="1k")])
    api.pods = None
    assert quotas.room("ns", NVIDIA) == UNBOUNDED
