"""Trials made up in memory: pods that behave, until a test spoils one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed.lab.scenario.cases import checked_parameters, load_parameters, load_question
from testbed.lab.scenario.question import ContainerTrace, PodTrace, Sample, Trial
from testbed.stack import names
from testbed.stack.model import Card
from testbed.units import MIB

ROOT = Path(__file__).parents[3]
UUID = "GPU-11111111-2222-3333-4444-555555555555"
UUID2 = "GPU-11111111-2222-3333-4444-666666666666"
SIZES = ("torch_properties", "torch_mem_get_info", "driver_total_mem", "nvml_total")
CONTEXT_MIB = 424
#: Steps a second of a pod that has a card to itself.
FREE_RATE = 200.0
TICK = 0.25


class Scene:
    """Writes what the pods of a case and their cards tell, phase by phase.

    ``rates[label]`` gives a tenant's share of its cards in a phase, percent.
    """

    def __init__(self, question, parameters, *, cards=None):
        self.parameters = parameters
        self.plans = {plan.name: plan for plan in question.plan(parameters)}
        self.module = __import__("sys").modules[type(question).__module__]
        self.tenants = self.module.tenants(parameters)
        self.cards = cards or {}
        self.events = {t.label: [] for t in self.tenants}
        self.samples = []
        self.busy = {}
        self.steps = {}
        self.now = 100.0
        self.deleted = {}

    def uuids(self, tenant):
        return self.cards.get(tenant.label, (UUID, UUID2)[: tenant.asked.gpu])

    def say(self, tenant, event, phase="", at=0.0, **fields):
        told = {"event": event, "time": self.now + at, **({"phase": phase} if phase else {})}
        self.events[tenant.label].append({**told, **fields})

    def sample(self, tenant, uuid, mib, time):
        pid = 40 + [t.label for t in self.tenants].index(tenant.label)
        self.samples.append(
            Sample(
                time=time,
                uuid=uuid,
                pid=pid,
                pod_uid=f"uid-{tenant.pod}",
                container=tenant.container,
                bytes=mib * MIB,
                busy_ns=self.busy.get((tenant.label, uuid), 0),
            )
        )

    def memory(self, used):
        """All allocators, one after the other; ``used[label]`` MiB are held on each card."""
        for phase in self.parameters.allocators:
            for tenant in self.tenants:
                if tenant.asked.gpumem is not None:
                    self._fill(tenant, phase, used[tenant.label])
            self.now += 10

    def _fill(self, tenant, phase, mib):
        cap = tenant.asked.gpumem
        for uuid in self.uuids(tenant):
            sizes = dict.fromkeys(SIZES, cap * MIB)
            self.say(tenant, "visible", phase, uuid=uuid, torch="2.15.0", card="A100", sizes=sizes)
            self.say(
                tenant, "filled", phase, 0.9, uuid=uuid, bytes=mib * MIB, refused=mib <= cap,
                error="OutOfMemoryError",
            )  # fmt: skip
        self.say(tenant, "holding", phase, 1)
        self.say(tenant, "released", phase, 2)
        for uuid in self.uuids(tenant):
            self.say(
                tenant, "survived", phase, 3, uuid=uuid, equal=True,
                freed_to=CONTEXT_MIB * MIB, again=(CONTEXT_MIB + 256) * MIB,
            )  # fmt: skip
            for tick in (1, 2, 3):
                self.sample(tenant, uuid, mib, self.now + 1 + tick / 4)

    def compute(self, alone, together=None, after=None):
        """Work; each argument gives a tenant's percent by label."""
        if not any(t.asked.gpucores for t in self.tenants):
            return
        for tenant in self.tenants:
            for uuid in self.uuids(tenant):
                self.say(tenant, "working", uuid=uuid, torch="2.15.0", card="A100")
        for tenant in self.tenants:
            if tenant.asked.gpucores:
                self._phase(tenant.alone, {tenant.label: alone[tenant.label]}, [tenant])
        if len(self.tenants) > 1:
            self._phase("together", together, self.tenants)
        if self.parameters.kill:
            self._kill(together, after)

    def _phase(self, name, shares, members):
        seconds = self._seconds(name)
        for tenant in members:
            self.say(tenant, "holding", name)
            self.say(tenant, "released", name)
        self._run(name, shares, seconds, members)
        for tenant in members:
            self.say(tenant, "worked", name)
        self.now += 0.5

    def _kill(self, before, after):
        for tenant in self.tenants:
            self.say(tenant, "holding", "kill")
        self._run("kill", before, 1.0, self.tenants)
        pod = self.parameters.kill
        self.deleted[pod] = self.now
        left = [t for t in self.tenants if t.pod != pod]
        dying = [t for t in self.tenants if t.pod == pod]
        self._run("kill", before, 1.5, self.tenants)  # until kubelet has ended it
        del dying
        for tenant in left:
            self.say(tenant, "released", "kill")
        self._run("kill", after, self._seconds("kill") - 1.5, left)
        for tenant in left:
            self.say(tenant, "worked", "kill")

    def _seconds(self, name):
        for plan in self.plans.values():
            for container in plan.containers:
                for phase in container.parameters["phases"]:
                    if phase["name"] == name:
                        return phase["seconds"]
        raise KeyError(name)

    def _run(self, name, shares, seconds, members):
        end = self.now + seconds
        while self.now < end - 1e-9:
            for tenant in members:
                for uuid in self.uuids(tenant):
                    key = (tenant.label, uuid)
                    share = shares.get(tenant.label, 0) / 100
                    steps = self.steps.get(key, 0.0)
                    self.say(tenant, "steps", name, uuid=uuid, steps=round(steps))
                    self.sample(tenant, uuid, CONTEXT_MIB, self.now)
                    self.steps[key] = steps + share * FREE_RATE * TICK
                    self.busy[key] = self.busy.get(key, 0) + int(share * TICK * 1e9)
            self.now += TICK
        for tenant in members:
            for uuid in self.uuids(tenant):
                key = (tenant.label, uuid)
                steps = round(self.steps[key])
                self.say(tenant, "steps", name, uuid=uuid, steps=steps)
                self.sample(tenant, uuid, CONTEXT_MIB, self.now)

    def trial(self, enforcement="on"):
        pods, ledger = {}, {}
        for name, plan in self.plans.items():
            members = [t for t in self.tenants if t.pod == name]
            allocated = ""
            for tenant in members:
                cores = tenant.asked.gpucores or (100 if tenant.asked.gpumem is None else 0)
                mem = 81920 if tenant.asked.gpumem is None else tenant.asked.gpumem
                allocated += "".join(f"{u},NVIDIA,{mem},{cores}:" for u in self.uuids(tenant)) + ";"
                if name not in self.deleted:
                    self.say(tenant, "finished", code=0)
            notes = {
                names.POD_ALLOCATED: allocated,
                names.POD_TO_ALLOCATE: ";" * len(members),
                names.POD_BIND_PHASE: "success",
                names.POD_NODE: "n1",
            }
            pods[name] = PodTrace(
                name=name,
                uid=f"uid-{name}",
                node="n1",
                object={
                    "metadata": {"uid": f"uid-{name}", "annotations": notes},
                    "spec": {"nodeName": "n1"},
                    "status": {"phase": "Succeeded"},
                },
                containers=tuple(
                    ContainerTrace(name=t.container, events=tuple(self.events[t.label]))
                    for t in members
                ),
                deleted=self.deleted.get(name),
            )
            ledger[f"uid-{name}"] = allocated
            del plan
        return Trial(
            enforcement=enforcement,
            pods=pods,
            samples=tuple(sorted(self.samples, key=lambda s: (s.time, s.uuid, s.pid))),
            source="emulated",
            registered={
                "n1": tuple(
                    Card(uuid=uuid, mem_mib=81920, model="NVIDIA A100") for uuid in (UUID, UUID2)
                )
            },
            ledger={"pods": ledger},
            started=99.0,
            ended=self.now,
        )


def make_trial(parameters, used=None, enforcement="on", *, shares=None, cards=None):
    """Return a trial in which each container held ``used[label]`` MiB in every phase.

    Args:
        parameters: The case's.
        used: Label to MiB; by default the caps, or a tenth above them without the limiter.
        enforcement: ``off``: shares are an even part of the card, by default.
        shares: ``(alone, together, after)``, each label to percent.
        cards: Label to uuids.
    """
    question = load_question(ROOT / "scenarios" / "co_location")
    scene = Scene(question, parameters, cards=cards)
    caps = {t.label: t.asked.gpumem for t in scene.tenants if t.asked.gpumem is not None}
    if used is None:
        used = caps if enforcement == "on" else {k: v * 11 // 10 for k, v in caps.items()}
    scene.memory(used)
    scene.compute(*(shares or default_shares(scene, enforcement)))
    return scene.trial(enforcement)


def default_shares(scene, enforcement):
    """Return what a limiter that works gives, or a card without one."""
    checks = scene.module.share_checks
    policy = scene.parameters.policy if enforcement == "on" else "disable"

    def near(tenant, *, but=""):
        mine = set(scene.uuids(tenant))
        return tuple(
            t
            for t in scene.tenants
            if t.label != tenant.label and t.pod != (but or None) and mine & set(scene.uuids(t))
        )

    alone = {t.label: checks.attainable(t, (), policy) for t in scene.tenants}
    together = {t.label: checks.attainable(t, near(t), policy) for t in scene.tenants}
    after = {
        t.label: checks.attainable(t, near(t, but=scene.parameters.kill), policy)
        for t in scene.tenants
    }
    return alone, together, after


@pytest.fixture
def co_location():
    """The question with the example's parameters."""
    folder = ROOT / "scenarios" / "co_location"
    question = load_question(folder)
    parameters = checked_parameters(question, load_parameters(folder / "a100-example.yaml"))
    return SimpleNamespace(question=question, parameters=parameters, folder=folder)
