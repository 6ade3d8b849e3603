"""The library and the emulated driver are two witnesses: they share declarations only."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[3] / "testbed" / "native"
_INCLUDE = re.compile(r'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


def sources(folder: str) -> list[Path]:
    found = [p for p in sorted((NATIVE / folder).rglob("*")) if p.suffix in (".c", ".h", ".def")]
    assert found
    return found


@pytest.mark.parametrize("box", ["shim", "emu"])
def test_a_box_includes_its_own_files_and_the_shared_layouts(box: str) -> None:
    allowed = {path.name for path in [*sources(box), *sources("include")]}
    for source in sources(box):
        for name in _INCLUDE.findall(source.read_text()):
            assert name in allowed, f"{source.name} includes {name}"


def test_the_shared_layouts_define_nothing_but_how_words_are_packed() -> None:
    for header in sources("include"):
        text = re.sub(r"/\*.*?\*/|//[^\n]*", "", header.read_text(), flags=re.DOTALL)
        rest = re.sub(
            r"static inline \w+(?: \w+)? \w+\([^()]*\)\s*\{\s*return [^;{}]*;\s*\}", "", text
        )
        assert not re.search(r"\)\s*\{", rest), f"{header.name} has a body of more than an answer"


def test_the_library_names_no_part_of_the_cards_books() -> None:
    for source in sources("shim"):
        text = source.read_text()
        assert "card.h" not in text and "card_state" not in text, source.name
    for source in sources("emu"):
        text = source.read_text()
        assert "region.h" not in text and "vgpu_extension" not in text, source.name
