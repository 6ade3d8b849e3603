"""The thin parts of the extender: follower, recorder, connection, server."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import ssl
import urllib.request

import pytest
import trustme
import yaml
from aiohttp import web
from aiohttp.test_utils import TestClient, TestServer

from testbed.errors import InputError
from testbed.stack.config import DeviceConfig
from testbed.stack.extender import follow
from testbed.stack.extender.api import AnswerLost, Api, ApiError, Unreachable
from testbed.stack.extender.binder import Binder
from testbed.stack.extender.connection import Connection, from_kubeconfig, in_cluster
from testbed.stack.extender.metrics import exposition
from testbed.stack.extender.recorder import CHANGE_S, REPEAT_S, Recorder
from testbed.stack.extender.server import common_names, observer_app, scheduler_app, serve
from testbed.stack.extender.state import State
from testbed.stack.model import PodKey
from testbed.stack.reload import Reloading
from testbed.stack.tls import expiry_lines, server_context

TestClient.__test__ = TestServer.__test__ = False


def item(name, version="1"):
    return {"metadata": {"name": name, "resourceVersion": version}}


class Script:
    """A source that plays lists and watches in order, then says that it is done."""

    def __init__(self, *steps):
        self.steps = list(steps)
        self.asked = []
        self.done = asyncio.Event()

    def next(self, kind):
        if not self.steps:
            self.done.set()
            return None
        found, value = self.steps.pop(0)
        assert found == kind, f"asked for {kind}, the script has {found}"
        return value

    async def list(self, path, take, item):
        self.asked.append("list")
        value = self.next("list")
        if isinstance(value, Exception):
            raise value
        if value is None:
            await asyncio.Event().wait()
        take(value[0])
        return value[1]

    async def watch(self, path, version):
        self.asked.append(f"watch {version}")
        value = self.next("watch")
        if value is None:
            await asyncio.Event().wait()
        for event in value:
            if isinstance(event, Exception):
                raise event
            yield event


def play(monkeypatch, *steps, holding=()):
    async def scene():
        script, log = Script(*steps), []
        held = dict.fromkeys(holding)

        def changed(found):
            held[found["metadata"]["name"]] = None
            log.append(f"+{found['metadata']['name']}")

        def gone(name):
            held.pop(name, None)
            log.append(f"-{name}")

        follower = follow.Follower(
            script,
            "/x",
            identify=lambda found: found["metadata"]["name"],
            held=lambda: held,
            changed=changed,
            gone=gone,
            synced=lambda: log.append("synced"),
        )
        task = asyncio.create_task(follower.run())
        async with asyncio.timeout(60):
            await script.done.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return log, script.asked

    monkeypatch.setattr(follow, "_FIRST_PAUSE_S", 0.001)
    return asyncio.run(scene())


def test_watch_goes_on_where_it_broke_off(monkeypatch):
    log, asked = play(
        monkeypatch,
        ("list", ([item("a")], "5")),
        ("watch", [{"type": "ADDED", "object": item("b", "6")}, AnswerLost("cut")]),
        ("watch", [{"type": "DELETED", "object": item("a", "7")}]),
        ("watch", [{"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": "9"}}}]),
    )
    assert log == ["+a", "synced", "+b", "-a"]
    assert asked == ["list", "watch 5", "watch 6", "watch 7", "watch 9"]


@pytest.mark.parametrize(
    "gone",
    [
        {"type": "ERROR", "object": {"code": 410, "message": "too old"}},
        ApiError("watch", 410, "too old"),
    ],
)
def test_expired_version_lists_anew_and_tells_what_went_missing(monkeypatch, gone):
    log, asked = play(
        monkeypatch,
        ("list", ([item("a"), item("b")], "5")),
        ("watch", [gone]),
        ("list", ([item("b"), item("c")], "8")),
    )
    assert log == ["+a", "+b", "synced", "+b", "+c", "-a", "synced"]
    assert asked == ["list", "watch 5", "list", "watch 8"]


def test_what_is_held_of_an_object_that_the_list_lacks_is_told_as_gone(monkeypatch):
    """Also where no event ever told of it."""
    log, _ = play(monkeypatch, ("list", ([item("a")], "5")), holding=("a", "promised"))
    assert log == ["+a", "-promised", "synced"]


def test_list_that_fails_is_tried_again(monkeypatch):
    log, _ = play(
        monkeypatch,
        ("list", Unreachable("no")),
        ("list", ApiError("list", 403, "no")),
        ("list", ([item("a")], "1")),
    )
    assert log == ["+a", "synced"]


def test_other_errors_of_a_watch_keep_the_version(monkeypatch):
    error = {"type": "ERROR", "object": {"code": 500, "message": "x"}}
    _, asked = play(monkeypatch, ("list", ([], "5")), ("watch", [error]))
    assert asked == ["list", "watch 5", "watch 5"]


# --- the API client against a small server ----------------------------------


async def with_server(handler, scene):
    app = web.Application(client_max_size=64 << 20)
    app.router.add_route("*", "/{tail:.*}", handler)
    server = TestServer(app)
    await server.start_server()
    api = Api(Connection(server=str(server.make_url("/")).rstrip("/"), tls=None))
    try:
        return await scene(api)
    finally:
        await api.close()
        await server.close()


def test_list_reads_all_pages():
    pages = {
        None: {"items": [1, 2], "metadata": {"continue": "x"}},
        "x": {"items": [3], "metadata": {"resourceVersion": "77"}},
    }

    async def handler(request):
        assert request.query["limit"]
        return web.json_response(pages[request.query.get("continue")])

    found = []
    scene = with_server(handler, lambda api: api.list("/p", found.append, int))
    assert asyncio.run(scene) == "77"
    assert found == [[1, 2], [3]]


def test_watch_reads_lines_of_any_length_and_in_any_pieces():
    events = [{"type": "ADDED", "object": {"x": "y" * 2_000_000}}, {"type": "DELETED"}]

    async def handler(request):
        response = web.StreamResponse()
        await response.prepare(request)
        raw = b"".join(json.dumps(event).encode() + b"\n" for event in events)
        for cut in range(0, len(raw), 300_001):
            await response.write(raw[cut : cut + 300_001])
        return response

    async def scene(api):
        return [event async for event in api.watch("/p", "1")]

    assert asyncio.run(with_server(handler, scene)) == events


@pytest.mark.parametrize(
    ("status", "error"), [(403, ApiError), (409, ApiError), (500, AnswerLost), (504, AnswerLost)]
)
def test_statuses_tell_refused_from_unknown(status, error):
    async def handler(request):
        return web.json_response({"message": "because"}, status=status)

    sent = {"metadata": {"namespace": "n", "name": "p"}}
    with pytest.raises(error, match="because"):
        asyncio.run(with_server(handler, lambda api: api.bind(sent)))


def test_connection_that_is_cut_is_an_answer_lost():
    async def handler(request):
        request.transport.close()
        return web.Response()

    with pytest.raises(AnswerLost):
        asyncio.run(with_server(handler, lambda api: api.read_pod("n", "p")))


def test_nobody_there_is_unreachable():
    async def scene():
        api = Api(Connection(server="http://127.0.0.1:1", tls=None))
        try:
            await api.read_pod("n", "p")
        finally:
            await api.close()

    with pytest.raises(Unreachable):
        asyncio.run(scene())


# --- recorder ----------------------------------------------------------------


class Events:
    """Keeps events by name, as the API server does; fails when told to."""

    def __init__(self):
        self.found, self.fault = {}, None
        self.calls = []

    async def create_event(self, namespace, event):
        self.calls.append("create")
        if self.fault:
            raise self.fault
        if event["metadata"]["name"] in self.found:
            raise ApiError("POST events", 409, "exists")
        self.found[event["metadata"]["name"]] = event

    async def patch_event(self, namespace, name, patch):
        self.calls.append("patch")
        if name not in self.found:
            raise ApiError("PATCH event", 404, "expired")
        self.found[name].update(patch)


def test_a_waiting_pod_has_one_event_with_the_newest_words():
    clock, events = [0.0], Events()
    pod = PodKey(namespace="ns", name="p", uid="u")

    async def scene():
        recorder = Recorder(events, lambda: clock[0])
        task = asyncio.create_task(recorder.run())

        async def says(calls):
            async with asyncio.timeout(60):
                while len(events.calls) < calls:
                    await asyncio.sleep(0)

        try:
            events.fault = ApiError("POST events", 403, "no")
            assert recorder.report(pod, "A", "one")
            await says(1)
            events.fault = None
            assert not recorder.report(pod, "A", "one")
            assert not recorder.report(pod, "A", "two")  # too soon
            clock[0] = CHANGE_S
            assert recorder.report(pod, "A", "x" * 5000)
            await says(3)  # its event was never there: a patch, then a new one
            clock[0] += CHANGE_S
            assert not recorder.report(pod, "A", "x" * 5000)
            clock[0] += REPEAT_S
            assert recorder.report(pod, "A", "x" * 5000)
            await says(4)
            # Another process of ours takes it up.
            successor = Recorder(events, lambda: clock[0])
            second = asyncio.create_task(successor.run())
            assert successor.report(pod, "A", "three")
            await says(6)
            second.cancel()
            await asyncio.gather(second, return_exceptions=True)
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(scene())
    (event,) = events.found.values()
    assert event["message"] == "three"
    assert event["involvedObject"]["uid"] == "u"
    assert event["count"] == 6
    assert events.calls == ["create", "patch", "create", "patch", "create", "patch"]


# --- connection ---------------------------------------------------------------


def kubeconfig(tmp_path, cluster=None, user=None):
    path = tmp_path / "config"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": cluster or {"server": "https://h:6443/"}}],
        "users": [{"name": "u", "user": user or {}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def test_kubeconfig_with_data_and_with_files(tmp_path):
    authority = trustme.CA()
    leaf = authority.issue_cert("x.test")
    pems = {
        "certificate-authority": authority.cert_pem.bytes(),
        "client-certificate": leaf.cert_chain_pems[0].bytes(),
        "client-key": leaf.private_key_pem.bytes(),
    }
    for name, pem in pems.items():
        (tmp_path / name).write_bytes(pem)
    in_files = {name: name for name in pems}  # relative to the kubeconfig
    in_data = {f"{name}-data": base64.b64encode(pem).decode() for name, pem in pems.items()}
    for source in (in_files, in_data):
        cluster = {"server": "https://h:6443/"} | {
            k: v for k, v in source.items() if k.startswith("certificate-a")
        }
        user = {k: v for k, v in source.items() if k.startswith("client")}
        found = from_kubeconfig(kubeconfig(tmp_path, cluster, user))
        assert found.server == "https://h:6443"
        assert len(found.tls.get_ca_certs()) == 1
        assert found.headers() == {}


def test_tokens(tmp_path):
    found = from_kubeconfig(kubeconfig(tmp_path, user={"token": "abc"}))
    assert found.headers() == {"Authorization": "Bearer abc"}
    (tmp_path / "t").write_text("one\n")
    found = from_kubeconfig(kubeconfig(tmp_path, user={"tokenFile": "t"}))
    assert found.headers() == {"Authorization": "Bearer one"}
    (tmp_path / "t").write_text("another\n")  # rotated
    assert found.headers() == {"Authorization": "Bearer another"}


@pytest.mark.parametrize(
    "user", [{"exec": {"command": "x"}}, {"client-certificate": "absent", "client-key": "absent"}]
)
def test_kubeconfig_that_cannot_be_used_is_refused(tmp_path, user):
    with pytest.raises(InputError, match="cannot be used"):
        from_kubeconfig(kubeconfig(tmp_path, user=user))
    with pytest.raises(InputError, match="cannot be used"):
        from_kubeconfig(tmp_path / "absent")
    (tmp_path / "bad").write_text("a: [")
    with pytest.raises(InputError, match="cannot be used"):
        from_kubeconfig(tmp_path / "bad")


def test_outside_a_pod_the_hint_names_the_option(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InputError, match="--kubeconfig"):
        in_cluster(tmp_path)


def test_in_a_pod(tmp_path, monkeypatch):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "token").write_text("t")
    trustme.CA().cert_pem.write_to_path(tmp_path / "ca.crt")
    found = in_cluster(tmp_path)
    assert found.server == "https://[fd00::1]:6443"
    assert found.headers() == {"Authorization": "Bearer t"}


# --- server --------------------------------------------------------------------


def test_ready_only_when_everything_is_read():
    state = State(DeviceConfig())

    async def scene():
        async with TestClient(TestServer(observer_app(state))) as client:
            seen = [(await client.get("/readyz")).status, (await client.get("/healthz")).status]
            state.nodes_synced = True
            seen.append((await client.get("/readyz")).status)
            state.pods_synced = True
            seen.append((await client.get("/readyz")).status)
            return seen

    assert asyncio.run(scene()) == [503, 200, 503, 200]


def test_metrics_come_in_pieces_and_whole(monkeypatch):
    monkeypatch.setattr("testbed.stack.extender.server._LINES", 3)
    state = State(DeviceConfig())

    async def scene():
        async with TestClient(TestServer(observer_app(state))) as client:
            answer = await client.get("/metrics")
            return answer.headers["Content-Type"], await answer.text()

    kind, text = asyncio.run(scene())
    assert kind == "text/plain; version=0.0.4; charset=utf-8"
    certificates = "".join(f"{line}\n" for line in expiry_lines("extender", {}))
    assert text == certificates + exposition(state, state.times, None)
    assert len(text.splitlines()) > 9


def test_a_fault_of_our_own_is_an_answer_not_a_silence(monkeypatch):
    state = State(DeviceConfig())
    binder = Binder(state, None, label=False, report=lambda *_: True)

    async def broken(args):
        raise RuntimeError("bug")

    monkeypatch.setattr(binder, "bind", broken)
    args = {"PodName": "p", "PodNamespace": "n", "PodUID": "u", "Node": "x"}

    async def scene():
        app = scheduler_app(state, binder, lambda *_: True, None)
        async with TestClient(TestServer(app)) as client:
            answer = await client.post("/bind", json=args)
            bad = await client.post("/bind", data=b"{")
            big = await client.post("/filter", data=io.BytesIO(b"x" * (17 << 20)))
            return answer.status, await answer.json(), bad.status, big.status

    status, body, bad, big = asyncio.run(scene())
    assert (status, bad, big) == (200, 400, 413)
    assert "internal error" in body["Error"]


def test_common_names():
    assert common_names({"subject": ((("organizationName", "o"),), (("commonName", "c"),))}) == [
        "c"
    ]
    assert common_names(None) == common_names({}) == []


def test_busy_port_is_an_input_error():
    async def scene():
        runner = await serve(web.Application(), "127.0.0.1", 0, None)
        try:
            await serve(web.Application(), "127.0.0.1", runner.addresses[0][1], None)
        finally:
            await runner.cleanup()

    with pytest.raises(InputError, match="cannot listen"):
        asyncio.run(scene())


# --- files that change ------------------------------------------------------------


def test_reloading_follows_the_file_and_survives_a_bad_one(tmp_path, caplog):
    path = tmp_path / "f"
    path.write_text("1")
    value = Reloading((path,), lambda: int(path.read_text()))
    assert value.get() == 1
    path.write_text("22")
    assert value.get() == 22
    path.write_text("three")
    assert value.get() == 22
    path.unlink()
    assert value.get() == 22
    path.write_text("4444")
    assert value.get() == 4444
    assert caplog.text.count("kept the old") == 2


def test_certificate_that_cannot_be_used_is_refused(tmp_path):
    with pytest.raises(InputError, match="cannot be used"):
        server_context(tmp_path / "absent", tmp_path / "absent")
    one, two = trustme.CA().issue_cert("a.test"), trustme.CA().issue_cert("b.test")
    one.cert_chain_pems[0].write_to_path(tmp_path / "crt")
    two.private_key_pem.write_to_path(tmp_path / "key")
    with pytest.raises(InputError, match="belong together"):
        server_context(tmp_path / "crt", tmp_path / "key")


def test_new_client_authority_is_demanded_without_a_restart(tmp_path):
    old, new = trustme.CA(), trustme.CA()
    serving = old.issue_cert("127.0.0.1")
    serving.cert_chain_pems[0].write_to_path(tmp_path / "crt")
    serving.private_key_pem.write_to_path(tmp_path / "key")
    old.cert_pem.write_to_path(tmp_path / "ca")
    clients = {}
    for name, authority in (("old", old), ("new", new)):
        clients[name] = tmp_path / name
        authority.issue_cert("c.test").private_key_and_cert_chain_pem.write_to_path(clients[name])
    state = State(DeviceConfig())

    def ask(port, name):
        context = ssl.create_default_context()
        old.configure_trust(context)
        context.load_cert_chain(clients[name])
        try:
            url = f"https://127.0.0.1:{port}/healthz"
            with urllib.request.urlopen(url, context=context, timeout=240) as answer:
                return answer.status
        except OSError:
            return None

    async def scene():
        tls = server_context(tmp_path / "crt", tmp_path / "key", tmp_path / "ca")
        runner = await serve(observer_app(state), "127.0.0.1", 0, tls)
        port = runner.addresses[0][1]
        try:
            seen = [await asyncio.to_thread(ask, port, name) for name in ("old", "new")]
            new.cert_pem.write_to_path(tmp_path / "ca")
            seen += [await asyncio.to_thread(ask, port, name) for name in ("old", "new")]
            return seen
        finally:
            await runner.cleanup()

    assert asyncio.run(scene()) == [200, None, None, 200]
