"""Serving certificates that may be replaced while the server runs."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from pathlib import Path

from testbed.errors import InputError
from testbed.stack.reload import Reloading


def server_context(
    cert: Path, key: Path, client_ca: Path | None = None, protocols: Sequence[str] = ()
) -> ssl.SSLContext:
    """Return a server's TLS context that serves the certificate now in the files.

    Args:
        cert: Certificate chain, PEM.
        key: Its key, PEM.
        client_ca: Demand a client certificate signed by this CA.
        protocols: What is spoken above TLS, what is liked best first (ALPN).

    Raises:
        InputError: a file is missing, or certificate and key do not belong together.
    """

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(cert, key)
        # Go's clients resume no session (no ClientSessionCache), and two tickets cost a
        # third of a handshake; over HTTP/1.1 they keep two connections and open more for
        # every burst.
        context.num_tickets = 0
        if protocols:
            context.set_alpn_protocols(protocols)
        if client_ca is not None:
            context.load_verify_locations(client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    paths = (cert, key) if client_ca is None else (cert, key, client_ca)
    try:
        current = Reloading(paths, make)
    except (OSError, ssl.SSLError) as error:
        raise InputError(
            f"serving certificate {cert} cannot be used",
            why=str(error),
            hint="certificate and key must be PEM files that belong together",
        ) from error

    def swap(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        # Called in each handshake, with or without a server name in it.
        connection.context = current.get()

    listening = make()
    listening.sni_callback = swap
    return listening
