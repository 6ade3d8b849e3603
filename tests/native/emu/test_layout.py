"""The Python mirror of card.h has the C compiler's sizes and offsets."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

from testbed.native import card

INCLUDE = Path(__file__).parents[3] / "testbed/native/include"

STRUCTS: dict[str, type[ctypes.Structure]] = {
    "card_description": card.DescriptionLayout,
    "card_slot": card.SlotLayout,
    "card_segment": card.SegmentLayout,
    "card_book": card.BookLayout,
    "card_record": card.RecordLayout,
    "card_row": card.RowLayout,
    "card_faults": card.FaultsLayout,
    "card_state": card.StateLayout,
}


def test_offsets(tmp_path: Path) -> None:
    lines = []
    expected = []
    for name, mirror in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        expected.append(f"{name} {ctypes.sizeof(mirror)}")
        for field, *_ in mirror._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof(struct {name}, {field}));')
            expected.append(f"{name}.{field} {getattr(mirror, field).offset}")
    for macro, value in {
        "CARD_MAGIC": card.MAGIC,
        "CARD_VERSION": card.VERSION,
        "CARD_MAX_SLOTS": card.MAX_SLOTS,
        "CARD_RING": card.RING,
        "CARD_CLOSED": card.CLOSED,
        "CARD_ROWS": card.ROWS,
        "CARD_CLOCK_SLICES": card.CLOCK_SLICES,
        "CARD_CLOCK_SHARING": card.CLOCK_SHARING,
        "CARD_LOCK_MEMORY": card.LOCK_MEMORY,
    }.items():
        lines.append(f'printf("{macro} %llu\\n", (unsigned long long){macro});')
        expected.append(f"{macro} {value}")
    source = tmp_path / "layout.c"
    source.write_text(
        '#include "card.h"\n#include <stdio.h>\nint main(void)\n{\n'
        + "\n".join(lines)
        + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "layout"
    subprocess.run(
        ["cc", "-std=c11", f"-I{INCLUDE}", str(source), "-o", str(program)], check=True, timeout=240
    )
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=240)
    assert done.stdout.splitlines() == expected
