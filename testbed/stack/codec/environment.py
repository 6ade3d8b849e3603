"""The environment by which a container learns its limits (HAMi-core v2.10)."""

from __future__ import annotations

import uuid

from testbed.stack import names
from testbed.stack.model import ContainerShares

#: Makes region names that stay the same when kubelet asks again for a container.
_REGION_NAMES = uuid.UUID("6f6a9d3c-6c0f-5d2e-9a3f-7b1f5f1c2d10")


def region_name(pod_uid: str, container: str) -> str:
    """Return the uuid that names a container's region, ``<uuid>.cache``."""
    return str(uuid.uuid5(_REGION_NAMES, f"{pod_uid}/{container}"))


def container_environment(
    shares: ContainerShares,
    *,
    cache_uuid: str,
    core_policy: str = "default",
    core_limit: bool = True,
    priority: int | None = None,
    oversubscribe: bool = False,
    log_level: int | None = None,
) -> dict[str, str]:
    """Return the variables of one container.

    Args:
        shares: The container's shares; entry i becomes limit i.
        cache_uuid: Names the region file, ``/usr/local/vgpu/<uuid>.cache``.
        core_policy: ``default``, ``force`` or ``disable``.
        core_limit: False writes the policy ``disable`` (disableCoreLimit).
        priority: 0 high, 1 low; None leaves the library's default, low.
        oversubscribe: Memory scaling above 1.
        log_level: 0 (off) to 4; None leaves the library's default.
    """
    env = {f"{names.ENV_MEMORY_LIMIT}_{i}": f"{share.mem_mib}m" for i, share in enumerate(shares)}
    if shares:
        env[names.ENV_SM_LIMIT] = str(shares[0].core_pct)
    env[names.ENV_SHARED_CACHE] = f"{names.CONTAINER_ROOT}/{cache_uuid}.cache"
    if not core_limit:
        env[names.ENV_CORE_POLICY] = "disable"
    elif core_policy != "default":
        env[names.ENV_CORE_POLICY] = core_policy
    if priority is not None:
        env[names.ENV_PRIORITY] = str(priority)
    if oversubscribe:
        env[names.ENV_OVERSUBSCRIBE] = "true"
    if log_level is not None:
        env[names.ENV_LOG_LEVEL] = str(log_level)
    return env
