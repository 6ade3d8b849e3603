"""A container engine as kind uses it: Docker or Podman, somebody's or our own."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from testbed.errors import ClusterError
from testbed.lab import command

PROGRAMS = ("docker", "podman")
#: kind's own variable: which engine it calls.
VARIABLE = "KIND_EXPERIMENTAL_PROVIDER"
#: How long an engine may take to say that it is there.
ANSWER_S = 3.0
_CALL_S = 60.0
#: Variables that say which engine a program talks to.
_WHERE = {
    "docker": (
        *("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG"),
        *("DOCKER_CERT_PATH", "DOCKER_TLS", "DOCKER_TLS_VERIFY"),
    ),
    "podman": ("CONTAINER_HOST", "CONTAINER_CONNECTION", "CONTAINER_SSHKEY"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine, and the environment in which its program and kind reach it."""

    program: str
    #: Started by us for one cluster, and ended with it.
    own: bool = False
    #: Variables beside the caller's own; of those that say which engine is talked to, an
    #: empty one is taken away.
    environment: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def there(cls, program: str, environ: Mapping[str, str]) -> Engine:
        """Return the engine that an environment leads to, wherever later ones lead."""
        return cls(
            program=program, environment={key: environ.get(key, "") for key in _WHERE[program]}
        )

    def environ(self) -> dict[str, str]:
        """Return the whole environment for kind and the engine's program.

        kind hands proxies on to its nodes; those of an own engine have no network to reach
        one through.
        """
        inherited = {
            key: value
            for key, value in os.environ.items()
            if not (self.own and key.lower().endswith("_proxy"))
        }
        found = {**inherited, VARIABLE: self.program, **self.environment}
        where = _WHERE.get(self.program, ())
        return {key: value for key, value in found.items() if value or key not in where}

    def shown(self) -> str:
        """Return the engine as people would name it."""
        whose = "an own" if self.own else "the"
        return f"{whose} {self.program.capitalize()}"

    def call(
        self, *arguments: str | Path, what: str, timeout_s: float = _CALL_S, hint: str = ""
    ) -> str:
        """Run the engine's program; return its output.

        Raises:
            MissingTool, TestbedError.
        """
        return command.run(
            [self.program, *arguments],
            what=what,
            timeout_s=timeout_s,
            environ=self.environ(),
            hint=hint,
        )

    def inside(
        self, node: str, argv: Sequence[str], *, what: str, timeout_s: float = _CALL_S
    ) -> str:
        """Run a command in a node, as its root; return its output.

        Raises:
            MissingTool, TestbedError.
        """
        return self.call("exec", "--privileged", node, *argv, what=what, timeout_s=timeout_s)

    def named(self, reference: str) -> str:
        """Return how the engine names an image that it loaded from an archive."""
        # Podman (4.3) puts a host before it, and would ask registries for anything else.
        short = "." not in reference.partition("/")[0]
        return f"localhost/{reference}" if self.program == "podman" and short else reference

    def has_image(self, reference: str) -> bool:
        return self._quiet("image", "inspect", self.named(reference)) is not None

    def load(self, archive: Path) -> None:
        """Load an image from an archive.

        Raises:
            TestbedError: the engine does not take it.
        """
        self.call("load", "-i", archive, what="cannot load the node image", timeout_s=300)

    def containers(self, cluster: str) -> dict[str, dict[str, Any]]:
        """Return the nodes of a kind cluster: name -> state, image, pid; none if it is away."""
        label = f"label=io.x-k8s.kind.cluster={cluster}"
        names = self._quiet("ps", "-a", "--filter", label, "--format", "{{.Names}}")
        found = (names or "").split()
        if not found:
            return {}
        text = self._quiet("inspect", *found)
        try:
            documents = json.loads(text or "[]")
        except ValueError:
            return {}
        return {
            str(each["Name"]).lstrip("/"): {
                "running": bool(each["State"].get("Running")),
                "pid": int(each["State"].get("Pid") or 0),
                "image": str(each["Config"].get("Image", "")),
            }
            for each in documents
        }

    def answers(self) -> dict[str, Any] | None:
        """Return what ``info`` says, None where no engine answers in time."""
        text = self._quiet("info", "--format", "{{json .}}", timeout_s=ANSWER_S)
        try:
            found = json.loads(text or "")
        except ValueError:
            return None
        # Docker's client prints a document of its own where the daemon is away.
        if not isinstance(found, dict) or found.get("ServerErrors"):
            return None
        return found

    def _quiet(self, *arguments: str, timeout_s: float = _CALL_S) -> str | None:
        """Return standard output, None where the call fails."""
        try:
            process = subprocess.Popen(
                [self.program, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                errors="replace",
                env=self.environ(),
                start_new_session=True,  # so that what it started can be killed with it
            )
        except OSError:
            return None
        try:
            said = process.communicate(timeout=timeout_s)[0]
        except subprocess.TimeoutExpired:
            return None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.stdout is not None:
                process.stdout.close()
        return said if process.returncode == 0 else None


def rootless(info: Mapping[str, Any]) -> bool:
    """Tell from an engine's ``info`` whether it runs without root's rights.

    Docker lists ``name=rootless`` among its security options, Podman has
    ``host.security.rootless``.
    """
    options = info.get("SecurityOptions") or ()
    if any("rootless" in str(each) for each in options):
        return True
    security = (info.get("host") or {}).get("security") or {}
    return bool(security.get("rootless"))


def refuse_rootless(program: str) -> ClusterError:
    return ClusterError(
        f"{program} runs rootless",
        why="nodes of a testbed need the rights of a privileged container",
        hint=f"use a {program} that runs as root, or --provider process, which needs none",
    )
