"""The Kubernetes API as plain dicts, for the programs of the stack.

Objects stay raw (unknown fields survive, no typed model is built); every call has a
deadline, as a whole and not for each read; every failure is one ``ApiError`` with the
server's own words.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
import urllib3

from testbed.errors import ClusterError, InputError
from testbed.stack.bounded import bound

Json = dict[str, Any]

_MERGE_PATCH = "application/merge-patch+json"


class ApiError(ClusterError):
    """The API server refused a call or could not be reached.

    Attributes:
        status: The HTTP status, 0 where no answer came.
    """

    def __init__(self, what: str, *, why: str, status: int = 0) -> None:
        self.status = status
        super().__init__(what, why=why)


class KubeApi:
    """A connection pool to one API server; safe to share between threads."""

    def __init__(self, configuration: kubernetes.client.Configuration) -> None:
        # Retries of urllib3 would multiply every deadline; callers decide.
        configuration.retries = False
        configuration.keep_alive = True
        self._client = kubernetes.client.ApiClient(configuration)
        bound(self._client.rest_client.pool_manager)

    @classmethod
    def connect(cls, kubeconfig: Path | None = None) -> KubeApi:
        """Return a connection by a kubeconfig, or as the pod's service account.

        Raises:
            InputError: there is neither.
        """
        configuration = kubernetes.client.Configuration()
        try:
            if kubeconfig is not None:
                kubernetes.config.load_kube_config(
                    str(kubeconfig), client_configuration=configuration
                )
            else:
                kubernetes.config.load_incluster_config(client_configuration=configuration)
        except (kubernetes.config.ConfigException, OSError) as error:
            raise InputError(
                "the Kubernetes API cannot be found",
                why=str(error),
                hint="run as a pod with a service account, or give --kubeconfig",
            ) from error
        return cls(configuration)

    def close(self) -> None:
        self._client.close()

    def get(
        self, path: str, query: Mapping[str, str] | None = None, *, timeout_s: float = 5.0
    ) -> Json:
        """Return the object or list at a path.

        Raises:
            ApiError: with the status, or 0 where no answer came in time.
        """
        return self._object("GET", path, query, None, timeout_s)

    def patch(self, path: str, body: Json, *, timeout_s: float = 5.0) -> Json:
        """Merge a patch into an object and return the object.

        A ``uid`` or ``resourceVersion`` in the patch's metadata is a precondition:
        status 409 where the object is another or has changed.

        Raises:
            ApiError: see ``get``.
        """
        return self._object("PATCH", path, None, body, timeout_s)

    def watch(
        self, path: str, query: Mapping[str, str], *, open_s: int = 120
    ) -> Iterator[tuple[str, Json]]:
        """Yield (type, object) until the server ends the watch after ``open_s``.

        Raises:
            ApiError: the watch could not be opened or broke; status 410 where the
                resource version is too old (also when the server says so inside).
        """
        asked = {**query, "watch": "true", "timeoutSeconds": str(open_s)}
        # A server that falls silent past its own end is gone; bookmarks come each minute.
        response = self._request("GET", path, asked, None, (5.0, open_s + 15.0))
        try:
            for line in _lines(response):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    status = event["object"]
                    raise ApiError(
                        f"watch of {path} ended",
                        why=str(status.get("message", status)),
                        status=int(status.get("code", 0)),
                    )
                yield event["type"], event["object"]
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiError(f"watch of {path} broke", why=str(error)) from error
        finally:
            response.close()

    def _object(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None,
        timeout_s: float,
    ) -> Json:
        end = time.monotonic() + timeout_s
        response = self._request(method, path, query, body, timeout_s)
        try:
            document = json.loads(_body(response, end))
        except (urllib3.exceptions.HTTPError, OSError, ValueError) as error:
            raise ApiError(f"{method} {path} failed", why=str(error)) from error
        finally:
            response.release_conn()
        if not isinstance(document, dict):
            raise ApiError(f"{method} {path} failed", why="the answer is not an object")
        return document

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: Json | None,
        timeout_s: float | tuple[float, float],
    ) -> urllib3.BaseHTTPResponse:
        headers = {"Accept": "application/json"}
        if body is not None:
            headers["Content-Type"] = _MERGE_PATCH
        try:
            _, url, headers, body, _ = self._client.param_serialize(
                method,
                path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
            answer = self._client.call_api(method, url, headers, body, _request_timeout=timeout_s)
            response: urllib3.BaseHTTPResponse = answer.response
            if response.status >= 300:
                seconds = timeout_s[0] if isinstance(timeout_s, tuple) else timeout_s
                raise ApiError(
                    f"{method} {path} failed",
                    why=_reason(response, time.monotonic() + seconds),
                    status=response.status,
                )
        except (urllib3.exceptions.HTTPError, OSError, kubernetes.client.ApiException) as error:
            raise ApiError(f"{method} {path} failed", why=str(error)) from error
        return response


def _body(response: urllib3.BaseHTTPResponse, end: float) -> bytes:
    """Return the body.

    Raises:
        OSError: it is not there at the end of the time (``time.monotonic``), although
            some of it came again and again; the connection is not used any more.
    """
    parts = []
    while part := response.read1(1 << 16):
        parts.append(part)
        if time.monotonic() > end:
            response.close()
            raise TimeoutError("the answer is not complete in time")
    return b"".join(parts)


def _reason(response: urllib3.BaseHTTPResponse, end: float) -> str:
    """Return what the server says: a Status' message, else the body's beginning."""
    text = _body(response, end).decode(errors="replace")
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    if isinstance(document, dict) and document.get("message"):
        return f"{response.status}: {document['message']}"
    return f"{response.status}: {text[:300]}"


def _lines(response: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """Yield the lines of a body as they arrive, without waiting for a full buffer."""
    rest = b""
    while chunk := response.read1(1 << 16):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line.strip())
