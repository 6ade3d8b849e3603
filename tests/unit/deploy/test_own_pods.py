"""W3: a webhook that is down holds up nobody, least of all its own pods."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.lab.deploy import StackImages, StackValues, render
from testbed.stack import names
from testbed.stack.certificates import sets as certs

VALUES = StackValues(images=StackImages(base="testbed/base:1", kube_scheduler="s:1"))
NAME_LABEL = "kubernetes.io/metadata.name"


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return render(VALUES, certs.make(VALUES.namespace))


def pod_templates(found: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    by_kind: dict[str, Any] = {}
    for each in found:
        spec = each.get("spec") or {}
        if each["kind"] == "CronJob":
            spec = spec["jobTemplate"]["spec"]
        if "template" in spec:
            by_kind[f"{each['kind']}/{each['metadata']['name']}"] = spec["template"]
    return by_kind


def selected(hook: dict[str, Any], labels: dict[str, str]) -> bool:
    """Whether a namespace's labels match a selector, as an API server would say."""
    for each in hook.get("namespaceSelector", {}).get("matchExpressions", []):
        there, value = each["key"] in labels, labels.get(each["key"])
        held = {
            "In": there and value in each.get("values", ()),
            "NotIn": value not in each.get("values", ()),
            "Exists": there,
            "DoesNotExist": not there,
        }[each["operator"]]
        if not held:
            return False
    return True


def of_pods(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The hooks that are called for a pod that is made."""
    (registration,) = [m for m in found if m["kind"] == "MutatingWebhookConfiguration"]
    return [
        hook
        for hook in registration["webhooks"]
        if any("pods" in rule["resources"] and "CREATE" in rule["operations"]
               for rule in hook["rules"])
    ]  # fmt: skip


def test_w3_own_and_system_namespaces_are_excluded(found):
    hooks = of_pods(found)
    assert hooks
    for space in (VALUES.namespace, "kube-system"):
        called = [h["name"] for h in hooks if selected(h, {NAME_LABEL: space})]
        assert called == [], f"{space} would wait for its own webhook"
    # The control: a user's namespace is not.
    assert any(selected(hook, {NAME_LABEL: "users"}) for hook in hooks)
    ignored = {NAME_LABEL: "users", names.WEBHOOK_LABEL: names.WEBHOOK_IGNORE}
    assert not any(selected(hook, ignored) for hook in hooks)


def test_w3_a_webhook_that_does_not_answer_is_passed_over_in_time(found):
    for hook in of_pods(found):
        assert hook["failurePolicy"] == "Ignore"
        assert hook["timeoutSeconds"] <= 10


def test_w3_no_pod_of_the_stack_needs_the_webhook_or_its_scheduler(found):
    """So that all of them come back when all of them are gone."""
    templates = pod_templates(found)
    assert {name.partition("/")[0] for name in templates} >= {"Deployment", "DaemonSet"}
    for name, template in templates.items():
        spec = template["spec"]
        assert spec.get("schedulerName") in (None, "default-scheduler"), name
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            limits = (container.get("resources") or {}).get("limits") or {}
            assert not any(key.startswith("nvidia.com/") for key in limits), name
