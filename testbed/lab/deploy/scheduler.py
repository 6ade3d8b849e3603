"""The scheduler's pod: kube-scheduler and our extender side by side on 127.0.0.1."""

from __future__ import annotations

import yaml

from testbed.lab.deploy.common import (
    ANNOTATION_CERTIFICATES,
    ANNOTATION_CONFIG,
    CA_KEY,
    CERT_KEY,
    CERTIFICATES_FOLDER,
    CONFIG_FILE,
    KEY_KEY,
    NAME,
    SCHEDULER,
    SECRET_EXTENDER,
    SECRET_SCHEDULER,
    Object,
    config_mount,
    config_volume,
    digest,
    field_env,
    http_probe,
    late,
    locked_down,
    meta,
    program,
    secret_volume,
    small,
)
from testbed.lab.deploy.values import StackValues
from testbed.stack import names
from testbed.stack.certificates.sets import SCHEDULER_CN
from testbed.stack.devices.vendor import resource_names

#: Where the official image has it too.
KUBE_SCHEDULER = "/usr/local/bin/kube-scheduler"
SCHEDULER_CONFIG_MAP = "vgpu-scheduler-config"
_CONFIG_FOLDER = "/scheduler"
_CONFIG_KEY = "config.yaml"
_SECURE_PORT = 10259
#: A large list comes in pages of a megabyte; by default the C library keeps what the
#: first of them freed, and grows by a third (mallopt(3), M_MMAP_THRESHOLD). As the extender
#: says itself before its lists (``stack.extender.memory``), and from its first step.
EXTENDER_ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "524288",
    "MALLOC_TRIM_THRESHOLD_": "1048576",
}


def scheduler_configuration(values: StackValues) -> Object:
    """Return the KubeSchedulerConfiguration."""
    config = values.config
    return {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        # By default kube-scheduler allows itself 50 calls a second: the API server's own
        # fairness is what protects it (k8s.io/kubernetes 1.37, config/v1/defaults.go).
        "clientConnection": {"qps": 2000, "burst": 4000},
        "leaderElection": {
            "leaderElect": True,
            "resourceLock": "leases",
            "resourceName": SCHEDULER,
            "resourceNamespace": values.namespace,
            # After a kill the next one waits this long; on a clean end the lease is freed.
            "leaseDuration": "10s",
            "renewDeadline": "7s",
            "retryPeriod": "2s",
        },
        # By default a large cluster's extender is shown a tenth of its nodes, and a pod
        # that fits only elsewhere waits (k8s.io/kubernetes 1.37, schedule_one.go).
        "percentageOfNodesToScore": 100,
        "profiles": [{"schedulerName": config.schedulerName}],
        "extenders": [
            {
                "urlPrefix": f"https://127.0.0.1:{names.PORT_EXTENDER}",
                "filterVerb": "filter",
                "bindVerb": "bind",
                "preemptVerb": "preempt",
                "weight": 1,
                "enableHTTPS": True,
                "tlsConfig": {
                    "certFile": f"{CERTIFICATES_FOLDER}/{CERT_KEY}",
                    "keyFile": f"{CERTIFICATES_FOLDER}/{KEY_KEY}",
                    "caFile": f"{CERTIFICATES_FOLDER}/{CA_KEY}",
                },
                # Longer than a bind waits for its turn (20 s).
                "httpTimeout": "30s",
                "nodeCacheCapable": True,
                "ignorable": False,
                "managedResources": [
                    # All of them are the extender's, the count too: kube-scheduler does not
                    # wake a pod that it rejected for one resource and that asks for ignored
                    # ones beside it (NodeResourcesFit, isSchedulableAfterNodeChange). The
                    # extender leaves out nodes whose kubelet offers no card.
                    {"name": name, "ignoredByScheduler": True}
                    for name in resource_names(config)
                ],
            }
        ],
    }


def scheduler(values: StackValues, *, config_digest: str, certificates_digest: str) -> list[Object]:
    """Return the scheduler's ConfigMap and Deployment."""
    configuration = scheduler_configuration(values)
    labels = {NAME: SCHEDULER}
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta(SCHEDULER_CONFIG_MAP, values, app=SCHEDULER),
            "data": {_CONFIG_KEY: yaml.safe_dump(configuration, sort_keys=False)},
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta(SCHEDULER, values, app=SCHEDULER),
            "spec": {
                # The extender beside the scheduler that holds the lease promises; another
                # replica follows the cluster and takes over within the lease's time.
                "replicas": values.scheduler_replicas,
                "strategy": {"type": "Recreate"},
                "selector": {"matchLabels": labels},
                "template": {
                    "metadata": {
                        "labels": meta("", None, app=SCHEDULER)["labels"],
                        "annotations": {
                            ANNOTATION_CONFIG: digest([config_digest, configuration]),
                            ANNOTATION_CERTIFICATES: certificates_digest,
                        },
                    },
                    "spec": {
                        "serviceAccountName": SCHEDULER,
                        "terminationGracePeriodSeconds": 5,
                        "containers": [_extender(values), _kube_scheduler(values)],
                        "volumes": [
                            config_volume(),
                            {"name": "scheduler", "configMap": {"name": SCHEDULER_CONFIG_MAP}},
                            secret_volume("extender-certificates", SECRET_EXTENDER),
                            secret_volume("scheduler-certificates", SECRET_SCHEDULER),
                        ],
                    },
                },
            },
        },
    ]


def _extender(values: StackValues) -> Object:
    # Probes and onlookers have a port of their own: the other one is on a loopback address
    # that a kubelet cannot reach, and demands the scheduler's certificate.
    port = names.PORT_EXTENDER_OBSERVE
    return {
        "name": "extender",
        "image": values.images.base,
        "imagePullPolicy": "IfNotPresent",
        "command": program(
            "extender",
            f"--config={CONFIG_FILE}",
            f"--port={names.PORT_EXTENDER}",
            f"--cert={CERTIFICATES_FOLDER}/{CERT_KEY}",
            f"--key={CERTIFICATES_FOLDER}/{KEY_KEY}",
            f"--client-ca={CERTIFICATES_FOLDER}/{CA_KEY}",
            f"--client-name={SCHEDULER_CN}",
            f"--lease={values.namespace}/{SCHEDULER}",
            f"--observe-port={port}",
        ),
        "env": [
            *({"name": key, "value": value} for key, value in EXTENDER_ENVIRONMENT.items()),
            field_env("POD_NAME", "metadata.name"),
            field_env("POD_NAMESPACE", "metadata.namespace"),
        ],
        "ports": [{"name": "observe", "containerPort": port}],
        "readinessProbe": http_probe(port, "/readyz", period_s=2),
        "livenessProbe": late(http_probe(port, "/healthz", period_s=10)),
        "resources": small(),
        "securityContext": locked_down(),
        "volumeMounts": [
            config_mount(),
            {
                "name": "extender-certificates",
                "mountPath": CERTIFICATES_FOLDER,
                "readOnly": True,
            },
        ],
    }


def _kube_scheduler(values: StackValues) -> Object:
    return {
        "name": "kube-scheduler",
        "image": values.images.kube_scheduler,
        "imagePullPolicy": "IfNotPresent",
        "command": [
            KUBE_SCHEDULER,
            f"--config={_CONFIG_FOLDER}/{_CONFIG_KEY}",
            f"--secure-port={_SECURE_PORT}",
            # Health is open to all; the rest of that port is of no use to anybody, and
            # its client CA would need rights in kube-system.
            "--authentication-skip-lookup=true",
            f"-v={values.log_verbosity}",
        ],
        "readinessProbe": http_probe(_SECURE_PORT, "/readyz", scheme="HTTPS", period_s=2),
        "livenessProbe": late(http_probe(_SECURE_PORT, "/livez", scheme="HTTPS", period_s=10)),
        "resources": small(),
        "securityContext": locked_down(),
        "volumeMounts": [
            {"name": "scheduler", "mountPath": _CONFIG_FOLDER, "readOnly": True},
            {
                "name": "scheduler-certificates",
                "mountPath": CERTIFICATES_FOLDER,
                "readOnly": True,
            },
        ],
    }
