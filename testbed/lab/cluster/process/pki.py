"""The certificates of one cluster: made anew for each, all from its own authorities."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from testbed.lab.cluster.process import layout

_LIFE = datetime.timedelta(days=365)
_SKEW = datetime.timedelta(minutes=5)
_SERVER = ExtendedKeyUsageOID.SERVER_AUTH
_CLIENT = ExtendedKeyUsageOID.CLIENT_AUTH


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return _private_pem(self.key)

    def write(self, folder: Path, name: str) -> None:
        write_private(folder / f"{name}.crt", self.certificate_pem)
        write_private(folder / f"{name}.key", self.key_pem)


def write_private(path: Path, content: bytes) -> None:
    """Write a file that nobody else may read, not even for a moment."""
    path.unlink(missing_ok=True)
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:  # noqa: PTH123
        file.write(content)


def authority(name: str) -> Pair:
    """Return a new certificate authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    builder = _builder(subject, subject, key, is_authority=True)
    return Pair(certificate=builder.sign(key, hashes.SHA256()), key=key)


def issue(
    issuer: Pair,
    name: str,
    *,
    groups: Sequence[str] = (),
    server_names: Sequence[str] = (),
) -> Pair:
    """Return a certificate: for a server where it has names, else for a client.

    Args:
        issuer: The authority that signs.
        name: The common name; Kubernetes takes a client's user from it.
        groups: The organisations; Kubernetes takes a client's groups from them.
        server_names: DNS names and addresses.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name(name, groups), issuer.certificate.subject, key, is_authority=False)
    usage = _SERVER if server_names else _CLIENT
    builder = builder.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    if server_names:
        alternatives = x509.SubjectAlternativeName([_general_name(each) for each in server_names])
        builder = builder.add_extension(alternatives, critical=False)
    return Pair(certificate=builder.sign(issuer.key, hashes.SHA256()), key=key)


def kubeconfig(context: str, server: str, root: Pair, client: Pair) -> bytes:
    """Return a kubeconfig that holds all it names."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": context,
                    "cluster": {
                        "server": server,
                        "certificate-authority-data": _base64(root.certificate_pem),
                    },
                }
            ],
            "users": [
                {
                    "name": context,
                    "user": {
                        "client-certificate-data": _base64(client.certificate_pem),
                        "client-key-data": _base64(client.key_pem),
                    },
                }
            ],
            "contexts": [{"name": context, "context": {"cluster": context, "user": context}}],
            "current-context": context,
        },
        sort_keys=False,
    ).encode()


def write_all(folders: layout.Folders, name: str, nodes: Sequence[layout.Node], port: int) -> None:
    """Make and write every certificate and kubeconfig of a cluster.

    The control plane's lie in ``pki/control``, a node's in ``pki/<node>``; the
    administrator's kubeconfig is the host's alone.
    """
    root, proxy_root = authority(f"testbed-{name}"), authority(f"testbed-{name}-front-proxy")
    inside = f"https://{layout.API_ADDRESS}:{layout.API_PORT}"
    outside = f"https://127.0.0.1:{port}"

    def client_config(folder: Path, file: str, user: str, groups: Sequence[str] = ()) -> None:
        client = issue(root, user, groups=groups)
        write_private(
            folder / f"{file}.kubeconfig", kubeconfig(f"testbed-{name}", inside, root, client)
        )

    control = folders.pki / "control"
    control.mkdir(parents=True, mode=0o700)
    root.write(control, "ca")
    write_private(control / "front-proxy-ca.crt", proxy_root.certificate_pem)
    issue(proxy_root, "front-proxy-client").write(control, "front-proxy-client")
    service = "kubernetes.default.svc"
    server_names = [
        *("localhost", "kubernetes", "kubernetes.default", service, f"{service}.cluster.local"),
        *("127.0.0.1", layout.API_SERVICE, layout.API_ADDRESS),
    ]
    issue(root, "kube-apiserver", server_names=server_names).write(control, "apiserver")
    issue(root, "kube-apiserver-kubelet-client", groups=["system:masters"]).write(
        control, "apiserver-kubelet-client"
    )
    accounts = ec.generate_private_key(ec.SECP256R1())
    write_private(control / "accounts.key", _private_pem(accounts))
    write_private(
        control / "accounts.pub",
        accounts.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        ),
    )
    for component in ("kube-controller-manager", "kube-scheduler"):
        client_config(control, component, f"system:{component}")

    for node in nodes:
        folder = folders.pki / node.name
        folder.mkdir(mode=0o700)
        write_private(folder / "ca.crt", root.certificate_pem)
        issue(
            root,
            f"system:node:{node.name}",
            groups=["system:nodes"],
            server_names=[node.name, node.address],
        ).write(folder, "kubelet-server")
        client_config(folder, "kubelet", f"system:node:{node.name}", ["system:nodes"])
        client_config(folder, "kube-proxy", "system:kube-proxy")

    admin = issue(root, f"testbed-{name}-admin", groups=["system:masters"])
    write_private(folders.admin, admin.certificate_pem + admin.key_pem)
    write_private(folders.authority, root.certificate_pem)
    write_private(folders.kubeconfig, kubeconfig(f"testbed-{name}", outside, root, admin))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, *, is_authority: bool
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _SKEW)
        .not_valid_after(now + _LIFE)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=is_authority,
                crl_sign=is_authority,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )


def _name(common: str, organisations: Sequence[str] = ()) -> x509.Name:
    return x509.Name(
        [
            *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organisations),
            x509.NameAttribute(NameOID.COMMON_NAME, common),
        ]
    )


def _general_name(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
