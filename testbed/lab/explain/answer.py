"""From the facts to the answer; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from testbed.errors import InputError
from testbed.lab.deploy.diagnosis import pod_line, pod_ready
from testbed.lab.explain.lacks import (
    away,
    evicting,
    hardest,
    in_short,
    larger_than_any,
    quota_short,
)
from testbed.lab.explain.model import Ask, Explanation, Facts, Raw, Refused
from testbed.lab.explain.offered import excluded
from testbed.lab.explain.remedies import remedies
from testbed.lab.explain.room import ledger_of, rooms
from testbed.stack import names
from testbed.stack.devices.vendor import resource_names
from testbed.stack.placement.decide import Offer, decide
from testbed.stack.placement.quota import Amount
from testbed.stack.placement.reasons import explain as reasons_of
from testbed.stack.placement.request import PodRequest, containers, pod_request

_EVENTS = 3


def explain(facts: Facts) -> Explanation:
    """Return why a pod waits, or what it asked, gets and waits for."""
    pod = facts.pod
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    phase, node = status.get("phase", "Pending"), spec.get("nodeName") or ""
    try:
        request = pod_request(pod, facts.config)
    except InputError as error:
        why = f"{error.what}: {error.why}" if error.why else error.what
        return _answer(
            facts,
            state="invalid",
            says=f"cannot be placed: {why}",
            notes=(f"to fix: {error.hint}",) if error.hint else (),
        )
    asked = _asked(pod, request)
    if phase in ("Succeeded", "Failed"):
        reason = ": ".join(filter(None, (status.get("reason"), status.get("message"))))
        says = f"has ended ({phase})" + (f": {reason}" if reason else "")
        return _answer(facts, state="ended", says=says, asked=asked, node=node)
    if not request.asks:
        says = "asks for no card" + (f"; it is on {node}" if node else "")
        return _answer(facts, state="foreign", says=says, asked=asked, node=node)
    scheduler = spec.get("schedulerName") or "default-scheduler"
    if scheduler != facts.config.schedulerName:
        return _foreign(facts, asked, scheduler, node)
    if node:
        return _placed(facts, asked, node)
    return _waiting(facts, request, asked)


# --- not placed yet ---------------------------------------------------------------


def _waiting(facts: Facts, request: PodRequest, asked: tuple[Ask, ...]) -> Explanation:
    uid = facts.pod["metadata"]["uid"]
    promise = next(
        (each for each in (facts.reservations or {}).get("reservations", ()) if each["uid"] == uid),
        None,
    )
    if promise is not None:
        return _reserved(facts, asked, promise)
    if gates := (facts.pod["spec"].get("schedulingGates") or []):
        held = ", ".join(gate.get("name", "?") for gate in gates)
        return _answer(
            facts, state="waiting", says=f"waits for its scheduling gates: {held}", asked=asked
        )
    memory = _memory(facts)
    if facts.books is None:
        return _answer(
            facts,
            state="waiting",
            says="waits, and the extender does not say why",
            asked=asked,
            counts=dict(memory.get("reasons") or {}),
            refused=_refused(memory),
        )
    if not facts.books.get("synced", True):
        return _answer(
            facts,
            state="waiting",
            says="waits: the extender has not read all nodes and pods yet",
            asked=asked,
        )
    return _no_room(facts, facts.books, request, asked, memory)


def _memory(facts: Facts) -> Raw:
    """Return what the extender keeps of the pod's refusals; nothing where it has none."""
    uid = facts.pod["metadata"]["uid"]
    kept = (facts.waiting or {}).get("pods", ())
    return next((each for each in kept if each["uid"] == uid), {})


def _refused(memory: Raw) -> Refused | None:
    if not memory:
        return None
    return Refused(
        attempts=memory["attempts"],
        waits_s=memory["waits_seconds"],
        last_s=memory["refused_seconds_ago"],
    )


def _no_room(
    facts: Facts, books: Raw, request: PodRequest, asked: tuple[Ask, ...], memory: Raw
) -> Explanation:
    left = Amount(**(memory.get("quota_left") or {}))
    by_name = {node["metadata"]["name"]: node for node in facts.nodes}
    ours = resource_names(facts.config)
    closed = {n: why for n, node in by_name.items() if (why := excluded(facts.pod, node, ours))}
    offered = [name for name in by_name if name not in closed]
    ledger = ledger_of(books)
    failed = reasons_of(ledger, request, offered, left).failed
    choice = decide(ledger, request, Offer.of(offered), left)
    one = hardest(request, books)
    found = rooms(
        books,
        one,
        request.constraint,
        reasons={} if choice is not None else failed,
        excluded=closed,
        away=away(facts.config, by_name, request.vendor),
    )
    if choice is not None:
        return _answer(
            facts,
            state="waiting",
            says=f"fits on {choice.node} now; the scheduler has not tried again yet",
            asked=asked,
            nodes=found,
            refused=_refused(memory),
        )
    reasons = [closed.get(name) or failed.get(name, "") for name in by_name]
    counts = dict(Counter(filter(None, reasons)).most_common())
    if not books["nodes"]:
        says = "waits: no node has registered a card"
    elif not offered:
        says = f"waits: none of {len(by_name)} nodes is open to it"
        if len(whys := set(closed.values())) == 1:
            says += f": {whys.pop()}"
    elif decide(ledger, request, Offer.of(offered)) is not None:
        says = f"waits: {quota_short(left, request, facts.pod)}"
    else:
        says = f"waits: {in_short(found, one, asked)}"
    return _answer(
        facts,
        state="waiting",
        says=says,
        asked=asked,
        nodes=found,
        counts=counts,
        refused=_refused(memory),
        remedies=remedies(books, request, found, facts.pods, offered, left),
        notes=(*larger_than_any(books, one), *evicting(memory, facts.pods)),
    )


def _reserved(facts: Facts, asked: tuple[Ask, ...], promise: Raw) -> Explanation:
    node, stage = promise["node"], promise["stage"]
    turns = (facts.reservations or {}).get("turns", {}).get(node, {})
    says = f"has its cards on {node} reserved for {promise['age_seconds']:.0f} s"
    if stage == "waiting":
        by_uid = {
            pod["metadata"]["uid"]: f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
            for pod in facts.pods
        }
        ahead = [by_uid.get(uid, uid) for uid in turns.get("holders", ())]
        says += f" and waits until {', '.join(ahead) or 'another pod'} has its devices there"
    elif stage == "binding":
        says += ", and is being bound"
    else:
        says += ", and waits for the scheduler to bind it"
    return _answer(facts, state="reserved", says=says, asked=asked, node=node)


def _foreign(facts: Facts, asked: tuple[Ask, ...], scheduler: str, node: str) -> Explanation:
    labels = facts.pod["metadata"].get("labels") or {}
    if labels.get(names.WEBHOOK_LABEL) == names.WEBHOOK_IGNORE:
        note = f"its label {names.WEBHOOK_LABEL}={names.WEBHOOK_IGNORE} keeps the webhook off"
    else:
        note = (
            "made before the webhook ran, or in a namespace that it leaves out, or with a "
            "schedulerName of its own: make it again, without schedulerName"
        )
    where = f"; it is on {node} without limits" if node else ""
    says = f"asks for cards and belongs to scheduler {scheduler!r}, which knows none{where}"
    return _answer(facts, state="foreign", says=says, asked=asked, node=node, notes=(note,))


# --- placed -----------------------------------------------------------------------


def _placed(facts: Facts, asked: tuple[Ask, ...], node: str) -> Explanation:
    pod = facts.pod
    uid = pod["metadata"]["uid"]
    mine = tuple(each for each in facts.containers or () if each.get("pod_uid") == uid)
    if pod_ready(dict(pod)) or any(
        "running" in (each.get("state") or {})
        for each in (pod.get("status") or {}).get("containerStatuses") or ()
    ):
        says = f"runs on {node}"
        trouble = sorted({flag for each in mine for flag in each.get("flags", ())})
        if trouble:
            says += f" ({', '.join(trouble)})"
        silent = facts.containers is None
        return _answer(
            facts,
            state="running",
            says=says,
            asked=asked,
            node=node,
            containers=mine,
            notes=("the monitor does not tell what it gets",) if silent else (),
        )
    phase = (pod["metadata"].get("annotations") or {}).get(names.POD_BIND_PHASE, "")
    line = pod_line(dict(pod))
    says = f"is placed on {node} and starts: {line}"
    notes: tuple[str, ...] = ()
    if absent := _absent_images(pod, facts.nodes, node):
        notes = (absent,)
    if phase == names.PHASE_FAILED:
        says = f"is placed on {node}, and its devices could not be handed out: {line}"
    elif phase == names.PHASE_ALLOCATING:
        notes = ("its devices are being handed out (bind phase allocating)", *notes)
    return _answer(facts, state="starting", says=says, asked=asked, node=node, notes=notes)


def _absent_images(pod: Raw, nodes: Sequence[Raw], where: str) -> str:
    """Return which images of waiting containers are not on their node, and what is there."""
    there = {
        _short_image(name)
        for node in nodes
        if node["metadata"]["name"] == where
        for image in (node.get("status") or {}).get("images") or ()
        for name in image.get("names") or ()
        if "@" not in name
    }
    status = pod.get("status") or {}
    begun = {
        each.get("name")
        for key in ("initContainerStatuses", "containerStatuses")
        for each in status.get(key) or ()
        if "waiting" not in (each.get("state") or {}) and each.get("state")
    }
    wanted = [
        _short_image(str(member.get("image", "")))
        for _, member in containers(pod)
        if member.get("name") not in begun
    ]
    missing = sorted({image for image in wanted if image and image not in there})
    if not missing or not there:
        return ""
    return (
        f"{', '.join(missing)} is not on {where} and is pulled from its registry; "
        f"there are {', '.join(sorted(there))}"
    )


def _short_image(reference: str) -> str:
    """Return an image's reference as people write it, with its tag."""
    short = reference.removeprefix("docker.io/").removeprefix("library/")
    return short if ":" in short.rpartition("/")[2] else f"{short}:latest"


# --- parts ------------------------------------------------------------------------


def _asked(pod: Raw, request: PodRequest) -> tuple[Ask, ...]:
    return tuple(
        Ask(
            container=str(member.get("name", "")),
            cards=one.count,
            mem_mib=one.mem_mib,
            mem_pct=one.mem_pct,
            core_pct=one.core_pct,
        )
        for (_, member), one in zip(containers(pod), request.containers, strict=True)
        if one.count
    )


def _answer(
    facts: Facts, *, says: str, notes: tuple[str, ...] = (), **fields: object
) -> Explanation:
    metadata = facts.pod["metadata"]
    conditions = (facts.pod.get("status") or {}).get("conditions") or []
    scheduler = next(
        (
            str(each.get("message", ""))
            for each in conditions
            if each.get("type") == "PodScheduled" and each.get("status") == "False"
        ),
        "",
    )
    return Explanation(
        namespace=metadata.get("namespace", "default"),
        pod=metadata["name"],
        says=says,
        scheduler=scheduler,
        events=_events(facts.events, scheduler),
        notes=(*notes, *facts.problems),
        **fields,  # type: ignore[arg-type]
    )


def _events(events: Sequence[Raw], scheduler: str) -> tuple[str, ...]:
    """Return the last warning of each reason, those that the scheduler's words repeat left out."""
    warnings = [event for event in events if event.get("type") == "Warning"]
    warnings.sort(key=lambda e: str(e.get("lastTimestamp") or e.get("eventTime") or ""))
    last = {
        str(event.get("reason", "?")): str(event.get("message", "")).strip() for event in warnings
    }
    texts = [f"{reason}: {message}" for reason, message in last.items() if message != scheduler]
    return tuple(texts[-_EVENTS:])
