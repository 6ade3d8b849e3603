"""Which certificates a deployment gets, and whom the API server believes meanwhile."""

from __future__ import annotations

import base64
import datetime as dt
from dataclasses import replace
from typing import Any

import pytest

from testbed.lab.deploy import StackImages, StackValues, render
from testbed.lab.deploy.rotation import believe_first, certificates_end, certificates_for
from testbed.stack.certificates import sets as certs
from testbed.stack.certificates.sets import Certificates, Leaf

VALUES = StackValues(images=StackImages(base="testbed/base:1", kube_scheduler="s:1"))
LONG_AGO = dt.datetime.now(dt.UTC) - dt.timedelta(days=200)


class Server:
    """Keeps what is applied, as the API server does."""

    def __init__(self, found: Certificates | None = None) -> None:
        self.objects: dict[tuple[str, str], Any] = {}
        self.applied: list[str] = []
        if found is not None:
            self.apply(render(VALUES, found))
            self.applied.clear()

    def find(self, _version: str, kind: str, name: str, _namespace: str = "") -> Any:
        return self.objects.get((kind, name))

    def apply(self, manifests: list[Any]) -> None:
        for manifest in manifests:
            self.objects[manifest["kind"], manifest["metadata"]["name"]] = manifest
            self.applied.append(manifest["kind"])

    def believed(self) -> list[str]:
        hooks = self.objects["MutatingWebhookConfiguration", "vgpu-testbed-webhook"]["webhooks"]
        (bundle,) = {hook["clientConfig"]["caBundle"] for hook in hooks}
        return certs.split(base64.b64decode(bundle).decode())


@pytest.fixture(scope="module")
def old() -> Certificates:
    return certs.make(VALUES.namespace, now=LONG_AGO)


def renewed(server: Server) -> Certificates:
    found = certificates_for(server, VALUES, renew=True)  # type: ignore[arg-type]
    believe_first(server, VALUES, found)  # type: ignore[arg-type]
    return found


def test_first_ones_are_made() -> None:
    server = Server()
    found = renewed(server)
    assert certs.usable(found, VALUES.namespace) and not found.before
    assert server.applied == []  # nobody is to be shown to a webhook that is not there


def test_those_that_serve_are_kept(old: Certificates) -> None:
    server = Server(old)
    assert certificates_for(server, VALUES) == old  # type: ignore[arg-type]


def test_the_api_server_believes_a_new_authority_before_it_is_shown(old: Certificates) -> None:
    server = Server(old)
    found = renewed(server)
    assert found.webhook != old.webhook
    assert server.applied == ["MutatingWebhookConfiguration"]
    assert server.believed() == [found.ca, old.ca]


def test_both_are_believed_until_every_server_shows_the_new_one(old: Certificates) -> None:
    server = Server(old)
    found = renewed(server)
    server.apply(render(VALUES, found))
    again = certificates_for(server, VALUES)  # type: ignore[arg-type]
    assert again == found and again.trusted == found.ca + old.ca


def test_a_second_renewal_believes_all_three(old: Certificates) -> None:
    server = Server(old)
    first = renewed(server)
    server.apply(render(VALUES, first))
    second = renewed(server)
    assert certs.split(second.trusted) == [second.ca, first.ca, old.ca]


def test_the_old_authority_goes_in_time(old: Certificates) -> None:
    gone = certs.make(VALUES.namespace, now=LONG_AGO)
    server = Server(replace(old, before=gone.ca))
    assert certificates_for(server, VALUES).trusted == old.ca  # type: ignore[arg-type]


def test_what_is_over_or_none_is_not_believed(old: Certificates) -> None:
    over = certs.make(VALUES.namespace, now=LONG_AGO - dt.timedelta(days=365))
    assert certs.authorities([over.ca, "nonsense", old.ca, old.ca]) == old.ca
    assert certs.split("nonsense") == []


@pytest.mark.parametrize("broken", [Leaf(cert="X", key="Y"), Leaf(cert="", key="")])
def test_broken_ones_are_replaced(old: Certificates, broken: Leaf) -> None:
    server = Server(replace(old, webhook=broken))
    found = certificates_for(server, VALUES)  # type: ignore[arg-type]
    assert certs.usable(found, VALUES.namespace)
    assert found.trusted == found.ca + old.ca


def test_when_they_end(old: Certificates) -> None:
    server = Server(old)
    assert certificates_end(server, VALUES.namespace) == certs.ends(old)  # type: ignore[arg-type]
    assert certificates_end(Server(), VALUES.namespace) is None  # type: ignore[arg-type]
    server.objects["Secret", "vgpu-webhook-tls"]["data"]["ca.crt"] = ""
    assert certificates_end(server, VALUES.namespace) is None  # type: ignore[arg-type]
