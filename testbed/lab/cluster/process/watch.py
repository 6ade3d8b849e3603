"""Waits until a started cluster is ready, or until it is plain that it will not be."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.errors import FULL_HINT, ClusterError, WaitTimeout
from testbed.lab.cluster.api import Api, Unreachable
from testbed.lab.cluster.process import layout

READY_S = 90.0
_POLL_S = 0.05
#: A program that ended so often before the cluster was ready will not come up.
_FAILURES = 4
_LOG_LINES = 6


@dataclass(frozen=True, slots=True)
class Space:
    """What one pid 1 reported."""

    name: str
    stage: str
    error: str
    services: dict[str, dict[str, Any]]


def spaces(folders: layout.Folders) -> list[Space]:
    """Return the reports of all pid 1s, the outer one first."""
    found = []
    for path in sorted(folders.status.glob("*.json"), key=lambda p: (p.stem != "outer", p.stem)):
        try:
            report = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        found.append(Space(path.stem, report["stage"], report["error"], report["services"]))
    return found


def failures(folders: layout.Folders, limit: int) -> list[tuple[str, Path]]:
    """Return what failed for good (or ``limit`` times), with the log that tells why."""
    found = []
    for space in spaces(folders):
        if space.stage == "failed":
            found.append((f"{space.name}: {space.error}", folders.logs / f"{space.name}.log"))
        for name, service in space.services.items():
            # One that failed long ago and runs now is well.
            if service["failures"] >= limit and not service["pid"]:
                log = name if space.name == "outer" else f"{space.name}-{name}"
                why = service["error"] or f"ended with {service['exit']}"
                found.append((f"{name} {why}", folders.logs / f"{log}.log"))
    return found


def imported(folders: layout.Folders, nodes: Sequence[layout.Node]) -> bool:
    """Tell whether every node has its images."""
    reports = {space.name: space.services for space in spaces(folders)}
    return all(reports.get(node.name, {}).get("images", {}).get("done") for node in nodes)


def until_ready(
    folders: layout.Folders,
    api: Api,
    nodes: Sequence[layout.Node],
    alive: Callable[[], bool],
    tell: Callable[[str], None],
    *,
    deadline_s: float = READY_S,
) -> str:
    """Wait until all nodes are Ready, have their images and take pods.

    Args:
        folders: The state folder.
        api: The API server.
        nodes: The nodes that must come.
        alive: Whether the processes still run.
        tell: Is called with what is waited for, when that changes.
        deadline_s: When to give up.

    Returns:
        The version of Kubernetes.

    Raises:
        ClusterError: the cluster will not come up.
        WaitTimeout: it has not come up.
    """
    until = time.monotonic() + deadline_s
    waiting = ""
    while True:
        now = _missing(folders, api, nodes)
        if not now:
            return api.version()
        if now != waiting:
            waiting = now
            tell(waiting)
        failed = failures(folders, _FAILURES)
        if failed or not alive():
            raise _failed(folders, failed)
        if time.monotonic() > until:
            raise WaitTimeout(
                f"the cluster is not ready after {deadline_s:.0f} s",
                why=f"still waiting for {waiting}",
                artifacts=folders.logs,
            )
        time.sleep(_POLL_S)


def _missing(folders: layout.Folders, api: Api, nodes: Sequence[layout.Node]) -> str:
    """Return what the cluster still lacks, or nothing."""
    try:
        ready = api.ready_nodes()
        unready = [node.name for node in nodes if not ready.get(node.name)]
        if unready:
            return ", ".join(unready)
        if not imported(folders, nodes):
            return "images"
        return "" if api.serves_pods() else "the default service account"
    except Unreachable:
        return "API server"


def _failed(folders: layout.Folders, failed: list[tuple[str, Path]]) -> ClusterError:
    what, log = failed[0] if failed else ("its processes have ended", folders.logs / "launch.log")
    why = "\n  ".join([what, *tail(log)])
    return ClusterError(
        "the cluster does not come up",
        why=why,
        hint=FULL_HINT if "no space left on device" in why.lower() else "the logs tell more",
        artifacts=folders.logs,
    )


def tail(log: Path) -> list[str]:
    """Return the last lines of a log, errors first where the log marks them."""
    try:
        lines = log.read_text(errors="replace").splitlines()
    except OSError:
        return []
    marked = [line for line in lines if line.startswith(("E", "F")) or "rror" in line]
    return [line[:300] for line in (marked or lines)[-_LOG_LINES:]]
