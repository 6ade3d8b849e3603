"""What the Kubernetes client speaks in: raw objects, events of a watch, errors."""

from __future__ import annotations

import contextlib
import ipaddress
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from testbed.errors import ClusterError

#: A Kubernetes object as the API server writes it.
Object = dict[str, Any]
Objects = list[Object]


class ApiError(ClusterError):
    """The API server refused a request.

    Attributes:
        status: The HTTP status.
        reason: The machine-readable reason, such as ``NotFound`` or ``Conflict``.
        message: The server's own words.
    """

    def __init__(self, what: str, *, status: int, reason: str, message: str) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        super().__init__(what, why=message or f"HTTP status {status}")


class Unreachable(ClusterError):
    """The API server does not answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One event of a watch; ``kind`` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    kind: str
    object: Object


@dataclass(frozen=True, slots=True)
class Resource:
    """A kind as the API's paths name it."""

    plural: str
    namespaced: bool


def api_error(what: str, status: int, data: bytes) -> ApiError:
    reason, message = "", data.decode(errors="replace").strip()
    with contextlib.suppress(ValueError):
        answer = json.loads(data)
        if isinstance(answer, dict) and answer.get("kind") == "Status":
            reason, message = str(answer.get("reason", "")), str(answer.get("message", ""))
    return ApiError(what, status=status, reason=reason, message=message[:4000])


def group_path(api_version: str) -> str:
    return f"/apis/{api_version}" if "/" in api_version else f"/api/{api_version}"


def named(kind: str, name: str, namespace: str | None) -> str:
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}".rstrip()


def is_loopback(server: str) -> bool:
    host = urlsplit(server).hostname or ""
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False
