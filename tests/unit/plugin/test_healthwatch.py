"""Health on a double of the driver: events, a file that outlasts the plugin, re-opening."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from testbed.stack.devices.xid import xid_policy
from testbed.stack.plugin.healthwatch import REOPEN_S, HealthWatch

POLICY = xid_policy({}, "unhealthy", {})
CARDS = ("GPU-a", "GPU-b")


class Driver:
    def __init__(self) -> None:
        self.events: list[tuple[str | None, int]] = []
        self.silent: dict[str, str] = {}
        self.asked: dict[str, int] = {}
        self.opened = 0
        self.reset = False

    def watch_errors(self) -> bool:
        return True

    def errors(self) -> tuple[tuple[str | None, int], ...]:
        events, self.events = tuple(self.events), []
        return events

    def unhealthy(self) -> dict[str, str]:
        return dict(self.silent)

    def recovery_actions(self) -> dict[str, int]:
        return dict(self.asked)

    def reopen(self) -> None:
        self.opened += 1
        if self.reset:
            self.silent = {}


class Started:
    def __init__(self, tmp_path: Path, boot: str = "boot") -> None:
        self.driver = Driver()
        self.word = ""
        self.watch = HealthWatch(
            self.driver,  # type: ignore[arg-type]
            CARDS,
            file=tmp_path / "health.json",
            cleared=lambda: self.word,
            boot_id=boot,
        )

    def raises(self, uuid: str | None, xid: int) -> None:
        self.driver.events = [(uuid, xid)]
        self.watch.events(POLICY)


def test_only_the_card_that_it_hit(tmp_path: Path) -> None:
    health = Started(tmp_path)
    health.raises("GPU-b", 79)
    assert health.watch.unhealthy == {"GPU-b": "XID 79"}
    health.raises("GPU-a", 94)
    health.raises("GPU-a", 13)
    assert health.watch.unhealthy == {"GPU-b": "XID 79"}
    assert health.watch.xids == {
        ("GPU-b", 79, "unhealthy"): 1,
        ("GPU-a", 94, "contained"): 1,
        ("GPU-a", 13, "ignore"): 1,
    }


def test_an_error_of_nobody_knows_which_card_is_of_all(tmp_path: Path) -> None:
    health = Started(tmp_path)
    health.raises(None, 79)
    assert set(health.watch.unhealthy) == set(CARDS)


def test_a_fault_outlasts_the_plugin_but_not_the_machines_restart(tmp_path: Path) -> None:
    Started(tmp_path).raises("GPU-a", 48)
    again = Started(tmp_path)
    assert again.watch.unhealthy == {"GPU-a": "XID 48"}
    again.word = "GPU-a"
    again.watch.look(0.0)
    assert not again.watch.unhealthy and not Started(tmp_path).watch.unhealthy
    Started(tmp_path).raises("GPU-a", 48)
    assert not Started(tmp_path, boot="next").watch.unhealthy


@pytest.mark.parametrize("text", ["", "[]", "{", '{"boot_id": "boot", "faults": {"GPU-a": 1}}'])
def test_a_damaged_file_is_not_used(tmp_path: Path, text: str) -> None:
    (tmp_path / "health.json").write_text(text)
    assert not Started(tmp_path).watch.unhealthy


def test_a_mistyped_word_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    health = Started(tmp_path)
    health.raises("GPU-a", 48)
    health.word = "GPU-a, GPU-x"
    health.driver.silent = {"GPU-a": "GPU is lost"}
    health.watch.look(0.0)
    said = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    assert any("'GPU-x' is no card" in text for text in said)
    assert any("not well for an operator's word: GPU is lost" in text for text in said)
    assert health.watch.unhealthy


def test_a_lost_card_is_looked_for_by_a_driver_opened_anew(tmp_path: Path) -> None:
    health = Started(tmp_path)
    health.driver.silent = {"GPU-a": "GPU is lost"}
    health.watch.look(0.0)
    assert health.watch.unhealthy == {"GPU-a": "GPU is lost"} and health.driver.opened == 0
    health.watch.look(REOPEN_S / 2)
    assert health.driver.opened == 0
    health.driver.reset = True
    health.watch.look(REOPEN_S)
    assert (health.driver.opened, health.watch.unhealthy) == (1, {})


def test_the_operator_is_not_asked_while_all_is_well(tmp_path: Path) -> None:
    asked: list[Any] = []

    def word() -> str:
        asked.append(1)
        return ""

    driver = Driver()
    watch = HealthWatch(
        driver,  # type: ignore[arg-type]
        CARDS,
        file=tmp_path / "h",
        cleared=word,
        boot_id="x",
    )
    watch.look(0.0)
    assert not asked
    driver.events = [("GPU-a", 79)]
    watch.events(POLICY)
    watch.look(5.0)
    assert asked == [1]
