"""The device configuration: HAMi's device-config names, plus our own ``enforcement``.

One YAML document in a ConfigMap, mounted at ``/config/device-config.yaml`` in
webhook, extender and plugin. Unknown keys are an error, with the key's path.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import msgspec

from testbed.errors import InputError, unknown_key_hint
from testbed.stack import names, policy

VendorName = Literal["nvidia", "hygon"]
XidAction = Literal["ignore", "contained", "unhealthy"]


class DeviceConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Values of the ConfigMap; every one has a default."""

    resourceCountName: str = names.RESOURCE_COUNT
    resourceMemoryName: str = names.RESOURCE_MEMORY
    resourceMemoryPercentageName: str = names.RESOURCE_MEMORY_PERCENTAGE
    resourceCoreName: str = names.RESOURCE_CORES
    resourcePriorityName: str = names.RESOURCE_PRIORITY
    schedulerName: str = names.SCHEDULER_NAME
    #: Pods that name no scheduler are ours: Kubernetes writes default-scheduler for them.
    forceOverwriteDefaultScheduler: bool = True
    #: Pods that name any other scheduler are ours as well.
    forceOverwriteScheduler: bool = False
    #: Written to pods that ask for a card and name none.
    runtimeClassName: str = ""
    #: User names that may write the stack's own annotations beside its accounts, such as
    #: HAMi's in mixed operation.
    trustedWriters: tuple[str, ...] = ()
    #: Whose cards are shared.
    vendors: Annotated[tuple[VendorName, ...], msgspec.Meta(min_length=1)] = ("nvidia",)
    defaultGPUNum: int = 1
    defaultMemory: int = 0
    defaultCores: int = 0
    memoryFactor: int = 1
    overwriteEnv: bool = False
    #: How many containers may share a card.
    deviceSplitCount: Annotated[int, msgspec.Meta(ge=1)] = 10
    #: How much more of its memory a card promises than it has; what does not fit lies in
    #: the host's. Below 1 a part of it is kept back.
    deviceMemoryScaling: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    deviceCoreScaling: Annotated[float, msgspec.Meta(gt=0, le=100)] = 1.0
    disableCoreLimit: bool = False
    gpuCorePolicy: Literal["default", "force", "disable"] = "default"
    #: What a container of low priority keeps of a card beside one of high priority.
    priorityFloorPercent: Annotated[int, msgspec.Meta(ge=0, le=100)] = 0
    #: What follows from an XID error of a card, by number, beside the built-in table
    #: (``stack.devices.xid``); ``xidDefault`` from one that is in neither.
    xidPolicy: dict[int, XidAction] = {}
    xidDefault: XidAction = "unhealthy"
    libCudaLogLevel: int | None = None
    nodeSchedulerPolicy: Literal["binpack", "spread"] = "binpack"
    #: One word or a chain, such as ``mutex,binpack,numa`` (``stack.policy``).
    gpuSchedulerPolicy: str = "spread"
    #: Evict pods of lower priority for one that fits nowhere: kube-scheduler itself does
    #: not, since it does not know what a card holds.
    preemption: bool = True
    #: Take HAMi's lock of the node before each Binding, where its plugin serves the pods.
    nodeLock: bool = False
    nodeLockSeconds: Annotated[int, msgspec.Meta(ge=1)] = 300
    #: ``off`` is for control runs: no preload, no limits in the environment, no
    #: region. Scheduling stays on.
    enforcement: Literal["on", "off"] = "on"
    #: Counts changes of this document; the plugin reports it on /healthz.
    generation: int = 0


def parse(text: str | bytes) -> DeviceConfig:
    """Return the configuration of a YAML (or JSON) document; empty text is the default.

    Raises:
        InputError: an unknown key or a value of the wrong kind, with its path.
    """
    raw = text.encode() if isinstance(text, str) else text
    # YAML 1.1 reads a bare on/off as a boolean; both spellings mean the same here.
    try:
        document = msgspec.yaml.decode(raw) if raw.strip() else {}
        if isinstance(document, dict) and isinstance(document.get("enforcement"), bool):
            document["enforcement"] = "on" if document["enforcement"] else "off"
        config = msgspec.convert(document, DeviceConfig)
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise InputError(
            "device configuration cannot be used",
            why=str(error),
            hint=unknown_key_hint(str(error), DeviceConfig.__struct_fields__),
        ) from error
    policy.card_policy(config.gpuSchedulerPolicy, "device configuration: gpuSchedulerPolicy")
    return config


def load(path: Path) -> DeviceConfig:
    """Return the configuration in a file.

    Raises:
        InputError: the file is missing or wrong.
    """
    try:
        return parse(path.read_bytes())
    except OSError as error:
        raise InputError(f"device configuration {path} cannot be read", why=str(error)) from error
