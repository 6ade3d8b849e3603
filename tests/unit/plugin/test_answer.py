"""What kubelet is told for one container, word by word."""

from __future__ import annotations

from typing import Any

import pytest

from testbed.stack.config import DeviceConfig
from testbed.stack.model import PodKey, Share
from testbed.stack.plugin.answer import HostPaths, Mount, container_answer
from testbed.stack.plugin.api import podresources_pb2 as podresources
from testbed.stack.plugin.handler import Grant
from testbed.stack.plugin.kubelet import view_of
from testbed.stack.plugin.pods import NodeContainer
from testbed.stack.plugin.service import response_of

POD = PodKey(namespace="ns", name="p", uid="11111111-2222-3333-4444-555555555555")
PATHS = HostPaths(hook="/var/lib/vgpu-testbed", build="b1")
FOLDER = f"/var/lib/vgpu-testbed/containers/{POD.uid}_main"


def grant(**more: Any) -> Grant:
    return Grant(
        container=NodeContainer(name="main", position=0, count=2, **more),
        shares=(
            Share(uuid="GPU-a", mem_mib=30720, core_pct=50),
            Share(uuid="GPU-b", mem_mib=1024, core_pct=50),
        ),
    )


def test_enforced() -> None:
    answer = container_answer(POD, grant(priority=1), DeviceConfig(), PATHS)
    assert answer.cdi == ("vgpu-testbed.dev/gpu=GPU-a", "vgpu-testbed.dev/gpu=GPU-b")
    assert answer.region is not None
    cache = answer.region.cache_uuid
    assert answer.env == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "CUDA_DEVICE_MEMORY_LIMIT_0": "30720m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "1024m",
        "CUDA_DEVICE_SM_LIMIT": "50",
        "CUDA_TASK_PRIORITY": "1",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": f"/usr/local/vgpu/{cache}.cache",
    }
    library = "/var/lib/vgpu-testbed/lib/b1"
    assert answer.mounts == (
        Mount(container="/usr/local/vgpu", host=FOLDER, read_only=False),
        Mount(container="/usr/local/vgpu/libvgpu.so", host=f"{library}/libvgpu.so", read_only=True),
        Mount(
            container="/usr/local/vgpu/pages/GPU-a.page",
            host="/var/lib/vgpu-testbed/pages/GPU-a.page",
            read_only=False,
        ),
        Mount(
            container="/usr/local/vgpu/pages/GPU-b.page",
            host="/var/lib/vgpu-testbed/pages/GPU-b.page",
            read_only=False,
        ),
        Mount(container="/etc/ld.so.preload", host=f"{library}/ld.so.preload", read_only=True),
    )
    assert answer.pages == {
        uuid: f"/var/lib/vgpu-testbed/pages/{uuid}.page" for uuid in ("GPU-a", "GPU-b")
    }
    assert (answer.region.folder, answer.region.priority) == (FOLDER, 1)
    again = container_answer(POD, grant(priority=1), DeviceConfig(), PATHS)
    assert again == answer, "kubelet may ask again and must get the same"


def test_control_disabled_by_the_pod_leaves_out_the_preload_alone() -> None:
    full = container_answer(POD, grant(), DeviceConfig(), PATHS)
    without = container_answer(POD, grant(control_disabled=True), DeviceConfig(), PATHS)
    (left_out,) = set(full.mounts) - set(without.mounts)
    assert left_out.container == "/etc/ld.so.preload"
    assert without.env == full.env and without.region == full.region


def test_enforcement_off_leaves_cards_and_nothing_that_limits() -> None:
    answer = container_answer(POD, grant(), DeviceConfig(enforcement="off"), PATHS)
    assert answer.cdi == ("vgpu-testbed.dev/gpu=GPU-a", "vgpu-testbed.dev/gpu=GPU-b")
    assert answer.env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert answer.mounts == () and answer.region is None and not answer.pages


def test_configuration_reaches_environment_and_region() -> None:
    config = DeviceConfig(deviceMemoryScaling=1.5, gpuCorePolicy="force", libCudaLogLevel=3)
    answer = container_answer(POD, grant(), config, PATHS)
    assert answer.env["CUDA_OVERSUBSCRIBE"] == "true"
    assert answer.env["GPU_CORE_UTILIZATION_POLICY"] == "force"
    assert answer.env["LIBCUDA_LOG_LEVEL"] == "3"
    assert answer.region is not None
    assert (answer.region.policy, answer.region.oversubscribe) == ("force", True)
    off = container_answer(POD, grant(), DeviceConfig(disableCoreLimit=True), PATHS)
    assert off.env["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    assert off.region is not None and off.region.policy == "disable"


@pytest.mark.parametrize(
    ("own", "config", "policy", "variable"),
    [
        ("", DeviceConfig(), "default", None),
        ("", DeviceConfig(gpuCorePolicy="force"), "force", "force"),
        ("force", DeviceConfig(), "force", "force"),
        ("disable", DeviceConfig(gpuCorePolicy="force"), "disable", "disable"),
        ("default", DeviceConfig(gpuCorePolicy="force"), "default", None),
        ("force", DeviceConfig(disableCoreLimit=True), "disable", "disable"),
        ("often", DeviceConfig(gpuCorePolicy="force"), "force", "force"),
    ],
)
def test_whose_word_on_the_policy_counts(
    own: str, config: DeviceConfig, policy: str, variable: str | None
) -> None:
    answer = container_answer(POD, grant(core_policy=own), config, PATHS)
    assert answer.region is not None and answer.region.policy == policy
    assert answer.env.get("GPU_CORE_UTILIZATION_POLICY") == variable


def test_priority_reaches_environment_and_region() -> None:
    config = DeviceConfig(priorityFloorPercent=10)
    answer = container_answer(POD, grant(priority=0), config, PATHS)
    assert answer.env["CUDA_TASK_PRIORITY"] == "0"
    assert answer.region is not None
    assert (answer.region.priority, answer.region.priority_floor_pct) == (0, 10)


def test_on_the_wire() -> None:
    response = response_of(container_answer(POD, grant(), DeviceConfig(), PATHS))
    assert [device.name for device in response.cdi_devices] == [
        "vgpu-testbed.dev/gpu=GPU-a",
        "vgpu-testbed.dev/gpu=GPU-b",
    ]
    assert response.envs["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert [mount.read_only for mount in response.mounts] == [False, True, False, False, True]
    assert not response.devices


def listed(name: str, **containers: list[str]) -> podresources.PodResources:
    return podresources.PodResources(
        name=name,
        namespace="ns",
        containers=[
            podresources.ContainerResources(
                name=container,
                devices=[
                    podresources.ContainerDevices(resource_name=resource, device_ids=["x-0"])
                    for resource in resources
                ],
            )
            for container, resources in containers.items()
        ],
    )


def test_view_counts_our_resource_only() -> None:
    view = view_of(
        [listed("p", x=["nvidia.com/gpu"], y=["example.com/nic"], z=[])], "nvidia.com/gpu"
    )
    assert view == {("ns", "p"): {"x": True, "y": False, "z": False}}


def test_view_of_two_incarnations_of_one_name() -> None:
    old, new = listed("p", x=["nvidia.com/gpu"]), listed("p", x=[])
    for pods in ([old, new], [new, old]):
        assert view_of(pods, "nvidia.com/gpu") == {("ns", "p"): {"x": False}}
