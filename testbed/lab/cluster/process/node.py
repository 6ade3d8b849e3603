"""A node's namespaces: file systems, network, containerd, images, kubelet, kube-proxy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import yaml

from testbed.lab.cluster.process import layout
from testbed.lab.cluster.process.control_plane import api_ready
from testbed.lab.cluster.process.plan import (
    ENVIRONMENT,
    PRIVATE,
    Plan,
    Service,
    Step,
    hidden,
    step,
    tmpfs,
)
from testbed.stack import names

_PKI = "/run/pki"
_CONTAINERD = "/run/containerd/containerd.sock"
_CONTAINERD_CONFIG = "/run/containerd.toml"
_CDI = "/run/cdi"
PAUSE = "registry.k8s.io/pause"


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where a node finds what it runs, as seen inside."""

    binaries: str
    front: str
    cni: str
    #: environment variable of the front and its configuration file
    front_config: tuple[str, str]


def plan(
    node: layout.Node, others: Sequence[layout.Node], programs: Programs, images: Sequence[str]
) -> Plan:
    """Return what a node's pid 1 does.

    Args:
        node: The node.
        others: The cluster's other nodes, to which it needs routes.
        programs: What it runs.
        images: Archives to import, inside.
    """
    inside = f"{layout.STATE}/inside"
    own = f"{layout.STATE}/nodes/{node.name}"
    ready = api_ready(f"{_PKI}/ca.crt")
    variable, file = programs.front_config
    return Plan(
        status=f"{layout.STATE}/status/{node.name}.json",
        hostname=node.name,
        environment={
            **ENVIRONMENT,
            "PATH": f"{programs.binaries}:/usr/sbin:/usr/bin:/sbin:/bin",
            variable: file,
        },
        setup=(
            *_file_systems(node, own),
            *_cards(own),
            *_network(node, others),
            _snapshotter(own, inside),
        ),
        services=(
            Service(
                name="containerd",
                argv=(f"{programs.binaries}/containerd", "-c", _CONTAINERD_CONFIG),
                log=_log(node, "containerd"),
            ),
            Service(
                name="images",
                argv=import_command(programs.binaries, images),
                log=_log(node, "images"),
                wait=(f"socket:{_CONTAINERD}",),
                once=True,
            ),
            Service(
                name="kubelet",
                argv=_kubelet(node, programs, inside),
                log=_log(node, "kubelet"),
                wait=(f"socket:{_CONTAINERD}", ready),
            ),
            Service(
                name="kube-proxy",
                argv=_proxy(node, programs),
                log=_log(node, "kube-proxy"),
                wait=(ready,),
            ),
        ),
    )


def import_command(binaries: str, images: Sequence[str]) -> tuple[str, ...]:
    """Return the command that imports archives, and that garbage collection leaves them."""
    options = "--no-unpack --label=io.cri-containerd.pinned=pinned"
    command = f"{binaries}/ctr -a {_CONTAINERD} -n k8s.io images import {options}"
    script = f'for each; do {command} "$each" || exit; done'
    return ("sh", "-c", script, "sh", *images)


def containerd_config(programs: Programs, sandbox: str, snapshotter: str) -> str:
    """Return containerd's configuration (TOML)."""
    return f"""\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
# opt makes folders in /opt; nri's socket and these snapshotters are of no use here
disabled_plugins = [
  "io.containerd.internal.v1.opt", "io.containerd.nri.v1.nri",
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]
[grpc]
  address = "{_CONTAINERD}"
[plugins.'io.containerd.cri.v1.images']
  snapshotter = "{snapshotter}"
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = "{sandbox}"
[plugins.'io.containerd.cri.v1.runtime']
  cdi_spec_dirs = ["{_CDI}"]
  restrict_oom_score_adj = true
  disable_apparmor = true
  tolerate_missing_hugetlb_controller = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{programs.cni}"]
    conf_dir = "/run/cni"
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = "{programs.front}"
"""


def cni_config(node: layout.Node) -> str:
    """Return the network of a node's pods.

    ``ptp``, not ``bridge``: that one needs a kernel module for Services whose
    endpoint is on the same node, and a user cannot load it.
    """
    address = {
        "type": "host-local",
        "dataDir": "/run/cni-addresses",
        "ranges": [[{"subnet": node.pods}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    plugin = {"type": "ptp", "ipMasq": False, "ipam": address}
    return json.dumps({"cniVersion": "1.0.0", "name": "testbed", "plugins": [plugin]})


def kubelet_config(node: layout.Node) -> str:
    """Return the kubelet's configuration (YAML)."""
    return yaml.safe_dump(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.address,
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": f"{_PKI}/ca.crt"},
            },
            "authorization": {"mode": "Webhook"},
            "tlsCertFile": f"{_PKI}/kubelet-server.crt",
            "tlsPrivateKeyFile": f"{_PKI}/kubelet-server.key",
            "containerRuntimeEndpoint": f"unix://{_CONTAINERD}",
            # Nobody delegates cgroups to us; version 1 must do as well.
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            # Forbids a container to make user namespaces, in which it could show
            # itself as another pod's process.
            "seccompDefault": True,
            # There is no DNS. An address that refuses at once keeps lookups from hanging.
            "clusterDNS": ["127.0.0.1"],
            "clusterDomain": "cluster.local",
            "resolvConf": f"{layout.STATE}/inside/resolv.conf",
            # Images are imported, never pulled: deleting one would lose it.
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "evictionHard": {
                "memory.available": "50Mi",
                "nodefs.available": "10Mi",
                "nodefs.inodesFree": "1%",
                "imagefs.available": "100Mi",
            },
            # How soon a changed ConfigMap reaches a running pod.
            "syncFrequency": "2s",
            "fileCheckFrequency": "20s",
            "nodeStatusUpdateFrequency": "2s",
            "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        },
        sort_keys=False,
    )


def _log(node: layout.Node, name: str) -> str:
    return f"{layout.STATE}/logs/{node.name}-{name}.log"


def _file_systems(node: layout.Node, own: str) -> list[Step]:
    pki = f"{layout.STATE}/pki"
    return [
        tmpfs("/run"),
        tmpfs("/tmp", "1777"),
        tmpfs("/var/log"),
        tmpfs("/var/lib"),
        *hidden(PRIVATE),
        step("mkdir", "-p", *_folders()),
        step("mount", "-n", "--rbind", f"{own}/containerd", "/var/lib/containerd"),
        step("mount", "-n", "--rbind", f"{layout.STATE}/logs/pods/{node.name}", "/var/log/pods"),
        # The kubelet's own certificates, and nobody else's: a pod may ask for any hostPath.
        step("cp", "-r", f"{pki}/{node.name}", _PKI),
        tmpfs(pki, "700"),
        tmpfs(f"{layout.STATE}/etcd", "700"),
    ]


def _folders() -> list[str]:
    return [
        *("/var/lib/containerd", "/var/lib/kubelet", "/var/log/containers", "/var/log/pods"),
        *(names.DEVICE_PLUGIN_ROOT, "/var/lib/kubelet/pod-resources", names.HOOK_PATH),
        *(_CDI, "/run/cni"),
    ]


def _cards(own: str) -> list[Step]:
    """Cards are shared memory: their files are copied to a file system without a disk."""
    root = names.EMULATED_DRIVER_ROOT
    return [step("cp", "-r", "--preserve=mode", "--sparse=always", f"{own}/driver-root", root)]


def _network(node: layout.Node, others: Sequence[layout.Node]) -> list[Step]:
    return [
        step("ip", "link", "set", "lo", "up"),
        step("ip", "address", "add", f"{node.address}/24", "dev", "eth0"),
        step("ip", "link", "set", "eth0", "up"),
        step("ip", "route", "add", "default", "via", layout.API_ADDRESS),
        *(step("ip", "route", "add", each.pods, "via", each.address) for each in others),
        step("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"),
        step(
            "cp", f"{layout.STATE}/inside/cni-{node.name}.conflist", "/run/cni/10-testbed.conflist"
        ),
    ]


def _snapshotter(own: str, inside: str) -> Step:
    """Overlayfs where the state's file system carries it, else copies."""
    options = "userxattr,lowerdir=lower,upperdir=upper,workdir=work"
    probe = (
        f"cd {own}/probe && mkdir -p lower upper work merged"
        f" && mount -n -t overlay -o {options} overlay merged && umount -n merged"
        f" && cp {inside}/containerd-overlayfs.toml {_CONTAINERD_CONFIG}"
    )
    return Step(("sh", "-c", probe), ("cp", f"{inside}/containerd-native.toml", _CONTAINERD_CONFIG))


def _kubelet(node: layout.Node, programs: Programs, inside: str) -> tuple[str, ...]:
    return (
        f"{programs.binaries}/kubelet",
        f"--config={inside}/kubelet-{node.name}.yaml",
        f"--kubeconfig={_PKI}/kubelet.kubeconfig",
        f"--hostname-override={node.name}",
        f"--node-ip={node.address}",
        "--root-dir=/var/lib/kubelet",
        "--cert-dir=/var/lib/kubelet/pki",
        "-v=1",
    )


def _proxy(node: layout.Node, programs: Programs) -> tuple[str, ...]:
    return (
        f"{programs.binaries}/kube-proxy",
        f"--kubeconfig={_PKI}/kube-proxy.kubeconfig",
        f"--hostname-override={node.name}",
        "--proxy-mode=nftables",
        # These would change settings of the machine, which we may not.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        "--profiling=false",
    )
