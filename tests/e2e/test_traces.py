"""The listing before and after sees what it is for: each kind of thing left is found."""

from __future__ import annotations

import contextlib
import os
import subprocess

import pytest

from . import traces
from .evidence import secrets_in
from .interruptions import wait_until_gone

NAME = "traces-of-a-test"

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes namespaces: needs root")


@pytest.fixture
def keeper():
    """Starts processes that end with the test."""
    with contextlib.ExitStack() as stack:

        def start(*command, **options):
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, **options)
            stack.callback(process.wait)
            stack.callback(process.kill)
            return process

        yield start


@pytest.fixture
def network(keeper):
    """A network of the test's own, in which it may leave things."""
    process = keeper("unshare", "--net", "sh", "-c", "echo; exec sleep 600", stdout=-1)
    with process.stdout as said:
        said.readline()
    return ("nsenter", "--net", "--target", str(process.pid), "--")


def left(tmp_path, network, leave):
    before = traces.listing(NAME, tmp_path, network=network)
    assert traces.difference(before, before) == ""
    leave()
    return traces.difference(before, traces.listing(NAME, tmp_path, network=network))


def test_a_file_is_seen(tmp_path, network):
    text = left(tmp_path, network, (tmp_path / "left").touch)
    assert text == f"files: left {tmp_path}/left"


def test_a_link_and_a_rule_are_seen(tmp_path, network):
    def leave():
        for command in ("ip link add left0 type bridge", "nft add table inet left"):
            subprocess.run([*network, *command.split()], check=True)

    text = left(tmp_path, network, leave)
    assert "links: left left0" in text and "nft: left table inet left" in text


def test_a_mount_is_seen(tmp_path, network):
    def leave():
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(tmp_path)], check=True)

    try:
        assert f"mounts: left tmpfs {tmp_path} tmpfs" in left(tmp_path, network, leave)
    finally:
        subprocess.run(["umount", str(tmp_path)], check=True)


def last_words(found):
    """Return the last argument of each process."""
    return [each.argv[-1] for each in found]


@pytest.mark.parametrize("how", ["ids", "folder", "environment"])
def test_a_process_is_seen(tmp_path, network, keeper, how):
    base = traces._ids(NAME).start

    def leave():
        if how == "ids":
            keeper("setpriv", "--reuid", str(base), "--clear-groups", "sh", "-c", "read x")
            keeper("setpriv", "--reuid", str(base), "--clear-groups", "sleep", "600")
        elif how == "folder":
            keeper("sleep", "600", cwd=tmp_path)
        else:
            keeper("sleep", "600", env={**os.environ, "HOME": str(tmp_path)})
        # Alone: the one that ends at once is a zombie by then, which is nobody left.
        wait_until_gone(
            lambda: last_words(traces.alive(NAME, tmp_path)) != ["600"], "it is not alone"
        )

    text = left(tmp_path, network, leave)
    assert text.startswith("processes: left ") and "600" in text


def test_a_namespace_that_somebody_else_holds_is_seen(tmp_path, keeper):
    own = keeper(
        *("unshare", "--net", "sh", "-c", "echo; exec sleep 600"),
        env={**os.environ, "HOME": str(tmp_path)},
        stdout=-1,
    )
    with own.stdout as said:
        said.readline()
    descriptor = os.open(f"/proc/{own.pid}/ns/net", os.O_RDONLY)
    other = keeper("sleep", "600", pass_fds=(descriptor,))
    os.close(descriptor)
    spaces = traces.spaces(NAME, tmp_path)
    own.kill()
    own.wait()
    [held] = traces.held(spaces)
    assert held.startswith(f"/proc/{other.pid}/fd/")
    other.kill()
    other.wait()
    assert traces.held(spaces) == []


@pytest.mark.parametrize(
    "text",
    [
        "-----BEGIN EC PRIVATE KEY-----",
        "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrOHMifQ.c2lnbmF0dXJl",
        "client-key-data: LS0t",
        "Authorization: Bearer abcdefghijklmnop1234",
        "LS0tLS1CRUdJTiBFQyBQUklWQVRFIEtFWS0tLS0t",
    ],
)
def test_a_secret_in_a_bundle_is_seen(tmp_path, text):
    (tmp_path / "pods").mkdir()
    (tmp_path / "pods/a.log").write_text("a line that is no secret\n")
    assert secrets_in(tmp_path) == []
    (tmp_path / "pods/b.log").write_text(f"some {text} more\n")
    assert len(secrets_in(tmp_path)) == 1
