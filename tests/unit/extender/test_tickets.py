"""No session tickets: nobody resumes, and they cost a third of a handshake."""

from __future__ import annotations

import ssl

import pytest

from testbed.stack.certificates.sets import make
from testbed.stack.tls import server_context


@pytest.mark.parametrize("tickets", [None, 2])
def test_a_session_comes_without_a_ticket(tmp_path, tickets):
    certificates = make("test")
    for name, text in (
        ("ca.crt", certificates.ca),
        ("tls.crt", certificates.extender.cert),
        ("tls.key", certificates.extender.key),
    ):
        (tmp_path / name).write_text(text)
    serving = server_context(tmp_path / "tls.crt", tmp_path / "tls.key")
    if tickets is not None:
        serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # the control
        serving.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
    calling = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
    there, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    server = serving.wrap_bio(there, back, server_side=True)
    client = calling.wrap_bio(back, there, server_hostname="127.0.0.1")
    waiting = {client, server}
    for _ in range(4):
        for side in (client, server):
            if side in waiting:
                try:
                    side.do_handshake()
                except ssl.SSLWantReadError:
                    continue
                waiting.discard(side)
    assert not waiting
    server.write(b"answer")  # tickets come before the first data
    assert client.read() == b"answer"
    assert client.version() == "TLSv1.3"
    assert client.session.has_ticket is (tickets is not None)
