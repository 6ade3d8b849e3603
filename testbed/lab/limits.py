"""Limits of pods that run: what was promised, what holds now, and changing it.

The scheduler's books are the promise of a pod's annotation, and a change of limits leaves
them alone. So a limit can be lowered, and raised again up to that promise, at any time
and without asking anybody; above it a pod would use what is promised to others.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from testbed.errors import ClusterError, InputError, known_hint
from testbed.lab.deploy.common import NAME, PLUGIN
from testbed.lab.explain.gather import find_pod
from testbed.lab.kube import Kube, Object
from testbed.lab.report.table import columns
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares
from testbed.stack.model import ContainerShares
from testbed.stack.plugin.limits import Answer, Request
from testbed.units import MIB

POLICIES = ("default", "force", "disable")
_PROGRAM = "testbed.stack.plugin.limits"
_EXEC_S = 30.0
_CARDS = ("CARD", "LIMIT", "CONTEXTS", "DRIVER", "BUFFERS", "BEYOND", "DENIED", "CORES")
_WAITS = ("GRANTED", "BUDGET", "QUEUE", "PRIORITY", "ERROR")
_PROCESSES = ("PID", "NODE PID", "CARD", "CONTEXTS", "DRIVER", "BUFFERS", "LAUNCHES", *_WAITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A change; what is None stays. Each holds for every card of the container."""

    gpumem_mib: int | None = None
    gpucores_pct: int | None = None
    policy: str | None = None

    @property
    def nothing(self) -> bool:
        return (self.gpumem_mib, self.gpucores_pct, self.policy) == (None, None, None)


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """One container: what it was promised (in the order of its cards), and its region."""

    namespace: str
    pod: str
    node: str
    container: str
    promised: tuple[tuple[str, int, int], ...]
    region: Answer


# --- deciding -------------------------------------------------------------------


def promises(pod: Object) -> dict[str, ContainerShares]:
    """Return what each container of a pod was promised, those with cards only.

    Raises:
        InputError: it holds no cards.
        CodecError: its annotation is none.
    """
    notes = pod["metadata"].get("annotations", {})
    text = notes.get(names.POD_ALLOCATED, "")
    spec = pod["spec"]
    containers = [c["name"] for c in (*spec.get("initContainers", ()), *spec["containers"])]
    shares = decode_pod_shares(text, len(containers))
    found = {name: share for name, share in zip(containers, shares, strict=True) if share}
    if not found:
        raise InputError(
            f"pod {pod['metadata']['name']} holds no card",
            why="it asked for none, or the stack did not place it, or it still waits",
            hint="testbed explain says which",
        )
    return found


def chosen(pod: Object, found: Mapping[str, ContainerShares], container: str) -> list[str]:
    """Return the containers that are meant: the named one, else all with cards.

    Raises:
        InputError: there is none of that name with a card.
    """
    if not container:
        return list(found)
    if container in found:
        return [container]
    raise InputError(
        f"container {container} of pod {pod['metadata']['name']} holds no card",
        hint=known_hint(container, found, listed="there are"),
    )


def check(wanted: Wanted, promised: ContainerShares, container: str) -> None:
    """Refuse what a container was not promised.

    Raises:
        InputError: a value is impossible or above the promise.
    """
    if wanted.nothing:
        raise InputError(
            "nothing to set", hint="name at least one of --gpumem, --gpucores and --policy"
        )
    if wanted.policy is not None and wanted.policy not in POLICIES:
        raise InputError(
            f"{wanted.policy!r} is no policy", hint=known_hint(wanted.policy, POLICIES)
        )
    for share in promised:
        _check_memory(wanted.gpumem_mib, share.mem_mib, container)
        _check_cores(wanted.gpucores_pct, share.core_pct, container)


def _check_memory(mib: int | None, promised: int, container: str) -> None:
    if mib is None:
        return
    if mib <= 0:
        raise InputError(f"--gpumem {mib} is no limit", hint="give MiB, 1 or more")
    if mib > promised:
        raise _above(f"--gpumem {mib}", container, f"{promised:,} MiB of the card")


def _check_cores(percent: int | None, promised: int, container: str) -> None:
    if percent is None:
        return
    if not 0 <= percent <= 100:
        raise InputError(f"--gpucores {percent} is no share", hint="give percent, 0 (none) to 100")
    if promised and not 0 < percent <= promised:
        raise _above(f"--gpucores {percent}", container, f"{promised} % of the card")


def _above(what: str, container: str, promised: str) -> InputError:
    return InputError(
        f"{what} is more than container {container} was promised",
        why=f"it was promised {promised}, and the rest may be promised to others",
        hint="make the pod anew with a greater request, so that it is placed for it",
    )


# --- at the cluster -----------------------------------------------------------------


def show(kube: Kube, word: str, *, namespace: str = "", container: str = "") -> list[Held]:
    """Return the containers of a pod that hold cards.

    Raises:
        InputError: there is no such pod or container, or it holds no card.
        ClusterError: its node's plugin cannot be asked.
    """
    return _each(kube, word, namespace, container, None)


def set_limits(
    kube: Kube, word: str, wanted: Wanted, *, namespace: str = "", container: str = ""
) -> list[Held]:
    """Change limits of a pod that runs, and return how they are then.

    Nothing is changed where any of its containers could not have it.

    Raises:
        InputError: as ``show``, or more than was promised.
        ClusterError: its node's plugin cannot be asked.
    """
    return _each(kube, word, namespace, container, wanted)


def _each(
    kube: Kube, word: str, namespace: str, container: str, wanted: Wanted | None
) -> list[Held]:
    pod = find_pod(kube.list("v1", "Pod"), word, namespace)
    found = promises(pod)
    which = chosen(pod, found, container)
    if wanted is not None:
        for name in which:
            check(wanted, found[name], name)
    plugin = _plugin_of(kube, pod)
    return [_ask(kube, plugin, pod, name, found[name], wanted) for name in which]


def _plugin_of(kube: Kube, pod: Object) -> Object:
    node = pod["spec"].get("nodeName", "")
    for each in kube.list("v1", "Pod", names.NAMESPACE, labels=f"{NAME}={PLUGIN}"):
        if each["spec"].get("nodeName") == node:
            return each
    raise ClusterError(
        f"the limits of pod {pod['metadata']['name']} cannot be reached",
        why=f"no device plugin runs on node {node or '(none)'}",
        hint="testbed status, testbed deploy",
    )


def _ask(
    kube: Kube,
    plugin: Object,
    pod: Object,
    container: str,
    promised: ContainerShares,
    wanted: Wanted | None,
) -> Held:
    hooks = [v["hostPath"]["path"] for v in plugin["spec"]["volumes"] if v["name"] == "hook"]
    numbers = range(len(promised))
    change = wanted or Wanted()
    request = Request(
        hook=hooks[0] if hooks else names.HOOK_PATH,
        pod_uid=pod["metadata"]["uid"],
        container=container,
        memory_bytes=(
            {} if change.gpumem_mib is None else dict.fromkeys(numbers, change.gpumem_mib * MIB)
        ),
        core_pct=(
            {} if change.gpucores_pct is None else dict.fromkeys(numbers, change.gpucores_pct)
        ),
        policy=change.policy,
    )
    own = plugin["spec"]["containers"][0]
    done = kube.exec(
        names.NAMESPACE,
        plugin["metadata"]["name"],
        [own["command"][0], "-m", _PROGRAM],
        container=own["name"],
        stdin=msgspec.json.encode(request).decode(),
        timeout_s=_EXEC_S,
    )
    if done.rc != 0:
        raise ClusterError(
            f"the limits of container {container} cannot be {'set' if wanted else 'read'}",
            why=done.stderr.strip()[-1000:] or f"the program ended with {done.rc}",
        )
    try:
        region = msgspec.json.decode(done.stdout, type=Answer)
    except msgspec.DecodeError as error:
        raise ClusterError(
            f"the limits of container {container} cannot be read",
            why=f"the plugin of another version answered ({error})",
            hint="testbed deploy",
        ) from error
    return Held(
        namespace=pod["metadata"]["namespace"],
        pod=pod["metadata"]["name"],
        node=pod["spec"]["nodeName"],
        container=container,
        promised=tuple((share.uuid, share.mem_mib, share.core_pct) for share in promised),
        region=region,
    )


# --- for people --------------------------------------------------------------------


def limits_text(held: list[Held]) -> str:
    """Return promise, limit and use as a table, and who holds more than the limit in words."""
    rows, over = [], []
    for each in held:
        promised = {uuid: (mib, pct) for uuid, mib, pct in each.promised}
        for device in each.region.devices:
            mib, pct = promised.get(device.uuid, (0, 0))
            used = device.used.total_bytes + device.unexplained_bytes
            limit = device.memory_limit_bytes
            if limit and used > limit:
                over.append(
                    f"{each.container} holds {_mib(used - limit)} more of {device.uuid} than its"
                    " limit: it gets no more until it has freed that"
                )
            rows.append(
                (
                    each.container,
                    device.uuid,
                    _mib(mib * MIB),
                    _mib(limit),
                    _mib(used) + (" (over)" if limit and used > limit else ""),
                    _pct(pct),
                    _pct(device.core_limit_pct),
                    each.region.policy,
                )
            )
    header = ("CONTAINER", "CARD", "PROMISED", "LIMIT", "USED", "PROMISED", "LIMIT", "POLICY")
    return "\n".join([columns(header, rows), *over])


def region_text(held: list[Held]) -> str:
    """Return each container's cards and processes as tables."""
    parts = []
    for each in held:
        region = each.region
        state = f"  {', '.join(region.state)}" if region.state else ""
        parts.append(
            f"{each.namespace}/{each.pod}  container {each.container}  node {each.node}  "
            f"policy {region.policy}  priority {region.priority}{state}"
        )
        rows: list[tuple[str, ...]] = [
            (
                device.uuid,
                _mib(device.memory_limit_bytes),
                _mib(device.used.context_bytes),
                _mib(device.used.module_bytes),
                _mib(device.used.buffer_bytes),
                _mib(device.unexplained_bytes),
                str(device.denied),
                _pct(device.core_limit_pct),
            )
            for device in region.devices
        ]
        parts.append(columns(_CARDS, rows))
        rows = [
            (
                str(process.pid),
                str(process.node_pid),
                str(number),
                _mib(use.context_bytes),
                _mib(use.module_bytes),
                _mib(use.buffer_bytes),
                str(compute.launches),
                *(
                    f"{ns / 1e9:.2f} s"
                    for ns in (
                        compute.granted_ns,
                        compute.waited_budget_ns,
                        compute.waited_queue_ns,
                        compute.waited_priority_ns,
                    )
                ),
                str(process.last_error or "-"),
            )
            for process in region.processes
            for number, (use, compute) in enumerate(zip(process.uses, process.compute, strict=True))
        ]
        parts.append(columns(_PROCESSES, rows) if rows else "no process uses the library")
        parts.append("")
    return "\n".join(parts).rstrip()


def _mib(count: int) -> str:
    return f"{count / MIB:,.0f} MiB" if count else "-"


def _pct(percent: int) -> str:
    return f"{percent} %" if 0 < percent < 100 else "-"
