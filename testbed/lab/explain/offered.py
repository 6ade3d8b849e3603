"""Which nodes the scheduler offers for a pod at all, as far as node and pod alone tell."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testbed import units
from testbed.errors import InputError
from testbed.lab.explain.model import Raw


def excluded(pod: Raw, node: Raw, ignored: Iterable[str] = ()) -> str:
    """Return why kube-scheduler does not offer a node for a pod, or nothing.

    Looks at cordons, taints, selectors, required affinity, and at resources that the node
    has too little of even when it is empty; room for CPU and memory beside others is in
    the scheduler's own words.

    Args:
        pod: The pod, raw.
        node: The node, raw.
        ignored: Resources that the scheduler leaves to the extender.
    """
    spec, tolerations = pod.get("spec") or {}, (pod.get("spec") or {}).get("tolerations") or []
    labels = node["metadata"].get("labels") or {}
    for taint in _taints(node):
        if taint.get("effect") == "PreferNoSchedule":
            continue
        if not any(_tolerates(each, taint) for each in tolerations):
            if taint["key"] == "node.kubernetes.io/unschedulable":
                return "the node is cordoned"
            value = f"={taint['value']}" if taint.get("value") else ""
            return f"taint {taint['key']}{value}:{taint.get('effect')} is not tolerated"
    for key, value in (spec.get("nodeSelector") or {}).items():
        if labels.get(key) != value:
            return f"nodeSelector {key}={value} does not match"
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required:
        terms = required.get("nodeSelectorTerms") or []
        if not any(_term(term, labels, node["metadata"]["name"]) for term in terms):
            return "required node affinity does not match"
    return _short(pod, node, frozenset(ignored))


def _short(pod: Raw, node: Raw, ignored: frozenset[str]) -> str:
    """Return which resource one container alone asks more of than the node has."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    spec = pod.get("spec") or {}
    for member in [*(spec.get("containers") or []), *(spec.get("initContainers") or [])]:
        resources = member.get("resources") or {}
        asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
        for name, amount in asked.items():
            # Without a domain it is Kubernetes' own; a node that tells none of it has not yet.
            if name in ignored or ("/" not in name and name not in allocatable):
                continue
            if name not in allocatable:
                near = difflib.get_close_matches(name, sorted(ignored), n=1, cutoff=0.8)
                return f"it has no {name}" + (f" (did you mean {near[0]}?)" if near else "")
            try:
                wanted, there = units.quantity(amount), units.quantity(allocatable[name])
            except InputError:
                continue
            if wanted > there:
                return f"it has {allocatable[name]} {name} and {amount} are asked"
    return ""


def _taints(node: Raw) -> Sequence[Raw]:
    spec = node.get("spec") or {}
    taints = list(spec.get("taints") or [])
    if spec.get("unschedulable") and not any(
        taint["key"] == "node.kubernetes.io/unschedulable" for taint in taints
    ):
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    return taints


def _tolerates(toleration: Raw, taint: Raw) -> bool:
    if toleration.get("effect") and toleration["effect"] != taint.get("effect"):
        return False
    if toleration.get("operator") == "Exists":
        return not toleration.get("key") or toleration["key"] == taint["key"]
    same: bool = toleration.get("key") == taint["key"] and (toleration.get("value") or "") == (
        taint.get("value") or ""
    )
    return same


def _term(term: Raw, labels: Mapping[str, str], name: str) -> bool:
    """Whether all expressions of one term hold; a term without any matches nothing."""
    expressions = term.get("matchExpressions") or []
    fields = term.get("matchFields") or []
    if not expressions and not fields:
        return False
    return all(_holds(each, labels.get(each["key"])) for each in expressions) and all(
        _holds(each, name if each["key"] == "metadata.name" else None) for each in fields
    )


def _holds(expression: Mapping[str, Any], value: str | None) -> bool:
    values = expression.get("values") or []
    match expression.get("operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            try:
                left, right = int(value or ""), int(values[0])
            except (ValueError, IndexError):
                return False
            return left > right if operator == "Gt" else left < right
    return False
