"""The answer for one container: CDI names, environment, mounts, and its region's content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from testbed.stack import names
from testbed.stack.codec import container_environment, region_name
from testbed.stack.config import DeviceConfig
from testbed.stack.model import ContainerShares, PodKey
from testbed.stack.plugin.handler import Grant


@dataclass(frozen=True, slots=True, kw_only=True)
class HostPaths:
    """Where things lie on the node.

    Attributes:
        hook: The manifest value ``hookPath``.
        build: Names the library in use, ``<hook>/lib/<build>/``.
    """

    hook: str
    build: str

    def container_folder(self, uid: str, container: str) -> str:
        return f"{self.hook}/containers/{uid}_{container}"

    def page(self, card: str) -> str:
        return f"{self.hook}/pages/{card}.page"

    @property
    def library(self) -> str:
        return f"{self.hook}/lib/{self.build}/libvgpu.so"

    @property
    def preload(self) -> str:
        return f"{self.hook}/lib/{self.build}/ld.so.preload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    container: str
    host: str
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class RegionPlan:
    """The shared region to make before the container starts."""

    folder: str
    cache_uuid: str
    shares: ContainerShares
    policy: str
    priority: int
    priority_floor_pct: int
    oversubscribe: bool
    pod: PodKey
    container: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerAnswer:
    """What kubelet passes to the runtime for one container.

    Attributes:
        pages: Cards whose pages are mounted, by their path on the node.
    """

    cdi: tuple[str, ...]
    env: Mapping[str, str]
    mounts: tuple[Mount, ...] = ()
    region: RegionPlan | None = field(default=None)
    pages: Mapping[str, str] = field(default_factory=dict)


def container_answer(
    pod: PodKey, grant: Grant, config: DeviceConfig, paths: HostPaths
) -> ContainerAnswer:
    """Return the answer for one container.

    With enforcement off the container gets its cards and nothing that limits it.
    """
    cdi = tuple(f"{names.CDI_KIND}={share.uuid}" for share in grant.shares)
    # CUDA images carry NVIDIA_VISIBLE_DEVICES=all; NVIDIA's runtime would add every card.
    env = {names.ENV_VISIBLE: names.VISIBLE_VOID}
    if config.enforcement == "off":
        return ContainerAnswer(cdi=cdi, env=env)

    container = grant.container
    cache_uuid = region_name(pod.uid, container.name)
    folder = paths.container_folder(pod.uid, container.name)
    oversubscribe = config.deviceMemoryScaling > 1
    policy = core_policy(grant, config)
    env |= container_environment(
        grant.shares,
        cache_uuid=cache_uuid,
        core_policy=policy,
        core_limit=policy != "disable",
        priority=container.priority,
        oversubscribe=oversubscribe,
        log_level=config.libCudaLogLevel,
    )
    mounts = [
        Mount(container=names.CONTAINER_ROOT, host=folder, read_only=False),
        Mount(container=names.CONTAINER_LIBRARY, host=paths.library, read_only=True),
    ]
    pages = {share.uuid: paths.page(share.uuid) for share in grant.shares}
    mounts += [
        # File by file: a folder would show a container the cards of others.
        Mount(container=f"{names.CONTAINER_PAGES}/{uuid}.page", host=page, read_only=False)
        for uuid, page in pages.items()
    ]
    if not container.control_disabled:
        mounts.append(Mount(container=names.CONTAINER_PRELOAD, host=paths.preload, read_only=True))
    region = RegionPlan(
        folder=folder,
        cache_uuid=cache_uuid,
        shares=grant.shares,
        policy=policy,
        priority=container.priority,
        priority_floor_pct=config.priorityFloorPercent,
        oversubscribe=oversubscribe,
        pod=pod,
        container=container.name,
    )
    return ContainerAnswer(cdi=cdi, env=env, mounts=tuple(mounts), region=region, pages=pages)


def core_policy(grant: Grant, config: DeviceConfig) -> str:
    """Return when a container's compute limit holds: ``default``, ``force``, ``disable``.

    The administrator's switch goes before the container's own environment, and that
    before the administrator's default (whoever may set the variable is the webhook's
    affair).
    """
    if config.disableCoreLimit:
        return "disable"
    own = grant.container.core_policy
    return own if own in ("default", "force", "disable") else config.gpuCorePolicy
