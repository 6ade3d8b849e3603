from __future__ import annotations

import datetime as dt
import socket
import ssl
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from cryptography import x509

from testbed.stack.certificates import sets as certs
from testbed.stack.certificates.sets import Certificates, Leaf

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.fixture(scope="module")
def made() -> Certificates:
    return certs.make("ns")


def handshake(folder: Path, made: Certificates, client: Leaf | None, server_name: str) -> str:
    """Return the client's common name as a server that demands one sees it."""
    files = {}
    for name, leaf in (("server", made.extender), ("client", client)):
        if leaf is not None:
            files[name] = folder / f"{name}.pem"
            files[name].write_text(leaf.cert + leaf.key)
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=made.ca)
    server_side.verify_mode = ssl.CERT_REQUIRED
    server_side.load_cert_chain(files["server"])
    client_side = ssl.create_default_context(cadata=made.ca)
    if client is not None:
        client_side.load_cert_chain(files["client"])
    here, there = socket.socketpair()
    seen: list[str] = []

    def serve() -> None:
        try:
            with server_side.wrap_socket(there, server_side=True) as wrapped:
                subject = wrapped.getpeercert()["subject"]  # type: ignore[index]
                seen.append(dict(item[0] for item in subject)["commonName"])
                wrapped.sendall(b"ok")
        except OSError:
            there.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        with client_side.wrap_socket(here, server_hostname=server_name) as wrapped:
            if wrapped.recv(2) != b"ok":
                raise ssl.SSLError("closed by the server")
    finally:
        here.close()
        thread.join(120)
    return seen[0]


def test_scheduler_is_let_in_by_the_extender(made: Certificates, tmp_path: Path) -> None:
    assert handshake(tmp_path, made, made.scheduler, "127.0.0.1") == "vgpu-scheduler"


@pytest.mark.parametrize("who", ["nobody", "the webhook", "another deployment"])
def test_nobody_else_is(made: Certificates, tmp_path: Path, who: str) -> None:
    client = {
        "nobody": None,
        "the webhook": made.webhook,  # of the same authority, for another purpose
        "another deployment": certs.make("ns").scheduler,
    }[who]
    with pytest.raises((ssl.SSLError, ConnectionError)):
        handshake(tmp_path, made, client, "127.0.0.1")


def test_extender_is_nobody_else_either(made: Certificates, tmp_path: Path) -> None:
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(tmp_path, made, made.scheduler, "10.0.0.1")


def test_webhook_serves_its_service() -> None:
    cert = x509.load_pem_x509_certificate(certs.make("some-ns").webhook.cert.encode())
    san = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert "vgpu-webhook.some-ns.svc" in san.get_values_for_type(x509.DNSName)


def test_fresh_set_is_usable_for_its_namespace_only(made: Certificates) -> None:
    assert certs.usable(made, "ns")
    assert not certs.usable(made, "other")


@pytest.mark.parametrize(("days", "usable"), [(-1, False), (0, True), (334, True), (336, False)])
def test_set_is_renewed_a_month_before_its_end(days: int, usable: bool) -> None:
    made = certs.make("ns", now=NOW)
    assert certs.usable(made, "ns", now=NOW + dt.timedelta(days=days)) is usable


def test_clock_a_little_behind_is_served() -> None:
    made = certs.make("ns", now=NOW)
    assert certs.usable(made, "ns", now=NOW - dt.timedelta(minutes=4))


def test_damaged_sets_are_not_usable(made: Certificates) -> None:
    other = certs.make("ns")
    for damaged in (
        replace(made, ca=other.ca),
        replace(made, ca=""),
        replace(made, webhook=other.webhook),
        replace(made, extender=replace(made.extender, key=made.scheduler.key)),
        replace(made, scheduler=Leaf(cert="junk", key="junk")),
    ):
        assert not certs.usable(damaged, "ns")
