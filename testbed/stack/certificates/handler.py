"""Which certificates a deployment is to have, and what must change for it; pure.

A new set has a new authority, since the key of the old one was thrown away. Kubelets
bring it to the webhook's servers within about a minute, which read it without a restart;
meanwhile the API server believes both authorities, so that no pod passes unseen.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from testbed.stack import names
from testbed.stack.certificates import sets
from testbed.stack.certificates.sets import Certificates, Leaf

Json = dict[str, Any]

SECRETS = (names.SECRET_WEBHOOK, names.SECRET_EXTENDER, names.SECRET_SCHEDULER)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a cluster has of a deployment's certificates; objects as the API server tells them.

    Attributes:
        secrets: The objects of ``SECRETS`` by name, those that are there.
        registration: The MutatingWebhookConfiguration.
        scheduler: The scheduler's Deployment.
    """

    secrets: Mapping[str, Mapping[str, Any]]
    registration: Mapping[str, Any] | None = None
    scheduler: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A merge patch of one object; to be made in the given order."""

    kind: str
    name: str
    body: Json


def deployed(found: Found) -> Certificates | None:
    """Return the set in the secrets, None where one of them is missing.

    One that does not belong together cannot be used, but names its authority.
    """
    if any(name not in found.secrets for name in SECRETS):
        return None
    texts = [_texts(found.secrets[name]) for name in SECRETS]
    webhook, extender, scheduler = (Leaf(cert=cert, key=key) for _, cert, key in texts)
    # Leaves of another authority than the webhook's make the set unusable.
    return Certificates(ca=texts[0][0], webhook=webhook, extender=extender, scheduler=scheduler)


def wanted(
    namespace: str,
    found: Found,
    *,
    hosts: Sequence[str] = (),
    renew: bool = False,
    days: int = sets.RENEW_DAYS,
    now: dt.datetime | None = None,
) -> Certificates:
    """Return the set that a deployment is to have: the one that it has, while that serves.

    Args:
        namespace: Where it lives.
        found: What is there.
        hosts: By which the webhook is called beside its Service's names.
        renew: Make a fresh set in any case.
        days: A set that ends sooner is made anew.
        now: The time.
    """
    there = deployed(found)
    if there is None:
        return sets.make(namespace, hosts=hosts, now=now)
    believed = _believed(found.registration)
    if renew or not sets.usable(there, namespace, hosts=hosts, now=now, days=days):
        fresh = sets.make(namespace, hosts=hosts, now=now)
        return dataclasses.replace(fresh, before=sets.authorities([there.ca, *believed], now=now))
    if sets.young(there.webhook, now=now):
        # Servers may still show the leaf of the set before.
        others = [pem for pem in believed if pem != there.ca]
        return dataclasses.replace(there, before=sets.authorities(others, now=now))
    return there


def changes(found: Found, certificates: Certificates) -> Sequence[Change]:
    """Return what must change for a set to be in force; nothing where it is.

    The API server believes a new authority before any server shows its leaf. Scheduler
    and extender roll last: kube-scheduler reads the authority at its start only.
    """
    made = []
    bundle = _encoded(certificates.trusted)
    hooks = (found.registration or {}).get("webhooks") or []
    if any((hook.get("clientConfig") or {}).get("caBundle") != bundle for hook in hooks):
        believing = [
            {**hook, "clientConfig": {**(hook.get("clientConfig") or {}), "caBundle": bundle}}
            for hook in hooks
        ]
        body = _patch(found.registration, {"webhooks": believing})
        made.append(Change(kind="registration", name=_name(found.registration), body=body))
    leaves = (certificates.webhook, certificates.extender, certificates.scheduler)
    for name, leaf in zip(SECRETS, leaves, strict=True):
        secret = found.secrets.get(name)
        texts = {names.CA_KEY: certificates.ca, names.CERT_KEY: leaf.cert, names.KEY_KEY: leaf.key}
        data = {key: _encoded(text) for key, text in texts.items()}
        if secret is not None and secret.get("data") != data:
            made.append(Change(kind="secret", name=name, body=_patch(secret, {"data": data})))
    if found.scheduler is not None:
        digest = sets.scheduler_digest(certificates)
        template = found.scheduler["spec"]["template"]
        notes = (template.get("metadata") or {}).get("annotations") or {}
        if notes.get(names.ANNOTATION_CERTIFICATES) != digest:
            annotations = {"annotations": {names.ANNOTATION_CERTIFICATES: digest}}
            rolled = {"spec": {"template": {"metadata": annotations}}}
            body = {"metadata": {"uid": found.scheduler["metadata"]["uid"]}, **rolled}
            made.append(Change(kind="deployment", name=_name(found.scheduler), body=body))
    return made


def _patch(found: Mapping[str, Any] | None, body: Json) -> Json:
    """Return a patch that only the object as it was found takes."""
    version = ((found or {}).get("metadata") or {}).get("resourceVersion")
    return {"metadata": {"resourceVersion": version}, **body} if version else body


def _name(found: Mapping[str, Any] | None) -> str:
    return str(((found or {}).get("metadata") or {}).get("name", ""))


def _texts(secret: Mapping[str, Any]) -> tuple[str, str, str]:
    data = secret.get("data") or {}
    ca, cert, key = (
        base64.b64decode(data.get(name, "")).decode(errors="replace")
        for name in (names.CA_KEY, names.CERT_KEY, names.KEY_KEY)
    )
    return ca, cert, key


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _believed(registration: Mapping[str, Any] | None) -> list[str]:
    """Return the authorities that the API server believes of the webhook now."""
    hooks = (registration or {}).get("webhooks") or []
    if not hooks:
        return []
    raw = (hooks[0].get("clientConfig") or {}).get("caBundle", "")
    return sets.split(base64.b64decode(raw).decode(errors="replace"))
