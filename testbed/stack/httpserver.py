"""A read-only HTTP server for what a program tells about itself.

Plugin and monitor work in threads (gRPC, NVML and the watch block), so a thread of
the standard library serves better here than an event loop; no TLS, no bodies in.
"""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

from testbed.errors import InputError, TestbedError

_log = logging.getLogger(__name__)

#: One value for each name; a name given twice counts once, the last.
Query = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    status: int = 200
    content_type: str = "application/json"
    body: bytes = b""


def json_reply(document: object, *, status: int = 200) -> Reply:
    return Reply(status=status, body=json.dumps(document, separators=(",", ":")).encode())


class HttpServer:
    """Serves GET on a few paths until it is closed."""

    def __init__(self, address: tuple[str, int], routes: Mapping[str, Callable[[Query], Reply]]):
        """Bind and start.

        Raises:
            InputError: the port is taken.
        """
        try:
            self._server = _Server(address, _handler(routes))
        except OSError as error:
            raise InputError(
                f"port {address[1]} cannot be listened on", why=str(error), hint="free the port"
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever,
            kwargs={"poll_interval": 0.2},
            name="http",
            daemon=True,
        )
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002
        """Log a defect; a client that hangs up is no event of ours."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            _log.exception("a request of %s could not be answered", client_address)


def _handler(routes: Mapping[str, Callable[[Query], Reply]]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 30.0

        def do_GET(self) -> None:
            url = urlsplit(self.path)
            route = routes.get(url.path)
            if route is None:
                reply = json_reply({"error": f"no such path {url.path}"}, status=404)
            else:
                try:
                    reply = route(
                        {name: values[-1] for name, values in parse_qs(url.query).items()}
                    )
                except InputError as error:
                    reply = json_reply({"error": error.text()}, status=400)
                except (TestbedError, OSError) as error:
                    reply = json_reply({"error": str(error)}, status=500)
            self.send_response(reply.status)
            self.send_header("Content-Type", reply.content_type)
            self.send_header("Content-Length", str(len(reply.body)))
            self.end_headers()
            self.wfile.write(reply.body)

        def log_message(self, format: str, *args: Any) -> None:
            """Probes come every few seconds: no line for each."""

    return Handler
