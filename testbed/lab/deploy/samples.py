"""What the parts tell of themselves: the monitors' ``/v1/cards``, the extender's ledger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from testbed.errors import ClusterError, DeployError, TestbedError
from testbed.lab.deploy.common import MONITOR, NAME, SCHEDULER
from testbed.lab.deploy.diagnosis import pod_ready
from testbed.lab.kube import Kube, Object
from testbed.stack import names

UNKNOWN = "unknown"


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    """What one process held on one card at one time.

    A tick at which a card has no process carries one sample with ``pid`` 0.
    ``pod_uid`` is ``unknown`` where no pod owns the process.
    """

    time: float
    uuid: str
    pid: int
    pod_uid: str = ""
    namespace: str = ""
    pod: str = ""
    container: str = ""
    bytes: int
    utilization_pct: float | None = None
    busy_ns: int | None = None
    node: str = ""


class CardInfo(msgspec.Struct, frozen=True, kw_only=True):
    """A card as its node's monitor knows it."""

    uuid: str
    name: str
    index: int
    memory_bytes: int
    #: How often the host's memory budget refused something to an emulated card.
    budget_hits: int = 0
    utilization_pct: float | None = None
    #: Whether NVML tells which processes keep it busy.
    process_samples: bool = False
    #: ``slices`` or ``sharing``, None on hardware.
    clock: str | None = None
    #: Points of an emulated card's clock that a reader came too late for.
    lapped: int | None = None
    error: str = ""
    node: str = ""


class _Answer(msgspec.Struct, frozen=True, kw_only=True):
    node: str
    now: float
    source: str
    cards: tuple[CardInfo, ...]
    samples: tuple[Sample, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The merged answers of all monitors.

    Attributes:
        now: Each node's clock when it answered; pass it on as ``since`` to go on there.
        source: Where the figures come from, ``emulated`` or ``nvml``; both joined by
            a comma on a mixed cluster.
        cards: All cards, by node and index.
        samples: All samples, by time.
    """

    now: Mapping[str, float]
    source: str
    cards: tuple[CardInfo, ...]
    samples: tuple[Sample, ...]


def cards(
    kube: Kube,
    since: float | Mapping[str, float] = 0.0,
    *,
    namespace: str = names.NAMESPACE,
) -> Reading:
    """Return what every monitor has sampled after a time.

    Args:
        kube: The cluster.
        since: Unix seconds by the nodes' clocks, for all nodes or for each.
        namespace: The stack's.

    Raises:
        DeployError: there is no monitor, or one does not answer as agreed.
    """
    pods = [
        (pod["metadata"]["name"], pod["spec"].get("nodeName", ""))
        for pod in kube.list("v1", "Pod", namespace, labels=f"{NAME}={MONITOR}")
        if "deletionTimestamp" not in pod["metadata"]
    ]
    if not pods:
        raise DeployError(
            f"no monitor runs in namespace {namespace}", hint="deploy the stack first"
        )
    with ThreadPoolExecutor(max_workers=min(8, len(pods))) as pool:
        answers = list(pool.map(lambda item: _read(kube, namespace, item[0], item[1], since), pods))
    return merge(answers)


def parse(data: bytes) -> _Answer:
    """Return one monitor's answer.

    Raises:
        DeployError: it is not what docs/architecture.md says.
    """
    try:
        return msgspec.json.decode(data, type=_Answer)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise DeployError("a monitor's answer cannot be read", why=str(error)) from error


def merge(answers: Iterable[_Answer]) -> Reading:
    """Put the nodes' answers together, each sample marked with its node."""
    found = sorted(answers, key=lambda answer: answer.node)
    listed = [
        msgspec.structs.replace(card, node=answer.node)
        for answer in found
        for card in sorted(answer.cards, key=lambda card: card.index)
    ]
    samples = [
        msgspec.structs.replace(sample, node=answer.node)
        for answer in found
        for sample in answer.samples
    ]
    return Reading(
        now={answer.node: answer.now for answer in found},
        source=",".join(sorted({answer.source for answer in found})),
        cards=tuple(listed),
        samples=tuple(sorted(samples, key=lambda sample: sample.time)),
    )


def container_series(
    samples: Iterable[Sample],
    *,
    pod_uid: str,
    container: str | None = None,
    uuid: str | None = None,
) -> tuple[tuple[float, int], ...]:
    """Return (time, bytes) of a pod or of one of its containers, summed over processes.

    Ticks of which the pod has no sample are left out: a container whose processes
    are gone has no zero here, the caller sees its last figure's time.
    """
    sums: dict[float, int] = {}
    for sample in samples:
        if (
            sample.pod_uid == pod_uid
            and (container is None or sample.container == container)
            and (uuid is None or sample.uuid == uuid)
        ):
            sums[sample.time] = sums.get(sample.time, 0) + sample.bytes
    return tuple(sorted(sums.items()))


def unknown_bytes(samples: Iterable[Sample]) -> int:
    """Return the most that processes of no pod held at one time, on all cards of a node.

    Above zero, a sum over a card's pods is not the card's figure.
    """
    sums: dict[tuple[str, float], int] = {}
    for sample in samples:
        if sample.pod_uid == UNKNOWN:
            key = (sample.node, sample.time)
            sums[key] = sums.get(key, 0) + sample.bytes
    return max(sums.values(), default=0)


def ledger(kube: Kube, *, namespace: str = names.NAMESPACE) -> dict[str, Any]:
    """Return the extender's books: ``nodes`` as it tells them, ``pods`` by uid.

    A pod's value is its device list in the words of the annotation, reserved or bound.

    Raises:
        DeployError: no extender runs, or it does not answer as agreed.
    """
    answer = _extender(kube, namespace, "/debug/ledger")
    try:
        pods = {str(pod["uid"]): str(pod["devices"]) for pod in answer["pods"]}
        return {"synced": answer["synced"], "nodes": answer["nodes"], "pods": pods}
    except (KeyError, TypeError) as error:
        raise DeployError("the extender's ledger cannot be read", why=repr(error)) from error


def ledger_document(kube: Kube, *, namespace: str = names.NAMESPACE) -> dict[str, Any]:
    """Return the extender's ledger as it tells it, with the pods' names.

    Raises:
        DeployError: no extender runs, or it does not answer as agreed.
    """
    return _extender(kube, namespace, "/debug/ledger")


def reservations(kube: Kube, *, namespace: str = names.NAMESPACE) -> dict[str, Any]:
    """Return the extender's promises to pending pods, and the nodes' turns.

    Raises:
        DeployError: no extender runs, or it does not answer as agreed.
    """
    return _extender(kube, namespace, "/debug/reservations")


def waiting(kube: Kube, *, namespace: str = names.NAMESPACE) -> dict[str, Any]:
    """Return what the extender keeps of the pods that it refused and that still wait.

    Raises:
        DeployError: no extender runs, or it does not answer as agreed.
    """
    return _extender(kube, namespace, "/debug/waiting")


def _extender(kube: Kube, namespace: str, path: str) -> dict[str, Any]:
    pods = scheduler_pods(kube, namespace)
    if not pods:
        raise DeployError(
            f"no scheduler runs in namespace {namespace}", hint="deploy the stack first"
        )
    pod = leading(kube, namespace, pods)
    try:
        answer = json.loads(kube.pod_proxy(namespace, pod, names.PORT_EXTENDER_OBSERVE, path))
    except (ValueError, ClusterError) as error:
        why = error.why or error.what if isinstance(error, ClusterError) else str(error)
        raise DeployError(
            f"the extender does not answer {path}",
            why=why,
            hint=f"see `kubectl -n {namespace} logs {pod} -c extender`",
        ) from error
    if not isinstance(answer, dict):
        raise DeployError(f"the extender's {path} cannot be read", why="it is not an object")
    return answer


def scheduler_pods(kube: Kube, namespace: str) -> list[Object]:
    """Return the scheduler's pods, but for those on their way out."""
    pods = kube.list("v1", "Pod", namespace, labels=f"{NAME}={SCHEDULER}")
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def leading(kube: Kube, namespace: str, pods: Sequence[Object]) -> str:
    """Return the name of that of the scheduler's pods which holds the lease.

    The others promise nothing, and know of no pod that was refused. Where none of them holds
    it (the one that did was just deleted), a ready one: a new one has no address at first.
    """
    known = [pod["metadata"]["name"] for pod in sorted(pods, key=pod_ready)]
    if len(known) == 1:
        return str(known[0])
    lease = kube.find("coordination.k8s.io/v1", "Lease", SCHEDULER, namespace) or {}
    holder = str((lease.get("spec") or {}).get("holderIdentity") or "")
    # kube-scheduler calls itself <host>_<uuid>, and a pod's host is its name.
    return str(next((name for name in known if holder.rpartition("_")[0] == name), known[-1]))


def _read(
    kube: Kube, namespace: str, pod: str, node: str, since: float | Mapping[str, float]
) -> _Answer:
    start = since.get(node, 0.0) if isinstance(since, Mapping) else since
    try:
        data = kube.pod_proxy(
            namespace, pod, names.PORT_MONITOR, "/v1/cards", {"since": json.dumps(float(start))}
        )
        return parse(data)
    except TestbedError as error:
        raise DeployError(
            f"the monitor of node {node or '(none yet)'} gives no figures",
            why=error.why or error.what,
            hint=f"see `kubectl -n {namespace} logs {pod}`",
        ) from error
