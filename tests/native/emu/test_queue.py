"""The queues of a process against a plain simulation that goes nanosecond by nanosecond."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from emu_harness import TIMEOUT_S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "testbed/native"
WHOLE = 65536
LINES = 4
DEVICE, COPY_IN, COPY_OUT, WAIT, MARK = range(5)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("queue") / "queue"
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-g"]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    command += [f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'emu'}"]
    sources = [str(HERE / "queue_driver.c"), str(NATIVE / "emu/queue.c")]
    subprocess.run([*command, *sources, "-o", str(built)], check=True, timeout=TIMEOUT_S)
    return built


@dataclass
class Item:
    kind: int
    left: int
    arrives: int
    serial: int = 0
    line: int = 0
    position: int = 0


@dataclass
class Lane:
    items: list[Item] = field(default_factory=list)
    pushed: int = 0
    done: int = 0
    turn: int = 0


class Reference:
    """Whole-device work, copies, waits and marks on four streams; one nanosecond a step."""

    def __init__(self, priorities: list[int]) -> None:
        self.lanes = [Lane() for _ in range(LINES)]
        self.priorities = priorities
        self.now = 0
        self.turns = 0
        self.reached: dict[int, int] = {}

    def push(self, line: int, item: Item) -> None:
        lane = self.lanes[line]
        if not lane.items:
            self.turns += 1
            lane.turn = self.turns
        lane.items.append(item)
        lane.pushed += 1

    def _settle(self) -> None:
        moved = True
        while moved:
            moved = False
            for lane in self.lanes:
                while lane.items and self._over(lane.items[0]):
                    item = lane.items.pop(0)
                    if item.kind == MARK:
                        self.reached[item.serial] = self.now
                    lane.done += 1
                    self.turns += 1
                    lane.turn = self.turns
                    moved = True

    def _over(self, item: Item) -> bool:
        if item.arrives > self.now:
            return False
        if item.kind == WAIT:
            return self.lanes[item.line].done >= item.position
        return item.kind == MARK or item.left == 0

    def _first(self, kind: int) -> Item | None:
        ready = [
            (self.priorities[i] if kind == DEVICE else 0, lane.turn, lane.items[0])
            for i, lane in enumerate(self.lanes)
            if lane.items and lane.items[0].kind == kind and lane.items[0].arrives <= self.now
        ]
        return min(ready, key=lambda entry: entry[:2])[2] if ready else None

    def run(self, until: int, *, granted: bool) -> None:
        self._settle()
        while self.now < until:
            for kind in (DEVICE, COPY_IN, COPY_OUT):
                item = self._first(kind)
                if item is not None and (kind != DEVICE or granted):
                    item.left -= 1
            self.now += 1
            self._settle()


pushes = st.tuples(
    st.just("p"),
    st.integers(0, LINES - 1),
    st.sampled_from([DEVICE, DEVICE, COPY_IN, COPY_OUT, WAIT]),
    st.integers(0, 40),
    st.integers(0, LINES - 1),
    st.integers(0, 8),
)
runs = st.tuples(st.just("r"), st.integers(0, 60), st.booleans())


@given(
    commands=st.lists(st.one_of(pushes, pushes, runs), max_size=30),
    priorities=st.lists(st.integers(-5, 0), min_size=LINES, max_size=LINES),
)
@settings(
    max_examples=200,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_marks_are_reached_when_they_should(
    program: Path, commands: list[tuple[str, ...]], priorities: list[int]
) -> None:
    reference = Reference(priorities)
    lines = [f"y {i} {priority}" for i, priority in enumerate(priorities)]
    serial = 0
    for command, *given_ in [*commands, ("r", 5000, True)]:
        if command == "p":
            line, kind, left, other, position = map(int, given_)
            serial += 1
            at = reference.now
            lines.append(f"p {line} {kind} {left} {WHOLE} {at} {other} {position}")
            position = min(position, reference.lanes[other].pushed)
            item = Item(kind, left, at, line=other, position=position)
            reference.push(line, item)
            reference.push(line, Item(MARK, 0, at, serial))
        else:
            span, granted = int(given_[0]), bool(given_[1])
            lines.append(f"r {reference.now + span} {span if granted else 0}")
            reference.run(reference.now + span, granted=granted)
    done = subprocess.run(
        [str(program)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=True,
    )
    reached: dict[int, int] = {}
    for row in done.stdout.splitlines():
        numbers = list(map(int, row.partition("=")[0].split()))
        reached |= dict(zip(numbers[::2], numbers[1::2], strict=True))
    assert reached == reference.reached


def test_narrow_kernels_run_side_by_side(program: Path) -> None:
    # Two of half a device: together; a third has to wait for one of them.
    lines = [f"p {i} {DEVICE} 100 {WHOLE // 2} 0 0 0" for i in range(3)] + ["r 1000 1000"]
    done = subprocess.run(
        [str(program)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout.split()[:6] == ["1", "100", "2", "100", "3", "200"]


def test_half_the_time_takes_twice_as_long(program: Path) -> None:
    lines = [f"p 0 {DEVICE} 100 {WHOLE} 0 0 0", "r 1000 500"]
    done = subprocess.run(
        [str(program)],
        input="\n".join(lines) + "\n",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.stdout.split()[:2] == ["1", "200"]
