"""The configuration that ``kind create cluster`` is given (kind.x-k8s.io/v1alpha4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

from testbed.lab.cluster.kind.layout import Mount, Node

#: Tables of containerd's configuration: version 2 has other names than 3 and 4.
_RUNTIME_TABLE = {2: "io.containerd.grpc.v1.cri", 3: "io.containerd.cri.v1.runtime"}
#: Where the plugin writes CDI specifications, and where NVIDIA's tools do.
_CDI_FOLDERS = ("/var/run/cdi", "/etc/cdi")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One node of the configuration."""

    node: Node
    mounts: tuple[Mount, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)


def render(
    *,
    name: str,
    image: str,
    nodes: Sequence[NodeConfig],
    port: int,
    front: str,
    containerd: int,
    patches: Sequence[str] = (),
    kubeadm_patches: Sequence[str] = (),
) -> dict[str, Any]:
    """Return the configuration document.

    Args:
        name: The cluster's.
        image: The nodes'.
        nodes: The control plane first.
        port: The API server's on 127.0.0.1; 0 lets kind choose.
        front: The OCI front's path, as a node sees it.
        containerd: Version of the configuration file of the image's containerd (2, 3 or 4).
        patches: More patches of containerd's configuration (TOML), for all nodes.
        kubeadm_patches: More patches of kubeadm's configuration (YAML), for all nodes.
    """
    networking: dict[str, Any] = {"apiServerAddress": "127.0.0.1"}
    if port:
        networking["apiServerPort"] = port
    return {
        "kind": "Cluster",
        "apiVersion": "kind.x-k8s.io/v1alpha4",
        "name": name,
        "networking": networking,
        "containerdConfigPatches": [containerd_patch(front, containerd), *patches],
        "kubeadmConfigPatches": [_kubelet_patch(), *kubeadm_patches],
        "nodes": [_node(each, image) for each in nodes],
    }


def text(document: dict[str, Any]) -> str:
    """Return the document as kind reads it."""
    return yaml.safe_dump(document, sort_keys=False)


def containerd_patch(front: str, version: int) -> str:
    """Return what makes a node's containerd start containers through the OCI front."""
    table = _RUNTIME_TABLE[min(version, 3)]
    plugin = f"plugins.'{table}'"
    folders = ", ".join(f'"{each}"' for each in _CDI_FOLDERS)
    # From version 2.0 on CDI is always on, and the word is not known any more.
    on = "  enable_cdi = true\n" if version == 2 else ""
    return (
        f"[{plugin}]\n"
        f"{on}"
        f"  cdi_spec_dirs = [{folders}]\n"
        f"[{plugin}.containerd.runtimes.runc.options]\n"
        f'  BinaryName = "{front}"\n'
    )


def _kubelet_patch() -> str:
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            # Forbids a container to make user namespaces, in which it could show
            # itself as another pod's process.
            "seccompDefault": True,
            # Kubernetes 1.35 and later refuse version 1 unless they are told.
            "failCgroupV1": False,
            # How soon a changed ConfigMap reaches a running pod.
            "syncFrequency": "2s",
            "nodeStatusUpdateFrequency": "2s",
        },
        sort_keys=False,
    )


def _node(each: NodeConfig, image: str) -> dict[str, Any]:
    document: dict[str, Any] = {"role": each.node.role, "image": image}
    if each.labels:
        document["labels"] = dict(each.labels)
    document["extraMounts"] = [
        {
            "hostPath": mount.source,
            "containerPath": mount.target,
            **({"readOnly": True} if mount.read_only else {}),
        }
        for mount in each.mounts
    ]
    return document
