"""What is told of a host that cannot give containers everything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from testbed.lab.images import adaptations, front
from testbed.lab.images.adaptations import CAPABILITIES, Host, look, of

ALL = (1 << len(CAPABILITIES)) - 1
SYS_RESOURCE = 1 << CAPABILITIES.index("SYS_RESOURCE")
LAST = len(CAPABILITIES) - 1


def host(
    lacking: int = 0, *, files: int = 20000, processes: int = -1, score: int = 0, last: int = LAST
) -> Host:
    limits = {"open files": files, "processes": processes}
    return Host(bounding=ALL & ~lacking, last=last, limits=limits, oom_score=score)


def test_a_host_with_every_capability_gives_all() -> None:
    assert of(host(files=20, processes=5, score=500)) == []


def test_without_the_capability_limits_and_scores_are_told() -> None:
    assert of(host(SYS_RESOURCE, processes=96365)) == [
        "CAP_SYS_RESOURCE: not given on this host; privileged containers run without it",
        "open files: at most 20,000 here; containers that ask for more get that",
        "processes: at most 96,365 here; containers that ask for more get that",
        "OOM score: no less than 0 here; containers that ask for less get that",
    ]


def test_limits_that_nobody_asks_beyond_are_not_told() -> None:
    text = "\n".join(of(host(SYS_RESOURCE, files=1 << 30, processes=-1, score=-1000)))
    assert text.startswith("CAP_SYS_RESOURCE")
    assert "\n" not in text


def test_another_capability_changes_no_limit() -> None:
    (line,) = of(host(1 << CAPABILITIES.index("NET_ADMIN") | 1 << CAPABILITIES.index("BPF")))
    assert line.startswith("CAP_NET_ADMIN, CAP_BPF: ")


def test_what_the_kernel_does_not_know_is_not_lacking() -> None:
    older = CAPABILITIES.index("AUDIT_READ")
    assert of(host(-1 << (older + 1), last=older)) == []
    assert of(Host(bounding=ALL, last=LAST + 7, limits={}, oom_score=0)) == []


def test_the_front_has_the_same_list() -> None:
    source = Path(adaptations.__file__).parents[2] / "native/ocifront/host.c"
    table = source.read_text().partition("capabilities[] = {")[2].partition("};")[0]
    assert tuple(re.findall(r'"(\w+)"', table)) == CAPABILITIES


def test_proc_is_read(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "sys/kernel").mkdir(parents=True)
    (tmp_path / "self/status").write_text("Name:\tx\nCapBnd:\t000001fffeffffff\nSeccomp:\t0\n")
    (tmp_path / "self/oom_score_adj").write_text("-17\n")
    (tmp_path / "sys/kernel/cap_last_cap").write_text("40\n")
    found = look(tmp_path)
    assert (found.bounding, found.last, found.oom_score) == (0x1FFFEFFFFFF, 40, -17)
    assert of(found)[0].startswith("CAP_SYS_RESOURCE: ")


def test_this_host_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(adaptations, "look", lambda: host(SYS_RESOURCE))
    assert front.adaptations()[0].startswith("CAP_SYS_RESOURCE")


def test_what_a_host_gives_is_kept() -> None:
    """As in kind's nodes."""
    text = front.configuration(
        (), runtime="/usr/sbin/runc", arguments=(), drop_cgroups=False, drop_oom_score=False
    )
    assert text == "runtime /usr/sbin/runc\ncgroups keep\noom-score clamp\n"
