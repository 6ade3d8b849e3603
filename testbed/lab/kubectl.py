"""``kubectl exec`` in a process with a deadline.

The Python client's own stream can hang for ever, or break on large output
(kubernetes-client/python #602, #1310).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.errors import MissingTool, WaitTimeout


@dataclass(frozen=True, slots=True, kw_only=True)
class ExecResult:
    """What a command in a container gave."""

    rc: int
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A container of a cluster; the pod's only or default one without a name."""

    kubeconfig: Path
    context: str | None = None
    namespace: str
    pod: str
    container: str | None = None


def run(
    program: Path | None,
    where: Target,
    command: Sequence[str],
    *,
    stdin: str | None,
    timeout_s: float,
) -> ExecResult:
    """Run a command in a container; a non-zero exit status is a result, not an error.

    Args:
        program: kubectl; the one on PATH by default.
        where: The container.
        command: Program and arguments.
        stdin: What it reads; nothing by default.
        timeout_s: Seconds until it is given up; what runs in the pod may run on.

    Raises:
        MissingTool: there is no kubectl.
        WaitTimeout: the command ran past its time.
    """
    argv = [str(locate(program)), "--kubeconfig", str(where.kubeconfig)]
    if where.context:
        argv += ["--context", where.context]
    argv += ["exec", "-n", where.namespace, where.pod]
    if where.container:
        argv += ["-c", where.container]
    if stdin is not None:
        argv.append("-i")
    argv += ["--", *command]
    try:
        # Its cache of a cluster that will be gone has no place in ~/.kube.
        with tempfile.TemporaryDirectory(prefix="vgpu-kubectl-") as folder:
            done = subprocess.run(
                argv,
                input=stdin,
                stdin=subprocess.DEVNULL if stdin is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
                env={**os.environ, "KUBECACHEDIR": folder},
            )
    except subprocess.TimeoutExpired as error:
        raise WaitTimeout(
            f"command {' '.join(command)!r} in pod {where.namespace}/{where.pod} "
            f"ran past {timeout_s:g} s",
            why=_text(error.stderr)[-1000:] or "it printed nothing to standard error",
        ) from error
    return ExecResult(rc=done.returncode, stdout=done.stdout, stderr=done.stderr)


def locate(program: Path | None) -> Path:
    """Return kubectl, by default the one on PATH.

    Raises:
        MissingTool: it is not there.
    """
    found = program or shutil.which("kubectl")
    if found is None or not Path(found).exists():
        raise MissingTool(
            "kubectl is needed to run a command in a pod",
            why=f"{found} does not exist" if found else "it is not on PATH",
            hint="bring the testbed's own cluster up once (`testbed up`), it brings kubectl",
        )
    return Path(found)


def _text(data: str | bytes | None) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data or ""
