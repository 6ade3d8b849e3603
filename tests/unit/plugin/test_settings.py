"""The watched configuration."""

from __future__ import annotations

from pathlib import Path

import pytest

from testbed.errors import InputError
from testbed.stack.plugin.settings import Settings


def publish(folder: Path, version: str, text: str) -> None:
    """Swap a ConfigMap's content as kubelet does: a link to a link to a folder."""
    data = folder / version
    data.mkdir()
    (data / "config.yaml").write_text(text)
    fresh = folder / "..tmp"
    fresh.symlink_to(version)
    fresh.rename(folder / "..data")
    if not (folder / "config.yaml").is_symlink():
        (folder / "config.yaml").symlink_to("..data/config.yaml")


def test_follows_the_swap_and_the_way_back(tmp_path: Path) -> None:
    publish(tmp_path, "v1", "enforcement: 'on'\ngeneration: 1\n")
    settings = Settings(tmp_path / "config.yaml")
    assert not settings.poll()
    publish(tmp_path, "v2", "enforcement: 'off'\ngeneration: 2\n")
    assert settings.poll()
    assert (settings.config.enforcement, settings.config.generation) == ("off", 2)
    assert not settings.poll()
    publish(tmp_path, "v3", "enforcement: 'on'\ngeneration: 3\n")
    assert settings.poll() and settings.config.enforcement == "on"


def test_a_bad_text_leaves_the_good_one_in_force(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text("generation: 1\n")
    settings = Settings(path)
    path.write_text("generations: 2\n")
    assert not settings.poll()
    assert settings.config.generation == 1 and "generations" in settings.error
    path.unlink()
    assert not settings.poll() and settings.error
    path.write_text("generation: 1\n")
    assert not settings.poll(), "nothing changed in the end"
    assert settings.error == ""


def test_start(tmp_path: Path) -> None:
    assert Settings(None).config.enforcement == "on" and not Settings(None).poll()
    with pytest.raises(InputError, match="cannot be read"):
        Settings(tmp_path / "missing")
