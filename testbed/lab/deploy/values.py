"""The values of a deployment: what differs from cluster to cluster."""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import msgspec
import yaml

from testbed.errors import InputError
from testbed.stack import names
from testbed.stack.config import DeviceConfig

GpuAccess = Literal["none", "privileged", "runtime-class"]

_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
_URL = re.compile(r"https://([a-z0-9]([-a-z0-9.]{0,252})|\[[0-9a-f:]+\])(:[0-9]{1,5})?/?$")
_IMAGE = re.compile(r"^[^\s@:]+(:[0-9]+/[^\s@:]+)?(:[\w][\w.-]{0,127})?(@sha256:[0-9a-f]{64})?$")


@dataclass(frozen=True, slots=True, kw_only=True)
class StackImages:
    """References of the images; the command in the pod selects the program."""

    base: str
    kube_scheduler: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StackValues:
    """What ``render`` needs to know.

    Attributes:
        namespace: Where everything that has a namespace lives.
        images: The stack's images.
        driver_root: The driver root on every node (manifest value ``driverRoot``).
        hook_path: The stack's own folder on every node (``hookPath``).
        config: The device configuration; enforcement and scheduler name are in it.
        gpu_access: How plugin and monitor reach the devices (``stack.gpuAccess``):
            ``none`` for emulated cards, on hardware as privileged pods or by the
            runtime class ``nvidia``.
        node_selector: Nodes that carry plugin and monitor; empty for all.
        log_verbosity: kube-scheduler's ``-v``.
        scheduler_replicas: Pods of scheduler and extender; one of them works.
        webhook_leaves_out: Namespaces whose pods the webhook is not asked about, beside
            the stack's own and kube-system.
        webhook_url: Where the API server calls the webhook instead of by its Service,
            such as ``https://10.0.0.7:31998``; whoever sets it leads it there.
        chosen: The operator's file behind all this (``chosen``), kept in the cluster.
    """

    namespace: str = names.NAMESPACE
    images: StackImages
    driver_root: str = names.EMULATED_DRIVER_ROOT
    hook_path: str = names.HOOK_PATH
    config: DeviceConfig = field(default_factory=DeviceConfig)
    gpu_access: GpuAccess = "none"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    log_verbosity: int = 2
    scheduler_replicas: int = 1
    webhook_leaves_out: tuple[str, ...] = ()
    webhook_url: str = ""
    chosen: str = ""

    @property
    def webhook_hosts(self) -> tuple[str, ...]:
        """The host of ``webhook_url``, which the webhook's certificate has to name."""
        host = urllib.parse.urlsplit(self.webhook_url).hostname
        return (host,) if host else ()

    def __post_init__(self) -> None:
        for what, text in (
            ("namespace", self.namespace),
            ("scheduler name", self.config.schedulerName),
        ):
            if not _NAME.match(text):
                raise InputError(
                    f"{what} {text!r} is not a Kubernetes name",
                    hint="use at most 63 lower-case letters, digits and dashes",
                )
        if self.namespace in ("default", "kube-system", "kube-public", "kube-node-lease"):
            raise InputError(
                f"the stack cannot live in the namespace {self.namespace}",
                why="it is removed with its namespace, and the webhook leaves that one out",
                hint="choose one of its own, such as vgpu-testbed",
            )
        if self.config.schedulerName == "default-scheduler":
            raise InputError(
                "the stack's scheduler cannot be called default-scheduler",
                why="two schedulers of one name would bind the same pods",
            )
        for what, path in (("driverRoot", self.driver_root), ("hookPath", self.hook_path)):
            if not path.startswith("/") or ".." in path.split("/") or "\n" in path:
                raise InputError(f"{what} {path!r} is not an absolute path")
        if self.hook_path.rstrip("/") == "":
            raise InputError("hookPath cannot be the root folder")
        for space in self.webhook_leaves_out:
            if not _NAME.match(space):
                raise InputError(f"namespace {space!r} is not a Kubernetes name")
        if self.webhook_url and not _URL.match(self.webhook_url):
            raise InputError(
                f"the webhook's URL {self.webhook_url!r} cannot be used",
                why="an API server takes https, a host, perhaps a port, and no more here",
                hint="write it as https://10.0.0.7:31998",
            )
        for image in (self.images.base, self.images.kube_scheduler):
            if not _IMAGE.match(image):
                raise InputError(f"image {image!r} is not a reference such as testbed/base:1")


def config_text(config: DeviceConfig) -> str:
    """Return the document of the ConfigMap: every value, in the order of the class."""
    document = msgspec.to_builtins(config)
    # Quoted, since YAML 1.1 reads a bare on or off as a boolean.
    return yaml.dump(document, Dumper=_Quoted, sort_keys=False, default_flow_style=False)


class _Quoted(yaml.SafeDumper):
    """Writes strings in double quotes and leaves everything else plain."""


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # Keys are plain words; only values of on/off would be misread.
    style = '"' if text in ("on", "off") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Quoted.add_representer(str, _string)
