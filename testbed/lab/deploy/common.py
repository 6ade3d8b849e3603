"""What the manifests have in common: names, labels, small building blocks."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from testbed.lab.deploy.values import StackValues
from testbed.stack import names

Object = dict[str, Any]

PART_OF = "app.kubernetes.io/part-of"
NAME = "app.kubernetes.io/name"
STACK = "vgpu-testbed"
#: Selects everything that a deployment made, the namespaced and the rest.
SELECTOR = f"{PART_OF}={STACK}"

SCHEDULER = "vgpu-scheduler"
EXTENDER = "vgpu-extender"
WEBHOOK = "vgpu-webhook"
PLUGIN = "vgpu-plugin"
MONITOR = "vgpu-monitor"
CERTIFICATES = "vgpu-certificates"

CONFIG_MAP = "vgpu-device-config"
CONFIG_KEY = "device-config.yaml"
CONFIG_FOLDER = "/config"
CONFIG_FILE = f"{CONFIG_FOLDER}/{CONFIG_KEY}"

#: Keeps an operator's choice, so that later deployments have it, too.
CHOSEN_MAP, CHOSEN_KEY = "vgpu-values", "values.yaml"

SECRET_WEBHOOK = names.SECRET_WEBHOOK
SECRET_EXTENDER = names.SECRET_EXTENDER
SECRET_SCHEDULER = names.SECRET_SCHEDULER
CERTIFICATES_FOLDER = "/certificates"
CA_KEY, CERT_KEY, KEY_KEY = names.CA_KEY, names.CERT_KEY, names.KEY_KEY

PYTHON = "/opt/testbed/stack/bin/python"

#: A pod is replaced when what it read at its start has changed.
ANNOTATION_CONFIG = "vgpu-testbed.dev/config"
ANNOTATION_CERTIFICATES = names.ANNOTATION_CERTIFICATES
#: Written to a pod to make its kubelet look at its volumes at once.
ANNOTATION_NUDGE = "vgpu-testbed.dev/nudge"


def meta(name: str, values: StackValues | None, *, app: str = "") -> Object:
    """Return the metadata of an object; ``values`` gives the namespace where it has one."""
    labels = {PART_OF: STACK}
    if app:
        labels[NAME] = app
    found: Object = {"name": name, "labels": labels}
    if values is not None:
        found["namespace"] = values.namespace
    return found


def cluster_name(values: StackValues, part: str) -> str:
    """Return the name of a cluster-wide object of this deployment."""
    return f"{values.namespace}-{part.removeprefix('vgpu-')}"


def digest(content: object) -> str:
    """Return a short name of a value's content."""
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def program(module: str, *arguments: str) -> list[str]:
    """Return the command of a program of the stack."""
    return [PYTHON, "-m", f"testbed.stack.{module}", *arguments]


def field_env(name: str, path: str) -> Object:
    """Return a variable that the downward API fills."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def http_probe(port: int, path: str, *, scheme: str = "HTTP", period_s: int) -> Object:
    """Return a probe by an HTTP request; three failures in a row count."""
    return {
        "httpGet": {"port": port, "path": path, "scheme": scheme},
        "periodSeconds": period_s,
        "timeoutSeconds": 5,
        "failureThreshold": 3,
    }


def late(probe: Object) -> Object:
    """Return a probe that begins when a slow start is over (for liveness)."""
    return {**probe, "initialDelaySeconds": 15}


def config_volume() -> Object:
    return {"name": "config", "configMap": {"name": CONFIG_MAP}}


def config_mount() -> Object:
    # The folder, never a subPath: those do not follow changes.
    return {"name": "config", "mountPath": CONFIG_FOLDER, "readOnly": True}


def secret_volume(name: str, secret: str) -> Object:
    return {"name": name, "secret": {"secretName": secret, "defaultMode": 0o400}}


def host_volume(name: str, path: str, kind: str) -> Object:
    return {"name": name, "hostPath": {"path": path, "type": kind}}


def small() -> Object:
    """Return the resources of a small server; requests alone, so that nothing is throttled."""
    return {"requests": {"cpu": "10m", "memory": "32Mi"}}


def locked_down() -> Object:
    """Return the security context of a program that needs nothing of its node.

    No ``runAsUser``: a cluster in a user namespace with a single id has only uid 0.
    """
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
