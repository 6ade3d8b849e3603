"""The raw client: statuses, preconditions, deadlines, watches that end."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from testbed.errors import InputError
from testbed.stack.kubeapi import ApiError, KubeApi
from testbed.stack.monitor.follow import follow_pods
from testbed.stack.monitor.pods import PodIndex

from .waiting import DEADLINE_S, eventually

MINE = {"fieldSelector": "spec.nodeName=n1"}


@pytest.fixture
def client(api: Any, tmp_path: Path) -> Iterator[KubeApi]:
    connected = KubeApi.connect(api.kubeconfig(tmp_path / "kubeconfig"))
    yield connected
    connected.close()


def test_unknown_fields_survive(client: KubeApi, api: Any, bound_pod: Any) -> None:
    pod = bound_pod("a", "")
    pod["spec"]["fieldOfTheFuture"] = {"x": [1]}
    api.put(pod)
    (item,) = client.get("/api/v1/pods", MINE)["items"]
    assert item["spec"]["fieldOfTheFuture"] == {"x": [1]}


def test_preconditions_and_what_the_server_says(client: KubeApi, api: Any, bound_pod: Any) -> None:
    pod = api.put(bound_pod("a", ""))
    path = "/api/v1/namespaces/ns/pods/a"
    version = pod["metadata"]["resourceVersion"]
    good = {"resourceVersion": version, "annotations": {"k": "v"}}
    assert client.patch(path, {"metadata": good})["metadata"]["annotations"]["k"] == "v"
    with pytest.raises(ApiError, match="resourceVersion differs") as caught:
        client.patch(path, {"metadata": good})
    assert caught.value.status == 409
    with pytest.raises(ApiError, match="pod b not found") as caught:
        client.patch("/api/v1/namespaces/ns/pods/b", {"metadata": {}})
    assert caught.value.status == 404


def waiting(server: socket.socket) -> int:
    """Return how many connected to a server that takes nobody in."""
    count = 0
    server.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while True:
            server.accept()[0].close()
            count += 1
    return count


def test_nobody_listens_and_nobody_answers(tmp_path: Path, api: Any) -> None:
    config = api.kubeconfig(tmp_path / "kubeconfig")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        text = config.read_text()
        here = text.split("http://127.0.0.1:")[1].split("\n")[0]
        config.write_text(text.replace(f":{here}", f":{port}"))
        client = KubeApi.connect(config)
        with pytest.raises(ApiError) as caught:
            client.get("/api/v1/pods", timeout_s=0.3)
        assert caught.value.status == 0
        assert waiting(silent) == 1, "no silent repetitions"
    with pytest.raises(ApiError) as caught:
        client.get("/api/v1/pods")
    assert caught.value.status == 0
    client.close()


class Dripping(threading.Thread):
    """Answers one call a byte at a time, for as long as the caller waits for it."""

    def __init__(self, head: bytes, drip: bytes) -> None:
        super().__init__(daemon=True)
        self.server = socket.create_server(("127.0.0.1", 0))
        self.head, self.drip = head, drip
        self.left = False  # the caller went away while it dripped

    def run(self) -> None:
        connection, _ = self.server.accept()
        end = time.monotonic() + DEADLINE_S
        with connection:
            connection.recv(1 << 16)
            connection.sendall(self.head)
            while time.monotonic() < end:
                try:
                    connection.sendall(self.drip)
                except OSError:
                    self.left = True
                    return
                time.sleep(0.02)


@pytest.mark.parametrize(
    ("head", "drip"),
    [
        (b"HTTP/1.1 200 OK\r\nX: ", b"x"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n", b" "),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        (b"HTTP/1.1 500 No\r\nContent-Length: 100000\r\n\r\n", b" "),
    ],
    ids=["head", "body", "chunks", "refusal"],
)
def test_a_server_that_drips_does_not_hold_a_call(
    tmp_path: Path, api: Any, head: bytes, drip: bytes
) -> None:
    # Each read gets something in time: only the call as a whole does not.
    config = api.kubeconfig(tmp_path / "kubeconfig")
    text = config.read_text()
    here = text.split("http://127.0.0.1:")[1].split("\n")[0]
    server = Dripping(head, drip)
    with server.server:
        config.write_text(text.replace(f":{here}", f":{server.server.getsockname()[1]}"))
        server.start()
        client = KubeApi.connect(config)
        with pytest.raises(ApiError):
            client.get("/api/v1/pods", timeout_s=0.5)
        client.close()
        server.join(2 * DEADLINE_S)
    assert server.left, "the caller waited until the server had enough of it"


def test_neither_pod_nor_kubeconfig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    for path in (None, tmp_path / "missing"):
        with pytest.raises(InputError, match="cannot be found"):
            KubeApi.connect(path)


def test_watch(client: KubeApi, api: Any, bound_pod: Any) -> None:
    version = client.get("/api/v1/pods", MINE)["metadata"]["resourceVersion"]
    events = client.watch("/api/v1/pods", {**MINE, "resourceVersion": version})
    pod = api.put(bound_pod("a", ""))
    kind, item = next(events)
    assert (kind, item["metadata"]["name"]) == ("ADDED", "a")
    api.delete(pod["metadata"]["uid"])
    assert next(events)[0] == "DELETED"
    api.oldest = api.version + 10
    api.put(bound_pod("b", ""))
    with pytest.raises(ApiError, match="too old") as caught:
        next(events)
    assert caught.value.status == 410


def test_following_lists_again_where_history_is_lost(
    client: KubeApi, api: Any, bound_pod: Any
) -> None:
    api.put(bound_pod("old", ""))
    pods, stop = PodIndex(keep_s=60), threading.Event()
    thread = threading.Thread(target=follow_pods, args=(client, "n1", pods, stop), daemon=True)
    thread.start()

    def present() -> list[str]:
        return [pod.key.name for pod in pods.alive()]

    eventually(lambda: present() == ["old"], "the list")
    with api.changed:  # what happens now, a watch does not tell
        api.oldest = api.version + 3
        api.delete(next(iter(api.pods)))
        api.put(bound_pod("new", ""))
        api.put(bound_pod("newer", ""))
    eventually(lambda: present() == ["new", "newer"], "the second list")
    stop.set()
    api.close()
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
