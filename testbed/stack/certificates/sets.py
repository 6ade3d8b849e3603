"""The certificates of a deployment: one authority, three leaves, no cert-manager.

The authority's key exists only while this runs and is written nowhere: whoever
wants another leaf makes a new set.
"""

from __future__ import annotations

import datetime as dt
import hashlib
import ipaddress
import json
from collections.abc import Sequence
from dataclasses import dataclass

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

WEBHOOK_SERVICE = "vgpu-webhook"
SCHEDULER_CN = "vgpu-scheduler"

_VALID = dt.timedelta(days=365)
#: Clocks of nodes may be a little behind.
_SKEW = dt.timedelta(minutes=5)
#: A set is made anew when less than this is left.
RENEW_DAYS = 30
#: How long a new leaf may take to every server, with much to spare.
_SPREAD = dt.timedelta(minutes=10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaf:
    """A certificate and its key, PEM."""

    cert: str
    key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """Everything in PEM.

    Attributes:
        ca: The authority, for ``caBundle`` and for both ends of the extender.
        webhook: Serves the webhook's Service.
        extender: Serves 127.0.0.1.
        scheduler: The client certificate that the extender demands.
        before: Authorities of sets before, while servers may still show their leaves.
    """

    ca: str
    webhook: Leaf
    extender: Leaf
    scheduler: Leaf
    before: str = ""

    @property
    def trusted(self) -> str:
        """What the API server is to believe of the webhook."""
        return self.ca + self.before


def webhook_names(namespace: str) -> tuple[str, ...]:
    """Return the names by which an API server may call the webhook's Service."""
    return (
        f"{WEBHOOK_SERVICE}.{namespace}.svc",
        f"{WEBHOOK_SERVICE}.{namespace}.svc.cluster.local",
        f"{WEBHOOK_SERVICE}.{namespace}",
        WEBHOOK_SERVICE,
    )


def make(
    namespace: str, *, hosts: Sequence[str] = (), now: dt.datetime | None = None
) -> Certificates:
    """Return a fresh set for a deployment in a namespace.

    Args:
        namespace: Where it lives.
        hosts: Names and addresses by which the webhook is called beside its Service's.
        now: The time.
    """
    moment = now or dt.datetime.now(dt.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("vgpu-testbed authority")
    ca = (
        _builder(name, name, key.public_key(), moment)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )

    def leaf(common_name: str, san: Sequence[x509.GeneralName], *, server: bool) -> Leaf:
        own = ec.generate_private_key(ec.SECP256R1())
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _builder(_name(common_name), name, own.public_key(), moment)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            # One authority for both directions: the purpose keeps a server's
            # certificate from passing as the scheduler's.
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key()),
                critical=False,
            )
        )
        if san:
            builder = builder.add_extension(x509.SubjectAlternativeName(san), critical=False)
        return Leaf(cert=_pem(builder.sign(key, hashes.SHA256())), key=_key_pem(own))

    loopback = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
    return Certificates(
        ca=_pem(ca),
        webhook=leaf(
            WEBHOOK_SERVICE,
            [_general(name) for name in (*webhook_names(namespace), *hosts)],
            server=True,
        ),
        extender=leaf("vgpu-extender", [loopback, x509.DNSName("localhost")], server=True),
        scheduler=leaf(SCHEDULER_CN, [], server=False),
    )


def scheduler_digest(found: Certificates) -> str:
    """Return a short name of what scheduler and extender read: they roll when it changes."""
    content = [found.ca, *([leaf.cert, leaf.key] for leaf in (found.extender, found.scheduler))]
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def ends(found: Certificates) -> dt.datetime:
    """Return when the first certificate of a set ends.

    Raises:
        ValueError: one of them is none.
    """
    texts = (found.ca, found.webhook.cert, found.extender.cert, found.scheduler.cert)
    return min(x509.load_pem_x509_certificate(t.encode()).not_valid_after_utc for t in texts)


def usable(
    found: Certificates,
    namespace: str,
    *,
    hosts: Sequence[str] = (),
    now: dt.datetime | None = None,
    days: int = RENEW_DAYS,
) -> bool:
    """Tell whether a set of an earlier deployment serves this one for some more days."""
    moment = now or dt.datetime.now(dt.UTC)
    left = dt.timedelta(days=days)
    try:
        ca = x509.load_pem_x509_certificate(found.ca.encode())
        leaves = []
        for item in (found.webhook, found.extender, found.scheduler):
            cert = x509.load_pem_x509_certificate(item.cert.encode())
            key = serialization.load_pem_private_key(item.key.encode(), None)
            if key.public_key() != cert.public_key():
                return False
            cert.verify_directly_issued_by(ca)
            leaves.append(cert)
        san = leaves[0].extensions.get_extension_for_class(x509.SubjectAlternativeName)
        served = set(san.value)
    except (ValueError, TypeError, x509.ExtensionNotFound, InvalidSignature):
        return False
    named = {_general(name) for name in (*webhook_names(namespace), *hosts)}
    return named <= served and all(
        cert.not_valid_before_utc <= moment <= cert.not_valid_after_utc - left
        for cert in (ca, *leaves)
    )


def authorities(found: Sequence[str], *, now: dt.datetime | None = None) -> str:
    """Return those authorities that may still be believed, each once, as one bundle."""
    moment = now or dt.datetime.now(dt.UTC)
    kept: dict[str, None] = {}
    for pem in found:
        try:
            cert = x509.load_pem_x509_certificate(pem.encode())
        except ValueError:
            continue
        if cert.not_valid_after_utc > moment:
            kept[_pem(cert)] = None
    return "".join(kept)


def split(bundle: str) -> list[str]:
    """Return the certificates of a bundle, one PEM each; nothing of what is none."""
    try:
        return [_pem(cert) for cert in x509.load_pem_x509_certificates(bundle.encode())]
    except ValueError:
        return []


def young(leaf: Leaf, *, now: dt.datetime | None = None) -> bool:
    """Tell whether servers may not have got a leaf yet: kubelets bring it in a minute."""
    made = x509.load_pem_x509_certificate(leaf.cert.encode()).not_valid_before_utc + _SKEW
    return (now or dt.datetime.now(dt.UTC)) - made < _SPREAD


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _VALID)
    )


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(cert: x509.Certificate) -> str:
    return cert.public_bytes(serialization.Encoding.PEM).decode()


def _key_pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    ).decode()
