"""The admission webhook: Service, Deployment and the registration with the API server."""

from __future__ import annotations

import base64

from testbed.lab.deploy.certificates import WEBHOOK_SERVICE, Certificates
from testbed.lab.deploy.common import (
    ANNOTATION_CERTIFICATES,
    ANNOTATION_CONFIG,
    CERT_KEY,
    CERTIFICATES_FOLDER,
    CONFIG_FILE,
    KEY_KEY,
    NAME,
    SECRET_WEBHOOK,
    WEBHOOK,
    Object,
    cluster_name,
    config_mount,
    config_volume,
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


def webhook(values: StackValues, *, config_digest: str, certificates_digest: str) -> list[Object]:
    """Return Service and Deployment."""
    port = names.PORT_WEBHOOK
    return [
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta(WEBHOOK_SERVICE, values, app=WEBHOOK),
            "spec": {
                "selector": {NAME: WEBHOOK},
                "ports": [
                    {
                        "name": "https",
                        "port": 443,
                        "targetPort": port,
                        "protocol": "TCP",
                    }
                ],
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta(WEBHOOK, values, app=WEBHOOK),
            "spec": {
                "replicas": 1,
                "selector": {"matchLabels": {NAME: WEBHOOK}},
                "template": {
                    "metadata": {
                        "labels": meta("", None, app=WEBHOOK)["labels"],
                        "annotations": {
                            ANNOTATION_CONFIG: config_digest,
                            ANNOTATION_CERTIFICATES: certificates_digest,
                        },
                    },
                    "spec": {
                        "serviceAccountName": WEBHOOK,
                        "automountServiceAccountToken": False,
                        "terminationGracePeriodSeconds": 5,
                        "containers": [
                            {
                                "name": "webhook",
                                "image": values.images.base,
                                "imagePullPolicy": "IfNotPresent",
                                "command": program(
                                    "webhook",
                                    f"--config={CONFIG_FILE}",
                                    f"--port={port}",
                                    f"--cert={CERTIFICATES_FOLDER}/{CERT_KEY}",
                                    f"--key={CERTIFICATES_FOLDER}/{KEY_KEY}",
                                ),
                                "ports": [{"name": "https", "containerPort": port}],
                                "readinessProbe": http_probe(
                                    port, "/healthz", scheme="HTTPS", period_s=2
                                ),
                                "livenessProbe": late(
                                    http_probe(port, "/healthz", scheme="HTTPS", period_s=10)
                                ),
                                "resources": small(),
                                "securityContext": locked_down(),
                                "volumeMounts": [
                                    config_mount(),
                                    {
                                        "name": "certificates",
                                        "mountPath": CERTIFICATES_FOLDER,
                                        "readOnly": True,
                                    },
                                ],
                            }
                        ],
                        "volumes": [
                            config_volume(),
                            secret_volume("certificates", SECRET_WEBHOOK),
                        ],
                    },
                },
            },
        },
    ]


def registration(values: StackValues, certificates: Certificates) -> Object:
    """Return the MutatingWebhookConfiguration; to be applied last."""
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": meta(cluster_name(values, WEBHOOK), None, app=WEBHOOK),
        "webhooks": [
            {
                "name": "vgpu-webhook.vgpu-testbed.dev",
                "admissionReviewVersions": ["v1"],
                "clientConfig": {
                    "service": {
                        "name": WEBHOOK_SERVICE,
                        "namespace": values.namespace,
                        "path": "/webhook",
                        "port": 443,
                    },
                    "caBundle": base64.b64encode(certificates.ca.encode()).decode(),
                },
                # A webhook that is away must not stop every pod of the cluster; a pod that
                # passes unseen has no promise, and the plugin refuses to serve it.
                "failurePolicy": "Ignore",
                "reinvocationPolicy": "Never",
                "matchPolicy": "Equivalent",
                "sideEffects": "None",
                "timeoutSeconds": 10,
                "rules": [
                    {
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["CREATE"],
                        "resources": ["pods"],
                        "scope": "Namespaced",
                    },
                    {
                        # `kubectl debug` adds its containers by an update of this one.
                        "apiGroups": [""],
                        "apiVersions": ["v1"],
                        "operations": ["UPDATE"],
                        "resources": ["pods/ephemeralcontainers"],
                        "scope": "Namespaced",
                    },
                ],
                "namespaceSelector": {
                    "matchExpressions": [
                        _not_ignored(),
                        {
                            "key": "kubernetes.io/metadata.name",
                            "operator": "NotIn",
                            "values": ["kube-system", values.namespace],
                        },
                    ]
                },
                # No objectSelector: a pod that is to be ignored is the webhook's own
                # decision, since forged annotations are taken off those too.
            }
        ],
    }


def _not_ignored() -> Object:
    return {"key": names.WEBHOOK_LABEL, "operator": "NotIn", "values": [names.WEBHOOK_IGNORE]}
