"""The few calls to the API server that providers make themselves."""

from __future__ import annotations

import http.client
import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_TIMEOUT_S = 5.0


class Unreachable(Exception):
    """The API server does not answer, or not with what was asked for."""


class Api:
    """One cluster's API server, as its administrator."""

    def __init__(self, port: int, authority: Path, admin: Path) -> None:
        self._port = port
        try:
            self._context = ssl.create_default_context(cafile=str(authority))
            self._context.load_cert_chain(str(admin))
        except OSError as error:
            raise Unreachable(f"certificates cannot be read: {error}") from error

    def get(self, path: str) -> Any:
        """Return the document at a path.

        Raises:
            Unreachable: no answer, or another than 200.
        """
        connection = http.client.HTTPSConnection(
            "127.0.0.1", self._port, timeout=_TIMEOUT_S, context=self._context
        )
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Unreachable(f"https://127.0.0.1:{self._port}: {error}") from error
        finally:
            connection.close()
        if answer.status != 200:
            raise Unreachable(f"{path}: {answer.status} {body[:200].decode(errors='replace')}")
        try:
            return json.loads(body)
        except ValueError:
            return body.decode(errors="replace")

    def version(self) -> str:
        return str(self.get("/version")["gitVersion"])

    def ready_nodes(self) -> dict[str, bool]:
        """Return the names of the registered nodes, and whether each is Ready."""
        return {each["metadata"]["name"]: is_ready(each) for each in self.nodes()}

    def nodes(self) -> list[Mapping[str, Any]]:
        """Return the registered nodes."""
        found: list[Mapping[str, Any]] = self.get("/api/v1/nodes")["items"]
        return found

    def serves_pods(self) -> bool:
        """Tell whether a pod of the default namespace would be admitted."""
        base = "/api/v1/namespaces/default"
        try:
            self.get(f"{base}/serviceaccounts/default")
            self.get(f"{base}/configmaps/kube-root-ca.crt")
        except Unreachable:
            return False
        return True


def is_ready(node: Mapping[str, Any]) -> bool:
    """Tell whether a node takes pods."""
    conditions = node.get("status", {}).get("conditions", [])
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)
