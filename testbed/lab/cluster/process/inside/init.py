"""Pid 1 of the outer and of each node's namespaces: set up, supervise, reap.

    init.py --cluster TOKEN PLAN.json [--listen-fd N]

The plan is made on the host (``plan.py``):

    {"status": path, "hostname": name, "environment": {...},
     "setup": [step...],
     "services": [{"name", "argv", "log", "wait": [condition...], "before": [step...],
                   "once": bool, "listen": bool}]}

A step is {"run": argv, "otherwise": argv or null}: what runs when the first fails
(an empty list: nothing, the failure is fine). Conditions are ``socket:PATH`` (somebody
accepts there), ``file:PATH`` and ``https:HOST:PORT:CA`` (``/readyz`` says ok).

What ends is started again, with growing pauses. SIGTERM ends everything. Any other
end of this process ends everything too: the kernel kills the rest of its namespace.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Document = dict[str, Any]

TICK_S = 0.03  # while something waits for a condition
IDLE_S = 5.0
STOP_S = 3.0
PAUSE_S = (0.2, 0.5, 1.0, 2.0, 5.0)  # before the n-th restart
STEADY_S = 30.0  # a service that ran so long has earned a short pause again


class Service:
    """One program, its conditions and its history."""

    def __init__(self, plan: Document) -> None:
        self.name: str = plan["name"]
        self.argv: list[str] = plan["argv"]
        self.log: str = plan["log"]
        self.wait: list[str] = plan.get("wait", [])
        self.before: list[Document] = plan.get("before", [])
        self.once: bool = plan.get("once", False)
        self.listen: bool = plan.get("listen", False)
        self.pid = 0
        self.starts = 0
        self.failures = 0
        self.code: int | None = None
        self.started = 0.0
        self.not_before = 0.0
        self.error = ""

    @property
    def done(self) -> bool:
        return self.once and self.code == 0

    def ended(self, code: int, now: float) -> None:
        self.pid, self.code = 0, code
        if self.once and code == 0:
            return
        self.failures = 1 if now - self.started > STEADY_S else self.failures + 1
        self.not_before = now + PAUSE_S[min(self.failures, len(PAUSE_S)) - 1]

    def view(self) -> Document:
        return {
            "pid": self.pid,
            "starts": self.starts,
            "failures": self.failures,
            "exit": self.code,
            "done": self.done,
            "error": self.error,
        }


class Init:
    """The supervisor of one namespace."""

    def __init__(self, plan: Document, listen_fd: int | None) -> None:
        self.plan = plan
        self.listen_fd = listen_fd
        self.services = [Service(each) for each in plan["services"]]
        self.stage, self.error = "setup", ""
        self.stopping = False
        self.written = ""
        self.wake_r, wake_w = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_w, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self.stop)
        signal.signal(signal.SIGINT, self.stop)

    def stop(self, *_: object) -> None:
        self.stopping = True

    def main(self) -> int:
        self.write_status()
        try:
            socket.sethostname(self.plan["hostname"])
            for step in self.plan["setup"]:
                run_step(step, self.plan["environment"])
        except (OSError, StepFailed) as error:
            self.stage, self.error = "failed", str(error)
            self.write_status()
            return 1
        self.stage = "running"
        while not self.stopping:
            pending = self.start_what_can()
            self.write_status()
            self.sleep(TICK_S if pending else IDLE_S)
            self.reap()
        return self.end()

    def start_what_can(self) -> bool:
        """Start services whose conditions hold; tell whether some still wait."""
        pending, now = False, time.monotonic()
        for service in self.services:
            if service.pid or service.done:
                continue
            if now >= service.not_before and all(holds(each) for each in service.wait):
                self.start(service, now)
            pending = pending or not service.pid
        return pending

    def start(self, service: Service, now: float) -> None:
        service.started, service.starts = now, service.starts + 1
        try:
            for step in service.before:
                run_step(step, self.plan["environment"])
            with Path(service.log).open("ab") as log:
                fds = (self.listen_fd,) if service.listen and self.listen_fd is not None else ()
                child = subprocess.Popen(
                    [each.format(listen=self.listen_fd) for each in service.argv]
                    if fds
                    else service.argv,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self.plan["environment"],
                    pass_fds=fds,
                    cwd="/",
                )
        except (OSError, StepFailed) as error:
            service.error = str(error)
            service.ended(-1, now)
            return
        service.pid, service.error = child.pid, ""
        child.returncode = 0  # reaped below, with the orphans; Popen shall not wait for it

    def reap(self) -> None:
        """Take every child that ended: ours, and orphans that fell to pid 1."""
        now = time.monotonic()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            for service in self.services:
                if service.pid == pid:
                    service.ended(os.waitstatus_to_exitcode(status), now)
                    note(f"{service.name} ended with {service.code}")

    def sleep(self, seconds: float) -> None:
        """Sleep until a signal comes or the time is over."""
        ready, _, _ = select.select([self.wake_r], [], [], seconds)
        if ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake_r, 4096)

    def end(self) -> int:
        self.stage = "stopping"
        self.write_status()
        for service in reversed(self.services):
            if service.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(service.pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        while any(each.pid for each in self.services) and time.monotonic() < deadline:
            self.sleep(0.1)
            self.reap()
        return 0

    def write_status(self) -> None:
        """Tell the host how things stand, when they changed."""
        services = {each.name: each.view() for each in self.services}
        text = json.dumps({"stage": self.stage, "error": self.error, "services": services})
        if text != self.written:
            target = Path(self.plan["status"])
            new = target.with_suffix(".new")
            try:
                new.write_text(text)
                new.replace(target)
            except OSError as error:  # a full disk must not end the cluster
                note(f"{target}: {error}")
                return
            self.written = text


class StepFailed(Exception):
    """A step of the set-up did not work."""


def run_step(step: Document, environment: dict[str, str]) -> None:
    """Run one step, and what it names as a second way when it fails."""
    argv: list[str] = step["run"]
    otherwise: list[str] | None = step.get("otherwise")
    try:
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment
        )
        error = done.stderr.strip() or f"exit {done.returncode}" if done.returncode else ""
    except OSError as failure:
        error = str(failure)
    if not error:
        return
    if otherwise is None:
        raise StepFailed(f"{' '.join(argv)}: {error}")
    if otherwise:
        note(f"{' '.join(argv)}: {error}")
        run_step({"run": otherwise}, environment)


def holds(condition: str) -> bool:
    """Tell whether a condition is true now."""
    kind, _, rest = condition.partition(":")
    if kind == "file":
        return Path(rest).exists()
    if kind == "socket":
        with socket.socket(socket.AF_UNIX) as client:
            return client.connect_ex(rest) == 0
    host, port, authority = rest.split(":")
    try:
        context = ssl.create_default_context(cafile=authority)
        with (
            socket.create_connection((host, int(port)), timeout=1) as raw,
            context.wrap_socket(raw, server_hostname=host) as client,
        ):
            client.sendall(f"GET /readyz HTTP/1.0\r\nHost: {host}\r\n\r\n".encode())
            return b" 200 " in client.recv(64)
    except OSError:
        return False


def note(text: str) -> None:
    with contextlib.suppress(OSError):  # the log may lie on a disk that is full
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
        sys.stderr.flush()


def main() -> int:
    arguments = sys.argv[1:]
    plan = json.loads(Path(arguments[2]).read_text())
    listen_fd = int(arguments[4]) if arguments[3:4] == ["--listen-fd"] else None
    return Init(plan, listen_fd).main()


if __name__ == "__main__":
    sys.exit(main())
