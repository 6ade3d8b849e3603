"""The bench's client: both protocols bring a body there and an answer back, whole."""

from __future__ import annotations

import asyncio
import ssl
import threading

import pytest
from aiohttp import web

from testbed.errors import ClusterError
from testbed.lab.bench.client import connect
from testbed.stack.certificates.sets import make
from testbed.stack.extender.server import serve
from testbed.stack.extender.verbs import VERBS, Answer, Verbs
from testbed.stack.tls import server_context

LONG = bytes(range(256)) * 2000  # more than a frame and a buffer hold


@pytest.fixture(params=[("h2", "http/1.1"), ("http/1.1",)], ids=["both", "http/1.1"])
def port(request, tmp_path):
    """The port of a server with TLS that speaks some protocols, and a client's context."""
    found = make("test")
    files = {"ca": found.ca, "crt": found.extender.cert, "key": found.extender.key}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    tls = server_context(tmp_path / "crt", tmp_path / "key", None, request.param)
    verbs = Verbs(
        by_path={b"/echo": Answer, b"/long": lambda body: Answer(LONG + body)},
        fault=lambda path: Answer(path.encode(), 500),
        most=2 * len(LONG),
        admits=lambda _: True,
    )
    app = web.Application()
    app[VERBS] = verbs
    ready, known = threading.Event(), {}

    async def run():
        stop = asyncio.Event()
        runner = await serve(app, "127.0.0.1", 0, tls)
        try:
            known.update(port=runner.addresses[0][1], loop=asyncio.get_running_loop(), stop=stop)
            ready.set()
            await stop.wait()
        finally:
            await runner.cleanup()

    thread = threading.Thread(target=lambda: asyncio.run(run()), daemon=True)
    thread.start()
    assert ready.wait(60)
    try:
        context = ssl.create_default_context(cafile=str(tmp_path / "ca"))
        yield known["port"], context, request.param
    finally:
        known["loop"].call_soon_threadsafe(known["stop"].set)
        thread.join(60)


@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_bodies_and_answers_of_any_length(port, protocol):
    number, context, spoken = port
    if protocol not in spoken:
        with pytest.raises(ClusterError, match="does not speak h2"):
            connect(number, context, protocol)
        return
    client = connect(number, context, protocol)
    try:
        for body in (b"", b"x", LONG, b"y" * 20_000, LONG[1:]):
            assert client.post("/echo", body) == body
            assert client.post("/long", body) == LONG + body
        with pytest.raises(ClusterError, match="/other answers 404"):
            client.post("/other", b"")
    finally:
        client.close()


@pytest.mark.parametrize("port", [("h2", "http/1.1")], indirect=True)
@pytest.mark.parametrize("protocol", ["h2", "http/1.1"])
def test_a_body_that_is_too_large_is_an_error(port, protocol):
    number, context, _ = port
    client = connect(number, context, protocol)
    try:
        with pytest.raises((ClusterError, OSError)):
            client.post("/echo", 3 * LONG)
    finally:
        client.close()
