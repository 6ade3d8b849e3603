"""The certificates of a deployment that is there: kept while they serve, else made anew.

The stack renews them by itself (``stack.certificates``, a CronJob); a deployment does so
too, by the same rules.
"""

from __future__ import annotations

from testbed.lab.deploy.common import WEBHOOK, cluster_name
from testbed.lab.deploy.values import StackValues
from testbed.lab.deploy.webhook import registration
from testbed.lab.kube import Kube
from testbed.stack.certificates.handler import SECRETS, Found, wanted
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
    secrets = {
        name: secret
        for name in SECRETS
        if (secret := kube.find("v1", "Secret", name, values.namespace)) is not None
    }
    hooks = kube.find(_API, _KIND, cluster_name(values, WEBHOOK))
    found = Found(secrets=secrets, registration=hooks)
    return wanted(values.namespace, found, hosts=values.webhook_hosts, renew=renew)


def believe_first(kube: Kube, values: StackValues, certificates: Certificates) -> None:
    """Have the API server believe a new authority before any server shows its leaf."""
    if certificates.before and kube.find(_API, _KIND, cluster_name(values, WEBHOOK)) is not None:
        kube.apply([registration(values, certificates)])
