"""What a process had of the processors, as the kernel counts it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from testbed.lab.bench.scheduled import Scheduled, scheduled


def test_threads_are_summed_and_times_subtracted(tmp_path):
    for thread, text in (("7", "100 20 3\n"), ("8", "11 2 1\n")):
        folder = tmp_path / "7/task" / thread
        folder.mkdir(parents=True)
        (folder / "schedstat").write_text(text)
    found = scheduled(7, tmp_path)
    assert found == Scheduled(111, 22)
    assert found - Scheduled(100, 2) == Scheduled(11, 20)


@pytest.mark.parametrize("text", ["", "12", "one two 3"])
def test_what_cannot_be_read_is_not_counted(tmp_path, text):
    folder = tmp_path / "7/task/7"
    folder.mkdir(parents=True)
    (folder / "schedstat").write_text(text)
    assert scheduled(7, tmp_path) is None
    assert scheduled(8, tmp_path) is None


def test_own_time_grows_with_what_is_computed():
    code = """
import os
from testbed.lab.bench.scheduled import scheduled
before = now = scheduled(os.getpid())
while now is not None and now.ran_ns == before.ran_ns:
    now = scheduled(os.getpid())
print(now is None or (now - before).ran_ns > 0)
"""
    # In a process of its own: it has one thread, and none that ends meanwhile.
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "True"
