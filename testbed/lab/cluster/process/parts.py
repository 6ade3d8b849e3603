"""What a cluster is made of and others make: programs, images, cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.card import driver_root, profiles
from testbed.errors import InputError
from testbed.lab import binaries, images
from testbed.lab.cluster.protocol import CardSpec, Progress
from testbed.lab.images.model import Image


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """The programs that a cluster runs, on the host."""

    #: Folder of Kubernetes', etcd's and containerd's programs.
    binaries: Path
    front: Path
    runc: Path
    #: Folder of the CNI plugins.
    cni: Path


class Parts:
    """The product's own parts; tests bring smaller ones."""

    def programs(self, progress: Progress) -> Programs:
        """Return the programs, made first where needed.

        Raises:
            MissingTool, TestbedError.
        """
        found = binaries.ensure(progress)
        front = images.native_folder(progress) / images.FRONT
        return Programs(binaries=found.folder, front=front, runc=found.runc, cni=found.cni_dir)

    def images(self, progress: Progress) -> tuple[Image, ...]:
        """Return the images that nodes import."""
        return images.prepare(progress)

    def driver(self) -> str:
        """Return which build of the emulated driver nodes get; empty where it is not built."""
        return driver_root.build()

    def check_cards(self, specs: Sequence[CardSpec]) -> None:
        """Check a wish for cards before anything is made for it.

        Raises:
            InputError: a card that there is not, or the machine's own.
        """
        for each in specs:
            if each.real:
                raise InputError(
                    "the process cluster's nodes carry emulated cards only",
                    why="its containers are given no devices of the machine",
                    hint="--provider kind --cards nvidia",
                )
            profiles.load(each.profile)

    def cards(self, folder: Path, specs: Sequence[CardSpec], nodes: int) -> tuple[str, ...]:
        """Make the emulated cards of one of several nodes in a folder; return their uuids.

        The budget of the host's memory is the testbed's: nodes share it evenly.
        """
        return driver_root.make(folder, specs, budget_bytes=driver_root.default_budget() // nodes)
