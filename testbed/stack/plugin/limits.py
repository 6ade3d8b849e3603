"""``python -m testbed.stack.plugin.limits``: a container's limits, read or changed on its node.

Runs in the plugin's pod, for an administrator: one request as JSON on standard input, the
container's region after it as JSON on standard output. Whether a change keeps what the
scheduler has promised to others is decided by the caller, who sees the whole cluster.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from testbed.errors import InputError, TestbedError
from testbed.native.region import (
    ComputeUse,
    DeviceUse,
    Policy,
    RegionView,
    StateFlag,
    read_region,
    set_compute,
    set_memory,
)
from testbed.stack.codec import region_name


class Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked; a limit that is not named stays.

    Attributes:
        hook: The stack's folder on the node.
        pod_uid: Of the pod.
        container: Its container.
        memory_bytes: By device number of the container; 0 = none.
        core_pct: Likewise; 0 or 100 = none.
        policy: ``default``, ``force``, ``disable``.
    """

    hook: str
    pod_uid: str
    container: str
    memory_bytes: dict[int, int] = {}
    core_pct: dict[int, int] = {}
    policy: str | None = None


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """One card of the container, as its processes count."""

    uuid: str
    memory_limit_bytes: int
    core_limit_pct: int
    used: DeviceUse
    unexplained_bytes: int
    denied: int
    compute: ComputeUse


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """A process of the container; ``uses`` and ``compute`` have one entry a device."""

    pid: int
    node_pid: int
    started_ns: int
    active_ns: int
    last_error: int
    uses: tuple[DeviceUse, ...]
    compute: tuple[ComputeUse, ...]


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A region, for people and programs elsewhere."""

    container: str
    policy: str
    priority: int
    oversubscribe: bool
    state: tuple[str, ...]
    devices: tuple[Device, ...]
    processes: tuple[Process, ...]


def carry_out(request: Request) -> Answer:
    """Change what is asked, and return how the region is then.

    Raises:
        InputError: there is no such container here, or a value does not fit.
        CodecError: its region is not valid.
    """
    for part in (request.pod_uid, request.container):
        if not part or "/" in part or part in (".", ".."):
            raise InputError("the container cannot be found", why=f"{part!r} is no name")
    folder = Path(request.hook) / "containers" / f"{request.pod_uid}_{request.container}"
    path = folder / f"{region_name(request.pod_uid, request.container)}.cache"
    if not path.exists():
        raise InputError(
            f"container {request.container} has no region on this node",
            why=f"{path} is not there: it has no card, or has not started yet",
        )
    policies = {policy.name.lower(): policy for policy in Policy}
    policy = None if request.policy is None else policies.get(request.policy)
    if policy is None and request.policy is not None:
        raise InputError(f"{request.policy!r} is no policy")
    if request.core_pct or policy is not None:
        set_compute(path, sm_limit_pct=request.core_pct, policy=policy)
    if request.memory_bytes:
        set_memory(path, request.memory_bytes)
    return answer(read_region(path))


def answer(view: RegionView) -> Answer:
    """Return a region as an answer."""
    constant = view.constant
    return Answer(
        container=constant.container_name,
        policy=constant.policy.name.lower(),
        priority=constant.priority,
        oversubscribe=constant.oversubscribe,
        state=tuple(
            name
            for flag, name in ((StateFlag.DEGRADED, "degraded"), (StateFlag.NO_REGION, "no-region"))
            if view.state & flag
        ),
        devices=tuple(
            Device(
                uuid=device.uuid,
                memory_limit_bytes=device.memory_limit_bytes,
                core_limit_pct=device.sm_limit_pct,
                used=view.used[i],
                unexplained_bytes=view.unexplained_bytes[i],
                denied=view.denied[i],
                compute=view.compute[i],
            )
            for i, device in enumerate(constant.devices)
        ),
        processes=tuple(
            Process(
                pid=process.pid,
                node_pid=process.owner_pid,
                started_ns=process.started_ns,
                active_ns=process.active_ns,
                last_error=process.last_error,
                uses=process.uses,
                compute=process.compute,
            )
            for process in view.processes
        ),
    )


def main() -> int:
    """Read one request, answer it; 2 and an error in words where that is impossible."""
    try:
        request = msgspec.json.decode(sys.stdin.buffer.read(), type=Request)
        sys.stdout.buffer.write(msgspec.json.encode(carry_out(request)) + b"\n")
    except (TestbedError, msgspec.DecodeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
