"""The command as it is installed: a Ctrl-C at any moment is an answer, never a traceback."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

COMMAND = Path(sys.executable).parent / "testbed"
#: Moments of the first tenth of a second, in which Python starts and imports.
MOMENTS_S = [0.004 * step for step in range(25)]
#: Where the machine is so busy that Python is not there yet by then.
LATER_S = [0.15 * 1.5**step for step in range(12)]
#: By the launcher's shell, which has nothing to say; by the command.
ENDS = (-signal.SIGINT, 2)


def test_the_command_is_the_launcher_of_setup_venv():
    assert COMMAND.read_text().startswith("#!/bin/sh\n")
    done = subprocess.run([COMMAND, "--help"], capture_output=True, text=True, check=True)
    assert "Usage: testbed " in done.stdout


def test_an_interrupt_at_any_moment_of_the_start(tmp_path):
    """The command is one that waits for ever, so that no signal comes too late."""
    seen = set()
    for moment in (*MOMENTS_S, *LATER_S):
        if moment in LATER_S and 2 in seen:
            break
        with subprocess.Popen(
            [COMMAND, "card", "shell", "--no-torch", "sleep", "60"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={"TMPDIR": str(tmp_path), "PATH": "/usr/bin:/bin"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            start_new_session=True,
        ) as process:
            time.sleep(moment)  # which moment it is does not matter, that it is another does
            process.send_signal(signal.SIGINT)
            try:
                out, err = process.communicate(timeout=30)
            except subprocess.TimeoutExpired:  # it had begun: now it is the command's affair
                process.terminate()
                process.communicate(timeout=120)
                continue
        assert "Traceback" not in err and out == ""
        assert process.returncode in ENDS, err
        seen.add(process.returncode)
    assert 2 in seen  # some of them came while Python was there


@pytest.mark.parametrize(
    ("words", "why", "hint"),
    [
        ("ls --nope -o json", "No such option: --nope", "testbed ls --help"),
        ("limits shw --json", "No such command 'shw'", "testbed limits --help"),
        ("up --nodes=0 --output=json", "'--nodes'", "testbed up --help"),
    ],
)
def test_a_program_is_told_what_is_wrong_with_its_command_line(words, why, hint):
    done = subprocess.run(
        [COMMAND, *words.split()], capture_output=True, text=True, timeout=240, check=False
    )
    told = json.loads(done.stdout)["error"]
    assert (done.returncode, told["what"]) == (2, "the command line cannot be understood")
    assert why in told["why"] and told["hint"] == hint


def test_a_signal_that_waited_is_answered_at_once():
    """The mask that the launcher sets is taken off, and what came meanwhile is not lost."""
    program = """
import os, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
os.kill(os.getpid(), signal.SIGINT)
from testbed.cli import main
main()
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.returncode, done.stderr) == (2, "interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_the_command_s_children_have_no_signal_blocked(number):
    script = f"kill -{number.value} $$; echo alive"
    done = subprocess.run(
        [COMMAND, "card", "shell", "--no-torch", "sh", "-c", script],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert (done.returncode, done.stdout) == (128 + number, "")
