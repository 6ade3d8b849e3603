"""Locks, processes, files, logs and waiting: the host's side of a cluster."""

import dataclasses
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

from testbed.card.spec import CardSpec
from testbed.errors import ClusterError, InputError, WaitTimeout
from testbed.lab.cluster import lock
from testbed.lab.cluster.api import Unreachable
from testbed.lab.cluster.process import (
    ProcessCluster,
    files,
    launch,
    layout,
    logs,
    processes,
    watch,
)
from testbed.lab.cluster.process.identity import Identity
from testbed.lab.cluster.process.record import Record
from testbed.lab.cluster.protocol import ClusterSpec

DEADLINE_S = 120
MYSELF = Identity(uid=os.geteuid(), gid=os.getegid())


# --- lock ----------------------------------------------------------------------


def test_a_lock_excludes_and_leaves_nothing(tmp_path):
    path = tmp_path / "home" / ".x.lock"
    with lock.locked(path, "x"):
        assert lock.held(path)
        with (
            pytest.raises(ClusterError, match="held by another"),
            lock.locked(path, "x", deadline_s=0.2),
        ):
            pass
    assert not lock.held(path)
    assert list(path.parent.iterdir()) == []


def test_waiters_take_turns_though_the_file_goes_each_time(tmp_path):
    path, inside, seen = tmp_path / "lock", [], []

    def work():
        for _ in range(20):
            with lock.locked(path, "x", deadline_s=DEADLINE_S):
                inside.append(1)
                seen.append(len(inside))
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for each in threads:
        each.start()
    for each in threads:
        each.join(DEADLINE_S)
    assert seen == [1] * 40


def test_the_lock_of_a_killed_command_is_free(tmp_path):
    path = tmp_path / "lock"
    code = (
        "import sys, time; from pathlib import Path\n"
        "from testbed.lab.cluster import lock\n"
        "with lock.locked(Path(sys.argv[1]), 'x'):\n"
        "    print('held', flush=True); time.sleep(1000)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    with holder:
        try:
            assert holder.stdout.readline() == b"held\n"
            assert lock.held(path)
        finally:
            holder.kill()
    with lock.locked(path, "x", deadline_s=DEADLINE_S):
        pass
    assert not path.exists()


# --- processes -----------------------------------------------------------------


#: Of this session: another one on the machine has its own.
TOKENS = [f"TOKEN-{os.getpid()}-{number}" for number in range(3)]


def sleeper(*marks):
    code = "import signal; signal.pause()"
    return subprocess.Popen([sys.executable, "-c", code, *marks], start_new_session=True)


def test_processes_are_found_by_a_whole_argument():
    with sleeper(TOKENS[0]) as ours, sleeper(f"x{TOKENS[0]}") as other:
        try:
            assert [each.pid for each in processes.members(TOKENS[0])] == [ours.pid]
        finally:
            for each in (ours, other):
                os.killpg(each.pid, signal.SIGKILL)


def test_ended_processes_are_waited_for():
    with sleeper(TOKENS[1]) as ours:
        found = processes.members(TOKENS[1])
        try:
            assert processes.end(found, deadline_s=DEADLINE_S) == []
            assert processes.read(ours.pid) is None  # a zombie is no process
            assert processes.members(TOKENS[1]) == []
        finally:
            os.killpg(ours.pid, signal.SIGKILL)


def test_a_pid_that_is_another_s_by_now_is_left_alone():
    with sleeper(TOKENS[2]) as other:
        stale = processes.Process(other.pid, "1", ("x",))
        try:
            assert processes.end([stale], deadline_s=0.2) == []
            assert processes.read(other.pid) is not None
        finally:
            os.killpg(other.pid, signal.SIGKILL)


# --- files ---------------------------------------------------------------------


def test_folders_that_nobody_may_enter_are_removed(tmp_path):
    top = tmp_path / "top"
    (top / "work" / "work").mkdir(parents=True)
    (top / "work" / "work").chmod(0)
    (top / "link").symlink_to(tmp_path)
    files.remove(top, MYSELF)
    assert list(tmp_path.iterdir()) == []
    files.remove(top, MYSELF)  # gone already


def test_what_cannot_be_removed_is_said(tmp_path, monkeypatch):
    (tmp_path / "top").mkdir()
    monkeypatch.setattr(files.shutil, "rmtree", lambda *a, **k: None)
    with pytest.raises(ClusterError, match="rm -rf"):
        files.remove(tmp_path / "top", MYSELF)


def test_a_record_that_was_half_written_is_none(tmp_path):
    path = tmp_path / "cluster.json"
    assert Record.read(path) is None
    record = Record(
        name="x", token="t", stage="starting", port=1, nodes=1, cards=[[["a", 1]]],
        id_range=False, binaries="/b", runc="/r", uuids={"n": ["u"]},
    )  # fmt: skip
    record.write(path)
    assert Record.read(path) == record
    path.write_text(path.read_text()[:20])
    assert Record.read(path) is None
    path.write_text('{"other": 1}')
    assert Record.read(path) is None


def test_a_record_of_an_earlier_version_gives_every_node_its_cards(tmp_path):
    path = tmp_path / "cluster.json"
    record = Record(
        name="x", token="t", stage="up", port=1, nodes=2, cards=[[["a", 1], ["b", 3]]] * 2,
        id_range=False, binaries="/b", runc="/r",
    )  # fmt: skip
    record.write(path)
    assert Record.read(path) == record
    path.write_text(json.dumps({**json.loads(path.read_text()), "cards": [["a", 1], ["b", 3]]}))
    assert Record.read(path) == record


def test_a_cluster_tells_what_was_asked_for(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    cluster = ProcessCluster("x")
    assert cluster.spec() is None
    record = Record(
        name="x", token="t", stage="starting", port=7443, nodes=2,
        cards=[[["a", 1], ["b", 3]], [["c", 1]]], id_range=False, binaries="/b", runc="/r",
    )  # fmt: skip
    path = tmp_path / "vgpu-testbed/x/cluster.json"
    path.parent.mkdir(parents=True)
    record.write(path)
    lists = (
        (CardSpec(profile="a"), CardSpec(profile="b", count=3)),
        (CardSpec(profile="c"),),
    )
    assert cluster.spec() == ClusterSpec(nodes=2, each_node=lists, port=0)  # any port would do
    dataclasses.replace(record, asked_port=7443).write(path)
    asked = cluster.spec()
    assert asked is not None and asked.port == 7443


# --- launch --------------------------------------------------------------------


def test_a_busy_port_is_the_user_s_error():
    with launch.listener(0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=str(port)):
            launch.listener(port)


@pytest.mark.parametrize("port", [-1, 65536])
def test_an_impossible_port(port):
    with pytest.raises(InputError):
        launch.listener(port)


# --- logs ----------------------------------------------------------------------


def test_logs_hold_no_secret(tmp_path):
    token = b"eyJhbGciOiJFUzI1NiJ9.eyJzdWIiOiJ4IiwiYSI6MX0.c2lnbmF0dXJlLXNpZ25hdHVyZQ"
    key = b"-----BEGIN PRIVATE KEY-----\nMIGH\nAgEA\n-----END PRIVATE KEY-----"
    source, target = tmp_path / "logs", tmp_path / "copy"
    (source / "pods").mkdir(parents=True)
    (source / "a.log").write_bytes(b"before " + token + b" between\n" + key + b"\nafter\n")
    (source / "pods" / "b.log").write_bytes(b"Authorization: Bearer abcdefghijklmnop0123 end\n")
    (source / "link.log").symlink_to("/etc/hostname")
    logs.collect(source, target)
    assert (target / "a.log").read_bytes() == (b"before [redacted] between\n[redacted]\nafter\n")
    assert (target / "pods" / "b.log").read_bytes() == b"Authorization: Bearer [redacted] end\n"
    assert not (target / "link.log").exists()


def test_of_a_long_log_the_end_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(logs, "_LIMIT", 10)
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "a").write_bytes(b"0123456789abcde")
    logs.collect(tmp_path / "logs", tmp_path / "copy")
    assert (tmp_path / "copy" / "a").read_bytes() == b"56789abcde"


# --- watch ---------------------------------------------------------------------


class FakeApi:
    """An API server that becomes ready after some questions."""

    def __init__(self, after=0, serves=True):
        self.after, self.serves = after, serves

    def ready_nodes(self):
        self.after -= 1
        if self.after > 1:
            raise Unreachable("not yet")
        return {"vgpu-node-1": self.after <= 0}

    def serves_pods(self):
        return self.serves

    def version(self):
        return "v1.2.3"


@pytest.fixture
def folders(tmp_path):
    found = layout.Folders(tmp_path)
    for each in (found.status, found.logs):
        each.mkdir()
    return found


def report(folders, name="vgpu-node-1", stage="running", error="", **services):
    defaults = {"pid": 0, "starts": 1, "failures": 0, "exit": None, "done": False, "error": ""}
    document = {
        "stage": stage,
        "error": error,
        "services": {key: {**defaults, **value} for key, value in services.items()},
    }
    (folders.status / f"{name}.json").write_text(json.dumps(document))


def wait(folders, api, *, alive=True, told=None, deadline_s=DEADLINE_S):
    nodes = layout.nodes("vgpu", 1)
    tell = (told if told is not None else []).append
    return watch.until_ready(folders, api, nodes, lambda: alive, tell, deadline_s=deadline_s)


def test_ready_means_nodes_images_and_service_account(folders):
    report(folders, images={"done": True})
    told = []
    assert wait(folders, FakeApi(4), told=told) == "v1.2.3"
    assert told == ["API server", "vgpu-node-1"]


@pytest.mark.parametrize(("api", "what"), [(FakeApi(), "images"), (FakeApi(10**9), "API server")])
def test_what_is_missing_at_the_deadline_is_named(folders, api, what):
    with pytest.raises(WaitTimeout, match=what):
        wait(folders, api, deadline_s=0.1)


def test_the_service_account_is_waited_for(folders):
    report(folders, images={"done": True})
    with pytest.raises(WaitTimeout, match="service account"):
        wait(folders, FakeApi(serves=False), deadline_s=0.1)


def test_a_program_that_keeps_failing_ends_the_wait_with_its_words(folders):
    report(folders, kubelet={"failures": 9, "exit": 1})
    (folders.logs / "vgpu-node-1-kubelet.log").write_text("I fine\nE0101 no such thing\nI bye\n")
    with pytest.raises(ClusterError, match="kubelet ended with 1") as caught:
        wait(folders, FakeApi(10**9))
    assert "no such thing" in str(caught.value) and "fine" not in str(caught.value)


def test_a_program_that_failed_once_and_runs_now_is_no_failure(folders):
    report(folders, kubelet={"failures": 9, "exit": 1, "pid": 17}, images={"done": True})
    assert watch.failures(folders, 3) == []
    assert wait(folders, FakeApi()) == "v1.2.3"


def test_a_failed_set_up_ends_the_wait(folders):
    report(folders, name="outer", stage="failed", error="ip link add: Operation not permitted")
    with pytest.raises(ClusterError, match="not permitted"):
        wait(folders, FakeApi(10**9))


def test_processes_that_have_ended_end_the_wait(folders):
    (folders.logs / "launch.log").write_text("unshare: mount /proc failed\n")
    with pytest.raises(ClusterError, match="mount /proc failed"):
        wait(folders, FakeApi(10**9), alive=False)
