"""The certificates of a deployment that is there: kept while they serve, else made anew.

The stack renews them by itself (``stack.certificates``, a CronJob); a deployment does so
too, by the same rules.
"""

from __future__ import annotations

import datetime as dt

from testbed.lab.deploy.common import WEBHOOK, Object, cluster_name
from testbed.lab.deploy.values import StackValues
from testbed.lab.deploy.webhook import registration
from testbed.lab.kube import Kube
from testbed.stack.certificates import sets
from testbed.stack.certificates.handler import SECRETS, Found, deployed, wanted
from testbed.stack.certificates.sets import Certificates

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
    hooks = kube.find(_API, _KIND, cluster_name(values, WEBHOOK))
    found = Found(secrets=_secrets(kube, values.namespace), registration=hooks)
    return wanted(values.namespace, found, hosts=values.webhook_hosts, renew=renew)


def believe_first(kube: Kube, values: StackValues, certificates: Certificates) -> None:
    """Have the API server believe a new authority before any server shows its leaf."""
    if certificates.before and kube.find(_API, _KIND, cluster_name(values, WEBHOOK)) is not None:
        kube.apply([registration(values, certificates)])


def certificates_end(kube: Kube, namespace: str) -> dt.datetime | None:
    """Return when the first of a deployment's certificates ends; None without a usable set."""
    found = deployed(Found(secrets=_secrets(kube, namespace)))
    try:
        return None if found is None else sets.ends(found)
    except ValueError:
        return None


def _secrets(kube: Kube, namespace: str) -> dict[str, Object]:
    return {
        name: secret
        for name in SECRETS
        if (secret := kube.find("v1", "Secret", name, namespace)) is not None
    }
