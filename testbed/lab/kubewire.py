"""Requests to one API server: kubeconfig, credentials, TLS, time-outs, errors.

The only importer of the official client in the lab. That one is used for what it does
well; its typed models are avoided, since they drop fields they do not know and refuse
valid objects.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from urllib.parse import urlencode

import urllib3
import yaml
from kubernetes.client import ApiClient, Configuration
from kubernetes.config import ConfigException, load_kube_config

from testbed.errors import ClusterError
from testbed.lab.kubetypes import Event, Object, Unreachable, api_error, is_loopback

# Time-outs by kind of call, in seconds. A write may pass admission webhooks, each of
# which has up to ten seconds.
READ_S = 10.0
WRITE_S = 30.0


class Wire:
    """One cluster's API server, as the user of a kubeconfig reaches it.

    Args:
        kubeconfig: The file; it is never written to.
        context: A context of it; the current one by default.
        scratch: Where the client keeps keys in files for as long as it lives.
        as_user: In whose name requests are made; the kubeconfig's user if empty.

    Raises:
        ClusterError: the kubeconfig cannot be used.
    """

    def __init__(
        self, kubeconfig: Path, *, context: str | None, scratch: Path | None, as_user: str
    ) -> None:
        self._as_user = as_user
        configuration = Configuration()
        try:
            load_kube_config(
                config_file=str(kubeconfig),
                context=context,
                client_configuration=configuration,
                persist_config=False,
                temp_file_path=None if scratch is None else str(scratch),
            )
        except (
            ConfigException,
            yaml.YAMLError,
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ) as error:
            raise ClusterError(
                f"kubeconfig {kubeconfig} cannot be used",
                why=str(error),
                hint="bring the cluster up with `testbed up`",
            ) from error
        self.server: str = configuration.host
        # kubectl never sends a loopback address through HTTPS_PROXY; nor do we.
        if is_loopback(self.server):
            configuration.proxy = None
        # A refused connection is tried once more, and so is a read whose kept-alive
        # connection the server had closed; never a write that may have been done.
        configuration.retries = urllib3.Retry(total=1, redirect=0, status=0, backoff_factor=0.1)
        self._api = ApiClient(configuration=configuration)

    def close(self) -> None:
        """Close the connections."""
        self._api.rest_client.close()

    def json(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str | None = None,
    ) -> Object:
        """Make a request and return the object that is answered.

        Args:
            method: GET, POST, PATCH or DELETE.
            path: Without the server, such as ``/api/v1/nodes``.
            what: What could not be done if it fails, for the error.
            query: Empty values are left out.
            body: An object, or bytes as they are.
            content_type: Of the body; JSON by default.

        Raises:
            ApiError: the server refuses.
            Unreachable: it does not answer.
            ClusterError: it answers something else.
        """
        data = self.call(method, path, what=what, query=query, body=body, content_type=content_type)
        try:
            found = json.loads(data)
        except ValueError as error:
            raise ClusterError(what, why=f"the answer is not JSON: {data[:200]!r}") from error
        if not isinstance(found, dict):
            raise ClusterError(what, why=f"the answer is not an object: {data[:200]!r}")
        return found

    def call(
        self,
        method: str,
        path: str,
        *,
        what: str,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str | None = None,
    ) -> bytes:
        """Make a request and return the answer's body; see ``json``."""
        timeout_s = READ_S if method == "GET" else WRITE_S
        response = self._open(method, path, query, body, content_type, timeout_s)
        try:
            data: bytes = response.data
        except urllib3.exceptions.HTTPError as error:
            raise self._unreachable(error) from error
        if response.status >= 400:
            raise api_error(what, response.status, data)
        return data

    def stream(
        self, path: str, select: Mapping[str, str], version: str, deadline: float
    ) -> Iterator[Event]:
        """Yield the events of a watch until the server ends it or the time is up.

        Args:
            path: Of the kind's objects.
            select: Selectors of the query.
            version: The resource version after which to begin.
            deadline: On ``time.monotonic``.

        Raises:
            ApiError, Unreachable: as ``json``.
        """
        left = max(1.0, deadline - time.monotonic())
        query = {
            **select,
            "watch": "true",
            "resourceVersion": version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(int(left) + 1),
        }
        response = self._open("GET", path, query, None, None, READ_S + left)
        rest = b""
        try:
            if response.status >= 400:
                raise api_error(f"{path} cannot be watched", response.status, response.data)
            for chunk in response.stream(amt=None, decode_content=True):
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    if line.strip():
                        event = json.loads(line)
                        yield Event(kind=event["type"], object=event["object"])
                if time.monotonic() >= deadline:
                    return
        except urllib3.exceptions.HTTPError:
            return  # a broken stream: the caller lists again
        finally:
            # Not given back to the pool: an unread stream cannot be used again.
            response.close()
            response.release_conn()

    def _open(
        self,
        method: str,
        path: str,
        query: Mapping[str, str] | None,
        body: object,
        content_type: str | None,
        timeout_s: float,
    ) -> urllib3.HTTPResponse:
        url = self.server + path
        if wanted := {key: value for key, value in (query or {}).items() if value}:
            url += "?" + urlencode(wanted)
        headers: dict[str, str] = {"Accept": "application/json, */*"}
        if body is not None:
            headers["Content-Type"] = content_type or "application/json"
        if self._as_user:
            headers["Impersonate-User"] = self._as_user
        self._api.update_params_for_auth(headers, [], ["BearerToken"], path, method, body)
        try:
            answer = self._api.call_api(
                method, url, header_params=headers, body=body, _request_timeout=timeout_s
            )
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise self._unreachable(error) from error
        response: urllib3.HTTPResponse = answer.response
        return response

    def _unreachable(self, error: Exception) -> Unreachable:
        cause = error.reason if isinstance(error, urllib3.exceptions.MaxRetryError) else error
        return Unreachable(
            f"the API server {self.server} does not answer",
            why=str(cause),
            hint="see `testbed status`",
        )
