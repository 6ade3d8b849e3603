"""A container's region, made from what its answer promises."""

from __future__ import annotations

from pathlib import Path

from testbed.native.region import RegionConstant, make_region
from testbed.stack.plugin.answer import RegionPlan
from testbed.units import MIB


def make(plan: RegionPlan) -> None:
    """Make region, lock file and link in the container's folder.

    Raises:
        TestbedError, OSError: they cannot be made.
    """
    make_region(
        Path(plan.folder),
        plan.cache_uuid,
        RegionConstant(
            uuids=tuple(share.uuid for share in plan.shares),
            memory_limit=tuple(share.mem_mib * MIB for share in plan.shares),
            sm_limit=tuple(share.core_pct for share in plan.shares),
            policy=plan.policy,
            priority=plan.priority,
            oversubscribe=plan.oversubscribe,
            pod_uid=plan.pod.uid,
            pod_namespace=plan.pod.namespace,
            pod_name=plan.pod.name,
            container_name=plan.container,
        ),
    )
