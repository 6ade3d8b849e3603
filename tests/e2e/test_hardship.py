"""What machines do to a testbed: full disks, busy ports, neighbours, sleep.

An error that says what to do, or a recovery; never a hang, nothing half-made. What takes
minutes is for ``make test-soak`` (``VGPU_TESTBED_SOAK=1``).
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from testbed.lab import binaries, images
from testbed.lab.cluster.state import state_home
from testbed.lab.progress import ConsoleProgress
from testbed.lab.wait import wait_until

from . import traces
from .evidence import bundle_of, check_bundle, secrets_in
from .interruptions import END_S, Owner, notebooks, owning, reached, wait_until_gone
from .test_allocation import pod, wait_phase

SOAK = os.environ.get("VGPU_TESTBED_SOAK", "") == "1"
#: Longer than a node may be silent (40 s), and than calls are tried again (60 s).
ASLEEP_S = 90.0

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="mounts small disks: needs root"),
    pytest.mark.timeout(900),
]
soak = pytest.mark.skipif(not SOAK, reason="takes minutes: make test-soak")


@pytest.fixture(scope="module", autouse=True)
def made():
    """What is made once is there already."""
    progress = ConsoleProgress(sys.__stderr__)
    binaries.ensure(progress)
    images.prepare(progress)


@pytest.fixture
def owner(tmp_path):
    with owning(tmp_path / "home", f"h{os.getpid()}") as found:
        yield found


class SmallDisk:
    """A file system of a few MiB, in a mount namespace of its own: nobody else sees it."""

    def __init__(self, folder: Path, mib: float) -> None:
        self.folder = folder
        size = f"size={int(mib * 1024)}k"
        script = 'mount -t tmpfs -o "$1" tmpfs "$2" && echo mounted && exec sleep infinity'
        self._keeper = subprocess.Popen(
            [
                *("setpriv", "--pdeathsig", "KILL", "--"),
                *("unshare", "--mount", "--kill-child", "--fork", "--propagation", "private"),
                *("sh", "-c", script, "sh", size, str(folder)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._keeper.stdout is not None
        assert self._keeper.stdout.readline() == "mounted\n"
        children = Path(f"/proc/{self._keeper.pid}/task/{self._keeper.pid}/children")
        self.pid = int(children.read_text().split()[0])
        self.pids = (self._keeper.pid, self.pid)

    def prefix(self, folder: Path) -> tuple[str, ...]:
        """Return what a command is started with that sees the disk, in a folder."""
        return ("nsenter", "--mount", "--target", str(self.pid), f"--wd={folder}", "--")

    def path(self, path: Path) -> Path:
        """Return where a file of the disk is seen from here."""
        return Path(f"/proc/{self.pid}/root{path}")

    def grow(self, mib: int) -> None:
        command = ["mount", "-o", f"remount,size={mib}m", str(self.folder)]
        subprocess.run([*self.prefix(self.folder), *command], check=True)

    def fill(self) -> None:
        """Leave no room at all."""
        with contextlib.suppress(OSError), self.path(self.folder / "filler").open("wb") as file:
            while True:
                file.write(bytes(1 << 16))
                file.flush()

    def end(self) -> None:
        self._keeper.kill()
        self._keeper.wait()
        self._keeper.stdout.close()


@pytest.fixture
def disk():
    made = []

    def make(folder, mib):
        folder.mkdir(exist_ok=True)
        made.append(SmallDisk(folder, mib))
        return made[-1]

    yield make
    for each in made:
        each.end()


# --- full disks ---------------------------------------------------------------------


def _wait_no_process(owner, small):
    """What a killed process leaves to the kernel takes a moment."""
    wait_until_gone(
        lambda: traces.alive(owner.name, owner.home, but=small.pids), "processes of the owner"
    )


@pytest.mark.parametrize("mib", [0.1, 30])
def test_a_state_folder_without_room(owner, disk, mib):
    """From too little for the certificates to too little for etcd: told, and cleared."""
    small = disk(owner.state, mib)
    owner.prefix = small.prefix(owner.clone)
    up = owner.do("up", "--bare", timeout_s=200)
    assert up.code == 2 and "Traceback" not in up.err
    assert "no space left" in up.err.lower(), up.err
    assert "XDG_STATE_HOME" in up.err
    # As the input of a person it would be theirs; it is a failure, with its bundle.
    assert secrets_in(bundle_of(up.err)) == []
    _wait_no_process(owner, small)
    state = small.path(owner.state / "vgpu-testbed" / owner.name)
    assert [path.name for path in state.glob("*")] in ([], ["logs"])
    if mib > 1:
        small.grow(2048)
        again = owner.do("up", "--bare", timeout_s=200)
        assert again.code == 0, again.err
    down = owner.do("down")
    assert down.code == 0, down.err
    assert [*small.path(owner.state).rglob("*")] == []


def test_a_cache_folder_without_room(owner, disk, tmp_path):
    cache = tmp_path / "cache"
    small = disk(cache, 2)
    owner.prefix = small.prefix(owner.clone)
    done = owner.do("up", "--bare", timeout_s=300, XDG_CACHE_HOME=str(cache))
    assert done.code == 2 and "Traceback" not in done.err, done.err
    assert "no space left" in done.err.lower(), done.err
    # Nothing half-made is taken for whole, and nothing of it stays in the way.
    left = [
        p
        for p in small.path(cache / "vgpu-testbed").rglob("*")
        if p.is_file() and p.suffix != ".lock"
    ]
    whole = {path.parent for path in left if path.name == ".entry.json"}
    assert [path for path in left if not any(path.is_relative_to(top) for top in whole)] == []


@pytest.mark.parametrize("kib", [8, 100])
def test_results_without_room_are_no_verdict(testbed, owner, disk, tmp_path, kib):
    """From no room for a log to no room for the picture: never a pass that nobody can read."""
    runs = tmp_path / "runs"
    small = disk(runs, kib / 1024)
    owner.prefix = small.prefix(owner.clone)
    run = owner.do(
        *("run", "co_location/small", "--runs", str(runs), "-o", "json"),
        timeout_s=END_S,
        name=testbed.name,
        XDG_STATE_HOME=str(state_home().parent),
    )
    assert run.code == 2 and "Traceback" not in run.err, run.err
    document = json.loads(run.out)
    assert document.get("verdict") != "pass"
    assert "o space left" in run.out + run.err, run.out
    check_bundle(run)
    assert testbed.cluster.status().state == "up"


@soak
def test_a_disk_that_fills_while_a_run_goes_on(owner, disk):
    small = disk(owner.state, 1536)
    owner.prefix, owner.seen = small.prefix(owner.clone), small.path(owner.state)
    run = owner.run(VGPU_TESTBED_TRIAL_SECONDS="60")
    assert run.wait(lambda: owner.part("workload"), "workload"), run.err
    small.fill()
    code = run.end(END_S)
    assert code in (0, 2) and "Traceback" not in run.err, run.err
    if code == 2:
        assert "there is no room left" in run.err
        check_bundle(run)
    assert owner.do("down").code == 0
    _wait_no_process(owner, small)
    left = [path.name for path in small.path(owner.state).rglob("*")]
    assert left == ["filler"]


# --- neighbours ---------------------------------------------------------------------


def test_a_busy_port_is_an_answer(owner):
    before = traces.listing(owner.name, owner.home)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = owner.do("up", "--port", port, "-o", "json")
    error = json.loads(done.out)["error"]
    assert done.code == 2 and port in error["what"] and "--port" in error["hint"]
    assert traces.difference(before, traces.listing(owner.name, owner.home)) == ""


@soak
def test_two_testbeds_run_cases_at_the_same_time(tmp_path):
    with contextlib.ExitStack() as stack:
        owners = [
            stack.enter_context(owning(tmp_path / word, f"{word}{os.getpid()}"))
            for word in ("left", "right")
        ]
        before = [traces.listing(each.name, each.home) for each in owners]
        runs = [each.run() for each in owners]
        for run in runs:
            assert run.end(END_S) == 0, run.err
            assert json.loads(run.out)["verdict"] == "pass"
        for each, then in zip(owners, before, strict=True):
            shutil.rmtree(each.clone / "runs")
            assert traces.difference(then, traces.listing(each.name, each.home)) == ""


# --- sleep --------------------------------------------------------------------------


@soak
@pytest.mark.parametrize("stage", ["nodes", "trial", "control"])
def test_a_machine_that_sleeps(owner, stage):
    """All stand still for a while: clocks jump for each of them, leases are over."""
    before = traces.listing(owner.name, owner.home)
    run = owner.run()
    assert run.wait(lambda: reached(run, stage), stage), run.err
    asleep = _send(owner, signal.SIGSTOP)
    try:
        time.sleep(ASLEEP_S)  # the time itself is the test
    finally:
        _send(owner, signal.SIGCONT, asleep)
    code = run.end(END_S)
    assert code in (0, 2) and "Traceback" not in run.err, run.err
    if code == 0:
        assert json.loads(run.out)["verdict"] == "pass"
    else:
        check_bundle(run)
    assert notebooks(owner) == [] and owner.do("down").code == 0
    shutil.rmtree(owner.clone / "runs", ignore_errors=True)
    assert traces.difference(before, traces.listing(owner.name, owner.home)) == ""


def _send(owner: Owner, number: int, pids: tuple[int, ...] = ()) -> tuple[int, ...]:
    """Send a signal to all that is an owner's; those born meanwhile too."""
    sent = set(pids)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    if pids:
        return pids
    while True:
        now = {each.pid for each in traces.alive(owner.name, owner.home)} - sent
        if not now:
            return tuple(sent)
        for pid in now:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        sent |= now


# --- evidence -----------------------------------------------------------------------


def test_a_bundle_holds_the_evidence_and_no_secret(testbed, namespace, tmp_path):
    """Also of a pod that does what it should not: it prints what it was given."""
    token = "/var/run/secrets/kubernetes.io/serviceaccount/token"
    talks = pod(testbed, namespace, "talks", 2048)
    talks["spec"]["automountServiceAccountToken"] = True
    [container] = talks["spec"]["containers"]
    container["env"] = [
        *container.get("env", []),
        {"name": "DB_PASSWORD", "value": "hunter2hunter2"},
    ]
    container["command"] = ["sh", "-c", f"echo a line; cat {token}; echo; exec sleep 600"]
    testbed.kube.create(talks)
    wait_phase(testbed.kube, namespace, "talks", ("Running",))
    wait_until(
        "the pod has said it",
        lambda: testbed.kube.logs(namespace, "talks", container["name"]),
        ready=lambda text: "eyJ" in text,
        timeout_s=120,
    )
    with owning(tmp_path / "home", f"e{os.getpid()}") as owner:
        out = tmp_path / "bundle"
        done = owner.do(
            *("bundle", "--out", str(out)),
            name=testbed.name,
            XDG_STATE_HOME=str(state_home().parent),
        )
    assert done.code == 0 and done.out.strip() == str(out), done.err
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    wanted = {"objects/events.json", "objects/pods.json", "objects/nodes.json", "status.json"}
    wanted |= {"objects/configmaps.json", "stack/ledger.json", "stack/cards.json", "versions.json"}
    assert wanted <= names, sorted(names)
    for part in ("components/", "pods/", "nodes/", "/regions/", "/cards/", "/pages/"):
        assert any(part in name for name in names), (part, sorted(names))
    [log] = [path for path in out.rglob("*talks*.log") if "pods" in path.parts]
    assert "a line" in log.read_text()
    assert secrets_in(out) == []
    assert not any(b"hunter2" in path.read_bytes() for path in out.rglob("*") if path.is_file())
    wait_until_gone(lambda: [*tmp_path.glob(".bundle-*")], "scratch folders")
