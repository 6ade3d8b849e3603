"""Reading a deployment's certificates from the API server, and writing new ones."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Protocol

from testbed.errors import ClusterError, InputError
from testbed.stack.certificates import sets
from testbed.stack.certificates.handler import SECRETS, Found, changes, deployed, wanted
from testbed.stack.certificates.sets import Certificates
from testbed.stack.kubeapi import ApiError, Json

log = logging.getLogger(__name__)

_HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"


class Api(Protocol):
    """The calls that this needs."""

    def get(self, path: str) -> Json: ...

    def patch(self, path: str, body: Json) -> Json: ...


class Renewal:
    """One look at a deployment's certificates.

    Args:
        api: The API server.
        namespace: Where the deployment lives.
        registration: Name of its MutatingWebhookConfiguration.
        scheduler: Name of its scheduler's Deployment.
        hosts: By which its webhook is called beside its Service's names.
    """

    def __init__(
        self,
        api: Api,
        *,
        namespace: str,
        registration: str,
        scheduler: str,
        hosts: Sequence[str] = (),
    ) -> None:
        self._api = api
        self._hosts = hosts
        self._namespace = namespace
        self._paths = {
            **{name: f"/api/v1/namespaces/{namespace}/secrets/{name}" for name in SECRETS},
            registration: f"{_HOOKS}/{registration}",
            scheduler: f"/apis/apps/v1/namespaces/{namespace}/deployments/{scheduler}",
        }
        self._registration, self._scheduler = registration, scheduler

    def run(self, *, renew: bool = False, days: int = sets.RENEW_DAYS) -> bool:
        """See that the certificates serve for some more days; True if they are new ones.

        What was left half done, by a run that was killed, is completed.

        Args:
            renew: Make new ones in any case.
            days: Make new ones if these end sooner.

        Raises:
            InputError: there is no deployment.
            ClusterError: the API server refuses, or somebody else wrote at the same time:
                try again.
        """
        found = self._read()
        before = deployed(found)
        if before is None:
            raise InputError(
                f"the namespace {self._namespace} has no certificates to renew",
                why=f"not all of the secrets {', '.join(SECRETS)} are there",
                hint="deploy the stack",
            )
        now = wanted(self._namespace, found, hosts=self._hosts, renew=renew, days=days)
        for change in changes(found, now):
            self._api.patch(self._paths[change.name], change.body)
            log.info("%s %s is changed", change.kind, change.name)
        after = deployed(self._read())
        if after is None or not _same(after, now):
            raise ClusterError(
                "the certificates are not those that were written",
                why="somebody else wrote at the same time, perhaps a deployment",
                hint="run this again",
            )
        fresh = not _same(before, now)
        log.info("certificates are %s, until %s", "new" if fresh else "kept", sets.ends(now))
        return fresh

    def _read(self) -> Found:
        secrets = {name: found for name in SECRETS if (found := self._find(name)) is not None}
        return Found(
            secrets=secrets,
            registration=self._find(self._registration),
            scheduler=self._find(self._scheduler),
        )

    def _find(self, name: str) -> dict[str, Any] | None:
        try:
            return self._api.get(self._paths[name])
        except ApiError as error:
            if error.status == 404:
                return None
            raise


def _same(one: Certificates, other: Certificates) -> bool:
    return (one.ca, one.webhook, one.extender, one.scheduler) == (
        other.ca, other.webhook, other.extender, other.scheduler,
    )  # fmt: skip
