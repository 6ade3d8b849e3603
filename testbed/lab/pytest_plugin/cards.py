"""The testbed's cards, and what each counts now: the monitor's figures, not the library's."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from testbed.errors import ClusterError, InputError, WaitTimeout
from testbed.lab import deploy
from testbed.lab.deploy import Reading, Sample
from testbed.lab.kube import Kube
from testbed.lab.scenario.shares import device_share
from testbed.lab.wait import wait_until
from testbed.stack import names
from testbed.stack.codec import decode_pod_shares
from testbed.units import MIB

#: How long the monitors may take to sample once more.
FRESH_S = 30.0
#: Later than every sample: what an answer tells then is the node's clock.
_NEVER = 1e12
_POLL_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A card of the testbed.

    Attributes:
        uuid: As pods and annotations name it.
        model: ``NVIDIA A100-SXM4-80GB``.
        node: Where it is.
        index: Its number there, from 0.
        memory_bytes: What it has, the driver's part included.
    """

    uuid: str
    model: str
    node: str
    index: int
    memory_bytes: int
    _kube: Kube = field(repr=False, compare=False)

    @property
    def memory_mib(self) -> int:
        return self.memory_bytes // MIB

    def pods(self) -> dict[str, int]:
        """Return what the card counts now for each pod: bytes by ``namespace/name``.

        Raises:
            WaitTimeout, DeployError: its monitor does not sample.
        """
        found: dict[str, int] = {}
        for sample in fresh(self._kube):
            if sample.uuid == self.uuid and sample.pid:
                pod = f"{sample.namespace}/{sample.pod}" if sample.pod else sample.pod_uid
                found[pod] = found.get(pod, 0) + sample.bytes
        return found

    def used_bytes(self) -> int:
        """Return what the card counts now for all processes together."""
        return sum(self.pods().values())


def all_cards(kube: Kube) -> list[Card]:
    """Return the cards by node and index.

    Raises:
        DeployError: no monitor answers.
    """
    return [
        Card(
            uuid=card.uuid,
            model=card.name,
            node=card.node,
            index=card.index,
            memory_bytes=card.memory_bytes,
            _kube=kube,
        )
        for card in deploy.cards(kube, _NEVER).cards
    ]


def fresh(kube: Kube) -> tuple[Sample, ...]:
    """Return each card's next tick: what it counts after this was called.

    Raises:
        WaitTimeout: a monitor does not sample.
        DeployError: none answers.
    """
    __tracebackhide__ = True
    start = deploy.cards(kube, _NEVER)
    wanted = {card.uuid for card in start.cards}
    reading = wait_until(
        "every card was sampled once more",
        lambda: deploy.cards(kube, start.now),
        ready=lambda found: wanted <= {sample.uuid for sample in found.samples},
        describe=lambda found: f"samples of {len({s.uuid for s in found.samples})} cards",
        timeout_s=FRESH_S,
        hint="see `testbed logs monitor`",
    )
    first: dict[str, float] = {}
    for sample in reading.samples:
        first.setdefault(sample.uuid, sample.time)
    return tuple(sample for sample in reading.samples if sample.time == first[sample.uuid])


def promised(pod: Mapping[str, object]) -> tuple[str, ...]:
    """Return the uuids of the cards that a pod was promised, in its containers' order."""
    metadata = pod.get("metadata")
    notes = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    text = str((notes or {}).get(names.POD_ALLOCATED, ""))
    shares = decode_pod_shares(text) if text else ()
    return tuple(dict.fromkeys(share.uuid for container in shares for share in container))


def chosen(uuids: Iterable[str], uuid: str | None, pod: str) -> str:
    """Return the one card that is meant.

    Raises:
        InputError: the pod has none, several, or not that one.
    """
    has = tuple(uuids)
    if uuid is None and len(has) == 1:
        return has[0]
    if uuid in has:
        return str(uuid)
    if not has:
        raise InputError(f"{pod} has no card", why="nothing was promised to it (yet)")
    raise InputError(
        f"{pod} has {len(has)} cards" if uuid is None else f"{pod} does not have card {uuid}",
        hint=f"name one of {', '.join(has)}",
    )


def share_pct(
    kube: Kube, *, pod_uid: str, node: str, uuid: str, seconds: float, container: str = ""
) -> float:
    """Return the share of a card's time that a pod gets over the next seconds, percent.

    From the card's own book (``busy_ns``) where it has one, else NVML's utilisation.

    Raises:
        InputError: a window too short to say anything.
        WaitTimeout: the monitor does not sample.
        ClusterError: the card does not tell whose work it does.
    """
    __tracebackhide__ = True
    if seconds < 1:
        raise InputError(
            f"a share over {seconds:g} s says nothing",
            why="the monitor samples five times a second",
            hint="give it 2 seconds or more",
        )
    reading = deploy.cards(kube, _NEVER)
    begin = reading.now[node]
    end, deadline = begin + seconds, time.monotonic() + seconds + FRESH_S
    samples: list[Sample] = []
    since: Mapping[str, float] = reading.now
    while not samples or samples[-1].time < end:
        if time.monotonic() > deadline:
            raise WaitTimeout(
                f"the monitor of {node} did not sample for {FRESH_S:g} s",
                hint="see `testbed logs monitor`",
            )
        time.sleep(_POLL_S)
        reading = deploy.cards(kube, since)
        new = [sample for sample in reading.samples if sample.uuid == uuid]
        if new:
            samples += new
            since = {**reading.now, node: new[-1].time}
    return over(reading, samples, pod_uid, uuid, begin, end, container)


def over(
    reading: Reading,
    samples: Iterable[Sample],
    pod_uid: str,
    uuid: str,
    begin: float,
    end: float,
    container: str = "",
) -> float:
    """Return the share between two times from what was sampled there (pure).

    Raises:
        ClusterError: the card does not tell whose work it does.
    """
    from testbed.lab.scenario.question import Sample as Plain

    # Samples of one tick share a time; a tick may have been read twice.
    plain = {
        (s.time, s.pid): Plain(
            time=s.time,
            uuid=s.uuid,
            pid=s.pid,
            pod_uid=s.pod_uid,
            container=s.container,
            bytes=s.bytes,
            busy_ns=s.busy_ns,
            utilization_pct=s.utilization_pct,
        )
        for s in samples
    }
    own = [s for s in plain.values() if s.pod_uid == pod_uid and container in ("", s.container)]
    if not own:
        return 0.0
    total = 0.0
    for each in sorted({s.container for s in own}):
        share = device_share(
            list(plain.values()),
            pod_uid=pod_uid,
            container=each,
            uuid=uuid,
            start=begin,
            end=end,
        )
        if share is None:
            raise ClusterError(
                f"card {uuid} does not tell how much of its time the pod gets",
                why=f"figures come from {reading.source}, which has none by process"
                if not any(s.busy_ns is not None for s in own)
                else "its monitor took too few samples",
            )
        total += share.pct
    return total
