"""Where the API server is and how to be let in: in a pod, or by a kubeconfig."""

from __future__ import annotations

import base64
import os
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from testbed.errors import InputError
from testbed.stack.reload import Reloading

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """An API server and our identity there.

    Attributes:
        server: Base URL without a trailing slash.
        tls: Context with the server's CA and perhaps our client certificate.
        token: Gives the bearer token of the moment; None without one.
    """

    server: str
    tls: ssl.SSLContext | None
    token: Reloading[str] | None = None

    def headers(self) -> dict[str, str]:
        return {} if self.token is None else {"Authorization": f"Bearer {self.token.get()}"}


def in_cluster(folder: Path = SERVICE_ACCOUNT) -> Connection:
    """Return the connection of a pod's service account.

    Raises:
        InputError: this is no pod, or it has no service account token.
    """
    host, port = (
        os.environ.get("KUBERNETES_SERVICE_HOST"),
        os.environ.get("KUBERNETES_SERVICE_PORT", "443"),
    )
    token, ca = folder / "token", folder / "ca.crt"
    if not host or not token.exists():
        raise InputError(
            "no API server to talk to",
            why="this is not a pod with a service account",
            hint="give --kubeconfig",
        )
    if ":" in host:
        host = f"[{host}]"
    return Connection(
        server=f"https://{host}:{port}",
        tls=ssl.create_default_context(cafile=str(ca)),
        token=Reloading((token,), lambda: token.read_text().strip()),
    )


def from_kubeconfig(path: Path, context: str | None = None) -> Connection:
    """Return the connection of a kubeconfig's context.

    Raises:
        InputError: the file cannot be read, or holds no usable context.
    """
    try:
        document = yaml.safe_load(path.read_text())
        name = context or document["current-context"]
        chosen = _named(document, "contexts", name)["context"]
        cluster = _named(document, "clusters", chosen["cluster"])["cluster"]
        user = _named(document, "users", chosen["user"])["user"] or {}
        server = str(cluster["server"]).rstrip("/")
        tls = _tls(path.parent, cluster, user) if server.startswith("https") else None
        return Connection(server=server, tls=tls, token=_token(path.parent, user))
    except (OSError, yaml.YAMLError, KeyError, TypeError, ValueError, ssl.SSLError) as error:
        raise InputError(f"kubeconfig {path} cannot be used", why=repr(error)) from error


def _named(document: Mapping[str, Any], section: str, name: str) -> dict[str, Any]:
    for entry in document[section] or ():
        if entry["name"] == name:
            return dict(entry)
    raise KeyError(f"{section}: {name}")


def _tls(folder: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> ssl.SSLContext:
    ca = _data(folder, cluster, "certificate-authority")
    context = ssl.create_default_context(cadata=ca.decode() if ca else None)
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    cert, key = _data(folder, user, "client-certificate"), _data(folder, user, "client-key")
    if cert and key:
        # The ssl module reads client certificates from files only.
        with tempfile.NamedTemporaryFile() as file:
            file.write(cert + b"\n" + key)
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _token(folder: Path, user: Mapping[str, Any]) -> Reloading[str] | None:
    if user.get("exec") or user.get("auth-provider"):
        raise ValueError("users with exec or auth-provider are not supported")
    if user.get("tokenFile"):
        path = folder / str(user["tokenFile"])
        return Reloading((path,), lambda: path.read_text().strip())
    if user.get("token"):
        token = str(user["token"])
        return Reloading((), lambda: token)
    return None


def _data(folder: Path, section: Mapping[str, Any], key: str) -> bytes | None:
    if section.get(f"{key}-data"):
        return base64.b64decode(section[f"{key}-data"])
    if section.get(key):
        return (folder / str(section[key])).read_bytes()
    return None
