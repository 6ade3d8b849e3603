"""A trial made up in memory: two pods that behave, until a test spoils one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from testbed.lab.scenario.cases import checked_parameters, load_parameters, load_question
from testbed.lab.scenario.question import PodTrace, Sample, Trial
from testbed.stack import names
from testbed.stack.model import Card
from testbed.units import MIB

ROOT = Path(__file__).parents[3]
UUID = "GPU-11111111-2222-3333-4444-555555555555"
SIZES = ("torch_properties", "torch_mem_get_info", "driver_total_mem", "nvml_total")


def pod_trace(name, mib, *, caps, cores, start, phases):
    """Return a pod that held ``mib`` in each phase, and its samples."""
    events = []
    samples = []
    time = start
    for phase in phases:
        events += [
            {
                "event": "visible",
                "phase": phase,
                "time": time,
                "uuid": UUID,
                "torch": "2.15.0",
                "card": "A100",
                "sizes": dict.fromkeys(SIZES, caps * MIB),
            },
            {
                "event": "holding",
                "phase": phase,
                "time": time + 1,
                "bytes": mib * MIB,
                "refused": mib <= caps,
                "error": "OutOfMemoryError",
            },
            {"event": "released", "phase": phase, "time": time + 2, "bytes": mib * MIB},
            {
                "event": "survived",
                "phase": phase,
                "time": time + 3,
                "freed_to": 424 * MIB,
                "again": (424 + 256) * MIB,
                "equal": True,
            },
        ]
        samples += [
            Sample(
                time=time + 1 + tick / 4,
                uuid=UUID,
                pid=40,
                pod_uid=f"uid-{name}",
                container="main",
                bytes=mib * MIB,
            )
            for tick in range(1, 4)
        ]
        time += 10
    events.append({"event": "finished", "time": time, "code": 0})
    allocated = f"{UUID},NVIDIA,{caps},{cores}:;"
    pod = {
        "metadata": {
            "uid": f"uid-{name}",
            "annotations": {
                names.POD_ALLOCATED: allocated,
                names.POD_TO_ALLOCATE: ";",
                names.POD_BIND_PHASE: "success",
                names.POD_NODE: "n1",
            },
        },
        "spec": {"nodeName": "n1"},
        "status": {"phase": "Succeeded"},
    }
    trace = PodTrace(name=name, uid=f"uid-{name}", node="n1", object=pod, events=tuple(events))
    return trace, samples


def make_trial(parameters, used, enforcement="on"):
    """Return a trial in which each pod held ``used[name]`` MiB in every phase."""
    pods, samples, ledger = {}, [], {}
    for name, asked in parameters.pods.items():
        trace, own = pod_trace(
            name,
            used[name],
            caps=asked.gpumem,
            cores=asked.gpucores,
            start=100.0,
            phases=parameters.allocators,
        )
        pods[name] = trace
        samples += own
        ledger[trace.uid] = trace.object["metadata"]["annotations"][names.POD_ALLOCATED]
    return Trial(
        enforcement=enforcement,
        pods=pods,
        samples=tuple(samples),
        source="emulated",
        registered={"n1": (Card(uuid=UUID, mem_mib=81920, model="NVIDIA A100"),)},
        ledger={"pods": ledger},
        started=99.0,
        ended=200.0,
    )


@pytest.fixture
def co_location():
    """The question with the example's parameters."""
    folder = ROOT / "scenarios" / "co_location"
    question = load_question(folder)
    parameters = checked_parameters(question, load_parameters(folder / "a100-example.yaml"))
    return SimpleNamespace(question=question, parameters=parameters, folder=folder)
