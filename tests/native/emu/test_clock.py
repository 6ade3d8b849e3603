"""How processes move a card's time on: what is written down for NVML on the way."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from emu_harness import TIMEOUT_S

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "testbed/native"
PERIOD_US = 1000
PERIOD_NS = PERIOD_US * 1000
PERIODS = 20
#: What a row may be short of: processor sharing moves in steps of as many ns as there are slots.
NEAR_NS = 256
NOBODY = -1


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("clock") / "clock"
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-g"]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    command += [f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'emu'}"]
    sources = [
        str(HERE / "clock_driver.c"),
        *(str(NATIVE / f"emu/{c}.c") for c in ("clock", "book")),
    ]
    subprocess.run([*command, *sources, "-o", str(built)], check=True, timeout=TIMEOUT_S)
    return built


def rows(
    program: Path, sharing: bool, steps: list[tuple[int, int, int, int]]
) -> dict[int, tuple[int, int]]:
    """Device time of two slots at the end of each period that was written down, by its number.

    Args:
        program: The driver.
        sharing: Processor sharing, else time slices.
        steps: Up to when time moves on, ns; who ends the step by running out of work; what the two
            slots have asked for until then, ns.
    """
    lines = [f"{int(sharing)} {PERIOD_US}", *(" ".join(map(str, step)) for step in steps)]
    done = subprocess.run(
        [str(program)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=True,
        timeout=TIMEOUT_S,
    )
    found = (tuple(map(int, line.split())) for line in done.stdout.splitlines())
    return {number: (first, second) for number, first, second in found}


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("before", [0, 1, 2, 100, 255, 256, 257, 5000])
def test_no_period_is_missed_however_near_its_end_somebody_looked(
    program: Path, sharing: bool, before: int
) -> None:
    """A row that is missing is told as a period in which nobody used the card."""
    ends = [number * PERIOD_NS for number in range(1, PERIODS + 1)]
    looks = [time for end in ends for time in (end - before, end + 5000)]
    found = rows(program, sharing, [(time, NOBODY, 10**12, 0) for time in looks])
    assert sorted(found) == list(range(1, PERIODS + 1))
    for number, (first, second) in found.items():
        assert number * PERIOD_NS - NEAR_NS * sharing <= first <= number * PERIOD_NS
        assert second == 0


@pytest.mark.parametrize("sharing", [False, True])
@pytest.mark.parametrize("before", [0, 1, 100, 256])
def test_work_that_ends_with_a_period_ends_no_row(
    program: Path, sharing: bool, before: int
) -> None:
    """Its owner stops there, at the end of the period or just before it."""
    steps = []
    for number in range(1, PERIODS + 1):
        asked = number * PERIOD_NS - before
        steps += [(asked + 1000, 0, asked, 0)]
    steps.append(((PERIODS + 1) * PERIOD_NS - 5000, NOBODY, 0, 0))
    found = rows(program, sharing, steps)
    assert sorted(found) == list(range(1, PERIODS + 1))


@pytest.mark.parametrize("sharing", [False, True])
def test_two_share_every_period(program: Path, sharing: bool) -> None:
    looks = [step * 997 for step in range(1, PERIODS * PERIOD_NS // 997 + 2)]
    found = rows(program, sharing, [(time, NOBODY, 10**12, 10**12) for time in looks])
    assert sorted(found) == list(range(1, PERIODS + 1))
    for number, granted in found.items():
        assert number * PERIOD_NS - NEAR_NS * sharing <= sum(granted) <= number * PERIOD_NS
