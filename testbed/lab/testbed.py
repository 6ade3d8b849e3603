"""A testbed: one named cluster with the sharing stack on it."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from testbed import __version__
from testbed.card.spec import cards_text, parse_nodes
from testbed.errors import ClusterError, InputError, MissingTool, TestbedError
from testbed.lab import binaries, bundle, images
from testbed.lab.cluster import provider as cluster_provider
from testbed.lab.cluster.process.parts import Parts as ProcessParts
from testbed.lab.cluster.protocol import Cluster, ClusterSpec, ClusterStatus, Progress
from testbed.lab.cluster.state import state_home
from testbed.lab.deploy import StackImages, StackValues, deploy, render
from testbed.lab.deploy.chosen import Chosen, kept
from testbed.lab.deploy.rotation import certificates_end
from testbed.lab.kube import Kube
from testbed.lab.use import Use, using
from testbed.native import artifacts
from testbed.stack import names
from testbed.stack.certificates import sets as certificates

INFO_NAME = "testbed-info"
DEFAULT_NAME = "vgpu"
#: Names the image of cases' pods on real cards; emulated ones have their own.
PYTORCH_VARIABLE = "VGPU_TESTBED_PYTORCH_IMAGE"
#: How long a command waits for another one on the same testbed.
USE_SECONDS = 300.0


class Info(msgspec.Struct, frozen=True, kw_only=True):
    """What a run needs to know of a testbed that it did not bring up itself."""

    provider: str
    stack: str
    shim: str
    pytorch_image: str
    base_image: str
    scheduler_image: str
    #: Digest of the manifests, certificates left out.
    manifests: str = ""


class Testbed:
    """Brings cluster and stack together under one name.

    Args:
        name: Names state folder, kubeconfig context and nodes.
        provider: ``process``, ``kind``, ``auto``; without it whichever is there.
    """

    __test__ = False  # pytest: not a test class

    def __init__(self, name: str = DEFAULT_NAME, provider: str = "") -> None:
        self.name = name
        self.cluster: Cluster = cluster_provider(provider, name)
        self.provider: str = self.cluster.provider
        self._kube: Kube | None = None

    @property
    def kube(self) -> Kube:
        """The administrator's client.

        Raises:
            ClusterError: the cluster is absent.
        """
        if self._kube is None:
            kubeconfig = self.cluster.kubeconfig()
            # What a killed command leaves of the keys goes with the testbed.
            scratch = kubeconfig.parent / "client"
            kubectl = binaries.find("kubectl")
            self._kube = Kube(kubeconfig, kubectl=kubectl, scratch=scratch)
        return self._kube

    def kubectl(self) -> tuple[Path, dict[str, str]]:
        """Return kubectl and the environment in which it talks to this testbed.

        Raises:
            ClusterError: the cluster is absent.
            MissingTool: there is no kubectl.
        """
        kubeconfig = self.cluster.kubeconfig()
        program = binaries.find("kubectl") or shutil.which("kubectl")
        if program is None:
            raise MissingTool("there is no kubectl", hint="testbed prepare")
        return Path(program), {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            # It goes with the testbed, where ~/.kube would keep it.
            "KUBECACHEDIR": str(kubeconfig.parent / "kubectl"),
        }

    @contextlib.contextmanager
    def use(
        self, command: str, progress: Progress, *, wait_s: float = USE_SECONDS
    ) -> Iterator[Use]:
        """Be the only command on this testbed while the body runs.

        Raises:
            ClusterError: another one does not end in time.
        """
        path = state_home() / f".{self.name}.use"
        what = f"testbed {self.name!r}"
        with contextlib.ExitStack() as stack:
            with contextlib.ExitStack() as waiting:
                # No step where nobody is in the way.
                step = None

                def report(who: str) -> None:
                    nonlocal step
                    if step is None:
                        step = waiting.enter_context(progress.step(f"waiting for {what}"))
                    step.update(who)

                found = stack.enter_context(
                    using(path, what, command, wait_s=wait_s, report=report if wait_s else None)
                )
            yield found

    def check(self, spec: ClusterSpec, *, bare: bool = False) -> None:
        """Refuse what the machine or the cluster's nodes cannot carry, before anything is made.

        Args:
            spec: What is asked for.
            bare: Whether the sharing stack stays away.

        Raises:
            InputError: the machine's own cards in a process cluster, or such as it has not,
                or MIG devices for the stack.
            ClusterError, MissingTool: kind has no engine here.
        """
        nodes = spec.by_node()
        if self.provider == "kind":
            from testbed.lab.cluster.kind import KindCluster

            KindCluster(self.name).check()
        if not any(card.real for cards in nodes for card in cards):
            return
        if self.provider == "process":
            ProcessParts().check_cards([card for cards in nodes for card in cards])
        else:
            from testbed.lab.cluster.kind import gpu_nodes

            plan = gpu_nodes.planned(nodes)
            if plan is not None and not bare and any(node.mig for node in plan.nodes):
                raise InputError(
                    "the sharing stack registers whole cards, and these are in MIG mode",
                    why="it would not find the cards that it was told of",
                    hint="add --bare and bring another device plugin, or leave MIG mode:"
                    " sudo nvidia-smi -mig 0",
                )

    def wish(
        self, cards: str | None = None, nodes: int | None = None, port: int = 0, *, default: str
    ) -> ClusterSpec:
        """Return what a user's words ask for: what they leave out stays as it is.

        Args:
            cards: As ``cluster_spec`` takes them; None for those that the testbed has.
            nodes: How many; None for as many as it has, or as ``cards`` has lists.
            port: The API server's; 0 for the one that was asked for when it was brought up.
            default: Cards where there are neither words nor a testbed.

        Raises:
            InputError: no such cards, too many, or lists for another number of nodes.
        """
        there = self.cluster.spec()
        if there is None:
            return cluster_spec(default if cards is None else cards, nodes, port)
        if cards is None:
            cards = cards_text(there.by_node())
        if nodes is None and ";" not in cards:
            nodes = there.nodes
        return cluster_spec(cards, nodes, port or there.port)

    def up(
        self,
        spec: ClusterSpec,
        progress: Progress,
        *,
        prepared: Sequence[images.Image] | None = None,
    ) -> ClusterStatus:
        """Bring the cluster up; see ``Cluster.up``."""
        status = self.cluster.up(spec, progress, images=prepared)
        self._kube = None
        return status

    def deploy(
        self,
        progress: Progress,
        *,
        prepared: Sequence[images.Image] | None = None,
        renew_certificates: bool = False,
        values: Chosen | None = None,
    ) -> Info:
        """Deploy the stack (again: to the state that this source tree has).

        Args:
            progress: Told each step.
            prepared: This tree's images, where they are known already.
            renew_certificates: Make new ones though the deployed ones still serve.
            values: What an operator chooses; without it as it was chosen before.
        """
        prepared = images.prepare(progress) if prepared is None else prepared
        # The sources may have changed since the cluster came up: it gets what we deploy.
        self.cluster.load_images(prepared, progress)
        stack = self._values(prepared, values or self.chosen())
        known = {node.name: node.cards for node in self.cluster.status().nodes if node.cards}
        # Without it a killed deployment is not taken for a complete one by `ensure`.
        self.kube.delete("v1", "ConfigMap", INFO_NAME, names.NAMESPACE)
        deploy(
            self.kube,
            stack,
            progress,
            expected=known or None,
            renew_certificates=renew_certificates,
        )
        info = self._info_of(stack, prepared)
        self.kube.apply([_info_manifest(info)])
        return info

    def _info_of(self, values: StackValues, prepared: Sequence[images.Image]) -> Info:
        return Info(
            provider=self.provider,
            stack=f"vgpu-testbed {__version__}",
            shim="libvgpu.so " + artifacts.build_of(artifacts.library("libvgpu.so").read_bytes()),
            pytorch_image=self._pytorch_image(prepared),
            base_image=values.images.base,
            scheduler_image=values.images.kube_scheduler,
            manifests=_digest(values),
        )

    def _pytorch_image(self, prepared: Sequence[images.Image]) -> str:
        """Return the image of cases' pods; on real cards the one that the variable names."""
        real = self.cluster.driver_root != names.EMULATED_DRIVER_ROOT
        named = os.environ.get(PYTORCH_VARIABLE, "") if real else ""
        return named or images.find(prepared, "testbed/pytorch").reference

    def chosen(self) -> Chosen | None:
        """Return what an operator chose for what is deployed; None where nobody did."""
        return kept(self.kube)

    def manifests(self, progress: Progress, values: Chosen | None = None) -> list[dict[str, Any]]:
        """Return what ``deploy`` would apply, with certificates made for the occasion."""
        if values is None and self.cluster.status().state == "up":
            values = self.chosen()
        stack = self._values(images.prepare(progress), values)
        made = certificates.make(names.NAMESPACE, hosts=stack.webhook_hosts)
        return render(stack, made)

    def _values(self, prepared: Sequence[images.Image], values: Chosen | None) -> StackValues:
        root = self.cluster.driver_root
        found = StackValues(
            images=StackImages(
                base=images.find(prepared, "testbed/base").reference,
                kube_scheduler=images.find(prepared, "testbed/kube-scheduler").reference,
            ),
            driver_root=root,
            # Emulated cards are files of the driver root; real ones are devices.
            gpu_access="none" if root == names.EMULATED_DRIVER_ROOT else "privileged",
        )
        return values.over(found) if values is not None else found

    def ensure(
        self, spec: ClusterSpec | None, progress: Progress, *, as_it_is: bool = False
    ) -> Info:
        """Bring up and deploy what is missing, and what was made of other sources.

        Args:
            spec: The cluster, where there is none yet; without it one like that which
                was there before, else one node with one card.
            progress: Told each step.
            as_it_is: Whatever is deployed will do: for a notebook, whose run has seen
                to it.

        Raises:
            TestbedError.
        """
        status = self.cluster.status()
        found = self.info() if status.state == "up" else None
        if found is not None and as_it_is:
            return found
        there = self.cluster.spec() or ClusterSpec()
        wanted = there if status.state == "up" or spec is None else spec
        _check_pytorch(wanted)
        if status.state != "up":
            self.check(wanted)
        prepared = images.prepare(progress)
        if status.state != "up":
            self.up(wanted, progress, prepared=prepared)
            found = self.info()
        if found is None:
            return self.deploy(progress, prepared=prepared)
        if found == self._info_of(self._values(prepared, self.chosen()), prepared):
            return found
        with progress.step("the stack is of other sources: deploying this tree's"):
            return self.deploy(progress, prepared=prepared)

    def info(self) -> Info | None:
        """Return what was deployed, None where nothing was."""
        found = self.kube.find("v1", "ConfigMap", INFO_NAME, names.NAMESPACE)
        if found is None:
            return None
        try:
            return msgspec.convert(found.get("data", {}), Info)
        except msgspec.ValidationError as error:
            raise ClusterError(
                f"ConfigMap {names.NAMESPACE}/{INFO_NAME} cannot be read",
                why=str(error),
                hint="deploy the stack again with `testbed deploy`",
            ) from error

    def status(self) -> ClusterStatus:
        """Return the cluster's status; a note tells where the stack is not on it."""
        found = self.cluster.status()
        if found.state != "up":
            return found
        try:
            deployed = self.info() is not None
        except TestbedError:  # what is deployed cannot be read, or it was taken down meanwhile
            return found
        if deployed:
            return dataclasses.replace(found, certificates_until=self.certificates_until())
        named = "" if self.name == DEFAULT_NAME else f" --name {self.name}"
        note = f"the sharing stack is not deployed, or not to the end: testbed deploy{named}"
        return dataclasses.replace(found, notes=(*found.notes, note))

    def certificates_until(self) -> str:
        """Return when the first of the stack's certificates ends; empty if it cannot be told."""
        try:
            end = certificates_end(self.kube, names.NAMESPACE)
        except TestbedError:
            return ""
        return "" if end is None else f"{end:%Y-%m-%dT%H:%M:%SZ}"

    def down(self, progress: Progress) -> None:
        """Take everything down."""
        if self._kube is not None:
            self._kube.close()
            self._kube = None
        self.cluster.down(progress)

    def bundle(self, folder: Path) -> Path | None:
        """Collect the evidence of a failure, as far as there is any; best effort."""
        try:
            kube: Kube | None = self.kube
        except TestbedError:
            kube = None
        return bundle.collect(folder, self.cluster, kube)


def cluster_spec(cards: str, nodes: int | None = None, port: int = 0) -> ClusterSpec:
    """Return the cluster that a user's words describe.

    Args:
        cards: ``PROFILE[:COUNT][,…]`` for every node, or one such list for each node,
            separated by semicolons.
        nodes: How many nodes; without it as many as there are lists.
        port: The API server's on 127.0.0.1; 0 for a free one.

    Raises:
        InputError: no such cards, too many, or lists for another number of nodes.
    """
    count, lists = parse_nodes(cards, nodes)
    if len(set(lists)) == 1:
        return ClusterSpec(nodes=count, cards=lists[0], port=port)
    return ClusterSpec(nodes=count, each_node=lists, port=port)


def _check_pytorch(spec: ClusterSpec) -> None:
    """Refuse cases on real cards in an environment for emulated ones.

    Raises:
        InputError: no image with CUDA is named.
    """
    if os.environ.get(PYTORCH_VARIABLE):
        return
    if any(card.real for cards in spec.by_node() for card in cards):
        raise InputError(
            "cases cannot run on real cards in testbed/pytorch",
            why="its CUDA libraries are for emulated ones",
            hint="build docker/Dockerfile.pytorch, load it (kind load docker-image IMAGE), and"
            f" name it: {PYTORCH_VARIABLE}=IMAGE",
        )


def _digest(values: StackValues) -> str:
    """Return what tells deployments of different sources apart."""
    # Certificates are made for each deployment, and kept while they serve.
    none = certificates.Leaf(cert="", key="")
    same = certificates.Certificates(ca="", webhook=none, extender=none, scheduler=none)
    text = json.dumps(render(values, same), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _info_manifest(info: Info) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": INFO_NAME, "namespace": names.NAMESPACE},
        "data": msgspec.to_builtins(info),
    }
