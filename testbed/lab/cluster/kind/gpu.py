"""The machine's own cards in kind's nodes: what is mounted where, what runs in a node.

kind's nodes are privileged containers: every device node of the machine is in each of
them already. What they lack is the driver's files; what they have too much of is each
other's cards. So a node gets

* the driver's files, either as read-only mounts of what ``nvidia-ctk cdi generate`` finds
  on the machine (``files``: no setting of engine or toolkit is touched), or by the toolkit
  itself, which is asked by mounts of ``/dev/null`` (``requests``: for toolkits without
  ``cdi generate``, on machines set up for it);
* ``nvidia-ctk`` and its hook, with which the stack's plugin describes cards to containerd;
* scripts that are run once it is there, and again whenever it was restarted.

Pure: ``plan`` takes what ``gpu_host.look`` found and returns values.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from testbed.card.spec import CardSpec, cards_text
from testbed.errors import ClusterError, InputError
from testbed.lab.cluster.kind import gpu_cards
from testbed.lab.cluster.kind.gpu_assign import Given, assign
from testbed.lab.cluster.kind.gpu_cards import MigDevice, RealCard
from testbed.lab.cluster.kind.gpu_scripts import NodeScript, node_scripts
from testbed.lab.cluster.kind.layout import Mount
from testbed.lab.cluster.kind.toolkit import DriverParts, Toolkit

Way = Literal["files", "requests"]

#: The manifest value ``driverRoot`` of nodes with real cards: their own root.
DRIVER_ROOT = "/"
#: Where the toolkit's runtime looks for requests; the source must be /dev/null itself
#: (the toolkit's `visibleDevicesFromMounts`).
REQUESTS = "/var/run/nvidia-container-devices"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuHost:
    """What was found on the machine (``gpu_host.look``)."""

    cards: tuple[RealCard, ...]
    driver: str = ""
    toolkit: Toolkit | None = None
    parts: DriverParts | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeGpus:
    """One node's part of a plan.

    Attributes:
        cards: Uuids of its cards.
        mig: Uuids of its MIG devices, where cards are in MIG mode.
        devices: Uuids of what it was given: MIG devices, and cards that are not in that
            mode.
        mounts: What ``extraMounts`` shall hold.
        scripts: What is run in the node, in this order, when it is created or restarted.
    """

    cards: tuple[str, ...]
    mig: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    scripts: tuple[NodeScript, ...] = ()

    #: Run in the node when the scripts have ended; ``check`` reads what it says.
    LIST = ("nvidia-smi", "-L")

    def check(self, node: str, said: str) -> None:
        """Compare what ``nvidia-smi -L`` says in the node with what was planned.

        Raises:
            ClusterError: other cards are seen there.
        """
        try:
            seen = {card.uuid for card in gpu_cards.parse_list(said)}
        except InputError as error:
            raise ClusterError(
                f"node {node} sees no card", why=error.why, hint=error.hint or _DOCTOR
            ) from error
        if seen != set(self.cards):
            raise ClusterError(
                f"node {node} does not see the cards that it was given",
                why=f"it sees {', '.join(sorted(seen))}; given were {', '.join(self.cards)}",
                hint=_DOCTOR,
            )


_DOCTOR = "testbed doctor --provider kind --cards nvidia"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuPlan:
    """What real cards ask of a kind cluster; nodes in the order of the cards' lists."""

    way: Way
    nodes: tuple[NodeGpus, ...]
    warnings: tuple[str, ...] = ()
    #: The manifest values ``stack.gpuAccess`` and ``driverRoot`` of this cluster.
    gpu_access: Literal["privileged"] = "privileged"
    driver_root: str = DRIVER_ROOT

    def told(self) -> tuple[str, ...]:
        """Return what people should know, one line each."""
        ways = {
            "files": "real cards: nodes get the driver's files as mounts, and no setting changes",
            "requests": "real cards: the container toolkit puts the driver into nodes",
        }
        return (ways[self.way], *self.warnings)


def wanted(nodes: Sequence[Sequence[CardSpec]]) -> bool:
    """Whether nodes shall carry the machine's own cards.

    Raises:
        InputError: some shall, and others emulated ones.
    """
    real = [any(card.real for card in cards) for cards in nodes]
    if any(real) and not all(real):
        raise InputError(
            f"'{cards_text(nodes)}' mixes emulated cards and the machine's own in a cluster",
            why="the sharing stack has one driverRoot for all nodes",
            hint="bring up two testbeds (--name)",
        )
    return any(real)


def plan(nodes: Sequence[Sequence[CardSpec]], host: GpuHost, *, way: Way | None = None) -> GpuPlan:
    """Return what the nodes of a cluster get.

    Args:
        nodes: The cards of each node, all of them real (``wanted``).
        host: What the machine has.
        way: How the driver's files come into a node; without it ``files`` wherever the
            toolkit can describe them.

    Raises:
        InputError: a card that there is not or that two nodes ask for, too few, or the
            toolkit cannot give them.
    """
    chosen = way or choose_way(host)
    given = assign(nodes, host.cards)
    warnings: list[str] = []
    made = []
    for devices in given:
        cards = tuple(dict.fromkeys(card.uuid for card, _ in devices))
        mig = tuple(device.uuid for _, device in devices if device is not None)
        files = _files(host) if chosen == "files" else _requests(devices, host)
        made.append(
            NodeGpus(
                cards=cards,
                mig=mig,
                devices=tuple((device or card).uuid for card, device in devices),
                mounts=(*files, *_programs(host)),
                scripts=node_scripts(devices, host.cards, host.parts, loader=chosen == "files"),
            )
        )
    if any(node.mig for node in made):
        warnings.append(
            "the sharing stack registers whole cards: cards in MIG mode are for other device"
            " plugins (testbed up --bare)"
        )
    if host.parts is None and any(card.minor is None for card in host.cards) and len(made) > 1:
        warnings.append(
            "nodes see each other's cards: which device node is whose is told neither by"
            " /proc/driver/nvidia nor by nvidia-ctk"
        )
    if not any(path.endswith("/nvidia-ctk") for path in _program_paths(host)):
        warnings.append(
            "without nvidia-ctk in its nodes the stack's plugin cannot describe cards to"
            " containerd: install nvidia-container-toolkit-base"
        )
    return GpuPlan(way=chosen, nodes=tuple(made), warnings=tuple(warnings))


def choose_way(host: GpuHost) -> Way:
    """Return how the driver's files come into nodes.

    Raises:
        InputError: neither way is open on this machine.
    """
    if host.parts is not None:
        return "files"
    kit = host.toolkit
    if kit is None:
        raise InputError(
            "the machine's cards cannot be given to kind's nodes",
            why="NVIDIA's container toolkit is not installed",
            hint="sudo apt-get install nvidia-container-toolkit-base   (from NVIDIA's repository)",
        )
    if kit.config.accept_volume_mounts:
        return "requests"
    raise InputError(
        "the machine's cards cannot be given to kind's nodes",
        why=f"nvidia-ctk {'.'.join(map(str, kit.version))} does not describe the driver's files,"
        " and the toolkit takes no requests by mounts",
        hint="install toolkit 1.13 or newer; or: sudo nvidia-ctk config --set"
        " accept-nvidia-visible-devices-as-volume-mounts=true --in-place",
    )


def _files(host: GpuHost) -> tuple[Mount, ...]:
    if host.parts is None:
        raise InputError(
            "nvidia-ctk does not describe the driver's files", hint="install toolkit 1.13 or newer"
        )
    return tuple(Mount(source=source, target=at) for source, at in host.parts.files.items())


def _requests(devices: Sequence[Given], host: GpuHost) -> tuple[Mount, ...]:
    return tuple(
        Mount(source="/dev/null", target=f"{REQUESTS}/{_request(card, mig, host)}", read_only=False)
        for card, mig in devices
    )


def _request(card: RealCard, mig: MigDevice | None, host: GpuHost) -> str:
    """Return the word for a card: its uuid, unless a specification knows indices only.

    Raises:
        InputError: it would be a MIG device's index, whose colon no engine can mount.
    """
    uuid = mig.uuid if mig else card.uuid
    kit = host.toolkit
    if kit is None or kit.mode != "cdi":
        return uuid
    if f"{kit.config.default_kind}={uuid}" in kit.listed:
        return uuid
    if mig is None and f"{kit.config.default_kind}={card.index}" in kit.listed:
        return str(card.index)
    raise InputError(
        f"the toolkit's CDI specification does not name {uuid}",
        why="it is of before the card was there, or names cards by index"
        if kit.listed
        else "there is none, and the toolkit's mode is cdi",
        hint="sudo nvidia-ctk cdi generate --device-name-strategy=uuid"
        " --output=/etc/cdi/nvidia.yaml",
    )


def _program_paths(host: GpuHost) -> Mapping[str, str]:
    return host.toolkit.programs if host.toolkit else {}


def _programs(host: GpuHost) -> tuple[Mount, ...]:
    return tuple(Mount(source=path, target=at) for path, at in _program_paths(host).items())
