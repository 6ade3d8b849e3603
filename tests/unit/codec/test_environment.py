"""The container's environment contract."""

from __future__ import annotations

from testbed.stack.codec import container_environment, region_name
from testbed.stack.model import Share

SHARES = (
    Share(uuid="GPU-a", mem_mib=30720, core_pct=50),
    Share(uuid="GPU-b", mem_mib=1024, core_pct=50),
)


def test_golden():
    assert container_environment(SHARES, cache_uuid="u") == {
        "CUDA_DEVICE_MEMORY_LIMIT_0": "30720m",
        "CUDA_DEVICE_MEMORY_LIMIT_1": "1024m",
        "CUDA_DEVICE_SM_LIMIT": "50",
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": "/usr/local/vgpu/u.cache",
    }


def test_options():
    env = container_environment(
        SHARES, cache_uuid="u", core_policy="force", oversubscribe=True, log_level=0
    )
    assert env["GPU_CORE_UTILIZATION_POLICY"] == "force"
    assert env["CUDA_OVERSUBSCRIBE"] == "true"
    assert "CUDA_TASK_PRIORITY" not in env
    high = container_environment(SHARES, cache_uuid="u", priority=0)
    assert high["CUDA_TASK_PRIORITY"] == "0"
    assert env["LIBCUDA_LOG_LEVEL"] == "0"
    off = container_environment(SHARES, cache_uuid="u", core_policy="force", core_limit=False)
    assert off["GPU_CORE_UTILIZATION_POLICY"] == "disable"


def test_region_name_never_changes():
    """Running containers were told it; another name would lose their region."""
    uid = "11111111-2222-3333-4444-555555555555"
    assert region_name(uid, "main") == "a5ae4e98-41b5-5060-9d36-0c8ef684fbee"
    assert region_name(uid, "other") != region_name(uid, "main")
