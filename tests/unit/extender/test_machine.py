"""Everything that can happen to an extender, in any order: events, bind, crash, retries.

The world beside it is a small API server: pods as they really are. After every step no
card is over its slots, memory or cores, neither in the ledger nor by what was bound; and
when every pod is gone the ledger is empty.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from testbed.stack import names
from testbed.stack.codec import decode_pod_shares, encode_register
from testbed.stack.config import DeviceConfig
from testbed.stack.extender import handler, wire
from testbed.stack.extender.api import AnswerLost, ApiError
from testbed.stack.extender.binder import Binder
from testbed.stack.extender.state import State
from testbed.stack.model import Card

NODES = {"n1": 2, "n2": 1}
SLOTS, MEM = 3, 10_000
QUOTA = 25_000


def card(node, index):
    return Card(uuid=f"GPU-{node}-{index}", index=index, slots=SLOTS, mem_mib=MEM, model="A100")


class Server:
    """Pods as they are, and a binding call that may fail in all its ways."""

    def __init__(self):
        self.pods = {}
        self.fault = None
        self.late = []  # Bindings without an answer that are done later

    async def bind(self, binding):
        fault, self.fault = self.fault, None
        if fault == "refused":
            raise ApiError("POST binding", 403, "no")
        if fault == "lost before":
            raise AnswerLost("POST binding")
        if fault == "late":
            self.late.append(binding)
            raise AnswerLost("POST binding")
        self.do(binding)
        if fault == "lost after":
            raise AnswerLost("POST binding")

    def do(self, binding):
        pod = self.pods.get(binding["metadata"]["uid"])
        if pod is None:
            raise ApiError("POST binding", 404, "gone")
        if pod["spec"].get("nodeName"):
            raise ApiError("POST binding", 409, "bound")
        pod["spec"]["nodeName"] = binding["target"]["name"]
        pod["metadata"].setdefault("annotations", {}).update(binding["metadata"]["annotations"])

    async def read_pod(self, namespace, name):
        return next((p for p in self.pods.values() if p["metadata"]["name"] == name), None)

    async def patch_pod(self, namespace, name, patch):
        pod = await self.read_pod(namespace, name)
        if pod is None:
            raise ApiError("PATCH pod", 404, "gone")
        if pod["metadata"].get("annotations", {}).get(names.POD_BIND_PHASE) != "allocating":
            raise ApiError("PATCH pod", 422, "test failed")
        pod["metadata"]["annotations"][names.POD_BIND_PHASE] = "failed"


class Extender(RuleBasedStateMachine):
    def __init__(self):
        super().__init__()
        self.server = Server()
        self.now = 0.0
        self.made = 0
        self.backlog = []  # watch events on their way
        self.away = set()
        self.start()

    def start(self):
        """A new process: it lists what is there."""
        self.backlog.clear()
        self.server.late.clear()  # promises on their way do not outlast the process
        self.state = State(DeviceConfig(), clock=lambda: self.now, wall=lambda: 5.0)
        self.binder = Binder(
            self.state, self.server, label=False, report=lambda *_: None, turn_wait_s=0,
            sleep=self.no_sleep,
        )  # fmt: skip
        hard = {"limits.nvidia.com/gpumem": str(QUOTA)}
        self.state.quota_changed(
            {"metadata": {"namespace": "ns", "name": "q"}, "spec": {"hard": hard}}
        )
        for pod in self.server.pods.values():
            self.state.pod_changed(copy.deepcopy(pod))
        self.state.pods_synced = True
        for node in NODES:
            self.register(node)
        self.state.nodes_synced = True

    @staticmethod
    async def no_sleep(_seconds):
        return

    def register(self, node):
        cards = [card(node, i) for i in range(NODES[node])]
        offered = "0" if node in self.away else "10"
        self.state.node_changed(
            {
                "metadata": {
                    "name": node,
                    "annotations": {names.NODE_REGISTER: encode_register(cards)},
                },
                "status": {"allocatable": {names.RESOURCE_COUNT: offered}},
            }
        )

    def tell(self, pod, gone=False):
        self.backlog.append((copy.deepcopy(pod), gone))

    def some(self, data, keep=lambda pod: True):
        found = sorted(uid for uid, pod in self.server.pods.items() if keep(pod))
        return self.server.pods[data.draw(st.sampled_from(found))] if found else None

    # --- what happens ------------------------------------------------------------

    @rule(
        mems=st.lists(st.sampled_from((0, 1000, 4000, 9000)), min_size=1, max_size=2),
        init=st.sampled_from((0, 0, 3000, 9500)),
        cores=st.sampled_from((0, 20, 60, 100)),
        count=st.sampled_from((1, 1, 2)),
        priority=st.sampled_from((0, 0, 0, 10)),
    )
    def create(self, mems, init, cores, count, priority):
        if not any(mems):
            mems = [1000]
        self.made += 1

        def container(name, mem):
            limits = {
                names.RESOURCE_COUNT: str(count), names.RESOURCE_MEMORY: str(mem),
                names.RESOURCE_CORES: str(cores),
            }  # fmt: skip
            return {"name": name, "resources": {"limits": limits} if mem else {}}

        uid = f"uid-{self.made:03d}"
        pod = {
            "metadata": {"name": f"p{self.made}", "namespace": "ns", "uid": uid},
            "spec": {
                "schedulerName": names.SCHEDULER_NAME,
                "priority": priority,
                "containers": [container(f"c{i}", mem) for i, mem in enumerate(mems)],
                "initContainers": [container("i", init)] if init else [],
            },
            "status": {"phase": "Pending"},
        }
        self.server.pods[uid] = pod
        self.tell(pod)

    @rule(data=st.data(), offered=st.sets(st.sampled_from(sorted(NODES)), min_size=1))
    def filter(self, data, offered):
        pod = self.some(data, lambda pod: not pod["spec"].get("nodeName"))
        if pod is None:
            return
        body = json.dumps({"Pod": pod, "NodeNames": sorted(offered)}).encode()
        answer = handler.filter_pods(self.state, wire.decode_filter(body)).result
        if answer.NodeNames:
            assert set(answer.NodeNames) <= offered
            held = self.state.reservations.get(pod["metadata"]["uid"])
            again = held is None or held.unanswered  # bound, or perhaps bound
            assert again or not set(answer.NodeNames) & self.away
        elif not answer.Error:
            assert set(answer.FailedNodes) == offered

    @rule(
        data=st.data(),
        fault=st.sampled_from((None, None, None, "refused", "lost before", "lost after", "late")),
        wrong=st.booleans(),
    )
    def bind(self, data, fault, wrong):
        pod = self.some(data)
        if pod is None:
            return
        uid = pod["metadata"]["uid"]
        held = self.state.reservations.get(uid)
        node = held.node if held and not wrong else "n1"
        self.server.fault = fault
        args = wire.BindArgs(
            podname=pod["metadata"]["name"], podnamespace="ns", poduid=uid, node=node
        )
        error = asyncio.run(self.binder.bind(args))
        self.server.fault = None
        bound = pod["spec"].get("nodeName")
        if not error:
            assert bound == node
        if bound:
            self.tell(pod)

    @precondition(lambda self: self.server.late)
    @rule()
    def arrive(self):
        """A slow server does what it was told long ago."""
        binding = self.server.late.pop(0)
        with contextlib.suppress(ApiError):
            self.server.do(binding)
            self.tell(self.server.pods[binding["metadata"]["uid"]])

    @precondition(lambda self: self.backlog)
    @rule(twice=st.booleans())
    def hear(self, twice):
        """The watch tells something, perhaps twice."""
        pod, gone = self.backlog.pop(0)
        for _ in range(1 + twice):
            if gone:
                self.state.pod_gone(pod["metadata"]["uid"])
            else:
                self.state.pod_changed(copy.deepcopy(pod))

    @rule(data=st.data(), end=st.sampled_from(("success", "failed", "Running", "Succeeded")))
    def go_on(self, data, end):
        """The plugin answers, init containers end, a pod ends."""
        pod = self.some(data, lambda pod: pod["spec"].get("nodeName"))
        if pod is None or pod["status"]["phase"] == "Succeeded":
            return
        if end in ("success", "failed"):
            pod["metadata"]["annotations"][names.POD_BIND_PHASE] = end
        elif end == "Running":
            terminated = {"terminated": {"exitCode": 0}}
            pod["status"] = {
                "phase": "Running",
                "initContainerStatuses": [{"name": "i", "state": terminated}],
            }
        else:
            pod["status"] = {"phase": "Succeeded"}
        self.tell(pod)

    @rule(data=st.data())
    def delete(self, data):
        pod = self.some(data)
        if pod is not None:
            del self.server.pods[pod["metadata"]["uid"]]
            self.tell(pod, gone=True)

    @rule(seconds=st.sampled_from((1, 30, 61, 1000)))
    def wait(self, seconds):
        self.now += seconds
        if seconds > 60:
            self.server.late.clear()  # it gives up whatever takes longer
        self.state.drop_expired()
        asyncio.run(self.binder.expire_turns())

    @rule(data=st.data())
    def put_back(self, data):
        """The scheduler has a pod back in its queue."""
        pod = self.some(data, lambda pod: not pod["spec"].get("nodeName"))
        if pod is not None:
            condition = {"type": "PodScheduled", "status": "False"}
            pod["status"]["conditions"] = [condition]
            self.tell(pod)

    @rule(node=st.sampled_from(sorted(NODES)), how=st.sampled_from(("again", "gone", "away")))
    def node_event(self, node, how):
        if how == "gone":
            self.state.node_gone(node)
        self.away ^= {node} if how == "away" else set()
        self.register(node)

    @rule()
    def crash(self):
        self.start()

    # --- what always holds ---------------------------------------------------------

    @invariant()
    def no_card_is_over_its_limits_in_the_ledger(self):
        if len(self.state.nominations):
            return  # what is kept for a pod stands beside its victims' shares
        for node in NODES:
            for card_, used in self.state.ledger.usage(node):
                assert 0 <= used.slots <= card_.slots, (card_, used)
                assert 0 <= used.mem_mib <= card_.mem_mib, (card_, used)
                assert 0 <= used.core_pct <= card_.core_pct, (card_, used)

    @invariant()
    def no_card_is_over_its_limits_by_what_is_bound(self):
        """Counted anew from the pods: long-lived containers, and one init container at most."""
        lasting, peak = {}, {}
        quota = 0
        for pod in self.server.pods.values():
            annotations = pod["metadata"].get("annotations") or {}
            if not pod["spec"].get("nodeName") or pod["status"]["phase"] == "Succeeded":
                continue
            text = annotations[names.POD_ALLOCATED]
            inits = len(pod["spec"]["initContainers"])
            shares = decode_pod_shares(text, inits + len(pod["spec"]["containers"]))
            for container in shares[inits:]:
                for share in container:
                    assert share.uuid.startswith(f"GPU-{pod['spec']['nodeName']}-")
                    lasting.setdefault(share.uuid, []).append(share)
                    quota += share.mem_mib
            if pod["status"]["phase"] == "Pending":
                for share in (s for container in shares[:inits] for s in container):
                    peak.setdefault(share.uuid, []).append(share)
        for uuid, shares in lasting.items():
            assert len(shares) <= SLOTS, uuid
            assert sum(s.mem_mib for s in shares) <= MEM, uuid
            assert sum(s.core_pct for s in shares) <= 100, uuid
        assert quota <= QUOTA
        for shares in peak.values():
            assert sum(s.mem_mib for s in shares) <= MEM

    @invariant()
    def quota_and_ledger_agree(self):
        held = sum(
            charge.mem_mib
            for uid in {*self.state.bound, *(r.pod.uid for r in self.state.reservations)}
            for _, charge in self.state.ledger.promised(uid).charges
        )
        assert self.state.quotas.used("ns").mem_mib == held <= QUOTA

    def teardown(self):
        for uid in list(self.server.pods):
            self.state.pod_gone(uid)
        while self.backlog:
            pod, gone = self.backlog.pop(0)
            if gone:
                self.state.pod_gone(pod["metadata"]["uid"])
        for node in NODES:
            for _, used in self.state.ledger.usage(node):
                assert (used.slots, used.mem_mib, used.core_pct) == (0, 0, 0)
        assert not self.state.ledger.used.any()
        assert not self.state.bound and not len(self.state.reservations)
        assert not len(self.state.nominations) and not self.state.turns.nodes()
        assert self.state.quotas.used("ns").mem_mib == 0
        assert self.state.lowest_priority() is None


TestExtender = Extender.TestCase
TestExtender.settings = settings(
    max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def asked(world, callers, pods=None):
    """Ask for pods at once, each on a connection of its own, through the scheduler's port."""
    import aiohttp

    from testbed.stack.extender.server import scheduler_app, serve

    async def scene():
        binder = Binder(world.state, Server(), label=False, report=lambda *_: True)
        app = scheduler_app(world.state, binder, lambda *_: True, None)
        runner = await serve(app, "127.0.0.1", 0, None)
        url = f"http://127.0.0.1:{runner.addresses[0][1]}/filter"
        connector = aiohttp.TCPConnector(limit=callers)
        try:
            async with aiohttp.ClientSession(connector=connector) as client:

                async def ask(number):
                    pod = world.pod(f"p{number}", mem=1000)
                    async with client.post(url, json={"Pod": pod, "NodeNames": ["n1"]}) as found:
                        return (await found.json())["NodeNames"]

                return await asyncio.gather(*map(ask, range(callers)))
        finally:
            await runner.cleanup()

    return asyncio.run(scene())


def test_sixteen_callers_at_once_with_room_for_four_place_four(world):
    world.node(mem=4000, slots=10)
    answers = asked(world, 16)
    assert sum(bool(names_) for names_ in answers) == 4
    assert world.used()[0].mem_mib == 4000


def test_a_decision_is_one_line_of_the_log_at_most(world, caplog):
    caplog.set_level("DEBUG", logger="testbed")
    world.node(mem=2000, slots=10)
    caplog.clear()
    asked(world, 5)
    mine = [line.getMessage() for line in caplog.records if line.name.startswith("testbed")]
    assert len([text for text in mine if "goes to" in text]) == 2
    assert len([text for text in mine if "fits nowhere" in text]) == 3
    assert len(mine) == 5
