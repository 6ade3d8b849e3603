"""The scheduler's port: its verbs by the small protocol, everything else by aiohttp."""

import asyncio
import io
import json
import random
import ssl
from contextlib import asynccontextmanager

import aiohttp
import pytest
import trustme

from testbed.lab.bench.madeup import CASES
from testbed.stack.config import DeviceConfig
from testbed.stack.extender import rim
from testbed.stack.extender.binder import Binder
from testbed.stack.extender.pods import pod_key
from testbed.stack.extender.server import MAX_BODY_BYTES, scheduler_app, serve
from testbed.stack.extender.state import State
from testbed.stack.extender.wire import decode_filter
from testbed.stack.placement import pod_request

CONFIG = DeviceConfig()
HEAD = b"POST /filter HTTP/1.1\r\nHost: e\r\nContent-Length: %d\r\n\r\n"
#: Not read yet: a filter answers an error, which is an answer like any other.
BODY = json.dumps({"Pod": {"metadata": {"uid": "u"}}, "NodeNames": ["n"]}).encode()
REQUEST = HEAD % len(BODY) + BODY
BIND = {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "x"}


class SlowBinder:
    def __init__(self):
        self.begun, self.go = asyncio.Event(), asyncio.Event()

    async def bind(self, args):
        self.begun.set()
        await self.go.wait()
        return f"bound {args.podname}"


@asynccontextmanager
async def port(binder=None, names=None, tls=None):
    state = State(DeviceConfig())
    binder = binder or Binder(state, None, label=False, report=lambda *_: True)
    app = scheduler_app(state, binder, lambda *_: True, names)
    runner = await serve(app, "127.0.0.1", 0, tls)
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@pytest.fixture
def handed(monkeypatch):
    """The connections that aiohttp was given."""
    found = []
    hand_over = rim.Connection._hand_over

    def spy(self, read):
        found.append(read)
        hand_over(self, read)

    monkeypatch.setattr(rim.Connection, "_hand_over", spy)
    return found


async def answer(reader):
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 60)
    fields = dict(
        line.split(": ", 1) for line in head.decode().lower().split("\r\n")[1:] if ": " in line
    )
    body = await asyncio.wait_for(reader.readexactly(int(fields["content-length"])), 60)
    return int(head.split()[1]), body


def scene(run, **given):
    async def whole():
        async with port(**given) as number:
            return await run(number)

    return asyncio.run(whole())


def test_a_verb_is_answered_however_its_bytes_arrive(handed):
    async def run(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        found = []
        for cut in (1, 10, len(REQUEST) - len(BODY), len(REQUEST) - 1, len(REQUEST)):
            writer.write(REQUEST[:cut])
            await writer.drain()
            await asyncio.sleep(0)
            writer.write(REQUEST[cut:])
            found.append(await answer(reader))
        writer.write(REQUEST * 3)  # without waiting for answers
        found += [await answer(reader) for _ in range(3)]
        writer.close()
        return found

    found = scene(run)
    assert len(found) == 8
    assert all(status == 200 and b"not read all nodes" in body for status, body in found)
    assert handed == []


def test_a_body_larger_than_the_buffer(handed):
    async def run(number):
        async with aiohttp.ClientSession(f"http://127.0.0.1:{number}") as session:
            names_ = [f"node-{i}" for i in range(60_000)]
            body = json.dumps({"Pod": {"metadata": {"uid": "u"}}, "NodeNames": names_})
            assert len(body) > rim._KEPT_BYTES
            for _ in range(2):
                async with session.post("/filter", data=body) as found:
                    assert "not read all nodes" in (await found.json())["Error"]

    scene(run)
    assert handed == []


def test_what_is_no_verb_is_answered_by_aiohttp(handed):
    async def run(number):
        async with aiohttp.ClientSession(f"http://127.0.0.1:{number}") as session:

            async def status(method, path, **given):
                async with session.request(method, path, **given) as found:
                    return found.status

            chunks = io.BytesIO(BODY)
            return [
                await status("GET", "/healthz"),
                await status("GET", "/readyz"),
                await status("GET", "/filter"),
                await status("POST", "/nothing", data=b"{}"),
                await status("POST", "/filter", data=BODY, headers={"Connection": "close"}),
                await status("POST", "/filter", data=BODY, expect100=True),
                await status("POST", "/filter", data=chunks, chunked=True),
                await status("POST", "/filter", data=io.BytesIO(b"x" * (MAX_BODY_BYTES + 1))),
            ]

    assert scene(run) == [200, 503, 405, 404, 200, 200, 200, 413]
    assert handed


@pytest.mark.parametrize(
    "head",
    [
        b"POST /filter HTTP/1.1\r\nHost: e\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
        b"POST /filter HTTP/1.1\r\nHost: e\r\nContent-Length: -2\r\n\r\n{}",
        b"POST /filter HTTP/1.1\r\nHost: e\r\nno colon\r\nContent-Length: 2\r\n\r\n{}",
        b"\x16\x03\x01\r\n\r\n",
        b"POST /filter HTTP/1.1\r\nX: " + b"x" * rim._HEAD_BYTES,
    ],
)
def test_a_wrong_head_is_refused(handed, head):
    async def run(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(head)
        status, _ = await answer(reader)
        writer.close()
        return status

    assert scene(run) == 400
    assert handed


def test_requests_behind_a_bind_wait_for_it_and_other_connections_do_not():
    async def run():
        binder = SlowBinder()
        async with port(binder=binder) as number:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            body = json.dumps(BIND).encode()
            head = (HEAD % len(body)).replace(b"/filter", b"/bind")
            writer.write(head + body + REQUEST)
            await asyncio.wait_for(binder.begun.wait(), 60)
            other_reader, other = await asyncio.open_connection("127.0.0.1", number)
            other.write(REQUEST)
            beside = await answer(other_reader)
            binder.go.set()
            found = [await answer(reader), await answer(reader)]
            writer.close()
            other.close()
            return beside, found

    beside, (bound, filtered) = asyncio.run(run())
    assert b"not read all nodes" in beside[1]
    assert json.loads(bound[1]) == {"Error": "bound p"}
    assert b"not read all nodes" in filtered[1]


def test_a_stop_answers_the_bind_that_is_under_way():
    async def run():
        binder = SlowBinder()
        async with port(binder=binder) as number:
            reader, writer = await asyncio.open_connection("127.0.0.1", number)
            body = json.dumps(BIND).encode()
            writer.write((HEAD % len(body)).replace(b"/filter", b"/bind") + body)
            await asyncio.wait_for(binder.begun.wait(), 60)
            asyncio.get_running_loop().call_soon(binder.go.set)
        found = await answer(reader)
        end = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return found, end

    found, end = asyncio.run(run())
    assert json.loads(found[1]) == {"Error": "bound p"}
    assert end == b""


def test_a_fault_of_a_verb_is_an_answer(monkeypatch):
    class Broken:
        async def bind(self, _args):
            raise RuntimeError("bug")

    def broken(*_):
        raise RuntimeError("bug")

    monkeypatch.setattr("testbed.stack.extender.server.filter_pods", broken)

    async def run(number):
        async with aiohttp.ClientSession(f"http://127.0.0.1:{number}") as session:
            found = []
            for path, body in (("/filter", BODY), ("/bind", json.dumps(BIND).encode())):
                async with session.post(path, data=body) as answered:
                    found.append((answered.status, (await answered.json())["Error"]))
            return found

    assert scene(run, binder=Broken()) == [
        (200, "internal error of the extender in /filter"),
        (200, "internal error of the extender in /bind"),
    ]


def test_an_idle_connection_and_a_request_that_does_not_come_are_closed(monkeypatch):
    monkeypatch.setattr(rim, "REQUEST_S", 0.05)

    async def run(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        writer.write(REQUEST[:-1])
        unfinished = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        monkeypatch.setattr(rim, "IDLE_S", 0.05)
        reader, writer = await asyncio.open_connection("127.0.0.1", number)
        idle = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return unfinished, idle

    assert scene(run) == (b"", b"")


@pytest.mark.parametrize(("name", "status"), [("scheduler", 200), ("somebody", 403)])
def test_only_the_schedulers_certificate_is_served(handed, name, status):
    ca = trustme.CA()
    served = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    ca.issue_cert("127.0.0.1").configure_cert(served)
    ca.configure_trust(served)
    served.verify_mode = ssl.CERT_REQUIRED
    mine = ssl.create_default_context()
    ca.configure_trust(mine)
    ca.issue_cert("client.test", common_name=name).configure_cert(mine)

    async def run(number):
        async with aiohttp.ClientSession(f"https://127.0.0.1:{number}") as session:
            for _ in range(2):
                async with session.post("/filter", data=BODY, ssl=mine) as found:
                    assert found.status == status

    scene(run, names=["scheduler"], tls=served)
    assert bool(handed) == (name == "somebody")


def test_a_pod_as_the_scheduler_sends_it_asks_for_the_same():
    """Of its pod only a part is decoded: all that a decision reads."""
    rng = random.Random(7)
    for number in range(200):
        for case in CASES.values():
            pod = case(number, rng)
            sent = {"Pod": pod, "Nodes": None, "NodeNames": ["n"]}
            raw = json.dumps(sent, separators=(",", ":")).encode()  # as Go writes it
            found = decode_filter(raw)
            assert "managedFields" not in found.Pod["metadata"]
            assert pod_request(found.Pod, CONFIG) == pod_request(pod, CONFIG)
            assert pod_key(found.Pod) == pod_key(pod)
            spec = pod["spec"]
            for key in ("schedulerName", "priority", "preemptionPolicy", "nodeName"):
                assert found.Pod["spec"].get(key) == spec.get(key)
            assert found.offer.raw == b'["n"]'
            # One that is written otherwise is decoded whole.
            other = decode_filter(raw.replace(b'"Pod"', b'"pod"', 1).replace(b"NodeN", b"nodeN"))
            assert other.Pod == pod
