"""kind's own image or ours, and what the engine is asked."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from testbed.lab.images import node
from testbed.lab.images.node import choice, official


def never() -> bool:
    raise AssertionError("was asked")


def choose(**more: object) -> choice.Choice:
    given: dict[str, object] = {
        "offline": "",
        "made": True,
        "present": lambda: False,
        "pullable": lambda: False,
        "official": "kindest/node:v1",
        **more,
    }
    return choice.choose(**given)  # type: ignore[arg-type]


def test_an_engine_without_network_is_asked_nothing() -> None:
    found = choose(offline="no network", present=never, pullable=never)
    assert not found.official
    assert found.why == "the node image of this testbed: no network"


def test_what_is_there_is_not_asked_for() -> None:
    found = choose(present=lambda: True, pullable=never)
    assert found == choice.Choice(official=True, why="kindest/node:v1: the engine has it")


def test_what_can_be_pulled_is_chosen() -> None:
    found = choose(pullable=lambda: True)
    assert found == choice.Choice(official=True, why="kindest/node:v1: it can be pulled")


@pytest.mark.parametrize("made", [True, False])
def test_else_ours(made: bool) -> None:
    found = choose(made=made)
    assert not found.official
    assert found.why.endswith("kindest/node:v1 cannot be pulled here")
    assert ("to be made first" in found.why) is not made


class Engine:
    def __init__(self, folder: Path) -> None:
        self.program = folder / "engine"
        self.calls = folder / "calls"
        self.answer("exit 1")

    def answer(self, script: str) -> None:
        self.program.write_text(f'#!/bin/sh\necho "$* $ASKED" >>{self.calls}\n{script}\n')
        self.program.chmod(0o755)

    @property
    def command(self) -> list[str]:
        return [str(self.program), "--host", "h"]


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    return Engine(tmp_path)


def test_the_engine_is_asked_by_digest(engine: Engine) -> None:
    environ = {**os.environ, "ASKED": "so"}
    assert not official.present(engine.command, environ)
    assert not official.pullable(engine.command, environ=environ)
    engine.answer("exit 0")
    assert official.present(engine.command)
    assert official.pullable(engine.command)
    exact = f"docker.io/kindest/node@{official.DIGEST}"
    assert engine.calls.read_text().splitlines()[:2] == [
        f"--host h image inspect {exact} so",
        f"--host h manifest inspect {exact} so",
    ]


def test_a_silent_registry_counts_as_none(engine: Engine) -> None:
    engine.answer("exec sleep 3600")  # longer than a test may take
    assert not official.pullable(engine.command, timeout_s=0.2)


def test_no_engine_has_no_image() -> None:
    assert not official.present(["/nonexistent/engine"])
    assert not official.pullable(["/nonexistent/engine"])


def test_the_reference_is_what_kind_would_take() -> None:
    assert f"kindest/node:{official.KUBERNETES}@{official.DIGEST}" == official.REFERENCE
    assert len(official.DIGEST) == len("sha256:") + 64
    pulled = node.pulled()
    assert (pulled.reference, pulled.archive) == (official.REFERENCE, None)
    assert not pulled.kubeadm_patches, "it holds CoreDNS"


def test_choose_asks_the_engine(
    engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert node.find() is None
    assert node.choose(None, offline="it is ours").why.endswith("to be made first: it is ours")
    engine.answer('case "$*" in *manifest*) exit 0;; esac; exit 1')
    assert node.choose(engine.command).official
    assert len(engine.calls.read_text().splitlines()) == 2
