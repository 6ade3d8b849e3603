"""HTTP/2 on the scheduler's port: frames in, frames out, without a socket; once with TLS."""

import asyncio
import json
import ssl
import struct
from enum import IntEnum
from types import SimpleNamespace

import pytest
from h2.errors import ErrorCodes as Code
from hpack import Decoder
from hyperframe.frame import DataFrame

from testbed.stack.certificates.sets import SCHEDULER_CN, make
from testbed.stack.config import DeviceConfig
from testbed.stack.extender import http2
from testbed.stack.extender.http2 import LIST_BYTES, Http2
from testbed.stack.extender.metrics import exposition
from testbed.stack.extender.server import scheduler_app, serve
from testbed.stack.extender.state import State
from testbed.stack.extender.verbs import IDLE_S, Answer, Verbs
from testbed.stack.tls import server_context

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
END_STREAM, END_HEADERS, PADDED, PRIORITY = 1, 4, 8, 0x20
MOST = 100_000


class Frame(IntEnum):
    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">IBI", len(payload) << 8 | kind, flags, stream) + payload


def block(path=b"/echo", method=b"\x83", *more):
    """Fields of a request for host ``e``; \\x83 is ``:method POST``, \\x87 ``:scheme https``."""
    return method + b"\x87\x01\x01e\x04" + bytes([len(path)]) + path + b"".join(more)


def request(stream, body, path=b"/echo"):
    head = frame(Frame.HEADERS, END_HEADERS, stream, block(path))
    return head + frame(Frame.DATA, END_STREAM, stream, body)


class Pipe:
    """A transport that keeps what is written, and tells the frames."""

    def __init__(self):
        self.raw, self.closed, self.reading = b"", False, True
        self.fields = {}  # of the last header block of each stream
        self._decoder = Decoder()

    def write(self, raw):
        assert not self.closed
        self.raw += raw

    def is_closing(self):
        return self.closed

    def close(self):
        self.closed = True

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True

    def frames(self):
        """Return (kind, flags, stream, payload) of what came since the last call."""
        found = []
        while self.raw:
            head, flags, stream = struct.unpack(">IBI", self.raw[:9])
            end = 9 + (head >> 8)
            found.append((head & 0xFF, flags, stream, self.raw[9:end]))
            if head & 0xFF == Frame.HEADERS:
                self.fields[stream] = dict(self._decoder.decode(self.raw[9:end], raw=True))
            self.raw = self.raw[end:]
        return found

    def answers(self):
        """Return status and body of each stream that ended."""
        bodies, ended = {}, {}
        for kind, flags, stream, payload in self.frames():
            if kind == Frame.DATA:
                bodies[stream] = bodies.get(stream, b"") + payload
                if flags & END_STREAM:
                    ended[stream] = (int(self.fields[stream][b":status"]), bodies[stream])
        return ended


class Peer:
    """A client's side of one connection."""

    def __init__(self, *, admitted=True, settings=b"", greet=True, **by_path):
        verbs = Verbs(
            by_path={b"/" + name.encode(): verb for name, verb in by_path.items()}
            | {b"/echo": Answer},
            fault=lambda path: Answer(path.encode(), 500),
            most=MOST,
            admits=lambda _: True,
        )
        self.pipe, self.open = Pipe(), set()
        self.connection = Http2(verbs, admitted, self.open)
        self.connection.connection_made(self.pipe)
        first = self.pipe.frames()
        assert [kind for kind, *_ in first] == [Frame.SETTINGS, Frame.WINDOW_UPDATE]
        if greet:
            self.send(PREFACE + frame(Frame.SETTINGS, 0, 0, settings))
            assert self.pipe.frames() == [(Frame.SETTINGS, 1, 0, b"")]

    def send(self, raw, piece=None):
        for at in range(0, len(raw), piece or len(raw) or 1):
            rest = memoryview(raw)[at : at + (piece or len(raw))]
            while rest and not self.pipe.closed:
                room = self.connection.get_buffer(-1)
                assert len(room)
                count = min(len(room), len(rest))
                room[:count] = rest[:count]
                self.connection.buffer_updated(count)
                rest = rest[count:]

    def answers(self):
        return self.pipe.answers()

    def ended(self):
        """Return why the connection was closed."""
        *_, (kind, _, stream, payload) = self.pipe.frames()
        assert (kind, stream) == (Frame.GOAWAY, 0)
        assert self.pipe.closed
        return struct.unpack(">II", payload)[1]


def looped(scene):
    """Run a plain function with a loop around it, for the clock."""

    def wrapped(*arguments, **named):
        async def run():
            scene(*arguments, **named)

        asyncio.run(run())

    wrapped.__name__, wrapped.__doc__ = scene.__name__, scene.__doc__
    return wrapped


@pytest.mark.parametrize("piece", [None, 1, 7, 16 << 10])
def test_requests_are_answered_however_their_bytes_arrive(piece):
    async def run():
        peer = Peer()
        large = bytes(range(256)) * (20 if piece == 1 else 300)
        peer.send(frame(Frame.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 20)))
        peer.send(frame(Frame.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")))
        peer.send(request(1, b"one") + request(3, large) + request(5, b""), piece)
        assert peer.answers() == {1: (200, b"one"), 3: (200, large), 5: (200, b"")}

    asyncio.run(run())


@looped
def test_an_answer_waits_for_both_windows():
    peer = Peer(settings=struct.pack(">HI", 4, 10))
    peer.send(request(1, b"0123456789abcdef"))
    *_, data = peer.pipe.frames()
    assert data == (Frame.DATA, 0, 1, b"0123456789")
    peer.send(request(3, b"x"))  # others go on meanwhile
    assert peer.answers() == {3: (200, b"x")}
    peer.send(frame(Frame.WINDOW_UPDATE, 0, 1, (4).to_bytes(4, "big")))
    assert peer.pipe.frames() == [(Frame.DATA, 0, 1, b"abcd")]
    peer.send(frame(Frame.SETTINGS, 0, 0, struct.pack(">HI", 4, 12)))  # two more for each
    assert peer.pipe.frames() == [(Frame.SETTINGS, 1, 0, b""), (Frame.DATA, END_STREAM, 1, b"ef")]
    big = b"y" * 66_000
    peer.send(frame(Frame.SETTINGS, 0, 0, struct.pack(">HIHI", 4, 1 << 20, 5, 1 << 20)))
    peer.send(request(5, big))
    (*_, (_, flags, _, part)) = peer.pipe.frames()
    assert flags == 0
    assert len(part) == 65_535 - 17  # what the connection's first window has left
    peer.send(frame(Frame.WINDOW_UPDATE, 0, 0, (1 << 20).to_bytes(4, "big")))
    assert peer.pipe.frames() == [(Frame.DATA, END_STREAM, 5, big[len(part) :])]


@looped
def test_a_long_answer_comes_in_frames_that_every_peer_takes():
    peer = Peer()
    peer.send(request(1, b"z" * 40_000))
    sizes = [len(payload) for kind, _, _, payload in peer.pipe.frames() if kind == Frame.DATA]
    assert sizes == [16384, 16384, 40_000 - 2 * 16384]


def test_what_waits_holds_up_nobody_and_survives_the_loss_of_its_stream():
    async def run():
        go, ends = asyncio.Event(), []

        async def slow(body):
            await go.wait()
            ends.append(body)
            return Answer(body)

        async def broken(_body):
            raise RuntimeError("a defect")

        def wrong(_body):
            raise RuntimeError("a defect")

        peer = Peer(slow=slow, broken=broken, wrong=wrong)
        peer.send(request(1, b"a", b"/slow") + request(3, b"b", b"/slow") + request(5, b"c"))
        peer.send(request(7, b"", b"/broken") + request(9, b"", b"/wrong"))
        peer.send(frame(Frame.RST_STREAM, 0, 3, bytes(4)))
        assert len(peer.connection.tasks) == 3
        go.set()
        await asyncio.gather(*peer.connection.tasks)
        assert ends == [b"a", b"b"]
        assert peer.answers() == {
            5: (200, b"c"),
            9: (500, b"/wrong"),
            1: (200, b"a"),
            7: (500, b"/broken"),
        }
        peer.connection.connection_lost(None)
        assert peer.open == set()

    asyncio.run(run())


@looped
def test_padding_priority_trailers_and_unknown_frames():
    peer = Peer()
    head = b"\x03" + bytes(5) + block() + bytes(3)
    peer.send(frame(Frame.HEADERS, PADDED | PRIORITY, 1, head))  # goes on
    peer.send(frame(Frame.CONTINUATION, END_HEADERS, 1, b"\x00\x01a\x01b"))
    peer.send(frame(0xEE, 0, 1, b"?") + frame(Frame.PRIORITY, 0, 9, bytes(5)))
    peer.send(frame(Frame.DATA, PADDED, 1, b"\x02xy\x00\x00"))
    peer.send(frame(Frame.HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x01t\x01v"))
    assert peer.answers() == {1: (200, b"xy")}
    peer.send(frame(Frame.PING, 0, 0, b"12345678"))
    assert peer.pipe.frames() == [(Frame.PING, 1, 0, b"12345678")]


@looped
def test_what_is_no_verb():
    peer = Peer()
    peer.send(request(1, b"", b"/other"))
    assert peer.answers() == {1: (404, b"no such path\n")}
    peer.send(frame(Frame.HEADERS, END_HEADERS | END_STREAM, 3, block(b"/echo", b"\x82")))
    required = (Frame.RST_STREAM, 0, 3, Code.HTTP_1_1_REQUIRED.to_bytes(4, "big"))
    assert peer.pipe.frames() == [required]
    peer.send(frame(Frame.HEADERS, END_HEADERS, 5, block(b"/echo", b"\x83", b"\x0f\x0b\x04gzip")))
    assert peer.pipe.frames()[0][3] == required[3]
    peer.send(frame(Frame.DATA, END_STREAM, 5, b"late"))  # was under way
    closed = (Frame.RST_STREAM, 0, 5, Code.STREAM_CLOSED.to_bytes(4, "big"))
    assert peer.pipe.frames() == [closed]
    peer.send(request(7, b"x" * MOST))
    assert not peer.pipe.closed


@looped
def test_a_body_that_is_too_large_is_refused_and_the_connection_lives():
    peer = Peer()
    peer.send(frame(Frame.HEADERS, END_HEADERS, 1, block()))
    for _ in range(MOST // 10_000):
        peer.send(frame(Frame.DATA, 0, 1, b"x" * 10_000))
    assert peer.pipe.frames() == []
    peer.send(frame(Frame.DATA, 0, 1, b"x"))
    found = peer.pipe.frames()
    assert [kind for kind, *_ in found] == [Frame.HEADERS, Frame.DATA, Frame.RST_STREAM]
    assert peer.pipe.fields[1][b":status"] == b"413"
    peer.send(frame(Frame.DATA, END_STREAM, 1, b"x" * 100))
    peer.send(request(3, b"next"))
    assert peer.answers() == {3: (200, b"next")}


@looped
def test_a_stranger_is_refused():
    peer = Peer(admitted=False)
    peer.send(request(1, b"secret"))
    assert peer.answers() == {1: (403, b"not the scheduler's certificate\n")}


def test_more_streams_than_were_offered(monkeypatch):
    monkeypatch.setattr(http2, "STREAMS", 2)

    async def run():
        peer = Peer()
        for stream in (1, 3):
            peer.send(frame(Frame.HEADERS, END_HEADERS, stream, block()))
        peer.send(frame(Frame.DATA, END_STREAM, 1, b"1"))
        assert peer.answers() == {1: (200, b"1")}
        peer.send(frame(Frame.HEADERS, END_HEADERS, 5, block()))
        assert not peer.pipe.closed
        peer.send(frame(Frame.HEADERS, END_HEADERS, 7, block()))
        assert peer.ended() == Code.PROTOCOL_ERROR

    asyncio.run(run())


@pytest.mark.parametrize(
    "gives_up",
    [
        lambda stream: frame(Frame.RST_STREAM, 0, stream, (8).to_bytes(4, "big")),
        # The server is made to reset the stream itself (CVE-2025-8671).
        lambda stream: frame(Frame.WINDOW_UPDATE, 0, stream, b"\x7f\xff\xff\xff"),
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_who_resets_its_streams_has_no_more_under_way_than_others(monkeypatch, gives_up, together):
    """A flood of requests that are given up at once (CVE-2023-44487)."""
    monkeypatch.setattr(http2, "STREAMS", 8)

    async def run():
        async def bind(_body):
            await go.wait()
            bound.append(1)
            return Answer(b"bound")

        go, bound = asyncio.Event(), []
        peer = Peer(bind=bind)
        raw = [request(stream, b"", b"/bind") + gives_up(stream) for stream in range(1, 101, 2)]
        for part in [b"".join(raw)] if together else raw:
            peer.send(part)
            assert len(peer.connection.tasks) <= 8
        assert len(peer.connection.tasks) == 8
        assert Frame.HEADERS not in [kind for kind, *_ in peer.pipe.frames()]
        refused = (Frame.RST_STREAM, 0, 101, Code.REFUSED_STREAM.to_bytes(4, "big"))
        peer.send(request(101, b"", b"/bind"))
        assert refused in peer.pipe.frames()
        go.set()
        await asyncio.gather(*peer.connection.tasks)
        assert sum(bound) == 8
        peer.send(request(103, b"", b"/bind"))  # others come again
        await asyncio.gather(*peer.connection.tasks)
        assert peer.answers() == {103: (200, b"bound")}

    asyncio.run(run())


@looped
def test_what_is_given_up_before_it_is_read_gets_no_answer():
    peer = Peer()
    peer.send(request(1, b"x") + frame(Frame.RST_STREAM, 0, 1, bytes(4)))
    assert peer.pipe.frames() == []
    peer.send(request(3, b"next"))
    assert peer.answers() == {3: (200, b"next")}


def test_streams_that_are_given_up_half_way_leave_nothing(monkeypatch):
    monkeypatch.setattr(http2._Connection, "MAX_CLOSED_STREAMS", 50)

    async def run():
        peer = Peer()
        for stream in range(1, 301, 2):
            head = frame(Frame.HEADERS, END_HEADERS, stream, block())
            peer.send(head + frame(Frame.RST_STREAM, 0, stream, bytes(4)))
        connection = peer.connection
        assert not connection._streams
        assert len(connection._http.streams) <= 1
        assert len(connection._http._closed_streams) == 50
        peer.send(request(301, b"next"))
        assert peer.answers() == {301: (200, b"next")}

    asyncio.run(run())


@pytest.mark.parametrize(("count", "ends"), [(62, False), (63, False), (64, True), (2000, True)])
def test_a_header_block_that_never_ends(count, ends):
    """A flood of CONTINUATION frames (VU#421644): a block has 64 frames at most."""

    async def run():
        peer = Peer()
        peer.send(frame(Frame.HEADERS, END_STREAM, 1, block()))
        for _ in range(count - 1):
            peer.send(frame(Frame.CONTINUATION, 0, 1))
        peer.send(frame(Frame.CONTINUATION, END_HEADERS, 1))
        if ends:
            assert peer.ended() == Code.PROTOCOL_ERROR
        else:
            assert peer.answers() == {1: (200, b"")}

    asyncio.run(run())


@looped
def test_pings_and_settings_without_end_are_answered_only_while_answers_are_read():
    peer = Peer()
    peer.send(frame(Frame.PING, 0, 0, bytes(8)) * 1000 + frame(Frame.SETTINGS, 0, 0) * 1000)
    kinds = [kind for kind, *_ in peer.pipe.frames()]
    assert (kinds.count(Frame.PING), kinds.count(Frame.SETTINGS)) == (1000, 1000)
    peer.connection.pause_writing()
    assert not peer.pipe.reading


@looped
def test_a_peer_that_says_farewell_is_left():
    peer = Peer()
    peer.send(request(1, b"x") + frame(Frame.GOAWAY, 0, 0, bytes(8)))
    assert peer.pipe.closed
    peer.connection.close()
    peer.connection.connection_lost(None)
    assert peer.open == set()


def test_a_body_is_never_written_as_text(monkeypatch):
    """The library would, for its log, and take longer than for all else."""
    written = []
    monkeypatch.setattr("hyperframe.frame._raw_data_repr", lambda data: written.append(data) or "")

    async def run():
        peer = Peer()
        peer.send(request(1, b"x" * 50_000))
        assert not written
        DataFrame(1, b"x")._body_repr()
        assert written  # that is where it would be seen

    asyncio.run(run())


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (frame(Frame.HEADERS, END_HEADERS, 2, block()), Code.PROTOCOL_ERROR),
        (frame(Frame.DATA, 0, 1, b"x"), Code.PROTOCOL_ERROR),
        (frame(Frame.WINDOW_UPDATE, 0, 1, b"\0\0\0\1"), Code.PROTOCOL_ERROR),
        (frame(Frame.WINDOW_UPDATE, 0, 0, b"\x7f\xff\xff\xff"), Code.FLOW_CONTROL_ERROR),
        (frame(Frame.WINDOW_UPDATE, 0, 0, bytes(4)), Code.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, END_HEADERS, 1, b"\xff"), Code.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, END_HEADERS, 1, b"\x83"), Code.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, END_HEADERS, 1, block(b"/echo", b"\x83", b"\x00\x01A\x01b")),
         Code.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, END_HEADERS, 1, block(b"/echo", b"\x83", b"\x0f\x0d\x011"))
         + frame(Frame.DATA, END_STREAM, 1, b"xy"), Code.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, 0, 1, block()) + frame(Frame.PING, 0, 0, bytes(8)),
         Code.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, 0, 1, block()) + frame(Frame.CONTINUATION, 0, 3),
         Code.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, END_HEADERS, 1, bytes(LIST_BYTES)), Code.ENHANCE_YOUR_CALM),
        (frame(Frame.CONTINUATION, END_HEADERS, 1), Code.PROTOCOL_ERROR),
        (frame(Frame.HEADERS, END_HEADERS | PADDED, 1, b"\x05abc"), Code.PROTOCOL_ERROR),
        (frame(Frame.PUSH_PROMISE, 0, 1, bytes(8)), Code.PROTOCOL_ERROR),
        (frame(Frame.PING, 0, 0, bytes(7)), Code.FRAME_SIZE_ERROR),
        (frame(Frame.SETTINGS, 0, 0, bytes(5)), Code.FRAME_SIZE_ERROR),
        (frame(Frame.SETTINGS, 0, 0, struct.pack(">HI", 4, 1 << 31)), Code.FLOW_CONTROL_ERROR),
        (frame(Frame.SETTINGS, 0, 0, struct.pack(">HI", 5, 100)), Code.PROTOCOL_ERROR),
        (frame(0xEE, 0, 0, bytes(http2.FRAME_BYTES + 1)), Code.FRAME_SIZE_ERROR),
    ],
)  # fmt: skip
def test_what_breaks_the_protocol_ends_the_connection(raw, code):
    async def run():
        peer = Peer()
        peer.send(raw + request(1, b"never"))
        assert peer.ended() == code

    asyncio.run(run())


@pytest.mark.parametrize("trailing", [False, True])
@pytest.mark.parametrize("field", [b"\x00\x0aconnection\x05close", b"\x00\x05:path\x01/"])
def test_rules_are_kept_also_after_good_requests(field, trailing):
    async def run():
        peer = Peer()
        for stream in (1, 3, 5):
            peer.send(request(stream, b"good"))
        assert list(peer.answers()) == [1, 3, 5]
        more = b"" if trailing else field
        peer.send(frame(Frame.HEADERS, END_HEADERS, 7, block(b"/echo", b"\x83", more)))
        if trailing:
            peer.send(frame(Frame.HEADERS, END_HEADERS | END_STREAM, 7, field))
        assert peer.ended() == Code.PROTOCOL_ERROR

    asyncio.run(run())


@looped
def test_an_answer_is_understood_by_a_peer_that_makes_its_table_smaller_and_larger():
    peer = Peer()
    for stream, size in ((1, 4096), (3, 0), (5, 100), (7, 4096)):
        peer.send(frame(Frame.SETTINGS, 0, 0, struct.pack(">HI", 1, size)))
        peer.send(request(stream, b"x" * stream))
        assert peer.answers() == {stream: (200, b"x" * stream)}
        assert peer.pipe.fields[stream][b"content-length"] == b"%d" % stream


@looped
def test_what_does_not_begin_as_it_should():
    peer = Peer(greet=False)
    peer.send(b"GET / HTTP/1.1\r\nHost: e\r\n\r\n")
    assert peer.ended() == Code.PROTOCOL_ERROR


def test_data_after_the_end_ends_the_stream():
    async def run():
        async def slow(body):
            return Answer(body)

        peer = Peer(slow=slow)
        peer.send(request(1, b"", b"/slow"))
        peer.send(frame(Frame.DATA, END_STREAM, 1, b"more"))
        closed = (Frame.RST_STREAM, 0, 1, Code.STREAM_CLOSED.to_bytes(4, "big"))
        assert peer.pipe.frames() == [closed]
        await asyncio.gather(*peer.connection.tasks)  # its answer goes nowhere
        peer.send(request(3, b"next"))
        assert peer.answers() == {3: (200, b"next")}

    asyncio.run(run())


def test_the_connections_window_is_opened_again(monkeypatch):
    monkeypatch.setattr(http2, "_WINDOW", 80_000)

    async def run():
        peer = Peer()
        peer.send(request(1, b"x" * 39_999))
        assert Frame.WINDOW_UPDATE not in [kind for kind, *_ in peer.pipe.frames()]
        peer.send(request(3, b"yz"))
        opened = (Frame.WINDOW_UPDATE, 0, 0, (40_001).to_bytes(4, "big"))
        assert opened in peer.pipe.frames()

    asyncio.run(run())


def test_an_idle_connection_is_closed_and_one_at_work_is_not(monkeypatch):
    async def run():
        async def slow(body):
            await go.wait()
            return Answer(body)

        go, now = asyncio.Event(), [1000.0]
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: now[0])
        peer = Peer(slow=slow)
        peer.send(request(1, b"", b"/slow"))
        now[0] += IDLE_S + 1
        peer.connection._watch()
        assert not peer.pipe.closed
        go.set()
        await asyncio.gather(*peer.connection.tasks)
        assert peer.answers() == {1: (200, b"")}
        now[0] += IDLE_S - 1
        peer.connection._watch()
        assert not peer.pipe.closed
        now[0] += 2
        peer.connection._watch()
        assert peer.ended() == Code.NO_ERROR
        peer.connection.connection_lost(None)

    asyncio.run(run())


@looped
def test_who_reads_no_answers_is_read_no_more():
    peer = Peer()
    peer.connection.pause_writing()
    assert not peer.pipe.reading
    peer.connection.resume_writing()
    assert peer.pipe.reading


@pytest.fixture
def contexts(tmp_path):
    """The port's TLS context and the scheduler's."""
    found = make("test")
    files = {"ca": found.ca, "crt": found.extender.cert, "key": found.extender.key,
             "client": found.scheduler.cert + found.scheduler.key}  # fmt: skip
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    protocols = ("h2", "http/1.1")
    serving = server_context(tmp_path / "crt", tmp_path / "key", tmp_path / "ca", protocols)
    calling = ssl.create_default_context(cafile=str(tmp_path / "ca"))
    calling.load_cert_chain(tmp_path / "client")
    return serving, calling


def test_a_stop_answers_the_bind_that_is_under_way(contexts):
    tls, calling = contexts
    calling.set_alpn_protocols(["h2"])

    async def run():
        begun, go = asyncio.Event(), asyncio.Event()

        async def bind(args):
            begun.set()
            await go.wait()
            return f"bound {args.podname}"

        app = scheduler_app(
            State(DeviceConfig()), SimpleNamespace(bind=bind), lambda *_: True, [SCHEDULER_CN]
        )
        runner = await serve(app, "127.0.0.1", 0, tls)
        try:
            port = runner.addresses[0][1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=calling)
            args = {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "x"}
            body = json.dumps(args).encode()
            writer.write(PREFACE + frame(Frame.SETTINGS, 0, 0) + request(1, body, b"/bind"))
            await asyncio.wait_for(begun.wait(), 60)
            asyncio.get_running_loop().call_soon(go.set)
        finally:
            await runner.cleanup()
        raw = await asyncio.wait_for(reader.read(), 60)
        writer.close()
        return raw

    raw = asyncio.run(run())
    answered, leaves = raw.find(b"bound p"), raw.find(frame(Frame.GOAWAY, 0, 0, bytes(8))[:9])
    assert 0 < answered < leaves


@pytest.mark.parametrize("spoken", ["h2", "http/1.1", ""])
def test_tls_agrees_on_the_protocol(contexts, spoken):
    """The scheduler's certificate gets an answer over both; the metrics tell them apart."""
    tls, calling = contexts
    if spoken:
        calling.set_alpn_protocols([spoken])

    async def run():
        state = State(DeviceConfig())
        binder = SimpleNamespace(bind=None)
        app = scheduler_app(state, binder, lambda *_: True, [SCHEDULER_CN])
        runner = await serve(app, "127.0.0.1", 0, tls)
        try:
            port = runner.addresses[0][1]
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=calling)
            body = json.dumps({"Pod": {"metadata": {"uid": "u"}}, "NodeNames": ["n"]}).encode()
            if spoken == "h2":
                writer.write(PREFACE + frame(Frame.SETTINGS, 0, 0) + request(1, body, b"/filter"))
            else:
                head = f"POST /filter HTTP/1.1\r\nHost: e\r\nContent-Length: {len(body)}\r\n\r\n"
                writer.write(head.encode() + body)
            raw = b""
            while b"not read all nodes" not in raw:
                part = await asyncio.wait_for(reader.read(1 << 16), 60)
                assert part
                raw += part
            writer.close()
        finally:
            await runner.cleanup()
        return exposition(state, state.times, None)

    text = asyncio.run(run())
    assert f'connections_total{{protocol="{spoken or "http/1.1"}"}} 1' in text
