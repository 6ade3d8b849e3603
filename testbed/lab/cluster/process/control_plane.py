"""The outer namespaces: network, etcd, API server, controllers, scheduler, relay, nodes."""

from __future__ import annotations

from collections.abc import Sequence

from testbed.lab.cluster.process import layout
from testbed.lab.cluster.process.plan import (
    ENVIRONMENT,
    PRIVATE,
    Plan,
    Service,
    hidden,
    optional,
    step,
    tmpfs,
)

_PKI = f"{layout.STATE}/pki/control"
_ETCD = "/run/etcd.sock"
_BRIDGE = "br0"
#: pid 1 of a node's namespaces keeps the parent's pid file system out, and dies with it.
_UNSHARE = ("unshare", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child")


def api_ready(authority: str) -> str:
    """Return the condition that the API server serves."""
    return f"https:{layout.API_ADDRESS}:{layout.API_PORT}:{authority}"


def plan(
    *, token: str, binaries: str, nodes: Sequence[layout.Node], python: str, init: str, relay: str
) -> Plan:
    """Return what the outer pid 1 does.

    Args:
        token: Marks the processes that hold namespaces.
        binaries: Folder of the Kubernetes programs, inside.
        nodes: The nodes to start.
        python: The interpreter of pid 1 and relay.
        init: ``init.py``, inside.
        relay: ``relay.py``, inside.
    """
    ready = api_ready(f"{_PKI}/ca.crt")
    services = [
        Service(name="etcd", argv=_etcd(binaries), log=_log("etcd")),
        Service(
            name="kube-apiserver",
            argv=_api_server(binaries),
            log=_log("kube-apiserver"),
            wait=(f"socket:{_ETCD}",),
        ),
        Service(
            name="relay",
            argv=(python, "-IS", relay, "{listen}", layout.API_ADDRESS, str(layout.API_PORT)),
            log=_log("relay"),
            listen=True,
        ),
        *(_node(node, token, python, init) for node in nodes),
        Service(
            name="kube-controller-manager",
            argv=_controller_manager(binaries),
            log=_log("kube-controller-manager"),
            wait=(ready,),
        ),
        Service(
            name="kube-scheduler",
            argv=_scheduler(binaries),
            log=_log("kube-scheduler"),
            wait=(ready,),
        ),
    ]
    path = f"{binaries}:/usr/sbin:/usr/bin:/sbin:/bin"
    return Plan(
        status=f"{layout.STATE}/status/outer.json",
        hostname="control-plane",
        environment={**ENVIRONMENT, "PATH": path},
        setup=(
            tmpfs("/run"),
            tmpfs("/tmp", "1777"),
            *hidden(PRIVATE),
            step("ip", "link", "set", "lo", "up"),
            step("ip", "link", "add", "name", _BRIDGE, "type", "bridge"),
            step("ip", "address", "add", f"{layout.API_ADDRESS}/24", "dev", _BRIDGE),
            step("ip", "link", "set", _BRIDGE, "up"),
            # The API server looks for a default route to tell its own address.
            step("ip", "route", "add", "default", "dev", _BRIDGE),
        ),
        services=tuple(services),
    )


def _log(name: str) -> str:
    return f"{layout.STATE}/logs/{name}.log"


def _node(node: layout.Node, token: str, python: str, init: str) -> Service:
    """A node's namespaces; made anew with its network when they die."""
    name = node.name
    document = f"{layout.STATE}/inside/{name}.json"
    return Service(
        name=name,
        argv=(
            *("nsenter", f"--net=/run/netns/{name}", "--", *_UNSHARE, "--mount-proc"),
            *(python, "-IS", init, "--cluster", token, document),
        ),
        log=_log(name),
        before=(
            optional("ip", "netns", "delete", name),
            step("ip", "netns", "add", name),
            # A dead node's network goes a moment later than its name.
            optional("ip", "link", "delete", node.link),
            step(
                *("ip", "link", "add", "name", node.link, "type", "veth"),
                *("peer", "name", "eth0", "netns", name),
            ),
            step("ip", "link", "set", node.link, "master", _BRIDGE, "up"),
            step("ip", "route", "replace", node.pods, "via", node.address),
        ),
    )


def _etcd(binaries: str) -> tuple[str, ...]:
    peers = "unix:///run/etcd-peer.sock"
    return (
        f"{binaries}/etcd",
        "--name=testbed",
        f"--data-dir={layout.STATE}/etcd",
        f"--listen-client-urls=unix://{_ETCD}",
        f"--advertise-client-urls=unix://{_ETCD}",
        f"--listen-peer-urls={peers}",
        f"--initial-advertise-peer-urls={peers}",
        f"--initial-cluster=testbed={peers}",
        "--unsafe-no-fsync",  # nothing here outlives the machine
        "--logger=zap",
        "--log-level=warn",
    )


def _api_server(binaries: str) -> tuple[str, ...]:
    return (
        f"{binaries}/kube-apiserver",
        f"--etcd-servers=unix://{_ETCD}",
        f"--bind-address={layout.API_ADDRESS}",
        f"--advertise-address={layout.API_ADDRESS}",
        f"--secure-port={layout.API_PORT}",
        f"--tls-cert-file={_PKI}/apiserver.crt",
        f"--tls-private-key-file={_PKI}/apiserver.key",
        f"--client-ca-file={_PKI}/ca.crt",
        f"--kubelet-client-certificate={_PKI}/apiserver-kubelet-client.crt",
        f"--kubelet-client-key={_PKI}/apiserver-kubelet-client.key",
        f"--kubelet-certificate-authority={_PKI}/ca.crt",
        "--kubelet-preferred-address-types=InternalIP",
        "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
        f"--service-account-key-file={_PKI}/accounts.pub",
        f"--service-account-signing-key-file={_PKI}/accounts.key",
        f"--service-cluster-ip-range={layout.SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        # Webhooks are dialled at their pods: this namespace has no rules for ClusterIPs.
        "--enable-aggregator-routing=true",
        f"--requestheader-client-ca-file={_PKI}/front-proxy-ca.crt",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={_PKI}/front-proxy-client.crt",
        f"--proxy-client-key-file={_PKI}/front-proxy-client.key",
        "--profiling=false",
    )


def _controller_manager(binaries: str) -> tuple[str, ...]:
    return (
        *_client(binaries, "kube-controller-manager"),
        f"--root-ca-file={_PKI}/ca.crt",
        f"--service-account-private-key-file={_PKI}/accounts.key",
        "--use-service-account-credentials",
        # Each controller begins by asking for its token; 20 calls a second take 5 s for all.
        "--kube-api-qps=500",
        "--kube-api-burst=1000",
        "--flex-volume-plugin-dir=/run/flex-volume-plugins",
        f"--cluster-signing-cert-file={_PKI}/ca.crt",
        f"--cluster-signing-key-file={_PKI}/ca.key",
    )


def _scheduler(binaries: str) -> tuple[str, ...]:
    return _client(binaries, "kube-scheduler")


def _client(binaries: str, name: str) -> tuple[str, ...]:
    config = f"{_PKI}/{name}.kubeconfig"
    return (
        f"{binaries}/{name}",
        f"--kubeconfig={config}",
        f"--authentication-kubeconfig={config}",
        f"--authorization-kubeconfig={config}",
        "--bind-address=127.0.0.1",
        "--leader-elect=false",  # one of each: no rival to wait for
        "--profiling=false",
    )
