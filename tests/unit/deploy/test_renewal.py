"""Certificates that renew themselves: what is written, in which order, and after a kill."""

from __future__ import annotations

import base64
import copy
import datetime as dt
from typing import Any

import pytest

from testbed.errors import ClusterError, InputError
from testbed.lab.deploy import StackImages, StackValues, render
from testbed.stack.certificates import sets as certs
from testbed.stack.certificates.handler import SECRETS
from testbed.stack.certificates.server import Renewal
from testbed.stack.certificates.sets import Certificates
from testbed.stack.kubeapi import ApiError

VALUES = StackValues(images=StackImages(base="testbed/base:1", kube_scheduler="s:1"))
NOW = dt.datetime.now(dt.UTC)
HOOKS, SCHEDULER = "vgpu-testbed-webhook", "vgpu-scheduler"


class Killed(BaseException):
    """The program ends here."""


class Server:
    """Objects with versions, merge patches and their precondition."""

    def __init__(self, found: Certificates) -> None:
        self.objects: dict[str, Any] = {}
        self.patched: list[str] = []
        self.killed_after = 99
        self.meanwhile = lambda: None
        for manifest in render(VALUES, found):
            name, kind = manifest["metadata"]["name"], manifest["kind"]
            if (kind, name) in {
                *(("Secret", secret) for secret in SECRETS),
                ("MutatingWebhookConfiguration", HOOKS),
                ("Deployment", SCHEDULER),
            }:
                stored = copy.deepcopy(manifest)
                stored["metadata"] |= {"resourceVersion": "1", "uid": f"uid-{name}"}
                self.objects[name] = stored

    def get(self, path: str) -> Any:
        name = path.rpartition("/")[2]
        if name not in self.objects:
            raise ApiError(f"GET {path}", why="not found", status=404)
        return copy.deepcopy(self.objects[name])

    def patch(self, path: str, body: Any) -> Any:
        if len(self.patched) >= self.killed_after:
            raise Killed
        name = path.rpartition("/")[2]
        stored = self.objects[name]
        for key in ("resourceVersion", "uid"):
            if body["metadata"].get(key, stored["metadata"][key]) != stored["metadata"][key]:
                raise ApiError(f"PATCH {path}", why="changed", status=409)
        self.patched.append(name)
        self.objects[name] = _merged(stored, body)
        version = str(int(stored["metadata"]["resourceVersion"]) + 1)
        self.objects[name]["metadata"]["resourceVersion"] = version
        self.meanwhile()
        return self.get(path)

    def believed(self) -> list[str]:
        hooks = self.objects[HOOKS]["webhooks"]
        (bundle,) = {hook["clientConfig"]["caBundle"] for hook in hooks}
        return certs.split(base64.b64decode(bundle).decode())

    def text(self, secret: str, key: str) -> str:
        return base64.b64decode(self.objects[secret]["data"][key]).decode()


def _merged(stored: Any, body: Any) -> Any:
    if not isinstance(stored, dict) or not isinstance(body, dict):
        return body
    return {**stored, **{key: _merged(stored.get(key), value) for key, value in body.items()}}


def renewal(server: Server) -> Renewal:
    return Renewal(server, namespace=VALUES.namespace, registration=HOOKS, scheduler=SCHEDULER)


def made(days_left: int) -> Certificates:
    return certs.make(VALUES.namespace, now=NOW - dt.timedelta(days=365 - days_left))


def in_force(server: Server) -> bool:
    """Whether all that the parts read is of one set, and the API server believes it."""
    authorities = {server.text(secret, "ca.crt") for secret in SECRETS}
    notes = server.objects[SCHEDULER]["spec"]["template"]["metadata"]["annotations"]
    found = Certificates(
        ca=authorities.pop(),
        **{
            part: certs.Leaf(cert=server.text(name, "tls.crt"), key=server.text(name, "tls.key"))
            for part, name in zip(("webhook", "extender", "scheduler"), SECRETS, strict=True)
        },
    )
    return (
        not authorities
        and certs.usable(found, VALUES.namespace)
        and found.ca in server.believed()
        and notes["vgpu-testbed.dev/certificates"] == certs.scheduler_digest(found)
    )


def test_those_that_serve_are_kept_and_nothing_is_written() -> None:
    server = Server(made(days_left=31))
    assert renewal(server).run() is False
    assert server.patched == [] and in_force(server)


def test_those_that_end_soon_are_renewed_the_authority_first_and_the_scheduler_last() -> None:
    old = made(days_left=29)
    server = Server(old)
    assert not in_force(server)
    assert renewal(server).run() is True
    assert server.patched == [HOOKS, *SECRETS, SCHEDULER]
    assert in_force(server)
    # Servers that still show the old leaf are believed.
    assert server.believed() == [server.text(SECRETS[0], "ca.crt"), old.ca]
    # The next day is a day like any other.
    server.patched.clear()
    assert renewal(server).run() is False and server.patched == []


def test_the_old_authority_goes_when_no_server_can_show_its_leaf() -> None:
    before, now = made(days_left=100), made(days_left=300)
    server = Server(Certificates(**{f: getattr(now, f) for f in PARTS}, before=before.ca))
    assert server.believed() == [now.ca, before.ca]
    assert renewal(server).run() is False
    assert server.believed() == [now.ca] and server.patched == [HOOKS]


PARTS = ("ca", "webhook", "extender", "scheduler")


@pytest.mark.parametrize("writes", range(5))
def test_a_run_that_is_killed_anywhere_is_completed_by_the_next(writes: int) -> None:
    server = Server(made(days_left=10))
    server.killed_after = writes
    with pytest.raises(Killed):
        renewal(server).run()
    # Whatever the webhook shows by now is believed.
    assert server.text(SECRETS[0], "ca.crt") in server.believed()
    server.killed_after = 99
    renewal(server).run()
    assert in_force(server)


def test_somebody_who_writes_at_the_same_time_is_noticed() -> None:
    server, other = Server(made(days_left=10)), Server(made(days_left=200))

    def deployed_meanwhile() -> None:
        if server.patched[-1] == SCHEDULER:
            server.objects[SECRETS[1]] = copy.deepcopy(other.objects[SECRETS[1]])

    server.meanwhile = deployed_meanwhile
    with pytest.raises(ClusterError, match="not those that were written"):
        renewal(server).run()
    server.meanwhile = lambda: None
    renewal(server).run()  # what the Job's next try does
    assert in_force(server)


def test_an_object_that_changed_since_it_was_read_is_not_overwritten() -> None:
    server = Server(made(days_left=10))

    def changed() -> None:
        server.objects[SECRETS[2]]["metadata"]["resourceVersion"] = "77"

    server.meanwhile = changed
    with pytest.raises(ApiError):
        renewal(server).run()


def test_where_nothing_is_deployed_there_is_nothing_to_renew() -> None:
    server = Server(made(days_left=10))
    del server.objects[SECRETS[1]]
    with pytest.raises(InputError, match="no certificates to renew"):
        renewal(server).run()
    assert server.patched == []


def test_digests_of_deployment_and_renewal_are_the_same() -> None:
    """Else the next deployment would roll the scheduler for nothing."""
    found = made(days_left=300)
    notes = Server(found).objects[SCHEDULER]["spec"]["template"]["metadata"]["annotations"]
    assert notes["vgpu-testbed.dev/certificates"] == certs.scheduler_digest(found)
