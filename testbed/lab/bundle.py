"""The bundle of a failure: logs, events, objects, regions, cards, versions; never a secret."""

from __future__ import annotations

import contextlib
import errno
import json
import shutil
import stat
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec

from testbed.errors import InputError, TestbedError
from testbed.lab.cluster.protocol import Cluster, ClusterStatus
from testbed.lab.deploy import cards, reservations
from testbed.lab.deploy.samples import ledger_document
from testbed.lab.doctor import Finding, diagnose
from testbed.lab.kube import Kube, Unreachable
from testbed.lab.redact import redact, redacted
from testbed.lab.versions import versions
from testbed.native import card
from testbed.native.page import read_page
from testbed.native.region import read_region
from testbed.stack import names

#: What is read from the API server, with its version. Secrets are not in the list.
KINDS = (
    ("v1", "Node"),
    ("v1", "Pod"),
    ("v1", "Event"),
    ("v1", "ConfigMap"),
    ("v1", "Service"),
    ("apps/v1", "Deployment"),
    ("apps/v1", "DaemonSet"),
    ("admissionregistration.k8s.io/v1", "MutatingWebhookConfiguration"),
    ("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"),
    ("v1", "ResourceQuota"),
)
LOG_LINES = 5000
_LOGS_S = 60.0
#: What a part may fail with: the rest is collected all the same.
_EXPECTED = (TestbedError, OSError, ValueError, KeyError, TypeError, subprocess.SubprocessError)
#: But not where nothing can be written any more.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
ARCHIVES = (".tar.gz", ".tgz")


def collect(folder: Path, cluster: Cluster, kube: Kube | None) -> Path | None:
    """Write everything that a failure needs below a folder; best effort, never raises.

    What could not be had is named in ``problems.txt``. What an earlier failure left there
    goes first. Where nothing can be written there it goes to the folder for temporary
    files.

    Returns:
        Where it is; None where there was nothing to collect, since nothing had started,
        or no room at all.
    """
    try:
        return _collect(folder, cluster, kube)
    except OSError:  # a full disk, a folder of somebody else's
        shutil.rmtree(folder, ignore_errors=True)
    scratch = None
    try:
        scratch = Path(tempfile.mkdtemp(prefix="testbed-bundle-"))
        return _collect(scratch, cluster, kube)
    except OSError:
        if scratch is not None:
            shutil.rmtree(scratch, ignore_errors=True)
        return None


def _findings(status: ClusterStatus | None) -> tuple[Finding, ...]:
    """Return what the doctor says of this kind of cluster and its cards."""
    if status is None:
        return diagnose()
    real = any(card.real for node in status.nodes for card in node.profiles)
    return diagnose(status.provider, real_cards=real)


def _collect(folder: Path, cluster: Cluster, kube: Kube | None) -> Path | None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True, exist_ok=True)
    problems: list[str] = []
    with _noted(problems, "component logs"):
        cluster.collect_logs(folder / "components")
    status = _status(cluster, problems)
    if status is not None and status.state != "absent":
        _json(folder / "status.json", asdict(status))
        for node in status.nodes:
            with _noted(problems, f"files of {node.name}"):
                _node(folder / "nodes" / node.name, cluster.node_root(node.name), problems)
    if kube is not None:
        _objects(folder, kube, problems)
    if any(folder.iterdir()) or problems:
        # Of use only beside something that has happened.
        with _noted(problems, "versions"):
            _json(folder / "versions.json", versions())
        with _noted(problems, "doctor"):
            _json(folder / "doctor.json", [asdict(each) for each in _findings(status)])
    if problems:
        text = "\n".join(problems) + "\n"
        (folder / "problems.txt").write_bytes(redact(text.encode()))
    if any(folder.iterdir()):
        return folder
    folder.rmdir()
    return None


def write(target: Path, cluster: Cluster, kube: Kube | None) -> Path:
    """Write a bundle where a person wants it: a folder, or an archive by its ending.

    Raises:
        InputError: it exists already, cannot be written, or nothing has ever started.
    """
    if target.exists():
        raise InputError(f"{target} exists already", hint="name another place with --out")
    archive = target.name.endswith(ARCHIVES)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".bundle-") as scratch:
            name = target.name
            for ending in ARCHIVES if archive else ():
                name = name.removesuffix(ending)
            found = _collect(Path(scratch, name), cluster, kube)
            if found is None:
                raise InputError(
                    f"there is nothing to bundle of testbed {cluster.name!r}",
                    why="it is not up and has left no logs",
                    hint="`testbed status` names the testbeds that there are",
                )
            if archive:
                part = Path(scratch, "part")
                with tarfile.open(part, "w:gz") as file:
                    file.add(found, arcname=name)
                part.replace(target)
            else:
                found.rename(target)
    except OSError as error:
        raise InputError(
            f"no bundle can be written to {target}",
            why=error.strerror or str(error),
            hint="name a place of yours with --out",
        ) from error
    return target


# --- parts ------------------------------------------------------------------------


@contextlib.contextmanager
def _noted(problems: list[str], what: str) -> Iterator[None]:
    """Go on after an error, and write it down.

    Raises:
        OSError: the disk is full: what is left of a bundle then would only mislead.
    """
    try:
        yield
    except _EXPECTED as error:
        if isinstance(error, OSError) and error.errno in _FULL:
            raise
        problems.append(f"{what}: {error}")


def _status(cluster: Cluster, problems: list[str]) -> ClusterStatus | None:
    try:
        return cluster.status()
    except (TestbedError, OSError) as error:
        problems.append(f"status: {error}")
        return None


def _objects(folder: Path, kube: Kube, problems: list[str]) -> None:
    for version, kind in KINDS:
        try:
            _json(folder / "objects" / f"{kind.lower()}s.json", _listed(kube, version, kind))
        except TestbedError as error:
            problems.append(f"{kind}: {error}")
            return  # an API server that does not answer will not answer the rest either
    with _noted(problems, "logs of pods"):
        _pod_logs(folder / "pods", kube, problems)
    told: dict[str, Callable[[], Any]] = {
        "ledger": lambda: ledger_document(kube),
        "reservations": lambda: reservations(kube),
        "cards": lambda: _reading(kube),
    }
    for name, read in told.items():
        with _noted(problems, name):
            _json(folder / "stack" / f"{name}.json", read())


def _listed(kube: Kube, version: str, kind: str) -> list[dict[str, Any]]:
    items = kube.list(version, kind)
    for item in items:
        item.get("metadata", {}).pop("managedFields", None)
    return items


def _reading(kube: Kube) -> dict[str, Any]:
    found = cards(kube)
    return {
        "now": dict(found.now),
        "source": found.source,
        "cards": msgspec.to_builtins(found.cards),
        "samples": msgspec.to_builtins(found.samples),
    }


def _pod_logs(folder: Path, kube: Kube, problems: list[str]) -> None:
    # A server that comes and goes (a full disk) would be waited for once a container.
    until = time.monotonic() + _LOGS_S
    for pod in kube.list("v1", "Pod"):
        namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
        spec = pod["spec"]
        for container in [*spec.get("initContainers", []), *spec["containers"]]:
            try:
                text = kube.logs(namespace, name, container["name"], tail=LOG_LINES)
            except TestbedError as error:
                problems.append(f"log of {namespace}/{name} {container['name']}: {error.why}")
                if isinstance(error, Unreachable) or time.monotonic() > until:
                    problems.append("other logs of pods: not asked for any more")
                    return
                continue
            path = folder / f"{namespace}_{name}_{container['name']}.log"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(redact(text.encode()))


def _node(folder: Path, root: Path | None, problems: list[str]) -> None:
    """Write a node's regions and cards as values: tenants write both, so nothing is copied
    and no link of theirs is followed."""
    if root is None:
        return
    for path in _plain_files(root / names.HOOK_PATH.lstrip("/") / "containers", ".cache"):
        target = folder / "regions" / f"{path.parent.name}.json"
        with _noted(problems, str(target.relative_to(folder.parent))):
            _json(target, asdict(read_region(path)))
    pages = root / names.HOOK_PATH.lstrip("/") / "pages"
    for path in sorted(pages.glob("*.page")) if pages.is_dir() else ():
        with _noted(problems, str(path.relative_to(root))):
            _json(folder / "pages" / f"{path.stem}.json", asdict(read_page(path)))
    cards_folder = root / names.EMULATED_DRIVER_ROOT.lstrip("/") / "cards"
    for path in _plain_files(cards_folder, "state"):
        target = folder / "cards" / f"{path.parent.name}.json"
        with _noted(problems, str(target.relative_to(folder.parent))):
            _json(target, asdict(card.read(path)))


def _plain_files(folder: Path, ending: str) -> Iterator[Path]:
    """Yield the files of that ending one level below a folder, no links and no pipes."""
    for below in sorted(folder.iterdir()) if folder.is_dir() else ():
        if not stat.S_ISDIR(below.lstat().st_mode):
            continue
        for path in sorted(below.iterdir()):
            if path.name.endswith(ending) and stat.S_ISREG(path.lstat().st_mode):
                yield path


def _json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    # Twice: by name in the value, and whatever looks like a secret in the text.
    text = json.dumps(redacted(json.loads(json.dumps(value, default=str))), indent=1)
    path.write_bytes(redact(text.encode()) + b"\n")


def default_place(name: str) -> Path:
    """Return where a bundle goes if nobody says: this folder, named by testbed and time."""
    return Path.cwd() / f"bundle-{name}-{time.strftime('%Y%m%d-%H%M%S')}"
