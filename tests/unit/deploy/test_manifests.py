"""The rendered manifests: one golden file, and the rules that they must keep.

After a wanted change: ``VGPU_TESTBED_UPDATE_GOLDENS=1 pytest tests/unit/deploy`` and read
the difference.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from testbed.errors import InputError
from testbed.lab.deploy import StackImages, StackValues, render, render_text
from testbed.lab.deploy.values import config_text
from testbed.stack import config, names
from testbed.stack.certificates.sets import Certificates, Leaf
from testbed.stack.config import DeviceConfig
from testbed.stack.extender.binder import TURN_WAIT_S

GOLDEN = Path(__file__).parents[2] / "data" / "manifests" / "emulated.yaml"
IMAGES = StackImages(base="testbed/base:0123", kube_scheduler="testbed/kube-scheduler:4567")
VALUES = StackValues(images=IMAGES)
CERTIFICATES = Certificates(
    ca="CA\n",
    webhook=Leaf(cert="WEBHOOK\n", key="WEBHOOK KEY\n"),
    extender=Leaf(cert="EXTENDER\n", key="EXTENDER KEY\n"),
    scheduler=Leaf(cert="SCHEDULER\n", key="SCHEDULER KEY\n"),
)
Object = dict[str, Any]


def one(manifests: list[Object], kind: str, name: str) -> Object:
    (found,) = (m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name)
    return found


def templates(manifests: list[Object]) -> Iterator[tuple[str, Object]]:
    for manifest in manifests:
        if manifest["kind"] in ("Deployment", "DaemonSet"):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]


def annotations(values: StackValues, certificates: Certificates = CERTIFICATES) -> Object:
    return {
        name: template["metadata"].get("annotations", {})
        for name, template in templates(render(values, certificates))
    }


def test_golden() -> None:
    text = render_text(VALUES, CERTIFICATES)
    if os.environ.get("VGPU_TESTBED_UPDATE_GOLDENS"):
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_text_is_what_is_applied() -> None:
    documents = list(yaml.safe_load_all(render_text(VALUES, CERTIFICATES)))
    assert documents == render(VALUES, CERTIFICATES)


def test_no_part_is_shared() -> None:
    """Else a plain dump of the manifests has anchors, and a change in one place shows twice."""
    assert "&id" not in yaml.safe_dump_all(render(VALUES, CERTIFICATES))


def test_text_without_certificates_makes_fresh_ones() -> None:
    first, second = render_text(VALUES), render_text(VALUES)
    assert first != second and "CERTIFICATE" not in first  # in base64 only


def test_order_namespace_first_registration_last() -> None:
    kinds = [m["kind"] for m in render(VALUES, CERTIFICATES)]
    assert (kinds[0], kinds[-1]) == ("Namespace", "MutatingWebhookConfiguration")
    # A pod must find its account, its configuration and its secrets.
    last = max(i for i, k in enumerate(kinds) if k in ("ServiceAccount", "ConfigMap", "Secret"))
    assert kinds.index("DaemonSet") > last


def test_every_object_carries_the_selector_and_the_namespace() -> None:
    for manifest in render(replace(VALUES, namespace="elsewhere"), CERTIFICATES):
        meta = manifest["metadata"]
        assert meta["labels"]["app.kubernetes.io/part-of"] == "vgpu-testbed", manifest
        assert meta.get("namespace", "elsewhere") == "elsewhere"
        if "namespace" not in meta and manifest["kind"] != "Namespace":
            # Names of the cluster are the namespace's: undeploy finds them by it.
            assert meta["name"].startswith("elsewhere-")
        for subject in manifest.get("subjects", []):
            assert subject["namespace"] == "elsewhere"
    text = render_text(replace(VALUES, namespace="elsewhere"), CERTIFICATES)
    assert "resourceNamespace: elsewhere" in text  # of the scheduler's lease
    assert "namespace: vgpu-testbed" not in text and "- vgpu-testbed\n" not in text


def test_webhook_leaves_the_stack_and_the_system_alone() -> None:
    manifest = one(
        render(VALUES, CERTIFICATES), "MutatingWebhookConfiguration", "vgpu-testbed-webhook"
    )
    hooks = {hook["name"].removesuffix(".vgpu-testbed.dev"): hook for hook in manifest["webhooks"]}
    assert list(hooks) == [
        "pods", "pods-own-environment", "ephemeral", "own-keys", "own-node-keys",
    ]  # fmt: skip
    for name, hook in hooks.items():
        assert hook["failurePolicy"] == "Ignore"
        assert hook["sideEffects"] == "None"  # else a dry run never reaches it
        assert hook["timeoutSeconds"] == 10
        assert "objectSelector" not in hook  # its user could keep forged annotations by a label
        assert hook["matchConditions"]  # nobody else's objects wait for it
        assert base64.b64decode(hook["clientConfig"]["caBundle"]) == b"CA\n"
        excluded = {
            e["key"]: (e["operator"], e["values"])
            for e in hook.get("namespaceSelector", {}).get("matchExpressions", [])
        }
        label = excluded.pop("vgpu-testbed.dev/own-environment", None)
        assert label == {
            "pods": ("NotIn", ["allowed"]),
            "pods-own-environment": ("In", ["allowed"]),
        }.get(name)
        if name not in ("own-keys", "own-node-keys"):  # forgeries are refused everywhere
            assert excluded == {
                "hami.io/webhook": ("NotIn", ["ignore"]),
                "kubernetes.io/metadata.name": ("NotIn", ["kube-system", "vgpu-testbed"]),
            }


def test_every_pod_is_shown_only_where_cards_are_to_be_hidden() -> None:
    values = replace(VALUES, config=DeviceConfig(overwriteEnv=True))
    manifest = one(
        render(values, CERTIFICATES), "MutatingWebhookConfiguration", "vgpu-testbed-webhook"
    )
    assert [bool(hook.get("matchConditions")) for hook in manifest["webhooks"]] == [
        False, False, True, True, True,
    ]  # fmt: skip


def test_policies_hold_without_the_webhook() -> None:
    manifests = render(VALUES, CERTIFICATES)
    bound = [m for m in manifests if m["kind"] == "ValidatingAdmissionPolicyBinding"]
    made = [m for m in manifests if m["kind"] == "ValidatingAdmissionPolicy"]
    assert [m["spec"]["policyName"] for m in bound] == [m["metadata"]["name"] for m in made]
    assert all(m["spec"]["validationActions"] == ["Deny"] for m in bound)
    assert all(m["spec"]["failurePolicy"] == "Fail" for m in made)
    keys, nodes, _ = made
    texts = [m["spec"]["validations"][0]["expression"] for m in (keys, nodes)]
    assert all(key in texts[0] for key in names.STACK_ANNOTATIONS)
    assert all(key in texts[1] for key in names.STACK_NODE_ANNOTATIONS)
    for found in (keys, nodes):
        (condition,) = found["spec"]["matchConditions"]
        for account in ("vgpu-scheduler", "vgpu-plugin"):
            assert f"system:serviceaccount:vgpu-testbed:{account}" in condition["expression"]


def test_webhook_survives_a_disruption() -> None:
    manifests = render(VALUES, CERTIFICATES)
    spec = one(manifests, "Deployment", "vgpu-webhook")["spec"]
    budget = one(manifests, "PodDisruptionBudget", "vgpu-webhook")["spec"]
    assert spec["replicas"] - budget["maxUnavailable"] >= 1
    assert spec["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    assert budget["selector"] == spec["selector"]


def rights(manifests: list[Object]) -> dict[str, set[tuple[str, str]]]:
    """Return (resource, verb) of every account, without the bootstrap roles' own."""
    roles = {(m["kind"], m["metadata"]["name"]): m for m in manifests if m["kind"].endswith("Role")}
    found: dict[str, set[tuple[str, str]]] = {}
    for binding in manifests:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        ref = binding["roleRef"]
        for subject in binding["subjects"]:
            held = found.setdefault(subject["name"], set())
            if ref["name"].startswith("system:"):
                held.add(("role", ref["name"]))
                continue
            for rule in roles[(ref["kind"], ref["name"])]["rules"]:
                names_ = rule.get("resourceNames", [""])
                held |= {
                    (f"{r}/{n}" if n else r, v)
                    for r in rule["resources"]
                    for v in rule["verbs"]
                    for n in names_
                }
    return found


def test_rights_are_exactly_these() -> None:
    read = ("get", "list", "watch")
    assert rights(render(VALUES, CERTIFICATES)) == {
        # kube-scheduler and extender in one pod, so one account.
        "vgpu-scheduler": {
            ("role", "system:kube-scheduler"),
            ("role", "system:volume-scheduler"),
            ("leases", "create"),
            ("leases/vgpu-scheduler", "get"),
            ("leases/vgpu-scheduler", "update"),
            *(("pods", verb) for verb in (*read, "patch")),
            *(("nodes", verb) for verb in read),
            *(("resourcequotas", verb) for verb in read),
            ("pods/binding", "create"),
            ("pods/eviction", "create"),
            ("events", "create"),
            ("events", "patch"),
        },
        "vgpu-plugin": {*(("pods", verb) for verb in (*read, "patch")), ("nodes", "patch")},
        "vgpu-monitor": {("pods", verb) for verb in read},
        # Quotas are told early: what a namespace may have, and what its pods were promised.
        "vgpu-webhook": {*(("resourcequotas", verb) for verb in read), ("pods", "list")},
        # Certificates by name, and what rolls their readers.
        "vgpu-certificates": {
            (f"{what}/{name}", verb)
            for what, name in (
                ("secrets", "vgpu-webhook-tls"),
                ("secrets", "vgpu-extender-tls"),
                ("secrets", "vgpu-scheduler-client"),
                ("deployments", "vgpu-scheduler"),
                ("mutatingwebhookconfigurations", "vgpu-testbed-webhook"),
            )
            for verb in ("get", "patch")
        },
    }


def test_no_pod_is_privileged_or_asks_for_an_id_on_emulated_cards() -> None:
    """A cluster in a user namespace may have a single id: runAsUser would never start."""
    for name, template in templates(render(VALUES, CERTIFICATES)):
        spec = template["spec"]
        assert "securityContext" not in spec and "runtimeClassName" not in spec
        for container in spec["containers"]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False, name
            assert not {"privileged", "runAsUser", "runAsNonRoot"} & security.keys()


def test_host_paths_are_exactly_the_designs() -> None:
    values = replace(VALUES, driver_root="/opt/driver", hook_path="/srv/vgpu")
    paths = {
        name: {v["hostPath"]["path"] for v in t["spec"]["volumes"] if "hostPath" in v}
        for name, t in templates(render(values, CERTIFICATES))
    }
    assert paths == {
        "vgpu-scheduler": set(),
        "vgpu-webhook": set(),
        "vgpu-monitor": {"/opt/driver", "/srv/vgpu"},
        "vgpu-plugin": {
            "/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/pod-resources",
            "/var/run/cdi",
            "/opt/driver",
            "/srv/vgpu",
        },
    }
    for name in ("vgpu-plugin", "vgpu-monitor"):
        spec = one(render(values, CERTIFICATES), "DaemonSet", name)["spec"]["template"]["spec"]
        command = spec["containers"][0]["command"]
        assert {"--driver-root=/opt/driver", "--hook-path=/srv/vgpu"} <= set(command)
        mounts = {m["name"]: m["mountPath"] for m in spec["containers"][0]["volumeMounts"]}
        for volume in spec["volumes"]:
            if "hostPath" in volume:  # one spelling of every path
                assert mounts[volume["name"]] == volume["hostPath"]["path"]


def test_hardware_access() -> None:
    for access in ("privileged", "runtime-class"):
        values = replace(VALUES, gpu_access=access, driver_root="/")
        for name, template in templates(render(values, CERTIFICATES)):
            spec = template["spec"]
            security = spec["containers"][0]["securityContext"]
            node = name in ("vgpu-plugin", "vgpu-monitor")
            assert security.get("privileged", False) is (node and access == "privileged")
            assert spec.get("runtimeClassName") == (
                "nvidia" if node and access == "runtime-class" else None
            )
            if node:
                (driver,) = (
                    m for m in spec["containers"][0]["volumeMounts"] if m["name"] == "driver"
                )
                assert driver["mountPath"] == "/host" and driver["readOnly"] is True


def test_scheduler_configuration() -> None:
    values = replace(VALUES, config=DeviceConfig(schedulerName="mine", resourceCountName="x.y/n"))
    manifest = one(render(values, CERTIFICATES), "ConfigMap", "vgpu-scheduler-config")
    found = yaml.safe_load(manifest["data"]["config.yaml"])
    assert found["profiles"] == [{"schedulerName": "mine"}]
    assert found["percentageOfNodesToScore"] == 100
    # kube-scheduler's own bounds, 50 and 100, would hold up a hundred pods a second.
    assert found["clientConnection"] == {"qps": 2000, "burst": 4000}
    (extender,) = found["extenders"]
    assert extender["urlPrefix"] == "https://127.0.0.1:9443"
    assert (extender["filterVerb"], extender["bindVerb"]) == ("filter", "bind")
    assert extender["nodeCacheCapable"] is True and extender["ignorable"] is False
    assert extender["tlsConfig"]["caFile"] == "/certificates/ca.crt"
    # A bind that waits for its turn must answer before the scheduler gives up on it.
    assert TURN_WAIT_S <= 20 < int(extender["httpTimeout"].removesuffix("s")) == 30
    assert {r["name"]: r["ignoredByScheduler"] for r in extender["managedResources"]} == {
        "x.y/n": True,
        "nvidia.com/gpumem": True,
        "nvidia.com/gpumem-percentage": True,
        "nvidia.com/gpucores": True,
        "nvidia.com/priority": True,
    }


def test_extender_takes_only_the_schedulers_certificate() -> None:
    spec = one(render(VALUES, CERTIFICATES), "Deployment", "vgpu-scheduler")["spec"]
    extender, scheduler = spec["template"]["spec"]["containers"]
    assert "--client-name=vgpu-scheduler" in extender["command"]
    assert "--client-ca=/certificates/ca.crt" in extender["command"]
    mounted = [{m["name"] for m in c["volumeMounts"]} for c in (extender, scheduler)]
    assert mounted == [
        {"config", "extender-certificates"},
        {"scheduler", "scheduler-certificates"},
    ]
    assert spec["strategy"] == {"type": "Recreate"} and spec["replicas"] == 1


def test_node_selector() -> None:
    values = replace(VALUES, node_selector={"gpu": "on"})
    found = {
        name: t["spec"].get("nodeSelector") for name, t in templates(render(values, CERTIFICATES))
    }
    assert found["vgpu-plugin"] == found["vgpu-monitor"] == {"gpu": "on"}
    assert found["vgpu-webhook"] is None


# --- what rolls pods -------------------------------------------------------------
def changed(values: StackValues, certificates: Certificates = CERTIFICATES) -> set[str]:
    before, after = annotations(VALUES), annotations(values, certificates)
    return {name for name in before if before[name] != after[name]}


def with_config(**fields: object) -> StackValues:
    return replace(VALUES, config=msgspec.structs.replace(VALUES.config, **fields))


def test_enforcement_and_generation_roll_nothing() -> None:
    assert changed(with_config(enforcement="off", generation=7)) == set()


def test_configuration_rolls_its_readers() -> None:
    assert changed(with_config(deviceSplitCount=4)) == {
        "vgpu-plugin",
        "vgpu-scheduler",
        "vgpu-webhook",
    }


def test_certificates_are_looked_at_every_day() -> None:
    spec = one(render(VALUES, CERTIFICATES), "CronJob", "vgpu-certificates")["spec"]
    minute, hour, *rest = spec["schedule"].split()
    assert minute.isdigit() and hour.isdigit() and rest == ["*", "*", "*"]
    assert spec["concurrencyPolicy"] == "Forbid"
    pod = spec["jobTemplate"]["spec"]["template"]
    assert pod["spec"]["serviceAccountName"] == "vgpu-certificates"
    # A pod that failed there is no part of the stack that does not start.
    assert "app.kubernetes.io/part-of" not in pod["metadata"]["labels"]
    (container,) = pod["spec"]["containers"]
    assert container["command"][1:] == [
        "-m",
        "testbed.stack.certificates",
        "--namespace=vgpu-testbed",
        "--registration=vgpu-testbed-webhook",
        "--scheduler=vgpu-scheduler",
    ]
    assert container["securityContext"]["allowPrivilegeEscalation"] is False


def test_certificates_roll_their_users() -> None:
    other = Leaf(cert="NEW\n", key="NEW\n")
    # The webhook reads its own anew when they change.
    assert changed(VALUES, replace(CERTIFICATES, webhook=other)) == set()
    assert changed(VALUES, replace(CERTIFICATES, scheduler=other)) == {"vgpu-scheduler"}
    assert changed(VALUES, replace(CERTIFICATES, ca="X")) == {"vgpu-scheduler"}


def test_the_authority_before_is_trusted_while_its_leaves_are_shown() -> None:
    rotated = replace(CERTIFICATES, ca="NEW\n", before="CA\n")
    manifest = one(render(VALUES, rotated), "MutatingWebhookConfiguration", "vgpu-testbed-webhook")
    bundles = {hook["clientConfig"]["caBundle"] for hook in manifest["webhooks"]}
    assert bundles == {base64.b64encode(b"NEW\nCA\n").decode()}


# --- values ----------------------------------------------------------------------
@pytest.mark.parametrize("enforcement", ["on", "off"])
def test_config_text_is_read_back_exactly(enforcement: str) -> None:
    wanted = DeviceConfig(
        enforcement=enforcement,  # type: ignore[arg-type]
        generation=3,
        libCudaLogLevel=2,
        deviceMemoryScaling=1.5,
        overwriteEnv=True,
    )
    assert config.parse(config_text(wanted)) == wanted
    # Other readers of YAML 1.1 see a word too, not a boolean.
    assert yaml.safe_load(config_text(wanted))["enforcement"] == enforcement


@pytest.mark.parametrize(
    "bad",
    [
        {"namespace": "Upper"},
        {"namespace": "default"},
        {"namespace": "kube-system"},
        {"namespace": "x" * 64},
        {"driver_root": "relative"},
        {"driver_root": "/run/../etc"},
        {"hook_path": "/"},
        {"images": replace(IMAGES, base="with space")},
        {"images": replace(IMAGES, kube_scheduler="")},
        {"config": DeviceConfig(schedulerName="default-scheduler")},
        {"config": DeviceConfig(schedulerName="a_b")},
    ],
)
def test_bad_values_are_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        replace(VALUES, **bad)


@pytest.mark.parametrize(
    "image",
    [
        "testbed/base:0a1b",
        "registry.test:5000/testbed/base:1",
        "registry.k8s.io/pause:3.10.2@sha256:" + "0" * 64,
        "plain",
    ],
)
def test_image_references(image: str) -> None:
    assert replace(VALUES, images=replace(IMAGES, base=image)).images.base == image


def test_paths_of_the_names_module() -> None:
    assert VALUES.driver_root == names.EMULATED_DRIVER_ROOT
    assert VALUES.hook_path == names.HOOK_PATH
