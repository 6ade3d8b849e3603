"""What becomes of a pod that is shown to the live admission?

Pure: says which pods to show and judges what the API server made of them. Two answers
meet in each check: what the contract says, and what the API server would store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from testbed.errors import InputError
from testbed.lab.report.chart import Chart
from testbed.lab.scenario.question import NoPods, PodTrace, Trial
from testbed.lab.scenario.record import Check, Control
from testbed.lab.scenario.submission import Submission

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
Values = dict[str, str | int | float]


class Becomes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a pod must become; of each map, the keys that matter, null where one must go."""

    scheduler: str | None = None
    runtime_class: str | None = None
    limits: dict[str, str | None] = {}  # of its first container
    requests: dict[str, str | None] = {}
    env: dict[str, str | None] = {}
    annotations: dict[str, str | None] = {}
    labels: dict[str, str | None] = {}


class Row(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A pod of one container, and what becomes of it; of nothing said, nothing."""

    limits: Values = {}
    requests: Values = {}
    env: dict[str, str] = {}
    container: dict[str, Any] = {}  # more of its container
    spec: dict[str, Any] = {}  # more of the pod
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    own_environment: bool = False  # the namespace's label allows the library's variables
    patch: dict[str, Any] = {}  # written to the pod once it exists
    debug: dict[str, Any] = {}  # a container that `kubectl debug` adds
    refused: str = ""  # words of the reason
    becomes: Becomes | None = None
    #: False: the API server itself holds to it, so it is the same where no webhook is asked.
    webhook: bool = True


class Parameters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of pods, and the quota of their namespace."""

    pods: dict[str, Row]
    quota: dict[str, str] = {}


MEANINGS = {
    "refused": "The API server does not take the pod, and says why and what would do.",
    "becomes": "The pod is stored with what the contract adds, and without what it takes away.",
    "untouched": "The pod is none of ours: it is stored as the API server would store it alone.",
}


class Admission(NoPods):
    """The question, as the testbed runs it."""

    name = "admission"
    title = "What becomes of a pod that asks for a share of a card?"
    parameters = Parameters
    #: Nothing is measured that a library limits. The control shows the same pods where the
    #: webhook is not asked: there every check that depends on it has to fail.
    asserts_limit = False
    meanings: ClassVar[Mapping[str, str]] = MEANINGS
    steps = ("pods are shown to admission", "control: the same pods without the webhook")

    def validate(self, parameters: Parameters) -> None:
        """Refuse a table that says nothing, or two things at once."""
        if not parameters.pods:
            raise InputError("the case has no pods", hint="name at least one below `pods:`")
        for name, row in parameters.pods.items():
            if not _NAME.fullmatch(name):
                raise InputError(
                    f"pod name {name!r} cannot be used",
                    hint="use at most 63 lower-case letters, digits and dashes",
                )
            if row.refused and row.becomes is not None:
                raise InputError(f"pod {name} is refused and becomes something", hint="leave one")
            if row.patch and row.debug:
                raise InputError(f"pod {name} is patched and debugged", hint="use two pods")
        if not any(row.webhook and _kind(row) != "untouched" for row in parameters.pods.values()):
            raise InputError(
                "no pod of the case depends on the webhook",
                why="then the control could not tell whether it works",
                hint="add one that is refused or changed",
            )

    def submissions(self, parameters: Parameters) -> Sequence[Submission]:
        """Return the pods to show."""
        return tuple(
            Submission(
                name=name,
                manifest=manifest(row),
                patch=row.patch,
                debug=(row.debug,) if row.debug else (),
                own_environment=row.own_environment,
            )
            for name, row in parameters.pods.items()
        )

    def quota(self, parameters: Parameters) -> Mapping[str, str]:
        """Return the quota of the pods' namespace."""
        return parameters.quota

    def rows(self, parameters: Parameters) -> tuple[Sequence[str], Sequence[Sequence[str]]]:
        """Return the table of pods, for people."""
        header = ("Pod", "Asks", "What becomes of it")
        return header, [(name, _asks(row), expected(row)) for name, row in parameters.pods.items()]

    def checks(
        self, parameters: Parameters, trial: Trial, control: Trial | None = None
    ) -> tuple[Check, ...]:
        """Judge what the API server made of the pods."""
        return tuple(
            judge(name, row, trial.pods.get(name), None if control is None else control.pods[name])
            for name, row in parameters.pods.items()
        )

    def control(self, parameters: Parameters, trial: Trial) -> Control:
        """Judge the same pods where no webhook is asked: what depends on it must fail."""
        found = tuple(
            judge(name, row, trial.pods.get(name), None) for name, row in parameters.pods.items()
        )
        wrong = [c.pod for c in found if c.verdict != c.control]
        reason = f"the same without the webhook: {', '.join(wrong)}" if wrong else ""
        return Control(verdict="fail" if wrong else "pass", checks=found, reason=reason)

    def chart(self, parameters: Parameters, trial: Trial, control: Trial | None) -> Chart:
        """Return an empty chart: nothing happens over time."""
        del parameters, trial, control
        return Chart(sides=())


def manifest(row: Row) -> dict[str, Any]:
    """Return a row's pod, without a name."""
    container: dict[str, Any] = {"name": "main", "image": "example.test/none:1"}
    resources = {
        part: {key: str(value) for key, value in values.items()}
        for part, values in (("limits", row.limits), ("requests", row.requests))
        if values
    }
    if resources:
        container["resources"] = resources
    if row.env:
        container["env"] = [{"name": name, "value": value} for name, value in row.env.items()]
    metadata = {
        part: dict(values)
        for part, values in (("annotations", row.annotations), ("labels", row.labels))
        if values
    }
    spec = {**row.spec, "containers": [{**container, **row.container}, *_others(row.spec)]}
    return {"metadata": metadata, "spec": spec}


def _others(spec: Mapping[str, Any]) -> list[Any]:
    return list(spec.get("containers") or ())


def judge(name: str, row: Row, pod: PodTrace | None, alone: PodTrace | None) -> Check:
    """Compare what became of a pod with what had to.

    Args:
        name: Of the row.
        row: What was shown, and what must become of it.
        pod: What became of it.
        alone: What becomes of it without the webhook, once that is known: what is to be
            untouched must be just that.
    """
    kind = _kind(row)
    refusal = "nothing is known of it" if pod is None else refusal_of(pod)
    found: Mapping[str, Any] = {} if pod is None else pod.object
    if kind == "refused":
        held = bool(refusal) and row.refused in refusal
        reason = "" if held else f"the reason does not say {row.refused!r}"
    elif refusal:
        held, reason = False, "it was refused"
    elif kind == "becomes":
        wrong = differences(row.becomes or Becomes(), found)
        held, reason = not wrong, "; ".join(wrong)
    else:
        before = (alone.object if alone is not None else None) or None
        wrong = _touched(row, found, before)
        held, reason = not wrong, wrong
    depends = row.webhook and kind != "untouched"
    return Check(
        name=kind,
        verdict="pass" if held else "fail",
        pod=name,
        asked=expected(row),
        workload=f"refused: {refusal}" if refusal else summary(found),
        source="api-server",
        reason=reason,
        control="fail" if depends else "pass",
    )


def refusal_of(pod: PodTrace) -> str:
    """Return the API server's reason, empty where it took the pod."""
    for event in pod.events:
        if event["event"] == "refused":
            return str(event["message"])
    return ""


def differences(wanted: Becomes, found: Mapping[str, Any]) -> list[str]:
    """Return what of a pod is not as it must be."""
    seen = _view(found)
    wrong = []
    for key in ("scheduler", "runtime_class"):
        value = getattr(wanted, key)
        if value is not None and seen[key] != value:
            wrong.append(f"{key} is {seen[key]!r}, not {value!r}")
    for part in ("limits", "requests", "env", "annotations", "labels"):
        for key, value in getattr(wanted, part).items():
            if seen[part].get(key) != value:
                there = seen[part].get(key)
                wrong.append(f"{part} {key} is {there!r}, not {value!r}")
    return wrong


def _view(found: Mapping[str, Any]) -> dict[str, Any]:
    spec, metadata = found.get("spec") or {}, found.get("metadata") or {}
    container = (spec.get("containers") or [{}])[0]
    resources = container.get("resources") or {}
    return {
        "scheduler": spec.get("schedulerName", ""),
        "runtime_class": spec.get("runtimeClassName", ""),
        "limits": resources.get("limits") or {},
        "requests": resources.get("requests") or {},
        "env": {item["name"]: item.get("value", "") for item in container.get("env") or ()},
        "annotations": metadata.get("annotations") or {},
        "labels": metadata.get("labels") or {},
    }


def _touched(row: Row, found: Mapping[str, Any], alone: Mapping[str, Any] | None) -> str:
    """Return in what an untouched pod is another than without the webhook."""
    if alone is not None:
        same = found.get("spec") == alone.get("spec") and _view(found) == _view(alone)
        return "" if same else f"without the webhook it is {summary(alone)}"
    seen = _view(found)
    scheduler = row.spec.get("schedulerName", "default-scheduler")
    if seen["scheduler"] != scheduler:
        return f"its scheduler is {seen['scheduler']!r}, not {scheduler!r}"
    if set(seen["limits"]) - {*row.limits, *row.requests}:
        return f"it has limits that it did not ask for: {summary(found)}"
    return "" if set(seen["env"]) == set(row.env) else "its environment is another"


def summary(found: Mapping[str, Any]) -> str:
    """Return the parts of a pod that admission changes, in a line."""
    seen = _view(found)
    parts = [f"scheduler {seen['scheduler'] or '(none)'}"]
    parts += [f"{key} {_short(seen[key])}" for key in ("limits", "env", "annotations") if seen[key]]
    return ", ".join(parts)


def expected(row: Row) -> str:
    """Return what must become of a pod, in a line."""
    if row.refused:
        return f"refused: … {row.refused} …"
    if row.becomes is None:
        return "untouched"
    wanted = msgspec.to_builtins(row.becomes)
    parts = []
    for key, value in wanted.items():
        if isinstance(value, dict) and value:
            kept = {k: v for k, v in value.items() if v is not None}
            gone = [k for k, v in value.items() if v is None]
            parts += [f"{key} {_short(kept)}"] if kept else []
            parts += [f"no {key} {', '.join(gone)}"] if gone else []
        elif value:
            parts.append(f"{key} {value}")
    return ", ".join(parts)


def _asks(row: Row) -> str:
    said = msgspec.to_builtins(row)
    shown = ("limits", "requests", "env", "container", "spec", "annotations", "labels", "patch",
             "debug")  # fmt: skip
    parts = [f"{key} {_short(said[key])}" for key in shown if said[key]]
    return ", ".join(parts) or "nothing"


def _short(value: object) -> str:
    return json.dumps(value, ensure_ascii=False).replace('"', "")


def _kind(row: Row) -> str:
    if row.refused:
        return "refused"
    return "untouched" if row.becomes is None else "becomes"


QUESTION = Admission()
