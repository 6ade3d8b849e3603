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
    "card_breakpoint": card.BreakpointLayout,
    "card_bucket": card.BucketLayout,
    "card_faults": card.FaultsLayout,
    "card_state": card.StateLayout,
}
#: Members of a nested structure in C, of the outer one in Python.
NESTED = {
    "clock_time_ns": "clock.time_ns",
    "clock_virtual_and_generation": "clock.virtual_and_generation",
}


def test_offsets(tmp_path: Path) -> None:
    lines = []
    expected = []
    for name, mirror in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof(struct {name}));')
        expected.append(f"{name} {ctypes.sizeof(mirror)}")
        for field, *_ in mirror._fields_:
            member = NESTED.get(field, field)
            lines.append(f'printf("{name}.{member} %zu\\n", offsetof(struct {name}, {member}));')
            expected.append(f"{name}.{member} {getattr(mirror, field).offset}")
    for macro, value in {
        "CARD_MAGIC": card.MAGIC,
        "CARD_VERSION": card.VERSION,
        "CARD_MAX_SLOTS": card.MAX_SLOTS,
        "CARD_RING": card.RING,
        "CARD_BUCKETS": card.BUCKETS,
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
        ["cc", "-std=c11", f"-I{INCLUDE}", str(source), "-o", str(program)], check=True, timeout=60
    )
    done = subprocess.run([str(program)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.splitlines() == expected
