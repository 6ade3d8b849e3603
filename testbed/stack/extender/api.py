"""The API calls that the extender makes: list, watch, bind, read, patch, event."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import lru_cache
from typing import Any

import aiohttp
import msgspec

from testbed.errors import ClusterError
from testbed.stack.extender.connection import Connection
from testbed.stack.model import PodKey

#: Seconds for one call; bind waits up to 20 s for its turn before, and the scheduler
#: hangs up after 30.
CALL_S = 5.0
#: The API server ends a watch after this, and we begin a new one.
WATCH_S = 240
_PAGE = 500
#: How often, and how far apart, a call is made that got no answer.
_TRIES, _PAUSE_S = 4, 1.0


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


async def insist(
    call: Callable[[], Awaitable[None]],
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
) -> None:
    """Make a call again that got no answer; for calls that do no harm when done twice.

    Raises:
        ClusterError: it was refused, or got no answer for the last time.
    """
    for _ in range(_TRIES - 1):
        try:
            return await call()
        except (AnswerLost, Unreachable):
            await sleep(_PAUSE_S)
    return await call()


class Api:
    """The API server, over one pool of connections."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._session = aiohttp.ClientSession(
            base_url=connection.server,
            connector=aiohttp.TCPConnector(ssl=connection.tls or True, limit=64),
            # Else an API server compresses each page of a list: a second of its time for 300 MB
            # and half a second of ours. kube-scheduler asks for none either (1.37,
            # cmd/kube-scheduler/app/options, DisableCompression).
            headers={"Accept-Encoding": "identity"},
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
        return await self._read(_pod(namespace, name))

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

    async def patch_event(self, namespace: str, name: str, patch: dict[str, Any]) -> None:
        """Change fields of an event."""
        path = f"/api/v1/namespaces/{namespace}/events/{name}"
        await self._call("PATCH", path, patch, "application/merge-patch+json")

    async def evict(self, pod: PodKey) -> None:
        """End exactly this pod with its grace period, if its disruption budget lets it.

        Raises:
            ApiError: 429 where the budget does not, 404 where it is gone, 409 where
                another one has its name.
        """
        body = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        await self._call("POST", f"{_pod(pod.namespace, pod.name)}/eviction", body)

    async def read_node(self, name: str) -> dict[str, Any] | None:
        """Return the node, or None if there is none of that name."""
        return await self._read(f"/api/v1/nodes/{name}")

    async def annotate_node(
        self, name: str, annotations: Mapping[str, str | None], version: str
    ) -> None:
        """Set annotations of a node as it was read; None takes one away.

        Raises:
            ApiError: 409 where somebody changed the node meanwhile.
        """
        body = {"metadata": {"resourceVersion": version, "annotations": annotations}}
        await self._call("PATCH", f"/api/v1/nodes/{name}", body, "application/merge-patch+json")

    async def read_lease(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a Lease, or None if there is none of that name."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{name}"
        return await self._read(path)

    async def _read(self, path: str) -> dict[str, Any] | None:
        try:
            return await self._call("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def list(self, path: str, take: Callable[[list[Any]], None], item: Any = dict) -> str:
        """Read a collection in pages, and return its version.

        Args:
            path: The collection.
            take: Called with the objects of each page: a large cluster's pods are never
                in memory together.
            item: What an object is decoded to.
        """
        decoder = _page_decoder(item)
        coming = asyncio.ensure_future(self._page(path, ""))
        try:
            while True:
                raw = await coming
                try:
                    page = decoder.decode(raw)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise AnswerLost(f"GET {path} cannot be read", why=str(error)) from error
                more = page.metadata.continue_ or ""
                if more:
                    # The server makes the next page while this one is taken.
                    coming = asyncio.ensure_future(self._page(path, more))
                    await asyncio.sleep(0)
                del raw
                take(page.items or [])
                if not more:
                    return page.metadata.resourceVersion or ""
        finally:
            coming.cancel()

    async def _page(self, path: str, more: str) -> bytes:
        query = {"limit": str(_PAGE)} | ({"continue": more} if more else {})
        return await self._send("GET", path, query=query, seconds=30)

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
                            yield msgspec.json.decode(line)
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
        raw = await self._send(method, path, body, content_type, query=query, seconds=seconds)
        try:
            answer = msgspec.json.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise AnswerLost(
                f"{method} {path} got an answer that is not JSON", why=str(error)
            ) from error
        return answer if isinstance(answer, dict) else {}

    async def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        content_type: str = "application/json",
        *,
        query: dict[str, str] | None = None,
        seconds: float = CALL_S,
    ) -> bytes:
        call = f"{method} {path}"
        headers = self._connection.headers() | {"Content-Type": content_type}
        try:
            async with self._session.request(
                method,
                path,
                params=query,
                data=None if body is None else msgspec.json.encode(body),
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=seconds),
            ) as response:
                # Not ``read``, which keeps the body with the response, and that lives
                # until the collector finds its cycle: at a start all pages together.
                raw = b"".join([part async for part in response.content.iter_any()])
        except (aiohttp.ClientConnectorError, aiohttp.ClientConnectorCertificateError) as error:
            raise Unreachable(f"{call} could not be sent", why=str(error)) from error
        except (aiohttp.ClientError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise AnswerLost(f"{call} got no answer", why=repr(error)) from error
        if response.status >= 500:
            raise AnswerLost(f"{call} failed", why=f"{response.status} {_message(raw)}")
        if response.status >= 300:
            raise ApiError(call, response.status, _message(raw))
        return raw


def _pod(namespace: str, name: str) -> str:
    return f"/api/v1/namespaces/{namespace}/pods/{name}"


def _message(raw: bytes) -> str:
    try:
        return str(json.loads(raw)["message"])
    except (ValueError, KeyError, TypeError):
        return raw[:300].decode(errors="replace")


class _PageMeta(msgspec.Struct, rename={"continue_": "continue"}):
    resourceVersion: str = ""
    continue_: str = ""


@lru_cache(maxsize=8)
def _page_decoder(item: Any) -> msgspec.json.Decoder[Any]:
    fields: list[tuple[str, Any, Any]] = [
        ("items", list[item] | None, None),
        ("metadata", _PageMeta, msgspec.field(default_factory=_PageMeta)),
    ]
    return msgspec.json.Decoder(msgspec.defstruct("Page", fields))
