"""From values and certificates to manifests; pure."""

from __future__ import annotations

import base64

import msgspec
import yaml

from testbed.lab.deploy.common import (
    CA_KEY,
    CERT_KEY,
    CHOSEN_KEY,
    CHOSEN_MAP,
    CONFIG_KEY,
    CONFIG_MAP,
    EXTENDER,
    KEY_KEY,
    SCHEDULER,
    SECRET_EXTENDER,
    SECRET_SCHEDULER,
    SECRET_WEBHOOK,
    WEBHOOK,
    Object,
    digest,
    meta,
)
from testbed.lab.deploy.nodes import nodes
from testbed.lab.deploy.policy import policies
from testbed.lab.deploy.rbac import rbac
from testbed.lab.deploy.renewal import renewal
from testbed.lab.deploy.scheduler import scheduler
from testbed.lab.deploy.values import StackValues, config_text
from testbed.lab.deploy.webhook import registration, webhook
from testbed.stack import names
from testbed.stack.certificates import sets as certs
from testbed.stack.certificates.sets import Certificates, Leaf
from testbed.stack.config import DeviceConfig


def render(values: StackValues, certificates: Certificates) -> list[Object]:
    """Return the manifests in the order in which they are to be applied.

    The namespace is first; the webhook's registration is last, so that no pod is
    shown to a webhook that has not even been asked to start.
    """
    config_digest = _config_digest(values.config)
    return [
        _namespace(values),
        *rbac(values),
        _config_map(values),
        *_chosen_map(values),
        _secret(values, SECRET_WEBHOOK, WEBHOOK, certificates.ca, certificates.webhook),
        _secret(values, SECRET_EXTENDER, EXTENDER, certificates.ca, certificates.extender),
        _secret(values, SECRET_SCHEDULER, SCHEDULER, certificates.ca, certificates.scheduler),
        *scheduler(
            values,
            config_digest=config_digest,
            certificates_digest=certs.scheduler_digest(certificates),
        ),
        *webhook(values, config_digest=config_digest),
        *nodes(values, config_digest=config_digest),
        renewal(values),
        *policies(values),
        registration(values, certificates),
    ]


def render_text(values: StackValues, certificates: Certificates | None = None) -> str:
    """Return the manifests as YAML documents for ``kubectl apply -f -``.

    Without certificates a fresh set is made; the text then holds private keys.
    """
    manifests = render(values, certificates or certs.make(values.namespace))
    return yaml.dump_all(
        manifests, Dumper=_Readable, sort_keys=False, default_flow_style=False, width=100
    )


def _namespace(values: StackValues) -> Object:
    found = meta(values.namespace, None)
    # hostPID and hostPath are what the node's programs are for.
    for mode in ("enforce", "audit", "warn"):
        found["labels"][f"pod-security.kubernetes.io/{mode}"] = "privileged"
    found["labels"][names.WEBHOOK_LABEL] = names.WEBHOOK_IGNORE
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": found}


def _config_map(values: StackValues) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": meta(CONFIG_MAP, values),
        "data": {CONFIG_KEY: config_text(values.config)},
    }


def _chosen_map(values: StackValues) -> list[Object]:
    if not values.chosen:
        return []
    return [
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": meta(CHOSEN_MAP, values),
            "data": {CHOSEN_KEY: values.chosen},
        }
    ]


def _secret(values: StackValues, name: str, app: str, ca: str, leaf: Leaf) -> Object:
    content = {CA_KEY: ca, CERT_KEY: leaf.cert, KEY_KEY: leaf.key}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": meta(name, values, app=app),
        "type": "kubernetes.io/tls",
        "data": {k: base64.b64encode(text.encode()).decode() for k, text in content.items()},
    }


def _config_digest(config: DeviceConfig) -> str:
    """Name the part of the configuration that needs new pods when it changes.

    Enforcement and generation are not in it: the plugin follows them as it runs.
    """
    content = msgspec.to_builtins(config)
    del content["enforcement"], content["generation"]
    return digest(content)


class _Readable(yaml.SafeDumper):
    """Writes long texts as blocks and never an alias."""

    def ignore_aliases(self, data: object) -> bool:
        del data
        return True


def _string(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    style = "|" if "\n" in text else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Readable.add_representer(str, _string)
