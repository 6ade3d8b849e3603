"""The example, whole: two PyTorch pods keep their memory caps and their shares of compute.

Without the library they do not.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from testbed.lab.scenario.pods import TRIAL_LABEL
from testbed.lab.scenario.record import Report
from testbed.lab.wait import wait_until

from .cases import clone, run


def test_the_example_passes_and_its_control_fails(testbed, tmp_path):
    done = run(testbed, tmp_path, "co_location/a100-example", "-o", "json")
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = msgspec.json.decode(done.stdout, type=Report)
    assert json.loads((tmp_path / "runs/latest/report.json").read_text()) == json.loads(done.stdout)
    [record] = report.cases
    assert report.verdict == record.verdict == "pass"
    assert {check.name for check in record.checks} == {
        "memory_cap",
        "card_bytes",
        "visible_size",
        "survives",
        "share_card",
        "share_work",
        "freed",
        "annotations",
        "placement",
    }
    for check in record.checks:
        assert check.verdict == "pass", check
    assert record.control is not None and record.control.verdict == "pass"
    limits = [c for c in record.control.checks if c.name in ("memory_cap", "card_bytes")]
    assert len(limits) == 2 * 2 * 4  # checks, pods, allocators
    for check in limits:
        figure = check.card if check.name == "card_bytes" else check.workload
        assert check.verdict == "fail" and figure > check.asked, check
    shares = {c.identity: c for c in record.control.checks if c.name.startswith("share")}
    must = {c.identity for c in record.checks if c.name.startswith("share") and c.control == "fail"}
    # Each share fails somewhere without the library, on the card's word and on the pod's.
    assert {(name, pod) for name, pod, _ in must} == {
        (name, pod) for name in ("share_card", "share_work") for pod in ("a", "b")
    }
    for identity in must:
        assert shares[identity].verdict == "fail", shares[identity]
    notebook = json.loads(Path(record.artifacts["notebook"]).read_text())
    outputs = json.dumps([c.get("outputs") for c in notebook["cells"]])
    assert "image/png" in outputs and "memory_cap" in outputs


#: Kills a program of the cluster from inside its namespaces, where there is no other's.
KILL = """
import os, signal, sys
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        words = open(f"/proc/{pid}/cmdline", "rb").read().split(b"\\0")
    except OSError:
        continue
    if words[0].endswith(sys.argv[1].encode()):
        os.kill(int(pid), signal.SIGKILL)
        print(pid)
"""


def test_programs_of_the_cluster_that_die_in_a_trial_change_nothing(testbed, tmp_path):
    folder = clone(tmp_path, "pods: {a: {gpumem: 4096}, b: {gpumem: 2048}}\nallocators: [native]\n")
    with subprocess.Popen(
        [
            sys.executable,
            *("-c", "from testbed.cli import main; main()", "run", "co_location/own"),
            *("--name", testbed.name, "--runs", str(tmp_path / "runs")),
        ],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**os.environ, "NO_COLOR": "1"},
    ) as run:
        try:
            told = ""
            while "pods with the limiter: a: " not in told:
                line = run.stderr.readline()
                assert line, told
                told += line
            [node] = testbed.cluster.status().nodes
            for where, victim in ((node.name, "/kubelet"), ("outer", "/kube-apiserver")):
                killed = subprocess.run(
                    testbed.cluster.enter(where, ["/usr/bin/python3", "-c", KILL, victim]),
                    text=True,
                    capture_output=True,
                    timeout=120,
                    check=True,
                )
                assert killed.stdout.strip(), killed.stderr
            out, err = run.communicate(timeout=600)
        finally:
            run.kill()
    assert run.returncode == 0, out[-3000:] + told[-1500:] + err[-1500:]
    assert "own" in out and "pass" in out


def test_a_case_that_cannot_fit_is_an_error_with_a_reason(testbed, tmp_path):
    clone(tmp_path, "pods: {a: {gpumem: 999999}}\nallocators: [native]\n")
    done = run(testbed, tmp_path, "co_location/own", "--timeout", "120", cwd=tmp_path)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "pod a fits no node of this testbed" in done.stdout
    assert "CardInsufficientMemory" in done.stdout and "to fix: ask for less" in done.stdout
    last = done.stderr.strip().splitlines()[-1]
    assert "bundle" in last and Path(last.split()[-1]).is_dir()
    # The testbed is in order again: enforcement on, no trial left. That a namespace is
    # emptied takes the cluster a moment, of the trials before this one, too.
    wait_until(
        "no trial is left",
        lambda: testbed.kube.list("v1", "Namespace", labels=TRIAL_LABEL),
        ready=lambda left: not left,
        timeout_s=180,
    )


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (("nothing/here",), "no case matches"),
        (("co_location/a100-example", "--cards", "b9000"), "b9000"),
        (("co_location/a100-example", "--cards", "a100-80gb:0"), "does not name cards"),
    ],
)
def test_bad_input_is_one_clear_error(testbed, tmp_path, arguments, word):
    done = run(testbed, tmp_path, *arguments, timeout=300)
    assert done.returncode == 2
    assert word in done.stderr and "to fix" in done.stderr
    assert "Traceback" not in done.stderr
