"""The admission webhook: Service, Deployment, its disruptions, and its registration."""

from __future__ import annotations

import base64
import copy

from testbed.lab.deploy.common import (
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
from testbed.lab.deploy.policy import (
    asks,
    changes,
    node_rules,
    pod_rules,
    rule,
    stranger,
    writers,
)
from testbed.lab.deploy.values import StackValues
from testbed.stack import names
from testbed.stack.certificates.sets import WEBHOOK_SERVICE, Certificates
from testbed.stack.devices.vendor import stack_keys, stack_node_keys

#: Where the webhook answers (``stack.webhook.server``).
PATH = "/webhook"
PATH_OWN_ENVIRONMENT = "/webhook/own-environment"
REPLICAS = 2


def webhook(values: StackValues, *, config_digest: str) -> list[Object]:
    """Return Service, Deployment and the bound on its disruptions.

    A new certificate rolls nothing: it is read when its file has changed.
    """
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
                "replicas": REPLICAS,
                "selector": {"matchLabels": {NAME: WEBHOOK}},
                # The old ones go when the new ones answer.
                "strategy": {
                    "type": "RollingUpdate",
                    "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0},
                },
                "template": {
                    "metadata": {
                        "labels": meta("", None, app=WEBHOOK)["labels"],
                        "annotations": {ANNOTATION_CONFIG: config_digest},
                    },
                    "spec": {
                        "serviceAccountName": WEBHOOK,
                        "terminationGracePeriodSeconds": 10,
                        "topologySpreadConstraints": [
                            {
                                "maxSkew": 1,
                                "topologyKey": "kubernetes.io/hostname",
                                "whenUnsatisfiable": "ScheduleAnyway",
                                "labelSelector": {"matchLabels": {NAME: WEBHOOK}},
                            }
                        ],
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
                                    "--quota=in-cluster",
                                    *(f"--writer={user}" for user in writers(values)),
                                ),
                                # The API server goes on calling for a moment after a pod is
                                # told to end, and does without an answer that does not come.
                                "lifecycle": {"preStop": {"sleep": {"seconds": 3}}},
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
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": meta(WEBHOOK, values, app=WEBHOOK),
            "spec": {
                "maxUnavailable": 1,
                "selector": {"matchLabels": {NAME: WEBHOOK}},
                # One that does not answer anyway protects nothing, and must not hold a drain up.
                "unhealthyPodEvictionPolicy": "AlwaysAllow",
            },
        },
    ]


def registration(values: StackValues, certificates: Certificates) -> Object:
    """Return the MutatingWebhookConfiguration; to be applied last.

    What the webhook is asked about is narrowed by expressions that the API server
    evaluates, so that other pods neither wait for it nor depend on it.
    """
    config = values.config
    forged = {"name": "shares", "expression": f"{asks(config)} || {changes(stack_keys(config))}"}
    # To hide cards from containers that did not ask, every pod must be seen.
    pods = [] if config.overwriteEnv else [forged]
    creation = [rule(["CREATE"], ["pods"])]

    def own_environment(operator: str) -> Object:
        allowed = [names.OWN_ENVIRONMENT_ALLOWED]
        return {"key": names.OWN_ENVIRONMENT_LABEL, "operator": operator, "values": allowed}

    def one(name: str, path: str, rules: list[Object], conditions: list[Object]) -> Object:
        return {
            "name": f"{name}.vgpu-testbed.dev",
            "admissionReviewVersions": ["v1"],
            "clientConfig": {
                **_where(values, path),
                "caBundle": base64.b64encode(certificates.trusted.encode()).decode(),
            },
            # A webhook that is away must not stop every pod of the cluster. A pod that passes
            # unseen has no promise, and the plugin refuses to serve it; what it could forge is
            # refused by the policies (``policy``), which the API server evaluates itself.
            "failurePolicy": "Ignore",
            "reinvocationPolicy": "Never",
            "matchPolicy": "Equivalent",
            "sideEffects": "None",
            "timeoutSeconds": 10,
            "rules": copy.deepcopy(rules),
            **({"matchConditions": copy.deepcopy(conditions)} if conditions else {}),
        }

    def selected(hook: Object, *expressions: Object) -> Object:
        system = {
            "key": "kubernetes.io/metadata.name",
            "operator": "NotIn",
            "values": ["kube-system", values.namespace, *values.webhook_leaves_out],
        }
        # No objectSelector: whether a pod is to be ignored is the webhook's own decision,
        # since forged annotations are taken off those too.
        hook["namespaceSelector"] = {"matchExpressions": [_not_ignored(), system, *expressions]}
        return hook

    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": meta(cluster_name(values, WEBHOOK), None, app=WEBHOOK),
        "webhooks": [
            selected(one("pods", PATH, creation, pods), own_environment("NotIn")),
            selected(
                one("pods-own-environment", PATH_OWN_ENVIRONMENT, creation, pods),
                own_environment("In"),
            ),
            selected(
                # `kubectl debug` adds its containers by an update of this one.
                one(
                    "ephemeral",
                    PATH,
                    [rule(["UPDATE"], ["pods/ephemeralcontainers"])],
                    [{"name": "shares", "expression": asks(config)}],
                )
            ),
            one(
                "own-keys",
                PATH,
                pod_rules(created=False),
                [stranger(values), {"name": "changed", "expression": changes(stack_keys(config))}],
            ),
            one(
                "own-node-keys",
                PATH,
                node_rules(),
                [
                    stranger(values),
                    {"name": "changed", "expression": changes(stack_node_keys(config))},
                ],
            ),
        ],
    }


def _where(values: StackValues, path: str) -> Object:
    """Return how the API server finds the webhook."""
    if values.webhook_url:
        return {"url": values.webhook_url.rstrip("/") + path}
    return {
        "service": {
            "name": WEBHOOK_SERVICE,
            "namespace": values.namespace,
            "path": path,
            "port": 443,
        }
    }


def _not_ignored() -> Object:
    return {"key": names.WEBHOOK_LABEL, "operator": "NotIn", "values": [names.WEBHOOK_IGNORE]}
