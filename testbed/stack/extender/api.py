"""The API calls that the extender makes: list, watch, bind, read, patch, event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp

from testbed.errors import ClusterError
from testbed.stack.extender.connection import Connection
from testbed.stack.model import PodKey

#: Seconds for one call; bind waits up to 20 s for its turn before, and the scheduler
#: hangs up after 30.
CALL_S = 5.0
#: The API server ends a watch after this, and we begin a new one.
WATCH_S = 240
_PAGE = 500


class ApiError(ClusterError):
    """The API server refused a call.

    Attributes:
        status: The HTTP status.
    """

    def __init__(self, call: str, status: int, message: str) -> None:
        super().__init__(f"{call} was refused", why=f"{status} {message}")
        self.status = status


class AnswerLost(ClusterError):
    """No answer came, or one that leaves open whether the call took effect."""


class Unreachable(ClusterError):
    """The call was never sent."""


class Api:
    """The API server, over one pool of connections."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session = aiohttp.ClientSession(
            base_url=connection.server,
            connector=aiohttp.TCPConnector(ssl=connection.tls or True, limit=64),
        )

    async def close(self) -> None:
        await self._session.close()

    async def version(self) -> tuple[int, int]:
        """Return the server's major and minor version."""
        found = await self._call("GET", "/version")
        return int(found["major"]), int(str(found["minor"]).rstrip("+"))

    async def bind(self, binding: dict[str, Any]) -> None:
        """Create a Binding.

        Raises:
            ApiError: refused for good.
            AnswerLost: it may have taken effect.
            Unreachable: it was not sent.
        """
        metadata = binding["metadata"]
        path = f"{_pod(metadata['namespace'], metadata['name'])}/binding"
        await self._call("POST", path, binding)

    async def read_pod(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return the pod, or None if there is none of that name."""
        try:
            return await self._call("GET", _pod(namespace, name))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def patch_pod(self, namespace: str, name: str, patch: list[dict[str, Any]]) -> None:
        """Apply a JSON patch."""
        await self._call("PATCH", _pod(namespace, name), patch, "application/json-patch+json")

    async def annotate_pod(self, pod: PodKey, annotations: dict[str, str]) -> None:
        """Set annotations of exactly this pod; another one of its name is a conflict (409)."""
        body = {"metadata": {"uid": pod.uid, "annotations": annotations}}
        await self._call(
            "PATCH", _pod(pod.namespace, pod.name), body, "application/merge-patch+json"
        )

    async def create_event(self, namespace: str, event: dict[str, Any]) -> None:
        await self._call("POST", f"/api/v1/namespaces/{namespace}/events", event)

    async def list(self, path: str) -> tuple[list[dict[str, Any]], str]:
        """Return all objects of a collection, read in pages, and its version."""
        items: list[dict[str, Any]] = []
        more = ""
        while True:
            query = {"limit": str(_PAGE)} | ({"continue": more} if more else {})
            page = await self._call("GET", path, query=query, seconds=30)
            items.extend(page.get("items") or ())
            metadata = page.get("metadata") or {}
            more = metadata.get("continue") or ""
            if not more:
                return items, str(metadata.get("resourceVersion") or "")

    async def watch(self, path: str, version: str) -> AsyncIterator[dict[str, Any]]:
        """Yield the events of a collection from a version on, until the server ends it."""
        query = {
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(WATCH_S),
        }
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CALL_S, sock_read=WATCH_S + 15)
        try:
            async with self._session.get(
                path, params=query, headers=self._connection.headers(), timeout=timeout
            ) as response:
                if response.status >= 300:
                    raise ApiError(
                        f"watch {path}", response.status, _message(await response.read())
                    )
                # Lines may be longer than a stream reader's limit (an object is up to
                # 1.5 MiB), so they are cut here.
                rest = b""
                async for chunk in response.content.iter_any():
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        if line.strip():
                            yield json.loads(line)
        except (aiohttp.ClientError, TimeoutError) as error:
            raise AnswerLost(f"watch {path} broke off", why=repr(error)) from error

    async def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        *,
        query: dict[str, str] | None = None,
        seconds: float = CALL_S,
    ) -> dict[str, Any]:
        call = f"{method} {path}"
        headers = self._connection.headers() | {"Content-Type": content_type}
        try:
            async with self._session.request(
                method,
                path,
                params=query,
                data=None if body is None else json.dumps(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as response:
                raw = await response.read()
        except (aiohttp.ClientConnectorError, aiohttp.ClientConnectorCertificateError) as error:
            raise Unreachable(f"{call} could not be sent", why=str(error)) from error
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise AnswerLost(f"{call} got no answer", why=repr(error)) from error
        if response.status >= 500:
            raise AnswerLost(f"{call} failed", why=f"{response.status} {_message(raw)}")
        if response.status >= 300:
            raise ApiError(call, response.status, _message(raw))
        try:
            answer = json.loads(raw)
        except ValueError as error:
            raise AnswerLost(f"{call} got an answer that is not JSON", why=str(error)) from error
        return answer if isinstance(answer, dict) else {}


def _pod(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _message(raw: bytes) -> str:
    try:
        return str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:300].decode(errors="replace")
