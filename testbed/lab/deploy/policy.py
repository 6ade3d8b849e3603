"""The API server's own rules, for the times when no webhook answers.

ValidatingAdmissionPolicies: expressions that the API server evaluates itself, on what
all webhooks have made of an object. They refuse what the webhook would have taken away
or refused, so a pod that passes here unseen by the webhook holds no forged promise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from testbed.lab.deploy.common import PLUGIN, SCHEDULER, WEBHOOK, Object, cluster_name, meta
from testbed.lab.deploy.values import StackValues
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.devices.vendor import resource_names, stack_keys, stack_node_keys, vendors

_API = "admissionregistration.k8s.io/v1"
_PARTS = ("annotations", "labels")


def writers(values: StackValues) -> tuple[str, ...]:
    """Return the user names that may write the stack's own annotations and labels."""
    accounts = (SCHEDULER, PLUGIN)
    own = (f"system:serviceaccount:{values.namespace}:{account}" for account in accounts)
    return (*own, *values.config.trustedWriters)


def policies(values: StackValues) -> list[Object]:
    """Return the policies and their bindings."""
    config = values.config
    return [
        *_policy(
            values,
            "own-keys",
            rules=pod_rules(),
            conditions=[stranger(values)],
            validations=[_own_keys(stack_keys(config))],
        ),
        *_policy(
            values,
            "own-node-keys",
            rules=node_rules(),
            conditions=[stranger(values)],
            validations=[_own_keys(stack_node_keys(config))],
        ),
        *_policy(
            values,
            "shares",
            rules=[
                rule(["CREATE"], ["pods"]),
                rule(["UPDATE"], ["pods/ephemeralcontainers"]),
            ],
            conditions=[
                {"name": "ours", "expression": _ours(config)},
                {"name": "asks", "expression": asks(config)},
            ],
            validations=[
                _not_privileged(),
                _no_node(),
                _covers_nothing(),
                _own_environment(config),
            ],
        ),
    ]


# --- what the webhook's registration needs as well --------------------------------------


def rule(operations: Sequence[str], resources: Sequence[str], scope: str = "Namespaced") -> Object:
    """Return a rule on objects of the core group."""
    return {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": list(resources),
        "scope": scope,
    }


def pod_rules(*, created: bool = True) -> list[Object]:
    """Return the ways in which a pod's metadata can change."""
    create = [rule(["CREATE"], ["pods"])] if created else []
    return [
        *create,
        rule(
            ["UPDATE"],
            ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"],
        ),
        # A Binding's metadata is merged into the pod.
        rule(["CREATE"], ["pods/binding", "bindings"]),
    ]


def node_rules() -> list[Object]:
    """Return the ways in which a node's metadata can change."""
    return [rule(["CREATE", "UPDATE"], ["nodes", "nodes/status"], "Cluster")]


def stranger(values: StackValues) -> Object:
    """Return the condition that a request does not come from the stack."""
    allowed = _list(writers(values))
    return {"name": "stranger", "expression": f"!(request.userInfo.username in {allowed})"}


def asks(config: DeviceConfig) -> str:
    """Return the expression that a pod names one of our resources."""
    wanted = _list(resource_names(config))
    parts = " || ".join(f"r in c.?resources.?{p}.orValue({{}})" for p in ("limits", "requests"))
    return f"({_containers(ephemeral=False)}).exists(c, {wanted}.exists(r, {parts}))"


def changes(keys: Sequence[str]) -> str:
    """Return the expression that one of the keys is another than it was."""
    return f"{_list(keys)}.exists(k, {_changed()})"


# --- below --------------------------------------------------------------------------------


def _policy(
    values: StackValues,
    part: str,
    *,
    rules: list[Object],
    conditions: list[Object],
    validations: list[Object],
) -> list[Object]:
    name = cluster_name(values, part)
    return [
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicy",
            "metadata": meta(name, None, app=WEBHOOK),
            "spec": {
                "failurePolicy": "Fail",
                "matchConstraints": {"matchPolicy": "Equivalent", "resourceRules": rules},
                "matchConditions": conditions,
                "validations": validations,
            },
        },
        {
            "apiVersion": _API,
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": meta(name, None, app=WEBHOOK),
            "spec": {"policyName": name, "validationActions": ["Deny"]},
        },
    ]


def _own_keys(keys: Sequence[str]) -> Object:
    listed = _list(keys)
    return {
        "expression": f"!({changes(keys)})",
        "messageExpression": f"{listed}.filter(k, {_changed()})[0] + "
        "' is written by the stack alone: cards are handed out by it'",
        "reason": "Forbidden",
    }


def _changed() -> str:
    """Return whether the annotation or label ``k`` is another than it was."""
    return " || ".join(
        f"object.?metadata.?{part}[?k] != "
        f"(oldObject == null ? optional.none() : oldObject.?metadata.?{part}[?k])"
        for part in _PARTS
    )


def _ours(config: DeviceConfig) -> str:
    return f"object.spec.?schedulerName.orValue('') == {_text(config.schedulerName)}"


def _not_privileged() -> Object:
    privileged = "c.?securityContext.?privileged.orValue(false)"
    every = _containers(ephemeral=True)
    return {
        "expression": f"!({every}).exists(c, {privileged})",
        "messageExpression": f"'container ' + ({every}).filter(c, {privileged})[0].name + ' is"
        " privileged: it would see every card of the node, so no container of its pod may ask"
        " for a share of one'",
        "reason": "Forbidden",
    }


def _no_node() -> Object:
    return {
        "expression": "request.operation != 'CREATE' || object.spec.?nodeName.orValue('') == ''",
        "message": "the pod is already assigned to a node: a share of a card is handed out by the"
        " scheduler; use spec.nodeSelector",
        "reason": "Forbidden",
    }


def _covers_nothing() -> Object:
    """Paths are compared as they stand here; the webhook also sees through their variants."""
    root, preload = _text(names.CONTAINER_ROOT), _text(names.CONTAINER_PRELOAD)
    path = "m.?mountPath.orValue('')"
    covering = f"{path} == {preload} || {path} == {root} || {path}.startsWith({root} + '/')"
    return {
        "expression": f"!({_containers(ephemeral=False)}).exists(c, "
        f"c.?volumeMounts.orValue([]).exists(m, {covering}))",
        "message": f"a volume would cover {names.CONTAINER_ROOT} or {names.CONTAINER_PRELOAD},"
        " which keeps the container to its share of a card",
        "reason": "Forbidden",
    }


def _own_environment(config: DeviceConfig) -> Object:
    """A container with a share does not tell the library its limits itself."""
    taken = sorted({*names.ENV_LIBRARY} - {names.ENV_CORE_POLICY})
    set_by_us = {names.ENV_PRIORITY} & set(taken)
    listed = _list([name for name in taken if name not in set_by_us])
    numbered = " || ".join(f"e.name.startsWith({_text(name + '_')})" for name in names.ENV_LIMITS)
    lifted = (
        f"(e.name == {_text(names.ENV_CORE_POLICY)} && "
        "!(e.?value.orValue('').lowerAscii() in "
        f"{_list(('default', 'force', config.gpuCorePolicy))}))"
    )
    # Admission itself hides the cards from what `envFrom` brings, which nobody sees here.
    visible, hidden = f"e.name == {_text(names.ENV_VISIBLE)}", _text(names.VISIBLE_VOID)
    void = f"{visible} && e.?value.orValue('') == {hidden}"
    shown = f"({visible} && e.?value.orValue('') != {hidden})"
    unseen = (
        "request.operation == 'CREATE' && size(c.?envFrom.orValue([])) > 0 && "
        f"!c.?env.orValue([]).exists(e, {void})"
    )
    counts = _list([vendor.count for vendor in vendors(config) if vendor.library])
    label = f"namespaceObject.metadata.?labels[?{_text(names.OWN_ENVIRONMENT_LABEL)}]"
    return {
        "expression": f"{label}.orValue('') == {_text(names.OWN_ENVIRONMENT_ALLOWED)} || "
        f"!({_containers(ephemeral=False)}).exists(c, "
        f"{counts}.exists(r, r in c.?resources.?limits.orValue({{}})) && "
        f"(({unseen}) || "
        f"c.?env.orValue([]).exists(e, e.name in {listed} || {numbered} || {lifted} || {shown})))",
        "message": "a container with a share of a card sets a variable of the library that keeps"
        " it to its share, or may do so by envFrom; an administrator allows that by the label"
        f" {names.OWN_ENVIRONMENT_LABEL}={names.OWN_ENVIRONMENT_ALLOWED} on the namespace",
        "reason": "Forbidden",
    }


def _containers(*, ephemeral: bool) -> str:
    kinds = ["initContainers", "containers", *(["ephemeralContainers"] if ephemeral else [])]
    return " + ".join(f"object.spec.?{kind}.orValue([])" for kind in kinds)


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(_text(word) for word in words) + "]"


def _text(word: str) -> str:
    """Return a CEL string."""
    return json.dumps(word)
