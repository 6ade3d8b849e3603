"""An API server that shows a made-up cluster and records what it is asked to change.

It serves one extender: paged lists, watches that tell nothing, Bindings and events that
are taken and counted. It runs in a thread of its own, with an event loop of its own.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter

from aiohttp import web

from testbed.errors import ClusterError

_START_S = 30.0


class RecordingApi:
    """The server; use as a context manager.

    Args:
        collections: The pages of each collection, by path.

    Attributes:
        calls: How often each method and kind of thing was asked for.
        url: Where it listens.
    """

    def __init__(self, collections: dict[str, list[bytes]]) -> None:
        self._collections = collections
        self.calls: Counter[str] = Counter()
        self.url = ""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name="recording API", daemon=True)

    def __enter__(self) -> RecordingApi:
        self._thread.start()
        if not self._ready.wait(_START_S):
            raise ClusterError("the recording API server does not start")
        return self

    def __exit__(self, *_: object) -> None:
        if self._loop is not None and self._stop is not None:
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(_START_S)

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        app = web.Application(client_max_size=16 << 20)
        app.router.add_route("*", "/{path:.*}", self._answer)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1)
        await runner.setup()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            host, port = runner.addresses[0][:2]
            self.url = f"http://{host}:{port}"
            self._ready.set()
            await self._stop.wait()
        finally:
            await runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        path = request.path
        if path == "/version":
            return web.json_response({"major": "1", "minor": "37"})
        if request.method == "GET" and path in self._collections:
            if request.query.get("watch"):
                return await self._watch(request)
            self.calls[f"list {path}"] += 1
            page = int(request.query.get("continue", "0"))
            body = self._collections[path][page]
            return web.Response(body=body, content_type="application/json")
        self.calls[f"{request.method} {path.rpartition('/')[2]}"] += 1
        return web.json_response({}, status=201 if request.method == "POST" else 200)

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.enable_chunked_encoding()
        await response.prepare(request)
        if self._stop is not None:
            await self._stop.wait()
        return response
