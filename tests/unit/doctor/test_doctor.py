"""What the doctor says."""

from __future__ import annotations

import os

import pytest

from testbed.lab import binaries, doctor
from testbed.lab.binaries import tools


def test_missing_packages_are_one_line_with_the_command_as_typed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lacking = tuple(tool for tool in tools.TOOLS if tool.name in ("runc", "nft"))
    monkeypatch.setattr(binaries, "missing_tools", lambda: lacking)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    (found,) = [f for f in doctor.diagnose() if f.name == "Debian packages"]
    assert not found.ok
    assert found.detail == "missing: runc, nft"
    assert found.hint.startswith("sudo apt-get ")
    assert found.hint.endswith(" nftables runc")
