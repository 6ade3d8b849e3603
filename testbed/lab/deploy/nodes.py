"""What runs on every node: the device plugin and the monitor."""

from __future__ import annotations

from pathlib import PurePosixPath

from testbed.lab.deploy.common import (
    ANNOTATION_CONFIG,
    CONFIG_FILE,
    MONITOR,
    NAME,
    PLUGIN,
    Object,
    config_mount,
    config_volume,
    field_env,
    host_volume,
    http_probe,
    late,
    meta,
    program,
    small,
)
from testbed.lab.deploy.values import StackValues
from testbed.stack import names

_POD_RESOURCES = str(PurePosixPath(names.POD_RESOURCES_SOCKET).parent)


def nodes(values: StackValues, *, config_digest: str) -> list[Object]:
    """Return the two DaemonSets."""
    return [_plugin(values, config_digest), _monitor(values)]


def _plugin(values: StackValues, config_digest: str) -> Object:
    # Every folder at the same path as on the node: the plugin's answers and CDI specs
    # name paths of the node, and so no path has two spellings.
    own = [
        host_volume("device-plugins", names.DEVICE_PLUGIN_ROOT, "Directory"),
        host_volume("pod-resources", _POD_RESOURCES, "Directory"),
        host_volume("cdi", names.CDI_ROOT, "DirectoryOrCreate"),
    ]
    return _daemon_set(
        values,
        PLUGIN,
        command=program(
            "plugin",
            f"--config={CONFIG_FILE}",
            f"--driver-root={values.driver_root}",
            f"--hook-path={values.hook_path}",
        ),
        port=names.PORT_PLUGIN_HEALTH,
        volumes=[config_volume(), *own],
        mounts=[
            config_mount(),
            *({"name": v["name"], "mountPath": v["hostPath"]["path"]} for v in own),
        ],
        annotations={ANNOTATION_CONFIG: config_digest},
    )


def _monitor(values: StackValues) -> Object:
    return _daemon_set(
        values,
        MONITOR,
        command=program(
            "monitor",
            f"--driver-root={values.driver_root}",
            f"--hook-path={values.hook_path}",
        ),
        port=names.PORT_MONITOR,
        volumes=[],
        mounts=[],
        annotations={},
    )


def _daemon_set(
    values: StackValues,
    app: str,
    *,
    command: list[str],
    port: int,
    volumes: list[Object],
    mounts: list[Object],
    annotations: dict[str, str],
) -> Object:
    hardware = values.gpu_access != "none"
    # Record locks and counters of an emulated card are files of its driver root.
    driver: Object = {"name": "driver", "mountPath": _seen_driver_root(values)}
    if hardware:
        # A driver container may mount its root after this pod has started. (Elsewhere
        # left out: it needs a shared mount, which a user's namespace has not.)
        driver |= {"readOnly": True, "mountPropagation": "HostToContainer"}
    env = [field_env("NODE_NAME", "spec.nodeName")]
    spec: Object = {
        "serviceAccountName": app,
        # The node's processes are named to pods by their pids.
        "hostPID": True,
        "terminationGracePeriodSeconds": 5,
        "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}],
        "volumes": [
            *volumes,
            host_volume("driver", values.driver_root, "Directory"),
            host_volume("hook", values.hook_path, "DirectoryOrCreate"),
        ],
    }
    security: Object = {"allowPrivilegeEscalation": False}
    if values.gpu_access == "privileged":
        security = {"privileged": True}
    elif values.gpu_access == "runtime-class":
        spec["runtimeClassName"] = "nvidia"
        env.append({"name": names.ENV_VISIBLE, "value": "all"})
    if values.node_selector:
        spec["nodeSelector"] = dict(values.node_selector)
    spec["containers"] = [
        {
            "name": app.removeprefix("vgpu-"),
            "image": values.images.base,
            "imagePullPolicy": "IfNotPresent",
            "command": command,
            "env": env,
            "ports": [{"name": "http", "containerPort": port}],
            "readinessProbe": http_probe(port, "/healthz", period_s=2),
            "livenessProbe": late(http_probe(port, "/healthz", period_s=10)),
            "resources": small(),
            "securityContext": security,
            "volumeMounts": [*mounts, driver, {"name": "hook", "mountPath": values.hook_path}],
        }
    ]
    template: Object = {"labels": meta("", None, app=app)["labels"]}
    if annotations:
        template["annotations"] = annotations
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": meta(app, values, app=app),
        "spec": {
            "selector": {"matchLabels": {NAME: app}},
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
            "template": {"metadata": template, "spec": spec},
        },
    }


def _seen_driver_root(values: StackValues) -> str:
    # A pod cannot mount the node's root over its own.
    return "/host" if values.driver_root == "/" else values.driver_root
