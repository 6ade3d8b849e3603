"""Build on pytest-kind where it is installed: its fixture and its options, on our cluster.

pytest-kind 22.11.1 is the last release. Its ``kind_cluster`` downloads kind v0.17.0, which
kubeadm from 1.37 on refuses, unless it is given paths; and a cluster that is there already
is re-used only if the kubeconfig lies where an earlier session of the same folder left it,
since it makes an empty file first and then finds that the file exists. So it is given kind
and kubectl, and a kubeconfig. Nothing of it (GPL-3.0+) is imported.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml

from testbed.errors import ClusterError, InputError, WaitTimeout
from testbed.lab import binaries
from testbed.lab.binaries import kind as kind_tools
from testbed.lab.cluster.kind import KindCluster
from testbed.lab.cluster.kind import layout as kind_layout
from testbed.lab.cluster.kind.engine import Engine
from testbed.lab.cluster.kind.parts import NodeImage, Parts
from testbed.lab.cluster.kind.record import Record
from testbed.lab.cluster.protocol import Cluster, Progress
from testbed.lab.cluster.state import state_home
from testbed.lab.pytest_plugin.settings import KIND_OPTIONS
from testbed.lab.testbed import Testbed

_CALL_S = 60.0
#: Where pytest-kind keeps what belongs to a cluster, below the folder it is called in.
_FOLDER = ".pytest-kind"
_CURRENT = "jsonpath={.current-context}"


def join(request: pytest.FixtureRequest, testbed: Testbed, progress: Progress) -> None:
    """Let ``kind_cluster`` find the testbed's cluster, and leave its end to us.

    Raises:
        ClusterError: the testbed is no kind cluster, or its kubeconfig cannot be written.
        MissingTool, TestbedError: there is no kind or kubectl and none can be made.
    """
    cluster = testbed.cluster
    if not isinstance(cluster, KindCluster):
        raise ClusterError(
            f"kind_cluster cannot be testbed {testbed.name!r}",
            why=f"that is a {cluster.provider} cluster",
            hint="--testbed-provider kind, or another --testbed-name",
        )
    config, record = request.config, _record(testbed.name)
    if config.option.kind_bin is None and record is not None:
        config.option.kind_bin = record.kind
    _give_paths(config, progress, prefer_ours=True)
    config.option.cluster_name = testbed.name
    config.option.keep_cluster = True
    path = kubeconfig_path(config, testbed.name)
    path.parent.mkdir(parents=True, exist_ok=True)
    _merge(config.option.kind_kubectl_bin, cluster.kubeconfig(), path)
    changes = pytest.MonkeyPatch()
    request.addfinalizer(changes.undo)
    engine = record.reached().environ() if record is not None else {}
    for key, value in engine.items():
        if os.environ.get(key) != value:
            changes.setenv(key, value)


def part(config: pytest.Config, name: str) -> None:
    """Take a cluster that is gone out of the kubeconfig, as ``kind delete cluster`` does.

    Best effort: what stays names a cluster that does not answer.
    """
    path, context = kubeconfig_path(config, name), f"kind-{name}"
    kubectl = config.option.kind_kubectl_bin or binaries.find("kubectl")
    if kubectl is None or not _names(path, context):
        return
    environ = {"KUBECONFIG": str(path)}
    with contextlib.suppress(ClusterError, WaitTimeout, OSError):
        for what in ("delete-context", "delete-cluster", "delete-user"):
            _call(kubectl, "config", what, context, environ=environ)
        if not _call(kubectl, "config", "get-contexts", "-o", "name", environ=environ).strip():
            path.unlink(missing_ok=True)
        elif _call(kubectl, "config", "view", "-o", _CURRENT, environ=environ) == context:
            _call(kubectl, "config", "unset", "current-context", environ=environ)


def mend(config: pytest.Config, progress: Progress) -> None:
    """Prepare a cluster that is pytest-kind's alone.

    Raises:
        ClusterError: kind does not answer.
        MissingTool, TestbedError: there is no kind or kubectl and none can be made.
    """
    _give_paths(config, progress, prefer_ours=False)
    kind, name = config.option.kind_bin, config.option.cluster_name
    path = kubeconfig_path(config, name)
    if name not in _call(kind, "get", "clusters").split() or _names(path, f"kind-{name}"):
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    _call(kind, "export", "kubeconfig", "--name", name, "--kubeconfig", str(path))


def with_image(name: str, reference: str) -> Cluster:
    """Return a kind cluster whose nodes are made from a given image, which its engine pulls."""
    return KindCluster(name, parts=_GivenImage(reference))


def kubeconfig_path(config: pytest.Config, name: str) -> Path:
    """Return where pytest-kind looks for the kubeconfig of a cluster."""
    said = config.stash[KIND_OPTIONS]["kubeconfig"]
    return Path(said) if said else Path(_FOLDER, name, "kubeconfig")


class _GivenImage(Parts):
    """Nodes of an image of the user's, such as ``kindest/node:v1.37.0``."""

    def __init__(self, reference: str) -> None:
        super().__init__()
        self._reference = reference

    def node(self, engine: Engine | None, progress: Progress) -> NodeImage:
        del progress
        if engine is None:
            raise InputError(
                f"image {self._reference!r} cannot be had",
                why="no engine is there to pull it, and one that the testbed starts has no network",
                hint="leave --kind-image out, or start Docker",
            )
        tag = self._reference.partition("@")[0].rpartition(":")[2]
        return NodeImage(
            reference=self._reference,
            archive=None,
            kubernetes=tag,
            containerd=2,
            runc="/usr/local/sbin/runc",
        )


def _record(name: str) -> Record | None:
    return Record.read(kind_layout.Folders(state_home() / name).record)


def _give_paths(config: pytest.Config, progress: Progress, *, prefer_ours: bool) -> None:
    """Set the options of kind and kubectl where the user has not."""
    option = config.option
    if option.kind_bin is None:
        theirs = None if prefer_ours else shutil.which("kind")
        option.kind_bin = str(theirs or kind_tools.find() or kind_tools.ensure(progress).kind)
    if option.kind_kubectl_bin is None:
        theirs = None if prefer_ours else shutil.which("kubectl")
        ours = binaries.find("kubectl")
        option.kind_kubectl_bin = str(theirs or ours or binaries.ensure(progress).path("kubectl"))


def _merge(kubectl: str, ours: Path, path: Path) -> None:
    """Add our cluster to a kubeconfig and make it the current one, as kind does."""
    sources = [str(ours)] + ([str(path)] if path.exists() and path.stat().st_size else [])
    text = _call(kubectl, "config", "view", "--flatten", environ={"KUBECONFIG": ":".join(sources)})
    new = path.with_name(f"{path.name}.{os.getpid()}")  # workers write the same, each its own
    new.touch(0o600)
    new.write_text(text)
    new.replace(path)


def _names(path: Path, context: str) -> bool:
    """Tell whether a kubeconfig has a context."""
    try:
        found = yaml.safe_load(path.read_text()) or {}
        return any(each.get("name") == context for each in found.get("contexts") or ())
    except (OSError, yaml.YAMLError, AttributeError):
        return False


def _call(program: str | Path, *arguments: str, environ: Mapping[str, str] | None = None) -> str:
    what = f"{Path(program).name} {' '.join(arguments)}"
    try:
        done = subprocess.run(
            [str(program), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_CALL_S,
            check=False,
            env={**os.environ, **(environ or {})},
        )
    except subprocess.TimeoutExpired as error:
        raise WaitTimeout(f"`{what}` did not end within {_CALL_S:g} s") from error
    except OSError as error:
        raise ClusterError(f"`{program}` cannot be run", why=error.strerror or "") from error
    if done.returncode:
        raise ClusterError(f"`{what}` failed", why=(done.stderr or done.stdout).strip())
    return done.stdout
