"""A pod that a test submitted: wait for it, read it, measure it, delete it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from testbed.errors import ClusterError, InputError, TestbedError, WaitTimeout
from testbed.lab import explain
from testbed.lab.deploy.diagnosis import hopeless, pod_line
from testbed.lab.kube import ApiError, ExecResult, Kube
from testbed.lab.pytest_plugin import cards
from testbed.lab.wait import wait_until

_TAIL = 20
_ENDED = ("Succeeded", "Failed")
_MISSING = "there is no such pod any more"


class Pod:
    """A pod of a test.

    Args:
        kube: The cluster.
        manifest: What was submitted.
        created: What the server made of it.
        timeout_s: Default deadline of every wait.

    Attributes:
        name, namespace, uid: The pod's.
        manifest: What was submitted.
    """

    def __init__(
        self,
        kube: Kube,
        manifest: Mapping[str, Any],
        created: Mapping[str, Any],
        *,
        timeout_s: float,
    ) -> None:
        self._kube = kube
        self.manifest = manifest
        self.name = str(created["metadata"]["name"])
        self.namespace = str(created["metadata"]["namespace"])
        self.uid = str(created["metadata"]["uid"])
        self._timeout_s = timeout_s

    def __repr__(self) -> str:
        return f"<pod {self.namespace}/{self.name}>"

    # --- what it is ------------------------------------------------------------
    @property
    def raw(self) -> dict[str, Any]:
        """The pod as it is now, raw.

        Raises:
            ApiError: it is gone.
        """
        return self._kube.get("v1", "Pod", self.name, self.namespace)

    @property
    def phase(self) -> str:
        """``Pending``, ``Running``, ``Succeeded``, ``Failed``; ``Gone`` where there is none."""
        return _phase(self._find())

    @property
    def node(self) -> str:
        """The node that it is on; empty while it is on none."""
        return str(self.raw["spec"].get("nodeName", ""))

    @property
    def cards(self) -> tuple[str, ...]:
        """The uuids of the cards that it was promised."""
        return cards.promised(self.raw)

    def exit_code(self, container: str | None = None) -> int | None:
        """Return the exit status of a container that has ended, the first bad one by default."""
        found = [
            int(status["state"]["terminated"]["exitCode"])
            for status in _statuses(self.raw)
            if (status.get("state") or {}).get("terminated")
            and container in (None, status.get("name"))
        ]
        return next((code for code in found if code), found[0] if found else None)

    # --- waiting ---------------------------------------------------------------
    def wait_running(self, timeout_s: float | None = None) -> Pod:
        """Wait until all its containers run, or have run to a good end.

        Raises:
            ClusterError: it failed, was deleted, or can never start; its last lines are told.
            WaitTimeout: it does not start in time; the text says why it waits.
        """
        __tracebackhide__ = True
        self._wait("runs", _runs, timeout_s, good=("Running", "Succeeded"))
        return self

    def wait_done(self, timeout_s: float | None = None) -> int:
        """Wait until it has ended, well or not, and return its exit status.

        Raises:
            ClusterError: it was deleted, or can never start.
            WaitTimeout: it does not end in time.
        """
        __tracebackhide__ = True
        found = self._wait("has ended", lambda pod: _phase(pod) in _ENDED, timeout_s, good=_ENDED)
        code = self.exit_code()
        if code is None:  # refused by its kubelet: no container ever ran
            raise ClusterError(f"pod {self.name} was never started", why=pod_line(found))
        return code

    def wait_unschedulable(self, timeout_s: float | None = None) -> str:
        """Wait until the scheduler has refused it, and return the scheduler's words.

        Raises:
            ClusterError: it was scheduled.
            WaitTimeout: the scheduler said nothing in time.
        """
        __tracebackhide__ = True

        def scheduled(pod: dict[str, Any] | None) -> TestbedError | None:
            node = ((pod or {}).get("spec") or {}).get("nodeName")
            if not node:
                return None
            return ClusterError(
                f"pod {self.name} was scheduled", why=f"it is on {node}, and was to find no place"
            )

        found = wait_until(
            f"the scheduler has refused pod {self.name}",
            self._find,
            ready=lambda pod: bool(_refusal(pod)),
            failed=scheduled,
            describe=lambda pod: _line(pod),
            timeout_s=timeout_s or self._timeout_s,
        )
        return _refusal(found)

    def wait_fact(
        self, event: str, timeout_s: float | None = None, **fields: object
    ) -> dict[str, Any]:
        """Wait until the pod has printed a fact, and return it.

        Args:
            event: Value of its field ``event``.
            timeout_s: Seconds.
            fields: Further values that it must have.

        Raises:
            ClusterError: the pod ended without it; its last lines are told.
            WaitTimeout: it does not come in time.
        """
        __tracebackhide__ = True
        wanted = {"event": event, **fields}

        def look() -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
            pod = self._find()  # first: what it printed before its end is read after it
            facts = (f for f in self.facts() if all(f.get(k) == v for k, v in wanted.items()))
            return pod, next(facts, None)

        try:
            _, fact = wait_until(
                f"pod {self.name} has printed {json.dumps(wanted)}",
                look,
                ready=lambda seen: seen[1] is not None,
                failed=lambda seen: self._over(seen[0], ()),
                describe=lambda seen: _line(seen[0]),
                timeout_s=timeout_s or self._timeout_s,
            )
        except WaitTimeout as error:
            printed = self._last_lines() or "    (nothing)"
            hint = f"it has printed:\n{printed}"
            raise WaitTimeout(error.what, why=error.why, hint=hint) from None
        return fact or {}

    # --- what it says ----------------------------------------------------------
    def logs(self, container: str | None = None, *, tail: int | None = None) -> str:
        """Return what it has printed; nothing before it runs.

        Raises:
            InputError: it has no such container, or several and none is named.
            ClusterError: the log cannot be read.
        """
        __tracebackhide__ = True
        names = [c["name"] for c in self.manifest["spec"].get("containers", [])]
        if (container is None and len(names) > 1) or (
            container is not None and container not in names + self._init_names()
        ):
            raise InputError(
                f"whose log of pod {self.name}?", hint=f"its containers are {', '.join(names)}"
            )
        try:
            return self._kube.logs(self.namespace, self.name, container, tail=tail)
        except ApiError as error:
            if error.status in (400, 404):  # not started; gone
                return ""
            raise

    def facts(self, container: str | None = None) -> list[dict[str, Any]]:
        """Return what it has printed as JSON objects, one on a line, in order."""
        __tracebackhide__ = True
        return facts_in(self.logs(container))

    def exec(
        self, *command: str, container: str | None = None, timeout_s: float = 60.0
    ) -> ExecResult:
        """Run a command in it; a non-zero exit status is a result (``.rc``), not an error.

        Raises:
            WaitTimeout: it does not end in time.
            MissingTool: there is no kubectl.
        """
        __tracebackhide__ = True
        return self._kube.exec(
            self.namespace, self.name, command, container=container, timeout_s=timeout_s
        )

    def explain(self) -> str:
        """Return why it waits, or what it asked, gets and waits for (``testbed explain``)."""
        word = f"{self.namespace}/{self.name}"
        return explain.text(explain.explain(explain.gather(self._kube, word)))

    # --- what the card says ----------------------------------------------------
    def memory_bytes(self, card: str | None = None) -> int:
        """Return what the card counts for it now: contexts, allocations, all processes.

        Args:
            card: A card's uuid; all its cards together by default.

        Raises:
            InputError: it does not have that card.
            WaitTimeout, DeployError: the monitor does not sample.
        """
        __tracebackhide__ = True
        if card is not None:
            cards.chosen(self.cards, card, f"pod {self.name}")
        found = cards.fresh(self._kube)
        return sum(s.bytes for s in found if s.pod_uid == self.uid and card in (None, s.uuid))

    def share_pct(
        self, seconds: float = 5.0, *, card: str | None = None, container: str = ""
    ) -> float:
        """Return the share of its card's time that it gets over the next seconds, percent.

        By the card's own book of device time; the library is not asked.

        Args:
            seconds: Length of the window; shares of slow kernels need longer ones.
            card: The card's uuid where it has several.
            container: One of its containers; all together by default.

        Raises:
            InputError: it has no card, several, or not that one; too short a window.
            WaitTimeout: the monitor does not sample.
            ClusterError: the card does not tell whose work it does.
        """
        __tracebackhide__ = True
        pod = self.raw
        return cards.share_pct(
            self._kube,
            pod_uid=self.uid,
            node=str(pod["spec"].get("nodeName", "")),
            uuid=cards.chosen(cards.promised(pod), card, f"pod {self.name}"),
            seconds=seconds,
            container=container,
        )

    # --- its end ---------------------------------------------------------------
    def delete(self, *, grace_s: int | None = 0, timeout_s: float | None = None) -> None:
        """Delete it and wait until it is gone; one that is gone is left alone.

        Args:
            grace_s: Seconds between SIGTERM and SIGKILL; None: as the pod says.
            timeout_s: How long it may take.

        Raises:
            WaitTimeout: it is still there.
        """
        __tracebackhide__ = True
        found = self._find()
        if found is None:
            return
        self._kube.delete("v1", "Pod", self.name, self.namespace, grace_s=grace_s)
        wait_until(
            f"pod {self.name} is gone",
            self._find,
            ready=lambda pod: pod is None,
            describe=lambda pod: _line(pod),
            timeout_s=timeout_s or self._timeout_s,
        )

    # --- below -----------------------------------------------------------------
    def _find(self) -> dict[str, Any] | None:
        found = self._kube.find("v1", "Pod", self.name, self.namespace)
        # Another of the same name is not this one.
        return found if found and found["metadata"]["uid"] == self.uid else None

    def _init_names(self) -> list[str]:
        return [c["name"] for c in self.manifest["spec"].get("initContainers", [])]

    def _wait(
        self,
        what: str,
        ready: Callable[[dict[str, Any] | None], bool],
        timeout_s: float | None,
        *,
        good: tuple[str, ...],
    ) -> dict[str, Any]:
        __tracebackhide__ = True
        try:
            found = wait_until(
                f"pod {self.name} {what}",
                self._find,
                ready=ready,
                failed=lambda pod: self._over(pod, good),
                describe=lambda pod: _line(pod),
                timeout_s=timeout_s or self._timeout_s,
            )
        except WaitTimeout as error:
            raise WaitTimeout(error.what, why=error.why, hint=self._answer()) from None
        return found or {}

    def _over(self, pod: dict[str, Any] | None, good: tuple[str, ...]) -> TestbedError | None:
        """Return why waiting on is pointless."""
        if pod is None:
            return ClusterError(f"pod {self.name} is gone", why="somebody deleted it")
        if (phase := _phase(pod)) in _ENDED and phase not in good:
            return ClusterError(
                f"pod {self.name} has ended ({phase})",
                why=pod_line(pod),
                hint=f"its last lines:\n{self._last_lines()}",
            )
        if why := hopeless([pod]):
            return ClusterError(f"pod {self.name} cannot start", why=why)
        return None

    def _last_lines(self) -> str:
        """Return the end of every container's log, best effort."""
        lines = []
        for name in self._init_names() + [
            c["name"] for c in self.manifest["spec"].get("containers", [])
        ]:
            try:
                text = self.logs(name, tail=_TAIL)
            except TestbedError:
                continue
            lines += [f"    {name} | {line}" for line in text.splitlines()[-_TAIL:]]
        return "\n".join(lines)

    def _answer(self) -> str:
        """Return what `testbed explain` would say, best effort."""
        try:
            return self.explain()
        except TestbedError as error:
            return f"(no explanation: {error.what})"


def facts_in(text: str) -> list[dict[str, Any]]:
    """Return the lines of a text that are JSON objects."""
    found = []
    for line in text.splitlines():
        if re.match(r"\s*\{", line):
            try:
                value = json.loads(line)
            except ValueError:
                continue  # a line that only looks like one, or that is not whole yet
            if isinstance(value, dict):
                found.append(value)
    return found


def _phase(pod: Mapping[str, Any] | None) -> str:
    if pod is None:
        return "Gone"
    return str((pod.get("status") or {}).get("phase", "Pending"))


def _statuses(pod: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list((pod.get("status") or {}).get("containerStatuses") or [])


def _runs(pod: Mapping[str, Any] | None) -> bool:
    if pod is None or _phase(pod) == "Succeeded":
        return pod is not None
    states = [status.get("state") or {} for status in _statuses(pod)]
    return _phase(pod) == "Running" and all("waiting" not in state for state in states)


def _refusal(pod: Mapping[str, Any] | None) -> str:
    for condition in ((pod or {}).get("status") or {}).get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return str(condition.get("message") or "")
    return ""


def _line(pod: dict[str, Any] | None) -> str:
    return _MISSING if pod is None else pod_line(pod)
