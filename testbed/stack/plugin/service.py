"""The gRPC service that kubelet calls; everything it decides is in ``allocator``."""

# Kubelet's calls have fixed signatures, whether or not we use what they carry:
# ruff: noqa: ARG002

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc

from testbed.errors import DeployError
from testbed.stack.model import Card
from testbed.stack.plugin.allocator import Allocator, Refused
from testbed.stack.plugin.answer import ContainerAnswer
from testbed.stack.plugin.api import deviceplugin_pb2 as api
from testbed.stack.plugin.api import deviceplugin_pb2_grpc as api_grpc

_log = logging.getLogger(__name__)

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"


def advertised(cards: tuple[Card, ...]) -> tuple[tuple[str, str], ...]:
    """Return kubelet's devices, (id, health): a card's uuid once for each of its slots."""
    return tuple(
        (f"{card.uuid}-{slot}", HEALTHY if card.healthy else UNHEALTHY)
        for card in cards
        for slot in range(card.slots)
    )


class Inventory:
    """The cards as they are told to kubelet; every change wakes the open streams."""

    def __init__(self, cards: tuple[Card, ...]) -> None:
        self._cards = cards
        self._version = 0
        self._changed = threading.Condition()

    @property
    def cards(self) -> tuple[Card, ...]:
        with self._changed:
            return self._cards

    def set(self, cards: tuple[Card, ...]) -> bool:
        """Replace the cards; return whether anything changed."""
        with self._changed:
            if cards == self._cards:
                return False
            self._cards = cards
            self.wake()
            return True

    def wake(self) -> None:
        """Let every waiting stream look again."""
        with self._changed:
            self._version += 1
            self._changed.notify_all()

    def after(self, version: int, timeout_s: float) -> tuple[int, tuple[Card, ...]]:
        """Wait for a version other than the one known; return the present one."""
        with self._changed:
            self._changed.wait_for(lambda: self._version != version, timeout_s)
            return self._version, self._cards


class DevicePluginService(api_grpc.DevicePluginServicer):
    def __init__(self, inventory: Inventory, allocator: Allocator) -> None:
        self._inventory = inventory
        self._allocator = allocator

    def GetDevicePluginOptions(self, request: Any, context: Any) -> api.DevicePluginOptions:
        return api.DevicePluginOptions()

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[api.ListAndWatchResponse]:
        # The end of the call (kubelet or we stop) is a reason to look, too.
        context.add_callback(self._inventory.wake)
        version = -1
        told = None
        while context.is_active():
            version, cards = self._inventory.after(version, timeout_s=5.0)
            devices = advertised(cards)
            if devices == told:
                continue
            told = devices
            yield api.ListAndWatchResponse(
                devices=[api.Device(ID=name, health=health) for name, health in devices]
            )

    def Allocate(self, request: Any, context: Any) -> api.AllocateResponse:
        counts = [len(asked.devices_ids) for asked in request.container_requests]
        try:
            answers = self._allocator.allocate(counts, context.is_active)
        except Refused as error:
            _log.warning("refused: %s", error.text().replace("\n", " "))
            context.abort(grpc.StatusCode.FAILED_PRECONDITION, error.text())
        return api.AllocateResponse(container_responses=[response_of(a) for a in answers])

    def GetPreferredAllocation(self, request: Any, context: Any) -> api.PreferredAllocationResponse:
        return api.PreferredAllocationResponse()

    def PreStartContainer(self, request: Any, context: Any) -> api.PreStartContainerResponse:
        return api.PreStartContainerResponse()


def response_of(answer: ContainerAnswer) -> api.ContainerAllocateResponse:
    """Return one container's answer as kubelet reads it."""
    return api.ContainerAllocateResponse(
        envs=dict(answer.env),
        mounts=[
            api.Mount(container_path=m.container, host_path=m.host, read_only=m.read_only)
            for m in answer.mounts
        ],
        cdi_devices=[api.CDIDevice(name=name) for name in answer.cdi],
    )


class SocketServer:
    """The service on its unix socket, for one life of kubelet."""

    def __init__(self, socket: Path, service: DevicePluginService) -> None:
        """Serve on a socket, in the place of one that a killed plugin left.

        Raises:
            DeployError: the socket cannot be made.
        """
        # One thread an open ListAndWatch, the rest for short calls.
        self._server = grpc.server(futures.ThreadPoolExecutor(8, thread_name_prefix="kubelet"))
        api_grpc.add_DevicePluginServicer_to_server(service, self._server)  # type: ignore[no-untyped-call]
        try:
            socket.unlink(missing_ok=True)
            self._server.add_insecure_port(f"unix://{socket}")
        except (OSError, RuntimeError) as error:
            raise DeployError(f"{socket} cannot be served", why=str(error)) from error
        self._server.start()
        self.inode = socket.stat().st_ino

    def close(self) -> None:
        """Stop; an Allocate that is nearly done may end."""
        self._server.stop(grace=0.2).wait(2.0)
