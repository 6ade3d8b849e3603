"""What ``up`` would give a kind cluster's nodes: nothing is started, made or asked of an engine.

It is put together by the same functions as the cluster itself. What only the first ``up``
makes (images, the OCI front) is named by where it will lie, and said in ``notes``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from testbed.card.spec import CardSpec, cards_text
from testbed.errors import TestbedError
from testbed.lab import cache, images
from testbed.lab.cluster.kind import choice, config, gpu, gpu_nodes, layout, node
from testbed.lab.cluster.kind.engine import Engine
from testbed.lab.cluster.kind.gpu import GpuPlan
from testbed.lab.cluster.kind.gpu_scripts import NodeScript
from testbed.lab.cluster.kind.layout import Mount
from testbed.lab.cluster.state import state_home
from testbed.lab.images import node as node_images
from testbed.lab.images.model import Image
from testbed.stack import names

_LATER = "made-by-the-first-up"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePreview:
    """One node.

    Attributes:
        profiles: Its cards as ``--cards`` would say them.
        devices: Uuids of real cards and MIG devices; emulated ones get theirs when made.
        mounts: All of its ``extraMounts``.
        scripts: What is run in it, in this order.
    """

    name: str
    role: str
    profiles: str
    devices: tuple[str, ...]
    mounts: tuple[Mount, ...]
    scripts: tuple[NodeScript, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """What ``testbed up --provider kind --dry-run`` prints."""

    name: str
    context: str
    engine: str
    way: str
    driver_root: str
    gpu_access: str
    nodes: tuple[NodePreview, ...]
    notes: tuple[str, ...]
    #: The document that kind is given.
    config: dict[str, Any]

    def text(self) -> str:
        """Return it for people: what is mounted where, what runs, the configuration."""
        lines = [f"kind cluster {self.name} (context {self.context}), engine: {self.engine}"]
        lines += [f"note: {note}" for note in self.notes]
        for each in self.nodes:
            lines += ["", f"{each.name} ({each.role}): {each.profiles}"]
            lines += [f"  card   {device}" for device in each.devices]
            wide = max((len(mount.source) for mount in each.mounts), default=0)
            for mount in each.mounts:
                mode = "ro" if mount.read_only else "rw"
                lines.append(f"  mount  {mount.source:{wide}}  {mode}  {mount.target}")
            lines += [f"  run    {script.what}" for script in each.scripts]
        lines += ["", "# kind's configuration", config.text(self.config).rstrip()]
        return "\n".join(lines)


def preview(
    name: str, nodes: Sequence[Sequence[CardSpec]], *, port: int = 0, gpus: GpuPlan | None = None
) -> Preview:
    """Return what ``up`` would do.

    Args:
        name: The testbed's.
        nodes: The cards of each node.
        port: The API server's on 127.0.0.1; 0 for a free one.
        gpus: The plan for real cards; without it made for this machine where it is needed.

    Raises:
        InputError: cards that there are not, or that this machine has not; a variable names
            no engine.
    """
    if gpus is None:
        gpus = gpu_nodes.planned(nodes)
    wanted = layout.nodes(name, len(nodes))
    folders = layout.Folders(state_home() / name)
    notes = list(gpus.told()) if gpus else []
    system = Image(reference="", archive=Path(), binds=images.system_binds())
    lent = layout.lent(cache.root(), [system])
    made = [
        _node(each, cards, folders.mounts(each, lent), gpus)
        for each, cards in zip(wanted, nodes, strict=True)
    ]
    engine = _engine()
    image, told = _image(engine)
    notes += [told] if told else []
    native = images.native_at_hand()
    if native is None:
        notes.append("the stack's environment, with the OCI front, is made by the first up")
    front = (native or cache.root() / "stack" / _LATER) / images.FRONT
    document = config.render(
        name=name,
        image=_named(image, engine),
        nodes=[
            config.NodeConfig(node=each, mounts=done.mounts)
            for each, done in zip(wanted, made, strict=True)
        ],
        port=port,
        front=layout.relocate(cache.root(), front),
        containerd=image.containerd if image else 2,
        kubeadm_patches=image.kubeadm_patches if image else (node_images.NO_DNS,),
    )
    return Preview(
        name=name,
        context=f"kind-{name}",
        engine=engine if isinstance(engine, str) else engine.why,
        way=gpus.way if gpus else "emulated",
        driver_root=gpus.driver_root if gpus else names.EMULATED_DRIVER_ROOT,
        gpu_access=gpus.gpu_access if gpus else "none",
        nodes=tuple(made),
        notes=tuple(notes),
        config=document,
    )


def _node(
    each: layout.Node,
    cards: Sequence[CardSpec],
    mounts: tuple[Mount, ...],
    gpus: GpuPlan | None,
) -> NodePreview:
    part = gpus.nodes[each.index - 1] if gpus else gpu.NodeGpus(cards=())
    setup = NodeScript(what="lay out cards and folders, follow logs", text=node.setup_script())
    return NodePreview(
        name=each.name,
        role=each.role,
        profiles=cards_text([cards]),
        devices=part.devices,
        mounts=(*mounts, *part.mounts),
        scripts=(setup, *part.scripts),
    )


def _engine() -> choice.Choice | str:
    """Return which engine it would be, or why none: such a machine can be asked all the same.

    Raises:
        InputError: a variable names no engine or no way.
    """
    choice.asked_program()  # a mistyped wish is an error, not a reason
    try:
        return choice.look()
    except TestbedError as error:
        return f"none that would do here: {error.why or error.what}"


def _image(engine: choice.Choice | str) -> tuple[node_images.NodeImage | None, str]:
    """Return the nodes' image, None where it is not made yet, and what is to be told of it."""
    if not isinstance(engine, str) and engine.engine is not None:
        there = engine.engine
        chosen = node_images.choose([there.program], there.environ())
        if chosen.official:
            return node_images.pulled(), chosen.why
    found = node_images.find()
    return found, "" if found else "the nodes' image is made by the first up"


def _named(image: node_images.NodeImage | None, engine: choice.Choice | str) -> str:
    if image is None:
        return f"{node_images.NAME}:{_LATER}"
    if image.archive is None or isinstance(engine, str):
        return image.reference
    return Engine(program=engine.program).named(image.reference)
