"""Raw pods as the plugin reads them."""

from __future__ import annotations

from typing import Any

from testbed.stack import names
from testbed.stack.config import DeviceConfig
from testbed.stack.plugin.pods import node_pod, node_pods


def raw(**spec: Any) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "p",
            "namespace": "ns",
            "uid": "u1",
            "resourceVersion": "7",
            "annotations": {
                names.POD_BIND_PHASE: "allocating",
                names.POD_TO_ALLOCATE: ";GPU-a,NVIDIA,1,1:;",
            },
        },
        "spec": spec,
    }


def gpu(count: object, **more: Any) -> dict[str, Any]:
    return {"resources": {"limits": {names.RESOURCE_COUNT: count}}, **more}


def test_containers_in_kubelets_order() -> None:
    item = raw(
        initContainers=[
            {"name": "i", **gpu("2")},
            {"name": "side", "restartPolicy": "Always", **gpu(1)},
        ],
        containers=[
            {"name": "x", **gpu("1", env=[{"name": "CUDA_DISABLE_CONTROL", "value": "TRUE"}])},
            {"name": "y", "resources": {"requests": {names.RESOURCE_COUNT: "3"}}},
            {"name": "z"},
        ],
    )
    item["status"] = {
        "phase": "Pending",
        "initContainerStatuses": [{"name": "i", "containerID": "containerd://1"}],
        "containerStatuses": [{"name": "x", "containerID": ""}, {"name": "y"}],
    }
    pod = node_pod(item, DeviceConfig())
    assert [(c.name, c.position, c.count) for c in pod.containers] == [
        ("i", 0, 2),
        ("side", 1, 1),
        ("x", 2, 1),
        ("y", 3, 3),
        ("z", 4, 0),
    ]
    assert [c.name for c in pod.containers if c.plain_init] == ["i"]
    assert [c.name for c in pod.containers if c.started] == ["i"]
    assert [c.name for c in pod.containers if c.control_disabled] == ["x"]
    assert (pod.bind_phase, pod.resource_version, pod.finished) == ("allocating", "7", False)
    assert not pod.labelled_node


def test_priority_is_low_unless_it_is_asked_for() -> None:
    def asking(value: str | None) -> dict[str, Any]:
        limits = {names.RESOURCE_COUNT: "1"}
        if value is not None:
            limits[names.RESOURCE_PRIORITY] = value
        return raw(containers=[{"name": "x", "resources": {"limits": limits}}])

    for value, priority in ((None, 1), ("0", 0), ("1", 1)):
        assert node_pod(asking(value), DeviceConfig()).containers[0].priority == priority


def test_values_that_are_no_numbers_ask_for_nothing() -> None:
    item = raw(containers=[{"name": "x", **gpu("many")}, {"name": "y", **gpu(None)}])
    assert [c.count for c in node_pod(item, DeviceConfig()).containers] == [0, 0]
    assert node_pods([item], DeviceConfig()) == ()


def test_resource_name_is_the_configurations() -> None:
    item = raw(containers=[{"name": "x", "resources": {"limits": {"example.com/gpu": "1"}}}])
    assert node_pods([item], DeviceConfig()) == ()
    (pod,) = node_pods([item], DeviceConfig(resourceCountName="example.com/gpu"))
    assert pod.containers[0].count == 1


def test_finished() -> None:
    for phase in ("Succeeded", "Failed"):
        item = raw(containers=[{"name": "x", **gpu(1)}])
        item["status"] = {"phase": phase}
        assert node_pod(item, DeviceConfig()).finished


def test_a_containers_own_word_on_the_policy() -> None:
    def policy(*env: dict[str, Any]) -> str:
        (container,) = node_pod(
            raw(containers=[{"name": "x", **gpu(1, env=list(env))}]), DeviceConfig()
        ).containers
        return container.core_policy

    name = names.ENV_CORE_POLICY
    assert policy() == ""
    assert policy({"name": name, "value": "Force"}) == "force"
    assert policy({"name": name, "value": "force"}, {"name": name, "value": "default"}) == "default"
    assert policy({"name": name, "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}) == ""
