"""The extender's rim: HTTPS for the scheduler, plain HTTP for onlookers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from itertools import chain, count, islice
from pathlib import Path
from time import perf_counter
from types import MappingProxyType
from typing import Any

from aiohttp import web

from testbed.errors import ClusterError, CodecError, InputError
from testbed.stack import names
from testbed.stack.extender import debug, memory
from testbed.stack.extender.api import AnswerLost, Api, ApiError, Unreachable, insist
from testbed.stack.extender.binder import Binder
from testbed.stack.extender.follow import Follower
from testbed.stack.extender.handler import filter_pods, fitting, preempt, refused
from testbed.stack.extender.leadership import Leadership
from testbed.stack.extender.metrics import lines
from testbed.stack.extender.nodelock import NodeLocks
from testbed.stack.extender.pods import NodePart, PodPart
from testbed.stack.extender.recorder import Recorder
from testbed.stack.extender.rim import Site
from testbed.stack.extender.state import State
from testbed.stack.extender.verbs import VERBS, Answer, Verb, Verbs
from testbed.stack.extender.wire import (
    FilterResult,
    decode_bind,
    decode_filter,
    decode_preempt,
)
from testbed.stack.extender.wire import encode as _encode
from testbed.stack.model import PodKey
from testbed.stack.placement.preempt import Plan
from testbed.stack.tls import expiry_lines

log = logging.getLogger(__name__)

#: 25,000 node names of the longest usual kind, and a pod of 1.5 MiB.
MAX_BODY_BYTES = 16 << 20
#: Labels of a Binding reach the pod from this version on.
LABELS_FROM = (1, 35)
_TICK_S = 1.0
_GATHER_S = 0.05
#: Lines of metrics that are made at one time, about a millisecond's.
_LINES = 500

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Report = Callable[[PodKey, str, str], bool]


class Extender:
    """The extender against an API server.

    Args:
        state: What it knows.
        api: The API server.
        label: Whether a Binding shall carry the node's label.
        leadership: Who may promise, by which Lease (namespace, name); None lets it.
    """

    def __init__(
        self,
        state: State,
        api: Api,
        *,
        label: bool,
        leadership: Leadership | None = None,
        lease: tuple[str, str] = ("", ""),
    ) -> None:
        self.state = state
        self._api = api
        self._recorder = Recorder(api, state.clock)
        self._evictions: asyncio.Queue[tuple[PodKey, Plan]] = asyncio.Queue()
        config = state.config
        locks = None
        if config.nodeLock:
            locks = NodeLocks(
                api, lasts_s=config.nodeLockSeconds, wall=state.wall, sleep=asyncio.sleep
            )
        self.binder = Binder(state, api, label=label, report=self._recorder.report, locks=locks)
        self._leadership = leadership
        self._lease = lease
        self._followers: list[Follower] = []
        self._room = asyncio.Event()
        state.waiting.listen(self._room.set)
        if leadership is not None:
            state.follow(lambda: leadership.leads(state.clock()))

    @property
    def report(self) -> Report:
        return self._recorder.report

    def evict(self, pod: PodKey, plan: Plan) -> None:
        """Have the victims of a plan evicted."""
        self._evictions.put_nowait((pod, plan))

    async def run(self) -> None:
        """Follow the cluster, expire what is over, write events; until cancelled."""
        state = self.state
        begun = state.clock()
        memory.before_lists()
        state.quotas_synced = False

        def nodes_synced() -> None:
            state.nodes_synced = True
            done()

        def quotas_synced() -> None:
            state.quotas_synced = True
            done()

        def pods_synced() -> None:
            state.pods_synced = True
            done()

        def done() -> None:
            if not state.synced or state.load_s is not None:
                return
            state.load_s = state.clock() - begun
            cards = sum(len(state.ledger.cards_of(name)) for name in state.ledger.nodes())
            log.info(
                "read %d nodes with %d cards and %d pods with shares in %.2f s",
                len(state.ledger.nodes()), cards, len(state.bound), state.load_s,
            )  # fmt: skip
            memory.after_lists()
            # What the process before this one had promised to pending pods is free again.
            state.waiting.room_made(unheard=True)

        nodes = Follower(
            self._api,
            "/api/v1/nodes",
            identify=lambda node: str(node["metadata"]["name"]),
            held=state.known_nodes,
            changed=state.node_changed,
            gone=state.node_gone,
            synced=nodes_synced,
            item=NodePart,
        )
        pods = Follower(
            self._api,
            "/api/v1/pods",
            identify=lambda pod: str(pod["metadata"]["uid"]),
            held=state.known_pods,
            changed=state.pod_changed,
            gone=self._pod_gone,
            synced=pods_synced,
            item=PodPart,
        )
        quotas = Follower(
            self._api,
            "/api/v1/resourcequotas",
            identify=lambda q: f"{q['metadata']['namespace']}/{q['metadata']['name']}",
            held=state.known_quotas,
            changed=state.quota_changed,
            gone=state.quota_gone,
            synced=quotas_synced,
        )
        self._followers = [nodes, pods, quotas]
        async with asyncio.TaskGroup() as group:
            for follower in self._followers:
                group.create_task(follower.run())
            group.create_task(self._recorder.run())
            group.create_task(self._tick())
            group.create_task(self._wake())
            group.create_task(self._evict())
            if self._leadership is not None:
                group.create_task(self._follow_lease(self._leadership))

    def _pod_gone(self, uid: str) -> None:
        self.state.pod_gone(uid)
        self._recorder.forget(uid)

    async def _follow_lease(self, leadership: Leadership) -> None:
        """Read the scheduler's Lease again and again, and read all anew when it is ours."""
        led = False
        while True:
            asked = self.state.clock()
            try:
                lease = await self._api.read_lease(*self._lease)
            except ClusterError as error:
                log.warning("the scheduler's lease cannot be read: %s", error.text())
            else:
                before = leadership.leads(self.state.clock())
                leadership.observe(lease, asked)
                self.state.leader = leadership.holder
                if leadership.leads(self.state.clock()) and not (led and before):
                    # What the leader before us bound last may not have been told yet.
                    self.state.nodes_synced = self.state.pods_synced = False
                    for follower in self._followers[:2]:
                        follower.anew()
                    log.info("leads: the scheduler of this pod holds the lease")
                    led = True
            if led and not leadership.leads(self.state.clock()):
                log.info("stands by: %s holds the lease", leadership.holder or "nobody")
                self.state.stand_by()
                led = False
            await asyncio.sleep(_TICK_S)

    async def _evict(self) -> None:
        """Evict the victims of plans, and say so on both pods."""
        while True:
            pod, plan = await self._evictions.get()
            for victim in plan.victims:
                bound = self.state.bound.get(victim.uid)
                if bound is None:
                    continue
                text = f"evicted for {pod} (of a higher priority), which needs cards of {plan.node}"
                try:
                    await insist(partial(self._api.evict, bound.pod))
                except ClusterError as error:
                    if isinstance(error, ApiError) and error.status in (404, 409):
                        continue  # gone already
                    log.warning("%s not evicted for %s: %s", bound.pod, pod, error.text())
                    self._recorder.report(pod, "PreemptionFailed", f"{bound.pod}: {error.why}")
                    self.state.unnominate(pod.uid)
                    break
                log.info("%s %s", bound.pod, text)
                self._recorder.report(bound.pod, "Preempted", text, "Normal")

    async def _wake(self) -> None:
        """Wake the pods that were refused just before room was made, or that fit now."""
        numbers = count(1)
        while True:
            await self._room.wait()
            # What ends together is told in one go; and the refusal's answer gets through.
            await asyncio.sleep(_GATHER_S)
            self._room.clear()
            state = self.state
            if not state.leads:
                if state.waiting.more:
                    await asyncio.sleep(_TICK_S)  # it may be about to
                    self._room.set()
                continue
            pods = deque(state.waiting.take(state.clock(), fitting(state)))
            if state.waiting.more:
                self._room.set()
            while pods:
                log.debug("%s may fit now", pods[0])
                # A number beside the second: a pod that is woken twice in it must change
                # twice, since an equal value is no update, and wakes nobody.
                stamp = {names.POD_ROOM_MADE: f"{int(state.wall())}.{next(numbers)}"}
                try:
                    await self._api.annotate_pod(pods[0], stamp)
                except (AnswerLost, Unreachable) as error:
                    log.debug("%s not woken yet: %s", pods[0], error.text())
                    break
                except ClusterError as error:
                    log.debug("%s not woken: %s", pods[0], error.text())
                pods.popleft()
            if not pods:
                continue
            await asyncio.sleep(_TICK_S)
            for pod in pods:
                if self.state.waiting.get(pod.uid) is not None:
                    self.state.waiting.refused(pod, self.state.clock())
            self._room.set()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            self.state.drop_expired()
            if self.state.leads:
                await self.binder.expire_turns()


def scheduler_app(
    state: State,
    binder: Binder,
    report: Report,
    client_names: Iterable[str] | None,
    evict: Callable[[PodKey, Plan], None] = lambda *_: None,
) -> web.Application:
    """Return the application for the scheduler.

    Args:
        state: What the extender knows.
        binder: Does the binding.
        report: Takes events.
        client_names: Common names of the certificates that may call; None lets
            everybody (plain HTTP, for benches and tests).
        evict: Has the victims of a plan evicted.
    """
    admitted = None if client_names is None else frozenset(client_names)
    verbs = Verbs(
        by_path=_verbs(state, binder, report, evict),
        fault=_fault,
        most=MAX_BODY_BYTES,
        admits=lambda transport: _admits(admitted, transport),
        connections=state.connections,
    )
    app = web.Application(
        client_max_size=MAX_BODY_BYTES, middlewares=[_identified(admitted), _answered]
    )
    for path, verb in verbs.by_path.items():
        app.router.add_post(path.decode(), _route(verb))
    app[VERBS] = verbs
    app.add_routes(_observation(state))
    return app


def _verbs(
    state: State, binder: Binder, report: Report, evict: Callable[[PodKey, Plan], None]
) -> dict[bytes, Verb]:
    times = state.times

    def filter_(body: bytes) -> Answer:
        begun = perf_counter()
        try:
            args = decode_filter(body)
        except CodecError as error:
            return _refusal(400, error.text())
        answer = filter_pods(state, args)
        if answer.event and answer.pod is not None:
            event = answer.event
            if answer.plan is not None:
                ending = ", ".join(
                    str(state.bound[v.uid].pod) for v in answer.plan.victims if v.uid in state.bound
                )
                event = f"evicts {ending} on {answer.plan.node}; {event}"
                evict(answer.pod, answer.plan)
            if report(answer.pod, "FilteringFailed", event):
                log.info("%s fits nowhere: %s", answer.pod, event)
        elif answer.pod is not None:
            log.debug("%s goes to %s", answer.pod, answer.result.NodeNames)
        raw = Answer(_encode(answer.result))
        outcome = "error" if answer.result.Error else "unfit" if answer.event else "fit"
        times.add("filter", outcome, perf_counter() - begun)
        return raw

    async def bind(body: bytes) -> Answer:
        begun = perf_counter()
        try:
            args = decode_bind(body)
        except CodecError as error:
            return _refusal(400, error.text())
        text = await binder.bind(args)
        times.add("bind", "error" if text else "bound", perf_counter() - begun)
        return Answer(_encode({"Error": text}))

    def preempt_(body: bytes) -> Answer:
        begun = perf_counter()
        try:
            args = decode_preempt(body)
            refusal = refused(state)
            if refusal:
                return _refusal(503, refusal)
            result = preempt(state, args)
        except (CodecError, InputError) as error:
            return _refusal(400, error.text())
        times.add("preempt", "done", perf_counter() - begun)
        return Answer(_encode(result))

    return {b"/filter": filter_, b"/bind": bind, b"/preempt": preempt_}


def _refusal(status: int, text: str) -> Answer:
    return Answer(f"{text}\n".encode(), status, "text/plain")


def _fault(path: str) -> Answer:
    """Return the answer where the code is wrong: the scheduler takes an ``Error`` as a
    reason to try the pod again later, and would wait for 30 s without any answer."""
    return Answer(_encode(FilterResult(Error=f"internal error of the extender in {path}")))


def _route(verb: Verb) -> Handler:
    """Return a verb for aiohttp, which answers what ``rim`` leaves to it."""

    async def handler(request: web.Request) -> web.StreamResponse:
        found = verb(await request.read())
        answer = found if isinstance(found, Answer) else await found
        return web.Response(
            body=answer.body,
            status=answer.status,
            content_type=answer.content_type,
            charset="utf-8",
        )

    return handler


def observer_app(state: State, certificates: Mapping[str, Path] | None = None) -> web.Application:
    """Return the application for probes and onlookers: nothing in it changes anything.

    Args:
        state: What the extender knows.
        certificates: The metrics tell when those end, by what they are for.
    """
    app = web.Application()
    app.add_routes(_observation(state, certificates or {}))
    return app


def _observation(
    state: State, certificates: Mapping[str, Path] = MappingProxyType({})
) -> list[web.RouteDef]:
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

    async def show_waiting(_request: web.Request) -> web.Response:
        return _json(debug.waiting(state))

    async def metrics(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
        )
        await response.prepare(request)
        rest = chain(
            expiry_lines("extender", certificates), lines(state, state.times, state.load_s)
        )
        while some := list(islice(rest, _LINES)):
            await response.write(("\n".join(some) + "\n").encode())
            await asyncio.sleep(0)  # decisions go before
        return response

    return [
        web.get("/metrics", metrics),
        web.get("/debug/waiting", show_waiting),
        web.get("/healthz", healthz),
        web.get("/readyz", readyz),
        web.get("/debug/ledger", show_ledger),
        web.get("/debug/reservations", show_reservations),
    ]


def _admits(allowed: frozenset[str] | None, transport: asyncio.BaseTransport | None) -> bool:
    if allowed is None:
        return True
    certificate = transport.get_extra_info("peercert") if transport else None
    return bool(allowed & set(common_names(certificate)))


def _identified(allowed: frozenset[str] | None) -> Any:
    @web.middleware
    async def middleware(request: web.Request, handler: Handler) -> web.StreamResponse:
        if not _admits(allowed, request.transport):
            return web.Response(status=403, text="not the scheduler's certificate\n")
        return await handler(request)

    return middleware


@web.middleware
async def _answered(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Answer even where the code is wrong."""
    try:
        return await handler(request)
    except web.HTTPException:
        raise
    except Exception:
        log.exception("%s failed", request.path)
        return web.Response(body=_fault(request.path).body, content_type="application/json")


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
        if VERBS in app:
            await Site(runner, host, port, tls, app[VERBS]).start()
        else:
            await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError as error:
        with contextlib.suppress(Exception):
            await runner.cleanup()
        raise InputError(f"cannot listen on {host}:{port}", why=str(error)) from error
    return runner
