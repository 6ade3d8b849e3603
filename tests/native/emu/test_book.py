"""The card's book: the C code and its Python twin agree, and keep what they promise."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from emu_harness import TIMEOUT_S
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testbed.native.card_book import Book, Rules, Segment

HERE = Path(__file__).parent
NATIVE = HERE.parents[2] / "testbed/native"
SLOTS = 4


class Driver:
    """``emu/book.c``, asked step by step."""

    def __init__(self, program: Path, rules: Rules) -> None:
        self._process = subprocess.Popen(
            [str(program)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        self._send(int(rules.sharing), rules.slice_ns, rules.switch_ns)
        self.time_ns = 0
        self.granted_ns: list[int] = []
        self.closed: list[Segment] = []

    def _send(self, *numbers: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, numbers)) + "\n")

    def step(self, ready: list[int], until: int, watched: int) -> tuple[bool, bool]:
        """One step; whether it stopped for `watched`, and whether it moved."""
        assert self._process.stdout is not None
        self._send(until, watched, len(ready), *ready)
        stopped, time_ns, segments, fresh, *rest = map(int, self._process.stdout.readline().split())
        found = [Segment(*rest[i * 4 : i * 4 + 4]) for i in range(fresh)]
        moved = time_ns != self.time_ns or bool(found)
        self.time_ns = time_ns
        self.closed += found
        assert segments == len(self.closed)
        self.granted_ns = rest[fresh * 4 :]
        return bool(stopped), moved

    def advance(self, ready: list[int], until: int, watched: int) -> bool:
        while self.time_ns < until:
            stopped, moved = self.step(ready, until, watched)
            if stopped:
                return True
            if not moved:
                break
        return False

    def close(self) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        assert self._process.wait(TIMEOUT_S) == 0


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("book") / "book"
    command = ["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-g"]
    command += ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
    command += [f"-I{NATIVE / 'include'}", f"-I{NATIVE / 'emu'}"]
    sources = [str(HERE / "book_driver.c"), str(NATIVE / "emu/book.c")]
    subprocess.run([*command, *sources, "-o", str(built)], check=True, timeout=TIMEOUT_S)
    return built


@pytest.fixture
def make_driver(program: Path) -> Iterator[Any]:
    made: list[Driver] = []

    def make(rules: Rules) -> Driver:
        made.append(Driver(program, rules))
        return made[-1]

    yield make
    for driver in made:
        driver.close()


#: Who asks for how much, and how far time goes afterwards.
events = st.lists(
    st.tuples(
        st.integers(0, SLOTS - 1),
        st.one_of(st.just(0), st.integers(1, 300), st.integers(1000, 50_000)),
        st.integers(0, 5000),
        st.integers(-1, SLOTS - 1),
    ),
    max_size=40,
)
rules = st.builds(
    Rules, sharing=st.booleans(), slice_ns=st.integers(1, 2000), switch_ns=st.integers(0, 150)
)


@given(rules=rules, events=events)
@settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_c_and_python_agree(
    make_driver: Any, rules: Rules, events: list[tuple[int, int, int, int]]
) -> None:
    driver, book = make_driver(rules), Book()
    ready = [0] * SLOTS
    now = 0
    for slot, amount, passes, watched in events:
        ready[slot] += amount
        now += passes
        assert driver.advance(ready, now, watched) == book.advance(ready, rules, now, watched)
        assert driver.granted_ns in ([], book.granted_ns)
        assert driver.time_ns == book.time_ns
        assert driver.closed == book.closed


@given(rules=rules, events=events)
@settings(max_examples=300, deadline=None)
def test_what_a_book_promises(rules: Rules, events: list[tuple[int, int, int, int]]) -> None:
    book, ready, now = Book(), [0] * SLOTS, 0
    for slot, amount, passes, _ in events:
        ready[slot] += amount
        now += passes
        book.advance(ready, rules, now)
        # Nobody gets more than asked for, all together no more than has passed.
        assert all(g <= r for g, r in zip(book.granted_ns, ready, strict=True))
        assert sum(book.granted_ns) <= book.time_ns <= now
    # In the end everybody has all, and the device was idle only for switches.
    book.advance(ready, rules, now + 10 * (sum(ready) + 1) * (1 + rules.switch_ns))
    assert book.granted_ns == ready
    # What is written down is what was granted, in order.
    for slot in range(SLOTS):
        assert sum(s.granted_ns for s in book.closed if s.slot == slot) == ready[slot]
    if not rules.sharing:
        ends = [s.end_ns for s in book.closed]
        starts = [s.start_ns for s in book.closed]
        assert all(a <= b for a, b in zip(ends, starts[1:], strict=False))
        assert all(s.granted_ns == s.end_ns - s.start_ns for s in book.closed)


@given(events=events, cuts=st.lists(st.integers(1, 5000), max_size=20))
@settings(max_examples=200, deadline=None)
def test_who_looks_when_does_not_matter(
    events: list[tuple[int, int, int, int]], cuts: list[int]
) -> None:
    rules = Rules(slice_ns=700, switch_ns=50)
    seldom, often, ready, now = Book(), Book(), [0] * SLOTS, 0
    for slot, amount, passes, _ in events:
        ready[slot] += amount
        for cut in sorted(cuts):
            if cut < passes:
                often.advance(ready, rules, now + cut)
        now += passes
        often.advance(ready, rules, now)
        seldom.advance(ready, rules, now)
        assert often == seldom


def test_slices_take_turns() -> None:
    book, rules = Book(), Rules(slice_ns=2000, switch_ns=150)
    book.advance([100_000, 100_000, 0], rules, 4300)
    assert book.granted_ns == [2000, 2000, 0]  # and the next switch
    assert book.closed == [Segment(0, 2000, 2000, 0), Segment(2150, 4150, 2000, 1)]


def test_a_newcomer_waits_for_one_slice_at_most() -> None:
    book, rules = Book(), Rules(slice_ns=2000, switch_ns=150)
    ready = [1_000_000_000, 0]
    book.advance(ready, rules, 7_000)
    ready[1] = 10
    assert book.advance(ready, rules, 20_000, watched=1)
    assert book.time_ns <= 7_000 + 2000 + 150 + 10


def test_who_is_through_makes_room_at_once() -> None:
    book, rules = Book(), Rules(slice_ns=2000, switch_ns=150)
    book.advance([10, 100_000], rules, 1000)
    assert book.granted_ns == [10, 1000 - 10 - 150]


@pytest.mark.parametrize("sharing", [False, True])
def test_equal_shares_whatever_the_lengths(sharing: bool) -> None:
    book, rules = Book(), Rules(sharing=sharing, slice_ns=2000, switch_ns=0)
    ready, now = [0, 0, 0], 0
    for _ in range(3000):
        # 5, 70 and 20,000 at a time, always with a little more in the queue
        for slot, length in enumerate((5, 70, 20_000)):
            while ready[slot] - (book.granted_ns or [0, 0, 0])[slot] < 2 * max(length, 300):
                ready[slot] += length
        now += 100
        book.advance(ready, rules, now)
    assert max(book.granted_ns) - min(book.granted_ns) <= 2000
