"""Serving certificates that may be replaced while the server runs."""

from __future__ import annotations

import datetime as dt
import ssl
from collections.abc import Iterator, Mapping, Sequence
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


#: What ``expiry_lines`` tells.
EXPIRY_METRIC = "vgpu_certificate_expires_timestamp_seconds"


def expires(pem: str) -> float:
    """Return when the first certificate of a PEM text ends, as Unix time.

    Its two times are read and nothing else: a library for it costs a program that is to be
    small more memory than the rest of its TLS.

    Raises:
        ValueError: there is none.
    """
    begin = pem.find("-----BEGIN CERTIFICATE-----")
    end = pem.find("-----END CERTIFICATE-----", begin)
    if begin < 0 or end < 0:
        raise ValueError("no certificate in PEM")
    der = ssl.PEM_cert_to_DER_cert(pem[begin:end] + "-----END CERTIFICATE-----\n")
    # RFC 5280, 4.1: Certificate, TBSCertificate, in it perhaps [0] version, then serial
    # number, algorithm, issuer, validity.
    parts = _parts(_parts(der)[0][1])
    fields = _parts(parts[0][1])
    validity = fields[4 if fields[0][0] == 0xA0 else 3][1]
    kind, text = _parts(validity)[1]
    form = "%y%m%d%H%M%SZ" if kind == 0x17 else "%Y%m%d%H%M%SZ"  # UTCTime, GeneralizedTime
    moment = dt.datetime.strptime(text.decode(), form).replace(tzinfo=dt.UTC)
    if kind == 0x17 and moment.year >= 2050:  # two digits mean 1950 to 2049
        moment = moment.replace(year=moment.year - 100)
    return moment.timestamp()


def expiry_lines(component: str, files: Mapping[str, Path]) -> Iterator[str]:
    """Yield in Prometheus' text form when certificates end, as the files have them now.

    Args:
        component: The program.
        files: Certificates by what they are for; one that cannot be read is left out.
    """
    yield f"# HELP {EXPIRY_METRIC} When a certificate ends, Unix time"
    yield f"# TYPE {EXPIRY_METRIC} gauge"
    for use, path in files.items():
        try:
            moment = expires(path.read_text())
        except (OSError, ValueError, IndexError):
            continue
        yield f'{EXPIRY_METRIC}{{component="{component}",certificate="{use}"}} {moment:.0f}'


def _parts(der: bytes) -> list[tuple[int, bytes]]:
    """Return tag and content of each value in DER (X.690, 8.1)."""
    found, at = [], 0
    while at < len(der):
        tag, length, at = der[at], der[at + 1], at + 2
        if length & 0x80:
            count = length & 0x7F
            length, at = int.from_bytes(der[at : at + count], "big"), at + count
        if at + length > len(der):
            raise ValueError("a certificate that is cut off")
        found.append((tag, der[at : at + length]))
        at += length
    return found
