"""Reading /proc: names with blanks and parentheses, ended processes, reused pids."""

from __future__ import annotations

import os
from pathlib import Path

from testbed.stack.monitor.processes import Processes
from testbed.stack.monitor.whose import NOBODY, Anchor, Owner

POD = "bbbbbbbb-0000-0000-0000-000000000002"
OTHER = "cccccccc-0000-0000-0000-000000000003"
ANCHOR = Anchor(device="0:45", prefix="/kubelet/pods/")


def no_name(uid: str, runtime_id: str) -> str:
    return ""


def add(
    proc: Path, pid: int, *, parent: int, uid: str = "", comm: str = "x", start: int = 1
) -> None:
    folder = proc / str(pid)
    folder.mkdir(exist_ok=True)
    rest = " ".join(["0"] * 17)
    (folder / "stat").write_text(f"{pid} ({comm}) S {parent} {rest} {start} 0 0\n")
    (folder / "cgroup").write_text("0::/\n")
    line = f"7 6 0:45 /kubelet/pods/{uid}/containers/main/ab /dev/termination-log rw - t t rw\n"
    (folder / "mountinfo").write_text(line if uid else "")


def test_owner_from_files(tmp_path: Path) -> None:
    add(tmp_path, 30, parent=1, comm="containerd-shim")
    add(tmp_path, 40, parent=30, uid=POD, comm="we (ird) name")
    add(tmp_path, 50, parent=40)
    processes = Processes(no_name, proc=tmp_path, anchor=ANCHOR)
    main = Owner(pod_uid=POD, container="main")
    assert processes.owners([40, 50, 99]) == {40: main, 50: main, 99: NOBODY}


def test_what_was_certain_stays_while_the_process_lives(tmp_path: Path) -> None:
    add(tmp_path, 40, parent=1, uid=POD, start=7)
    processes = Processes(no_name, proc=tmp_path, anchor=ANCHOR)
    assert processes.owners([40])[40].pod_uid == POD
    add(tmp_path, 40, parent=1, uid=OTHER, start=7)
    assert processes.owners([40])[40].pod_uid == POD, "it cannot move to another container"
    add(tmp_path, 40, parent=1, uid=OTHER, start=8)
    assert processes.owners([40])[40].pod_uid == OTHER, "another process of that number"


def test_what_was_unknown_is_looked_at_again(tmp_path: Path) -> None:
    add(tmp_path, 40, parent=1)
    processes = Processes(no_name, proc=tmp_path, anchor=ANCHOR)
    assert processes.owners([40]) == {40: NOBODY}
    add(tmp_path, 40, parent=1, uid=POD)
    assert processes.owners([40])[40].pod_uid == POD


def test_real_proc() -> None:
    """This process is of no pod here, and reading it does not fail."""
    processes = Processes(no_name, anchor=ANCHOR)
    assert processes.owners([os.getpid(), 2**22 + 1]) == {os.getpid(): NOBODY, 2**22 + 1: NOBODY}
