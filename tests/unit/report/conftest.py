"""A run made up in memory: a case that holds, and its chart."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from testbed.lab.report.chart import Cap, Chart, Line, Panel, Phase, Side
from testbed.lab.scenario.record import Check, Control, Environment, Record, Report

CASE = "co_location/a100-example"


def limit(name: str = "memory_cap", pod: str = "a", **fields: Any) -> Check:
    """Return a check of a limit that holds, unless ``fields`` say otherwise."""
    base: dict[str, Any] = {
        "verdict": "pass",
        "variant": "native",
        "asked": 30720.0,
        "workload": 30718.0,
        "card": 30720.0,
        "tolerance": 2.0,
        "unit": "MiB",
        "source": "monitor (emulated)",
        "control": "fail",
    }
    return Check(name=name, pod=pod, **{**base, **fields})


def made_record(**fields: Any) -> Record:
    """Return the record of a case that holds, unless ``fields`` say otherwise."""
    above = {"verdict": "fail", "workload": 33792.0, "card": 33792.0, "control": ""}
    base: dict[str, Any] = {
        "case": CASE,
        "verdict": "pass",
        "asserts_limit": True,
        "checks": (limit(), limit(pod="b"), Check(name="share_card", verdict="skipped")),
        "control": Control(verdict="pass", checks=(limit(**above), limit(pod="b", **above))),
        "environment": Environment(
            provider="process",
            card="NVIDIA A100 (emulated)",
            kubernetes="v1.37.2",
            torch="2.15.0",
            stack="vgpu-testbed 0.1.0",
            shim="libvgpu.so 12ab",
        ),
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 43.2,
        "title": "Do pods keep their caps?",
        "meanings": {"memory_cap": "The pod ends at its cap."},
        "parameters": {"pods": {"a": {"gpumem": 30720}}, "allocators": ["native"]},
    }
    return Record(**{**base, **fields})


def made_report(*records: Record, **fields: Any) -> Report:
    """Return the report of records (of one that holds, without any)."""
    from testbed.lab.scenario.record import worst

    cases = records or (made_record(),)
    base: dict[str, Any] = {
        "verdict": worst([record.verdict for record in cases]),
        "started": "2026-01-02T03:04:05+00:00",
        "seconds": 71.0,
        "reproduce": "testbed run co_location/a100-example",
    }
    return Report(cases=cases, **{**base, **fields})


def made_chart(pods: tuple[str, ...] = ("a", "b")) -> Chart:
    """Return a run in which every pod stays at its cap, and a control 10 % above."""

    def side(control: bool) -> Side:
        factor = 1.1 if control else 1.0
        caps = {pod: 10.0 * (number + 1) for number, pod in enumerate(pods)}
        panel = Panel(
            quantity="memory",
            title="memory on the card",
            unit="GiB",
            lines=tuple(
                Line(label=pod, times=(0.0, 1.0, 2.0, 3.0), values=(0.0, None, cap * factor, 0.0))
                for pod, cap in caps.items()
            ),
            caps=tuple(Cap(label=pod, value=cap) for pod, cap in caps.items()),
        )
        return Side(
            title="control: no limiter" if control else "with the limiter",
            control=control,
            seconds=4.0,
            panels=(panel, msgspec.structs.replace(panel, quantity="compute", unit="%")),
            phases=(Phase(name="native", begin=0.5, end=3.5),),
        )

    return Chart(sides=(side(False), side(True)))


@pytest.fixture
def chart() -> Chart:
    return made_chart()
