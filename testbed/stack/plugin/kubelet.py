"""Kubelet's two sockets: registration and PodResources."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import grpc

from testbed.errors import DeployError
from testbed.stack.plugin.api import deviceplugin_pb2 as deviceplugin
from testbed.stack.plugin.api import deviceplugin_pb2_grpc as deviceplugin_grpc
from testbed.stack.plugin.api import podresources_pb2 as podresources
from testbed.stack.plugin.api import podresources_pb2_grpc as podresources_grpc
from testbed.stack.plugin.handler import KubeletView

_log = logging.getLogger(__name__)

API_VERSION = "v1beta1"
#: PodResources answered in 1 to 3 ms during an Allocate; a second is a broken kubelet.
VIEW_DEADLINE_S = 1.0


def register(kubelet_socket: Path, *, endpoint: str, resource: str, timeout_s: float = 5.0) -> None:
    """Announce our socket to kubelet, which then calls back.

    Raises:
        DeployError: kubelet does not answer or refuses.
    """
    request = deviceplugin.RegisterRequest(
        version=API_VERSION,
        endpoint=endpoint,
        resource_name=resource,
        options=deviceplugin.DevicePluginOptions(),
    )
    try:
        with grpc.insecure_channel(f"unix://{kubelet_socket}") as channel:
            stub = deviceplugin_grpc.RegistrationStub(channel)  # type: ignore[no-untyped-call]
            stub.Register(request, timeout=timeout_s)
    except grpc.RpcError as error:
        raise DeployError("kubelet does not take the device plugin", why=_words(error)) from error


def pod_resources_view(socket: Path, resource: str) -> KubeletView | None:
    """Return which containers kubelet lists with devices of a resource, None without answer."""
    try:
        with grpc.insecure_channel(f"unix://{socket}") as channel:
            stub = podresources_grpc.PodResourcesListerStub(channel)  # type: ignore[no-untyped-call]
            answer = stub.List(podresources.ListPodResourcesRequest(), timeout=VIEW_DEADLINE_S)
    except grpc.RpcError as error:
        _log.warning("PodResources gives no answer: %s", _words(error))
        return None
    return view_of(answer.pod_resources, resource)


def view_of(pods: Iterable[podresources.PodResources], resource: str) -> KubeletView:
    """Return the view of a PodResources answer.

    Two incarnations of one name may be listed (the old one ends, the new one asks):
    a container counts as having devices only if it has in both.
    """
    view: dict[tuple[str, str], dict[str, bool]] = {}
    for pod in pods:
        containers = view.setdefault((pod.namespace, pod.name), {})
        for container in pod.containers:
            has = any(d.resource_name == resource and d.device_ids for d in container.devices)
            containers[container.name] = has and containers.get(container.name, True)
    return view


def _words(error: grpc.RpcError) -> str:
    if isinstance(error, grpc.Call):
        return f"{error.code().name}: {error.details()}"
    return str(error)
