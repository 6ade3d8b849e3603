"""The programs that run in the namespaces, as the plain programs that they are."""

import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

from testbed.lab.cluster.process import inside
from testbed.lab.cluster.process.inside import init

PROGRAMS = Path(inside.__file__).parent
DEADLINE_S = 120


def until(condition, deadline_s=DEADLINE_S):
    end = time.monotonic() + deadline_s
    while not (found := condition()):
        assert time.monotonic() < end, "the condition did not come true"
        time.sleep(0.01)
    return found


def test_they_import_the_standard_library_only():
    for path in PROGRAMS.glob("*.py"):
        words = [line.split() for line in path.read_text().splitlines()]
        imported = {w[1].partition(".")[0] for w in words if w and w[0] in ("import", "from")}
        assert imported <= {*sys.stdlib_module_names}, path


# --- pid 1 ---------------------------------------------------------------------


@contextmanager
def pid1(tmp_path, services=(), setup=()):
    """Run init.py as pid 1 of namespaces of its own, in which a host's name may be set."""
    status, plan = tmp_path / "status.json", tmp_path / "plan.json"
    document = {
        "status": str(status),
        "hostname": "test",
        "environment": {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
        "setup": list(setup),
        "services": [{"log": str(tmp_path / f"{each['name']}.log"), **each} for each in services],
    }
    plan.write_text(json.dumps(document))
    names = ["--user", "--map-root-user", "--uts", "--pid", "--mount", "--mount-proc"]
    argv = ["unshare", *names, "--fork", "--kill-child", "/usr/bin/python3", "-IS"]
    process = subprocess.Popen(
        [*argv, str(PROGRAMS / "init.py"), "--cluster", "token", str(plan)],
        stderr=subprocess.PIPE,
        text=True,
    )

    def report():
        try:
            return json.loads(status.read_text())
        except (OSError, ValueError):
            return None

    def child():
        pids = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return int(pids[0]) if pids else None

    try:
        yield process, report, lambda: until(child)
    finally:
        process.kill()
        process.communicate()


def running(report, name):
    found = report()
    return found and found["services"][name]["pid"] and found["services"][name]


def test_a_service_that_ends_is_started_again(tmp_path):
    service = {"name": "short", "argv": ["sh", "-c", "echo ran; exit 3"]}
    with pid1(tmp_path, [service]) as (_, report, _):
        until(lambda: (tmp_path / "short.log").exists())
        until(lambda: (tmp_path / "short.log").read_text().count("ran") >= 2)
        found = until(lambda: (r := report()) and r["services"]["short"]["failures"] >= 2 and r)
        assert found["services"]["short"]["exit"] == 3
        assert found["stage"] == "running"


def test_a_killed_service_comes_back(tmp_path):
    service = {"name": "long", "argv": ["sleep", "1000"]}
    with pid1(tmp_path, [service]) as (_, report, child):
        until(lambda: running(report, "long"))
        pids = Path(f"/proc/{child()}/task/{child()}/children")
        (victim,) = until(lambda: pids.read_text().split())
        os.kill(int(victim), signal.SIGKILL)
        found = until(lambda: (s := running(report, "long")) and s["starts"] == 2 and s)
        assert found["exit"] == -signal.SIGKILL


def test_what_runs_once_runs_until_it_worked(tmp_path):
    flag = tmp_path / "flag"
    service = {
        "name": "once",
        "once": True,
        "argv": ["sh", "-c", f"test -e {flag} || {{ touch {flag}; exit 1; }}"],
    }
    with pid1(tmp_path, [service]) as (_, report, _):
        found = until(lambda: (r := report()) and r["services"]["once"]["done"] and r)
        assert found["services"]["once"]["starts"] == 2
        assert found["services"]["once"]["exit"] == 0


def test_a_service_waits_for_its_conditions(tmp_path):
    flag = tmp_path / "flag"
    late = {"name": "late", "argv": ["sleep", "1000"], "wait": [f"file:{flag}"]}
    soon = {"name": "soon", "argv": ["sleep", "1000"]}
    with pid1(tmp_path, [late, soon]) as (_, report, _):
        until(lambda: running(report, "soon"))
        assert report()["services"]["late"]["starts"] == 0
        flag.touch()
        until(lambda: running(report, "late"))


def test_steps_before_each_start(tmp_path):
    mark = tmp_path / "mark"
    service = {
        "name": "each",
        "argv": ["false"],
        "before": [
            {"run": ["false"], "otherwise": []},
            {"run": ["sh", "-c", f"echo x >> {mark}"], "otherwise": None},
        ],
    }
    with pid1(tmp_path, [service]):
        until(lambda: mark.exists() and mark.read_text().count("x") >= 2)


def test_a_program_that_is_missing_is_named(tmp_path):
    service = {"name": "gone", "argv": ["/no/such/program"]}
    with pid1(tmp_path, [service]) as (_, report, _):
        found = until(lambda: (r := report()) and r["services"]["gone"]["failures"] and r)
        assert "/no/such/program" in found["services"]["gone"]["error"]


def test_a_failed_step_ends_it_with_the_reason(tmp_path):
    setup = [
        {"run": ["sh", "-c", "exit 1"], "otherwise": []},
        {"run": ["sh", "-c", "exit 1"], "otherwise": ["true"]},
        {"run": ["sh", "-c", "echo the reason >&2; exit 1"], "otherwise": None},
    ]
    with pid1(tmp_path, setup=setup) as (process, report, _):
        assert process.wait(DEADLINE_S) == 1
        assert report()["stage"] == "failed"
        assert "the reason" in report()["error"]


def test_orphans_are_reaped(tmp_path):
    # The grandchild outlives its parent and falls to pid 1, which must take its end.
    service = {
        "name": "parent",
        "once": True,
        "argv": ["sh", "-c", "(sleep 0.2; echo over) & exit 0"],
    }
    with pid1(tmp_path, [service]) as (_, report, child):
        log = tmp_path / "parent.log"
        until(lambda: log.exists() and "over" in log.read_text())
        until(lambda: report()["services"]["parent"]["done"])
        until(lambda: not Path(f"/proc/{child()}/task/{child()}/children").read_text().split())


def test_sigterm_from_outside_ends_everything(tmp_path):
    service = {"name": "long", "argv": ["sleep", "1000"]}
    with pid1(tmp_path, [service]) as (process, report, child):
        until(lambda: running(report, "long"))
        os.kill(child(), signal.SIGTERM)
        assert process.wait(DEADLINE_S) == 0
        assert report()["stage"] == "stopping"


def test_a_condition_on_a_socket(tmp_path):
    path = str(tmp_path / "s")
    assert not init.holds(f"socket:{path}")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        assert not init.holds(f"socket:{path}")  # there, but nobody accepts
        server.listen()
        assert init.holds(f"socket:{path}")
    assert not init.holds(f"socket:{path}")


def test_a_condition_on_a_server_that_is_not_there(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    assert not init.holds(f"https:127.0.0.1:{port}:{tmp_path}/none.crt")


# --- relay ---------------------------------------------------------------------


@contextmanager
def relay(target):
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        fd = listening.fileno()
        host, port = target
        process = subprocess.Popen(
            ["/usr/bin/python3", "-IS", str(PROGRAMS / "relay.py"), str(fd), host, str(port)],
            pass_fds=(fd,),
        )
        try:
            yield listening.getsockname()
        finally:
            process.kill()
            process.wait()


def echo_until_end(server):
    """Answer one connection with all that it sent, once it has ended its side."""
    connection, _ = server.accept()
    with connection:
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
        connection.sendall(b"".join(parts))


def test_the_relay_copies_both_ways_and_hands_on_the_end():
    content = os.urandom(8 << 20)
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=echo_until_end, args=(server,))
        thread.start()
        try:
            with (
                relay(server.getsockname()) as address,
                socket.create_connection(address, DEADLINE_S) as client,
            ):
                client.sendall(content)
                client.shutdown(socket.SHUT_WR)
                back = bytearray()
                while part := client.recv(1 << 16):
                    back += part
        finally:
            thread.join(DEADLINE_S)
    assert bytes(back) == content


def test_the_relay_ends_a_connection_that_nobody_takes():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # bound, so that nobody else takes it; not listening
        with (
            relay(free.getsockname()) as address,
            socket.create_connection(address, DEADLINE_S) as client,
        ):
            assert client.recv(1) == b""


def test_one_slow_reader_does_not_stop_the_others():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        relay(server.getsockname()) as address,
        socket.create_connection(address, DEADLINE_S) as slow,
    ):
        first, _ = server.accept()
        with first:
            first.setblocking(False)
            # Fill every buffer between here and the client that does not read.
            while select.select([], [first], [], 0.3)[1]:
                first.send(b"x" * (1 << 16))
            with socket.create_connection(address, DEADLINE_S) as quick:
                second, _ = server.accept()
                with second:
                    second.sendall(b"hello")
                    assert quick.recv(5) == b"hello"
            assert slow.recv(1) == b"x"
