"""Whose a process is, asked of the real kernel: mount namespaces, binds, and a forger."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

FIRST = "bbbbbbbb-0000-0000-0000-000000000002"
SECOND = "cccccccc-0000-0000-0000-000000000003"


def may_unshare() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run(
        ["unshare", "-Urm", "true"], capture_output=True, timeout=10, check=False
    )
    return tried.returncode == 0


@pytest.mark.skipif(not may_unshare(), reason="this machine forbids user namespaces")
def test_containers_outsiders_and_a_forger(tmp_path: Path) -> None:
    driver = Path(__file__).with_name("containers_driver.py")
    # With a PID namespace, the end of its first process is the end of all.
    command = ["unshare", "-Urmpf", "--mount-proc", "--kill-child", sys.executable, str(driver)]
    done = subprocess.run(
        [*command, str(tmp_path)], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["anchor"] == ["/kubelet/pods/"]
    assert found["first"] == [FIRST, "main"]
    assert found["second"] == [SECOND, "main"]
    assert found["outside"] == ["unknown"]
    # The forgery is there to be seen, and is not believed.
    assert [SECOND in line for line in found["forged_table"]] == [True]
    assert found["forger"] == [FIRST]
