"""The certificates of a deployment that is there: kept while they serve, else made anew.

A new set has a new authority, since the key of the old one was thrown away. Kubelets
bring it to the webhook's servers within about a minute, which read it without a restart;
meanwhile the API server believes both authorities, so that no pod passes unseen.
"""

from __future__ import annotations

import base64
import dataclasses

from testbed.lab.deploy import certificates as certs
from testbed.lab.deploy.certificates import Certificates, Leaf
from testbed.lab.deploy.common import (
    CA_KEY,
    CERT_KEY,
    KEY_KEY,
    SECRET_EXTENDER,
    SECRET_SCHEDULER,
    SECRET_WEBHOOK,
    WEBHOOK,
    Object,
    cluster_name,
)
from testbed.lab.deploy.values import StackValues
from testbed.lab.deploy.webhook import registration
from testbed.lab.kube import Kube

_API = "admissionregistration.k8s.io/v1"
_KIND = "MutatingWebhookConfiguration"


def certificates_for(kube: Kube, values: StackValues, *, renew: bool = False) -> Certificates:
    """Return the certificates to deploy.

    A fresh set rolls the scheduler's pod, so it is made only when it must.

    Args:
        kube: The cluster.
        values: The deployment.
        renew: Make a fresh set in any case.
    """
    deployed = _deployed(kube, values)
    if deployed is None:
        return certs.make(values.namespace)
    trusted = _trusted(kube, values)
    if renew or not certs.usable(deployed, values.namespace):
        fresh = certs.make(values.namespace)
        return dataclasses.replace(fresh, before=certs.authorities([deployed.ca, *trusted]))
    if certs.young(deployed.webhook):
        # Servers may still show the leaf of the set before.
        others = [pem for pem in trusted if pem != deployed.ca]
        return dataclasses.replace(deployed, before=certs.authorities(others))
    return deployed


def believe_first(kube: Kube, values: StackValues, certificates: Certificates) -> None:
    """Have the API server believe a new authority before any server shows its leaf."""
    if certificates.before and kube.find(_API, _KIND, cluster_name(values, WEBHOOK)) is not None:
        kube.apply([registration(values, certificates)])


def _deployed(kube: Kube, values: StackValues) -> Certificates | None:
    """Return the set in the cluster's secrets; one that does not belong together is none
    that can be used, but names its authority."""
    found = []
    for name in (SECRET_WEBHOOK, SECRET_EXTENDER, SECRET_SCHEDULER):
        secret = kube.find("v1", "Secret", name, values.namespace)
        if secret is None:
            return None
        found.append([_decoded(secret, key) for key in (CA_KEY, CERT_KEY, KEY_KEY)])
    webhook, extender, scheduler = (Leaf(cert=cert, key=key) for _, cert, key in found)
    # Leaves of another authority than the webhook's make the set unusable.
    return Certificates(ca=found[0][0], webhook=webhook, extender=extender, scheduler=scheduler)


def _decoded(secret: Object, key: str) -> str:
    raw = (secret.get("data") or {}).get(key, "")
    return base64.b64decode(raw).decode(errors="replace")


def _trusted(kube: Kube, values: StackValues) -> list[str]:
    """Return the authorities that the API server believes of the webhook now."""
    found = kube.find(_API, _KIND, cluster_name(values, WEBHOOK))
    if found is None or not found.get("webhooks"):
        return []
    raw = found["webhooks"][0]["clientConfig"].get("caBundle", "")
    return certs.split(base64.b64decode(raw).decode(errors="replace"))
