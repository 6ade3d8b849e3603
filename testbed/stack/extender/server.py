"""The extender's rim: HTTPS for the scheduler, plain HTTP for onlookers."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import ssl
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import msgspec
from aiohttp import web

from testbed.errors import ClusterError, CodecError, InputError
from testbed.stack import names
from testbed.stack.extender import debug
from testbed.stack.extender.api import Api
from testbed.stack.extender.binder import Binder
from testbed.stack.extender.follow import Follower
from testbed.stack.extender.handler import FilterResult, decode_bind, decode_filter, filter_pods
from testbed.stack.extender.recorder import Recorder
from testbed.stack.extender.state import State
from testbed.stack.model import PodKey

log = logging.getLogger(__name__)

#: 25,000 node names of the longest usual kind, and a pod of 1.5 MiB.
MAX_BODY_BYTES = 16 << 20
#: Labels of a Binding reach the pod from this version on.
LABELS_FROM = (1, 35)
_TICK_S = 1.0
_GATHER_S = 0.05

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Report = Callable[[PodKey, str, str], bool]
_encode = msgspec.json.Encoder().encode


class Extender:
    """The extender against an API server.

    Args:
        state: What it knows.
        api: The API server.
        label: Whether a Binding shall carry the node's label.
    """

    def __init__(self, state: State, api: Api, *, label: bool) -> None:
        self.state = state
        self._api = api
        self._recorder = Recorder(api.create_event, state.clock)
        self.binder = Binder(state, api, label=label, report=self._recorder.report)
        self._room = asyncio.Event()
        state.waiting.listen(self._room.set)

    @property
    def report(self) -> Report:
        return self._recorder.report

    async def run(self) -> None:
        """Follow nodes and pods, expire what is over, write events; until cancelled."""
        state = self.state

        def nodes_synced() -> None:
            state.nodes_synced = True

        def pods_synced() -> None:
            state.pods_synced = True
            # What was read stays; collections need not look at it again.
            gc.collect()
            gc.freeze()

        nodes = Follower(
            self._api,
            "/api/v1/nodes",
            identify=lambda node: str(node["metadata"]["name"]),
            changed=state.node_changed,
            gone=state.node_gone,
            synced=nodes_synced,
        )
        pods = Follower(
            self._api,
            "/api/v1/pods",
            identify=lambda pod: str(pod["metadata"]["uid"]),
            changed=state.pod_changed,
            gone=state.pod_gone,
            synced=pods_synced,
        )
        async with asyncio.TaskGroup() as group:
            group.create_task(nodes.run())
            group.create_task(pods.run())
            group.create_task(self._recorder.run())
            group.create_task(self._tick())
            group.create_task(self._wake())

    async def _wake(self) -> None:
        """Wake the pods that were refused just before room was made."""
        while True:
            await self._room.wait()
            # What ends together is told in one go; and the refusal's answer gets through.
            await asyncio.sleep(_GATHER_S)
            self._room.clear()
            for pod in self.state.waiting.take(self.state.clock()):
                log.info("%s may fit now", pod)
                try:
                    stamp = {names.POD_ROOM_MADE: str(int(self.state.wall()))}
                    await self._api.annotate_pod(pod, stamp)
                except ClusterError as error:
                    log.debug("%s not woken: %s", pod, error.text())

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.state.drop_expired()
            await self.binder.expire_turns()


def scheduler_app(
    state: State, binder: Binder, report: Report, client_names: Iterable[str] | None
) -> web.Application:
    """Return the application for the scheduler.

    Args:
        state: What the extender knows.
        binder: Does the binding.
        report: Takes events.
        client_names: Common names of the certificates that may call; None lets
            everybody (plain HTTP, for benches and tests).
    """

    async def filter_(request: web.Request) -> web.Response:
        body = await request.read()
        try:
            args = decode_filter(body)
        except CodecError as error:
            return web.Response(status=400, text=error.text() + "\n")
        answer = filter_pods(state, args)
        if answer.event and answer.pod is not None:
            if report(answer.pod, "FilteringFailed", answer.event):
                log.info("%s fits nowhere: %s", answer.pod, answer.event)
        elif answer.pod is not None:
            log.debug("%s goes to %s", answer.pod, answer.result.NodeNames)
        return _json(answer.result)

    async def bind(request: web.Request) -> web.Response:
        body = await request.read()
        try:
            args = decode_bind(body)
        except CodecError as error:
            return web.Response(status=400, text=error.text() + "\n")
        return _json({"Error": await binder.bind(args)})

    app = web.Application(
        client_max_size=MAX_BODY_BYTES, middlewares=[_identified(client_names), _answered]
    )
    app.router.add_post("/filter", filter_)
    app.router.add_post("/bind", bind)
    app.add_routes(_observation(state))
    return app


def observer_app(state: State) -> web.Application:
    """Return the application for probes and onlookers: nothing in it changes anything."""
    app = web.Application()
    app.add_routes(_observation(state))
    return app


def _observation(state: State) -> list[web.RouteDef]:
    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def readyz(_request: web.Request) -> web.Response:
        if state.synced:
            return web.Response(text="ok")
        return web.Response(status=503, text="nodes and pods are not read yet")

    async def show_ledger(_request: web.Request) -> web.Response:
        return _json(debug.ledger(state))

    async def show_reservations(_request: web.Request) -> web.Response:
        return _json(debug.reservations(state))

    return [
        web.get("/healthz", healthz),
        web.get("/readyz", readyz),
        web.get("/debug/ledger", show_ledger),
        web.get("/debug/reservations", show_reservations),
    ]


def _identified(client_names: Iterable[str] | None) -> Any:
    allowed = None if client_names is None else frozenset(client_names)

    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if allowed is not None:
            transport = request.transport
            certificate = transport.get_extra_info("peercert") if transport else None
            if not allowed & set(common_names(certificate)):
                return web.Response(status=403, text="not the scheduler's certificate\n")
        return await handler(request)

    return middleware


@web.middleware
async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer even where the code is wrong: the scheduler would wait for 30 s, and
    takes an ``Error`` as a reason to try the pod again later."""
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except Exception:
        log.exception("%s failed", request.path)
        return _json(FilterResult(Error=f"internal error of the extender in {request.path}"))


def common_names(certificate: Any) -> list[str]:
    """Return the common names of a peer's certificate as ``ssl`` shows it."""
    subject = (certificate or {}).get("subject", ())
    return [value for part in subject for key, value in part if key == "commonName"]


def _json(value: object) -> web.Response:
    return web.Response(body=_encode(value), content_type="application/json")


async def serve(
    app: web.Application, host: str, port: int, tls: ssl.SSLContext | None
) -> web.AppRunner:
    """Start an application; the caller cleans the runner up.

    Raises:
        InputError: the address cannot be had.
    """
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=2)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError as error:
        with contextlib.suppress(Exception):
            await runner.cleanup()
        raise InputError(f"cannot listen on {host}:{port}", why=str(error)) from error
    return runner
