"""The pytest plugin, as its users meet it: the sample of docs/pytest.md in a session of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from testbed.lab.cluster.state import state_home
from testbed.lab.deploy import enforcement
from testbed.lab.progress import QuietProgress
from testbed.lab.testbed import Testbed
from testbed.lab.wait import wait_until

ROOT = Path(__file__).parents[2]
SAMPLE = "test_sharing.py"

#: One testbed for all: each worker tells which cluster it was given.
WHICH = """
import pathlib

def test_{name}(cluster, submit):
    uid = cluster.kube.get("v1", "Namespace", "kube-system")["metadata"]["uid"]
    pathlib.Path("{name}.uid").write_text(uid)
    assert cluster.context == f"testbed-{{cluster.name}}"
    assert cluster.kubectl("config", "current-context").strip() == cluster.context
    pod = submit(script="print('hello')", gpumem=1024)
    assert pod.wait_done() == 0
    assert pod.logs() == "hello\\n"
"""

MARKED = """
import pytest

@pytest.mark.testbed(cards="t4:1")
def test_marked(testbed):
    raise AssertionError("it does not have that card")
"""

#: Says that it runs and waits for its end.
WAITING = """
import pathlib, signal

def test_waiting(testbed):
    pathlib.Path("waiting").write_text(testbed.name)
    signal.pause()
"""


def sample(folder):
    """Write the first example of the docs into a folder, as it stands there."""
    text = (ROOT / "docs/pytest.md").read_text()
    code = re.search(r"```python\n(# test_sharing\.py\n.*?)```", text, re.DOTALL)
    (folder / SAMPLE).write_text(code[1])


def command(*arguments):
    """Return the command of a session that has nothing of this one's."""
    return [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *arguments]


def environ():
    return {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST_", "VGPU_"))}


def session(folder, *arguments, timeout=400):
    """Run a session to its end."""
    return subprocess.run(
        command(*arguments),
        cwd=folder,
        env=environ(),
        text=True,
        capture_output=True,
        timeout=timeout,
        check=False,
    )


def state(name):
    return Testbed(name).cluster.status().state


def wait_nothing_left(name):
    wait_until("the testbed is gone", lambda: state(name), ready="absent".__eq__, timeout_s=180)
    wait_until(
        "nothing of it is left",
        lambda: list(state_home().glob(f".{name}*")),
        ready=lambda left: not left,
        timeout_s=120,
    )


def test_the_sample_holds_on_a_testbed_that_is_up(testbed, tmp_path):
    sample(tmp_path)
    (tmp_path / "test_marked.py").write_text(MARKED)
    done = session(tmp_path, "--testbed-name", testbed.name, "--testbed-provider", "process")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed, 1 skipped" in done.stdout
    assert "t4:1 on a node is asked for" in done.stdout
    assert state(testbed.name) == "up"  # it was there before

    def pods():
        found = testbed.kube.list("v1", "Pod")
        return [pod for pod in found if pod["metadata"]["namespace"].startswith("test-")]

    wait_until("its pods are gone", pods, ready=lambda found: not found, timeout_s=120)


def test_the_sample_fails_without_the_limiter(testbed, tmp_path):
    sample(tmp_path)
    with enforcement(testbed.kube, "off", QuietProgress()):
        done = session(tmp_path, "--testbed-name", testbed.name, "--testbed-provider", "process")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "2 failed" in done.stdout
    # What the pods have to say is in the report.
    assert re.search(r"-+ pod test-memory-is-capped-\w+/pod-1: log of main -+\n.*full", done.stdout)
    assert "pod-2: testbed explain" in done.stdout and "Successfully assigned" in done.stdout


def test_workers_share_a_testbed_that_goes_with_the_session(tmp_path):
    for name in ("one", "other"):
        (tmp_path / f"test_{name}.py").write_text(WHICH.format(name=name))
    arguments = ("-n", "2", "--dist", "loadfile", "--testbed-provider", "process")
    started = subprocess.Popen(
        command(*arguments),
        cwd=tmp_path,
        env=environ(),
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        text, _ = started.communicate(timeout=400)
    finally:
        started.kill()
        started.wait()
    assert started.returncode == 0, text
    assert "2 passed" in text
    assert (tmp_path / "one.uid").read_text() == (tmp_path / "other.uid").read_text()
    name = f"pytest-{started.pid}"
    wait_nothing_left(name)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_an_interrupted_session_leaves_nothing(tmp_path, number):
    (tmp_path / "test_waiting.py").write_text(WAITING)
    with (tmp_path / "log").open("w") as log:
        started = subprocess.Popen(
            command("--testbed-provider", "process"),
            cwd=tmp_path,
            env=environ(),
            stdout=log,
            stderr=log,
        )
    name = f"pytest-{started.pid}"

    def told():
        assert started.poll() is None, (tmp_path / "log").read_text()
        return (tmp_path / "waiting").exists()

    try:
        wait_until("the test runs", told, ready=bool, timeout_s=300)
        assert state(name) == "up"
        started.send_signal(number)
        code = started.wait(240)
    finally:
        started.kill()
        started.wait()
    assert code == (2 if number == signal.SIGINT else -signal.SIGKILL)
    # Where pytest was killed, the one that held the testbed for it takes it down.
    wait_nothing_left(name)
