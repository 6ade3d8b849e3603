"""A container's region, made from what its answer promises."""

from __future__ import annotations

from pathlib import Path

from testbed.native.region import Policy, RegionConstant, RegionDevice, make_region
from testbed.stack.plugin.answer import RegionPlan
from testbed.units import MIB

_POLICIES = {"default": Policy.DEFAULT, "force": Policy.FORCE, "disable": Policy.DISABLE}


def make(plan: RegionPlan) -> None:
    """Make region, lock file and link in the container's folder.

    Raises:
        TestbedError, OSError: they cannot be made.
    """
    constant = RegionConstant(
        devices=tuple(
            RegionDevice(
                uuid=share.uuid,
                memory_limit_bytes=share.mem_mib * MIB,
                sm_limit_pct=share.core_pct,
            )
            for share in plan.shares
        ),
        pod_uid=plan.pod.uid,
        pod_namespace=plan.pod.namespace,
        pod_name=plan.pod.name,
        container_name=plan.container,
        policy=_POLICIES[plan.policy],
        priority=plan.priority,
        priority_floor_pct=plan.priority_floor_pct,
        oversubscribe=plan.oversubscribe,
    )
    make_region(Path(plan.folder), plan.cache_uuid, constant)
