"""Service accounts and exactly the rights that the programs need."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.lab.deploy.common import (
    CERTIFICATES,
    EXTENDER,
    MONITOR,
    PLUGIN,
    SCHEDULER,
    WEBHOOK,
    Object,
    cluster_name,
    meta,
)
from testbed.lab.deploy.values import StackValues
from testbed.stack.certificates.handler import SECRETS

_RBAC = "rbac.authorization.k8s.io"
_READ = ("get", "list", "watch")

#: The extender: pods, nodes and quotas by list and watch, one Binding a pod, a patch when
#: a turn expires, evictions for pods of a higher priority, events that say why a pod waits.
_EXTENDER_RULES = (
    ("", ("pods", "nodes", "resourcequotas"), _READ),
    ("", ("pods/binding", "pods/eviction"), ("create",)),
    ("", ("pods",), ("patch",)),
    ("", ("events",), ("create", "patch")),
)
#: HAMi's lock is an annotation of the node.
_LOCK_RULES = (("", ("nodes",), ("patch",)),)
#: Plugin and monitor care for the pods of their node only. RBAC cannot say so (a field
#: selector is no part of a rule), so they may read all.
_PLUGIN_RULES = (
    ("", ("pods",), (*_READ, "patch")),
    ("", ("nodes",), ("patch",)),
)
_MONITOR_RULES = (("", ("pods",), _READ),)
#: The webhook tells quotas early: it follows them, and reads the pods of a namespace that
#: has one.
_WEBHOOK_RULES = (
    ("", ("resourcequotas",), _READ),
    ("", ("pods",), ("list",)),
)

_Rules = Sequence[tuple[str, Sequence[str], Sequence[str]]]


def rbac(values: StackValues) -> list[Object]:
    """Return accounts, roles and bindings."""
    lease = cluster_name(values, "scheduler-lease")
    return [
        _account(values, WEBHOOK),
        # Scheduler and extender share a pod, and a pod has one account: it carries both.
        _account(values, SCHEDULER),
        _account(values, PLUGIN),
        _account(values, MONITOR),
        _account(values, CERTIFICATES),
        _binding(values, "kube-scheduler", "system:kube-scheduler", SCHEDULER),
        _binding(values, "volume-scheduler", "system:volume-scheduler", SCHEDULER),
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": meta(lease, values, app=SCHEDULER),
            "rules": [
                # A create cannot be bound to a name.
                _rule("coordination.k8s.io", ["leases"], ["create"]),
                {
                    **_rule("coordination.k8s.io", ["leases"], ["get", "update"]),
                    "resourceNames": [SCHEDULER],
                },
            ],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": meta(lease, values, app=SCHEDULER),
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": lease},
            "subjects": [_subject(values, SCHEDULER)],
        },
        *_granted(
            values,
            EXTENDER,
            (*_EXTENDER_RULES, *(_LOCK_RULES if values.config.nodeLock else ())),
            SCHEDULER,
        ),
        *_granted(values, PLUGIN, _PLUGIN_RULES, PLUGIN),
        *_granted(values, MONITOR, _MONITOR_RULES, MONITOR),
        *_granted(values, WEBHOOK, _WEBHOOK_RULES, WEBHOOK),
        *_renewal(values),
    ]


def _renewal(values: StackValues) -> list[Object]:
    """Certificates are read and written by name, and the scheduler that reads them rolled."""
    name, verbs = cluster_name(values, CERTIFICATES), ["get", "patch"]
    hooks = _rule("admissionregistration.k8s.io", ["mutatingwebhookconfigurations"], verbs) | {
        "resourceNames": [cluster_name(values, WEBHOOK)]
    }
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "Role",
            "metadata": meta(name, values, app=CERTIFICATES),
            "rules": [
                {**_rule("", ["secrets"], verbs), "resourceNames": list(SECRETS)},
                {**_rule("apps", ["deployments"], verbs), "resourceNames": [SCHEDULER]},
            ],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "RoleBinding",
            "metadata": meta(name, values, app=CERTIFICATES),
            "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
            "subjects": [_subject(values, CERTIFICATES)],
        },
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": meta(name, None, app=CERTIFICATES),
            "rules": [hooks],
        },
        _binding(values, CERTIFICATES, name, CERTIFICATES),
    ]


def _account(values: StackValues, name: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": meta(name, values, app=name),
        "automountServiceAccountToken": True,
    }


def _granted(values: StackValues, part: str, rules: _Rules, account: str) -> list[Object]:
    role = cluster_name(values, part)
    return [
        {
            "apiVersion": f"{_RBAC}/v1",
            "kind": "ClusterRole",
            "metadata": meta(role, None, app=part),
            "rules": [_rule(group, resources, verbs) for group, resources, verbs in rules],
        },
        _binding(values, part, role, account),
    ]


def _rule(group: str, resources: Sequence[str], verbs: Sequence[str]) -> Object:
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


def _binding(values: StackValues, part: str, role: str, account: str) -> Object:
    return {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": meta(cluster_name(values, part), None, app=account),
        "roleRef": {"apiGroup": _RBAC, "kind": "ClusterRole", "name": role},
        "subjects": [_subject(values, account)],
    }


def _subject(values: StackValues, account: str) -> Object:
    return {"kind": "ServiceAccount", "name": account, "namespace": values.namespace}
