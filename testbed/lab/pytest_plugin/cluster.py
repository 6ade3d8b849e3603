"""What a test sees of the cluster: kubeconfig, context, kubectl, a client."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from testbed.errors import ClusterError, WaitTimeout
from testbed.lab.cluster.protocol import NodeStatus
from testbed.lab.kube import Kube
from testbed.lab.testbed import Testbed

KUBECTL_S = 60.0


@dataclass(frozen=True)
class Cluster:
    """The testbed's cluster, as its administrator.

    Attributes:
        testbed: Whose it is.
        context: Of the kubeconfig: ``testbed-NAME`` or ``kind-NAME``.
    """

    testbed: Testbed

    @property
    def name(self) -> str:
        return self.testbed.name

    @cached_property
    def context(self) -> str:
        return self.testbed.cluster.status().context

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig (mode 0600).

        Raises:
            ClusterError: the cluster is absent.
        """
        return self.testbed.cluster.kubeconfig()

    @property
    def kube(self) -> Kube:
        """A client: raw objects in, raw objects out (``testbed.lab.kube``)."""
        return self.testbed.kube

    @property
    def nodes(self) -> tuple[NodeStatus, ...]:
        """The nodes with their cards, as they are now."""
        return self.testbed.cluster.status().nodes

    def kubectl(self, *arguments: str | Path, stdin: str = "", timeout_s: float = KUBECTL_S) -> str:
        """Run kubectl and return what it prints.

        Args:
            arguments: ``"get", "pods", "-A"``.
            stdin: What it reads; nothing by default.
            timeout_s: Seconds until it is given up.

        Raises:
            ClusterError: it ends with another status than 0; its words are in the error.
            WaitTimeout: it does not end in time.
            MissingTool: there is no kubectl.
        """
        __tracebackhide__ = True
        program, environ = self.testbed.kubectl()
        words = [str(each) for each in arguments]
        what = f"kubectl {' '.join(words)}"
        try:
            done = subprocess.run(
                [str(program), *words],
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
                env=environ,
            )
        except subprocess.TimeoutExpired as error:
            raise WaitTimeout(
                f"`{what}` did not end within {timeout_s:g} s",
                hint="give it a deadline of its own (--timeout), or kubectl(…, timeout_s=…)",
            ) from error
        if done.returncode:
            raise ClusterError(
                f"`{what}` ended with status {done.returncode}",
                why=(done.stderr or done.stdout).strip(),
            )
        return done.stdout
