"""The client against a server of our own: what is sent, and what an answer becomes.

What a real API server says is in tests/component.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from testbed.errors import ClusterError, MissingTool, WaitTimeout
from testbed.lab import kubectl as kubectl_module
from testbed.lab.kube import ApiError, Event, Kube, Unreachable

RESOURCES = {
    "/api/v1": [
        {"name": "pods", "kind": "Pod", "namespaced": True},
        {"name": "pods/log", "kind": "Pod", "namespaced": True},
        {"name": "nodes", "kind": "Node", "namespaced": False},
        {"name": "namespaces", "kind": "Namespace", "namespaced": False},
    ]
}

Reply = tuple[int, object]


class Api:
    """Answers from a table and keeps what was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], object, str]] = []
        self.replies: dict[tuple[str, str], list[Reply] | Callable[[dict[str, str]], Reply]] = {}
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                url = urlsplit(self.path)
                query = {k: v[0] for k, v in parse_qs(url.query).items()}
                body: object = None
                if length := int(self.headers.get("Content-Length") or 0):
                    body = json.loads(self.rfile.read(length))
                status, answer = api.answer(
                    self.command, url.path, query, body, self.headers.get("Content-Type", "")
                )
                if answer is None:  # a server that hangs up
                    self.close_connection = True
                    return
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = do_PATCH = do_DELETE = handle_any

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def answer(
        self, method: str, path: str, query: dict[str, str], body: object, kind: str
    ) -> Reply:
        if path in RESOURCES:
            return 200, {"kind": "APIResourceList", "resources": RESOURCES[path]}
        self.asked.append((method, path, query, body, kind))
        found = self.replies.get((method, path))
        if callable(found):
            return found(query)
        if found:
            return found.pop(0) if len(found) > 1 else found[0]
        return 404, {"kind": "Status", "reason": "NotFound", "message": f"{path} not found"}

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def api() -> Iterator[Api]:
    found = Api()
    try:
        yield found
    finally:
        found.stop()


def write_kubeconfig(folder: Path, server: str) -> Path:
    path = folder / "kubeconfig"
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "t",
        "contexts": [{"name": "t", "context": {"cluster": "t", "user": "t"}}],
        "clusters": [{"name": "t", "cluster": {"server": server}}],
        "users": [{"name": "t", "user": {"token": "secret"}}],
    }
    path.write_text(json.dumps(config))
    return path


@pytest.fixture
def kube(api: Api, tmp_path: Path) -> Iterator[Kube]:
    server = f"http://127.0.0.1:{api.server.server_address[1]}"
    with Kube(write_kubeconfig(tmp_path, server)) as found:
        yield found


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "namespace": "n"},
    "spec": {"containers": [], "of-the-future": True},
}


def test_apply_is_a_strict_forced_server_side_apply(api: Api, kube: Kube) -> None:
    api.replies[("PATCH", "/api/v1/namespaces/n/pods/p")] = [(200, POD)]
    assert kube.apply([POD], dry_run=True) == [POD]  # unknown fields survive both ways
    ((_, _, query, body, kind),) = api.asked
    assert body == POD and kind == "application/apply-patch+yaml"
    assert query == {
        "force": "true",
        "fieldManager": "vgpu-testbed",
        "fieldValidation": "Strict",
        "dryRun": "All",
    }


@pytest.mark.parametrize(
    ("strategy", "kind"),
    [
        ("merge", "application/merge-patch+json"),
        ("strategic", "application/strategic-merge-patch+json"),
        ("json", "application/json-patch+json"),
    ],
)
def test_patch_says_its_kind(api: Api, kube: Kube, strategy: str, kind: str) -> None:
    api.replies[("PATCH", "/api/v1/nodes/n1/status")] = [(200, {"kind": "Node"})]
    body = [{"op": "remove", "path": "/x"}] if strategy == "json" else {"x": None}
    kube.patch("v1", "Node", "n1", body, strategy=strategy, subresource="status")
    assert api.asked[0][3:] == (body, kind)


def test_list_joins_pages_and_says_the_kind(api: Api, kube: Kube) -> None:
    pages = {
        "": {"items": [{"metadata": {"name": "a"}}], "metadata": {"continue": "c1"}},
        "c1": {"items": None, "metadata": {"continue": "c2"}},
        "c2": {"items": [{"metadata": {"name": "b"}}], "metadata": {}},
    }
    api.replies[("GET", "/api/v1/pods")] = lambda query: (200, pages[query.get("continue", "")])
    found = kube.list("v1", "Pod", labels="a=b", fields="spec.nodeName=n1")
    assert [(o["kind"], o["metadata"]["name"]) for o in found] == [("Pod", "a"), ("Pod", "b")]
    assert all(
        (asked[2]["labelSelector"], asked[2]["fieldSelector"]) == ("a=b", "spec.nodeName=n1")
        for asked in api.asked
    )


def test_errors_carry_the_servers_words(api: Api, kube: Kube) -> None:
    api.replies[("POST", "/api/v1/namespaces/n/pods")] = [
        (403, {"kind": "Status", "reason": "Forbidden", "message": "exceeded quota: q"})
    ]
    with pytest.raises(ApiError) as caught:
        kube.create(POD)
    assert (caught.value.status, caught.value.reason) == (403, "Forbidden")
    assert caught.value.text() == "Pod n/p cannot be created: exceeded quota: q"


def test_error_that_is_no_status_is_told_as_it_is(api: Api, kube: Kube) -> None:
    api.replies[("GET", "/readyz")] = [(503, b"[-]etcd failed\n")]
    with pytest.raises(ApiError, match="etcd failed"):
        kube.raw("/readyz")
    api.replies[("GET", "/version")] = [(200, b"<html>")]
    with pytest.raises(ClusterError, match="not JSON"):
        kube.version()


def test_missing_is_none_or_false_or_an_error(api: Api, kube: Kube) -> None:
    assert kube.find("v1", "Pod", "x", "n") is None
    assert kube.delete("v1", "Pod", "x", "n") is False
    with pytest.raises(ApiError, match="not found"):
        kube.get("v1", "Pod", "x", "n")


def test_find_passes_other_errors(api: Api, kube: Kube) -> None:
    api.replies[("GET", "/api/v1/namespaces/n/pods/x")] = [(403, b"no")]
    with pytest.raises(ApiError):
        kube.find("v1", "Pod", "x", "n")


def test_delete_in_the_background_with_grace(api: Api, kube: Kube) -> None:
    api.replies[("DELETE", "/api/v1/namespaces/n/pods/p")] = [(200, POD)]
    assert kube.delete("v1", "Pod", "p", "n", grace_s=0) is True
    body = api.asked[0][3]
    assert isinstance(body, dict)
    assert (body["gracePeriodSeconds"], body["propagationPolicy"]) == (0, "Background")


def test_a_read_is_tried_once_more_a_write_never(api: Api, kube: Kube) -> None:
    api.replies[("GET", "/api/v1/namespaces/n/pods/p")] = [(0, None), (200, POD)]
    assert kube.get("v1", "Pod", "p", "n") == POD
    api.replies[("POST", "/api/v1/namespaces/n/pods")] = [(0, None), (200, POD)]
    with pytest.raises(Unreachable):
        kube.create(POD)
    assert [asked[0] for asked in api.asked].count("POST") == 1


def test_pod_proxy_names_scheme_and_port(api: Api, kube: Kube) -> None:
    path = "/api/v1/namespaces/n/pods/http:p:9394/proxy/v1/cards"
    api.replies[("GET", path)] = [(200, b"raw")]
    assert kube.pod_proxy("n", "p", 9394, "/v1/cards", {"since": "1.5"}) == b"raw"
    assert api.asked[0][2] == {"since": "1.5"}


def test_logs(api: Api, kube: Kube) -> None:
    api.replies[("GET", "/api/v1/namespaces/n/pods/p/log")] = [(200, b"caf\xc3\xa9 \xff")]
    assert kube.logs("n", "p", "c", tail=5, previous=True) == "café �"
    assert api.asked[0][2] == {"container": "c", "tailLines": "5", "previous": "true"}


def test_watch_lists_again_after_gone(api: Api, kube: Kube) -> None:
    def pod(name: str, version: str) -> dict[str, object]:
        return {"metadata": {"name": name, "uid": name, "resourceVersion": version}}

    lists = [
        {"items": [pod("a", "1"), pod("b", "1")], "metadata": {"resourceVersion": "1"}},
        {"items": [pod("a", "9")], "metadata": {"resourceVersion": "9"}},
    ]
    streams = [
        [
            {"type": "MODIFIED", "object": pod("a", "2")},
            {"type": "ERROR", "object": {"kind": "Status", "code": 410}},
        ],
        [{"type": "DELETED", "object": pod("a", "10")}],
    ]

    def reply(query: dict[str, str]) -> Reply:
        if query.get("watch"):
            return 200, b"".join(json.dumps(e).encode() + b"\n" for e in streams.pop(0))
        return 200, lists.pop(0)

    api.replies[("GET", "/api/v1/namespaces/n/pods")] = reply
    seen: list[tuple[str, str]] = []
    for event in kube.watch("v1", "Pod", "n", timeout_s=60):
        seen.append((event.kind, event.object["metadata"]["name"]))
        if len(seen) == 6:
            break
    assert seen == [
        ("ADDED", "a"),
        ("ADDED", "b"),
        ("MODIFIED", "a"),
        ("DELETED", "b"),  # went away while nobody watched
        ("ADDED", "a"),
        ("DELETED", "a"),
    ]
    assert [a[2].get("resourceVersion") for a in api.asked if a[2].get("watch")] == ["1", "9"]
    assert Event(kind="X", object={}).kind == "X"


def test_namespace_is_demanded_or_refused(kube: Kube) -> None:
    with pytest.raises(ClusterError, match="needs a namespace"):
        kube.create({**POD, "metadata": {"name": "p"}})
    with pytest.raises(ClusterError, match="belongs to no namespace"):
        kube.get("v1", "Node", "n1", "n")
    with pytest.raises(ClusterError, match="no kind Nonsense"):
        kube.list("v1", "Nonsense")


# --- kubeconfig ----------------------------------------------------------------
@pytest.mark.parametrize("content", [None, "", "][", "apiVersion: v1\nkind: Config\n"])
def test_bad_kubeconfig_is_one_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "kubeconfig"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ClusterError, match="cannot be used"):
        Kube(path)


def test_unknown_context_is_one_error(tmp_path: Path) -> None:
    path = write_kubeconfig(tmp_path, "http://127.0.0.1:1")
    with pytest.raises(ClusterError, match="no-such"):
        Kube(path, context="no-such")


def test_loopback_never_goes_through_a_proxy(
    api: Api, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    api.replies[("GET", "/version")] = [(200, {"gitVersion": "v1.37.2"})]
    path = write_kubeconfig(tmp_path, f"http://127.0.0.1:{api.server.server_address[1]}")
    with Kube(path) as kube:
        assert kube.version() == "v1.37.2"


def test_kubeconfig_is_left_as_it_is(api: Api, kube: Kube) -> None:
    before = kube.kubeconfig.read_bytes()
    kube.find("v1", "Pod", "x", "n")
    assert kube.kubeconfig.read_bytes() == before


# --- exec ----------------------------------------------------------------------
def kubectl(folder: Path, script: str) -> Path:
    path = folder / "kubectl"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_exec_returns_rc_and_both_streams(tmp_path: Path) -> None:
    config = write_kubeconfig(tmp_path, "http://127.0.0.1:1")
    tool = kubectl(tmp_path, 'echo "$@"; cat; echo oops >&2; exit 5')
    with Kube(config, context="t", kubectl=tool) as kube:
        done = kube.exec("n", "p", ["sh", "-c", "x y"], container="c", stdin="in")
    assert (done.rc, done.stderr) == (5, "oops\n")
    assert done.stdout == (
        f"--kubeconfig {config} --context t exec -n n p -c c -i -- sh -c x y\nin"
    )


def test_exec_leaves_no_cache_behind(tmp_path: Path) -> None:
    tool = kubectl(tmp_path, 'touch "$KUBECACHEDIR/discovery"; echo "$KUBECACHEDIR"')
    with Kube(write_kubeconfig(tmp_path, "http://127.0.0.1:1"), kubectl=tool) as kube:
        done = kube.exec("n", "p", ["true"])
    assert done.rc == 0
    assert not Path(done.stdout.strip()).exists()


def test_kubectl_is_told_to_who_needs_it(tmp_path: Path) -> None:
    tool = kubectl(tmp_path, "exit 0")
    with Kube(write_kubeconfig(tmp_path, "http://127.0.0.1:1"), kubectl=tool) as kube:
        assert kube.kubectl_path() == tool


def test_exec_ends_at_its_deadline(tmp_path: Path) -> None:
    config = write_kubeconfig(tmp_path, "http://127.0.0.1:1")
    # exec: the shell itself must become what is killed.
    tool = kubectl(tmp_path, "echo stuck >&2; exec sleep 600")
    for timeout_s in (0.3, 3.0, 30.0):  # on a busy machine it may have to begin first
        with Kube(config, kubectl=tool) as kube, pytest.raises(WaitTimeout) as caught:
            kube.exec("n", "p", ["true"], timeout_s=timeout_s)
        if "stuck" in caught.value.text():
            break
    assert "stuck" in caught.value.text()


def test_exec_without_kubectl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubectl_module.shutil, "which", lambda _: None)
    with (
        Kube(write_kubeconfig(tmp_path, "http://127.0.0.1:1")) as kube,
        pytest.raises(MissingTool, match="kubectl"),
    ):
        kube.exec("n", "p", ["true"])
    with (
        Kube(write_kubeconfig(tmp_path, "http://x"), kubectl=tmp_path / "none") as kube,
        pytest.raises(MissingTool, match="does not exist"),
    ):
        kube.exec("n", "p", ["true"])
