"""The question about admission: what it shows, how it judges, what its control must show."""

from __future__ import annotations

import base64
import copy
import json
from dataclasses import replace

import pytest

from testbed.errors import InputError
from testbed.lab.kube import ApiError
from testbed.lab.scenario.cases import checked_parameters, load_parameters, load_question
from testbed.lab.scenario.submission import GATE, submit
from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.placement.quota import Amount
from testbed.stack.webhook.handler import Context, review

from .conftest import ROOT

FOLDER = ROOT / "scenarios" / "admission"
GUARDED = {"kind": "AdmissionReview"}


@pytest.fixture(scope="module")
def question():
    return load_question(FOLDER)


@pytest.fixture(scope="module")
def table(question):
    return checked_parameters(question, load_parameters(FOLDER / "table.yaml"))


class Step:
    def update(self, text):
        assert text


class Server:
    """An API server with the stack's webhook, and with its policies alone where it is left
    out; ``broken`` is a rule of the webhook that does not work."""

    def __init__(self, broken=""):
        self.broken = broken
        self.spaces = {}
        self.pods = {}
        self.quotas = set()
        self.real = []

    def create(self, manifest, *, dry_run=False):
        kind, metadata = manifest["kind"], manifest["metadata"]
        if kind == "Namespace":
            self.spaces[metadata["name"]] = metadata["labels"]
            return manifest
        if kind == "ResourceQuota":
            self.quotas.add(metadata["namespace"])
            return manifest
        pod = copy.deepcopy(manifest)
        pod["spec"].setdefault("schedulerName", "default-scheduler")
        pod = self._admit(pod, "CREATE", None)
        if not dry_run:
            assert GATE in pod["spec"]["schedulingGates"], "it would be scheduled"
            self.real.append(metadata["name"])
            self.pods[metadata["name"]] = pod
        return pod

    def patch(self, _version, _kind, name, body, _namespace, *, strategy="merge", subresource=""):
        before = self.pods[name]
        after = copy.deepcopy(before)
        if subresource:
            after["spec"]["ephemeralContainers"] = body["spec"]["ephemeralContainers"]
        else:
            after["metadata"].setdefault("annotations", {}).update(body["metadata"]["annotations"])
        return self._admit(after, "UPDATE", before, subresource)

    def delete(self, _version, kind, name, namespace=None, *, grace_s=None):
        if kind == "Pod":
            assert grace_s == 0
            self.pods.pop(name, None)
        else:
            del self.spaces[name]

    def _admit(self, pod, operation, before, part=""):
        labels = self.spaces[pod["metadata"]["namespace"]]
        asked = labels.get(names.WEBHOOK_LABEL) != names.WEBHOOK_IGNORE
        ours = pod["spec"]["schedulerName"] == names.SCHEDULER_NAME
        text = json.dumps(pod)
        if not asked:
            # The API server's own: the policies, and what it knows of such resources.
            forged = any(key in text for key in names.STACK_ANNOTATIONS)
            if forged and operation == "UPDATE":
                raise refusal(f"{names.POD_BIND_PHASE} is written by the stack alone")
            if forged or "1500m" in text or ("requests" in text and "limits" not in text):
                raise refusal("not by a word of the webhook's")
            if ours and '"privileged": true' in text:
                raise refusal("container main is privileged")
            return stored(pod)
        context = Context(
            config=DeviceConfig(),
            own_environment=labels.get(names.OWN_ENVIRONMENT_LABEL) == "allowed",
            room=Amount(mem_mib=50_000, core_pct=150),
        )
        request = {"uid": "u", "operation": operation, "object": pod, "oldObject": before}
        response = review(GUARDED | {"request": request | {"subResource": part}}, context)[
            "response"
        ]
        if not response["allowed"]:
            if self.broken and self.broken in response["status"]["message"]:
                return pod
            raise refusal(response["status"]["message"])
        return self._patched(pod, response)

    def _patched(self, pod, response):
        pod = copy.deepcopy(pod)
        for operation in json.loads(base64.b64decode(response.get("patch", b"W10="))):
            if self.broken and self.broken in operation["path"]:
                continue
            *parents, last = [p.replace("~1", "/") for p in operation["path"].split("/")[1:]]
            where = pod
            for part in parents:
                where = where[int(part)] if isinstance(where, list) else where[part]
            if operation["op"] == "remove":
                del where[int(last) if isinstance(where, list) else last]
            elif isinstance(where, list):
                where[int(last)] = operation["value"]
            else:
                where[last] = operation["value"]
        return stored(pod)


def stored(pod):
    """Quantities as the API server writes them."""
    limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
    for key, value in limits.items():
        limits[key] = {"3000": "3k", "2.5k": "2500"}.get(value, value)
    return pod


def refusal(message):
    return ApiError("pod cannot be created", status=403, reason="Forbidden", message=message)


def shown(question, parameters, server, *, asked=True):
    trial = submit(
        server,
        question.submissions(parameters),
        quota=question.quota(parameters),
        asked=asked,
        step=Step(),
    )
    assert not server.spaces and not server.pods, "everything is taken away again"
    return trial


def verdicts(checks):
    return {check.pod: check.verdict for check in checks}


def test_the_table_holds_and_fails_without_the_webhook(question, table):
    server = Server()
    trial = shown(question, table, server)
    alone = shown(question, table, server, asked=False)
    assert set(verdicts(question.checks(table, trial)).values()) == {"pass"}
    assert set(verdicts(question.checks(table, trial, alone)).values()) == {"pass"}
    control = question.control(table, alone)
    assert control.verdict == "pass", control.reason
    depends = {name for name, row in table.pods.items() if row.webhook and
               (row.refused or row.becomes is not None)}  # fmt: skip
    failed = {pod for pod, verdict in verdicts(control.checks).items() if verdict == "fail"}
    assert failed == depends and len(depends) > 15


def test_pods_that_are_changed_exist_and_never_run(question, table):
    server = Server()
    shown(question, table, server)
    changed = {name for name, row in table.pods.items() if row.patch or row.debug}
    assert set(server.real) == changed


@pytest.mark.parametrize(
    ("broken", "pods"),
    [
        ("/spec/schedulerName", {"memory-alone", "whole-card", "init-container"}),
        ("is privileged", {"privileged", "privileged-later", "privileged-ours"}),
        ("exceeding resource quota", {"over-quota"}),
        ("/env", {"control-off", "priority"}),
        ("vgpu-devices-to-allocate", {"forged"}),
        ("stack alone", {"forged-later"}),
    ],
)
def test_a_rule_that_does_not_work_is_seen(question, table, broken, pods):
    server = Server(broken)
    if broken.startswith("exceeding"):
        table = replaced(table, quota={})  # nobody would ever refuse the probe
    trial = shown(question, table, server)
    found = verdicts(question.checks(table, trial))
    assert {pod for pod, verdict in found.items() if verdict == "fail"} >= pods


def replaced(parameters, **fields):
    import msgspec

    return msgspec.structs.replace(parameters, **fields)


def test_a_webhook_that_touches_what_is_not_its_own_is_seen(question, table):
    server = Server()
    trial, alone = shown(question, table, server), shown(question, table, server, asked=False)
    pods = dict(trial.pods)
    meddled = copy.deepcopy(dict(pods["nothing"].object))
    meddled["spec"]["priorityClassName"] = "other"
    pods["nothing"] = replace(pods["nothing"], object=meddled)
    meddled_trial = replace(trial, pods=pods)
    assert verdicts(question.checks(table, meddled_trial, alone))["nothing"] == "fail"


def test_a_control_in_which_the_webhook_is_asked_proves_nothing(question, table):
    control = question.control(table, shown(question, table, Server()))
    assert control.verdict == "fail" and "memory-alone" in control.reason


def test_a_pod_of_which_nothing_is_known_fails(question, table):
    trial = replace(shown(question, table, Server()), pods={})
    assert set(verdicts(question.checks(table, trial)).values()) == {"fail"}


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"pods": {}}, "no pods"),
        ({"pods": {"A": {}}}, "cannot be used"),
        ({"pods": {"a": {"refused": "x", "becomes": {}}}}, "refused and becomes"),
        ({"pods": {"a": {"patch": {"x": 1}, "debug": {"x": 1}}}}, "patched and debugged"),
        ({"pods": {"a": {"limits": {"cpu": 1}}}}, "depends on the webhook"),
        ({"pods": {"a": {"limit": {}}}}, "do not fit"),
        ({"pods": {"a": {"becomes": {"schedular": "x"}}}}, "do not fit"),
    ],
)
def test_an_impossible_table_is_refused_before_anything_runs(question, values, words):
    with pytest.raises(InputError, match=words):
        checked_parameters(question, values)
