"""Processes that allocate at the same instant, and die at any: never above the card."""

from __future__ import annotations

import fcntl
import random
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import variant
from emu_harness import TIMEOUT_S, Emulation

from testbed.native import card

MIB = 1 << 20
CONTEXT = 424 * MIB
CAPACITY = (81920 - 870) * MIB
FOREVER = 1 << 60


@dataclass(frozen=True, kw_only=True)
class Book:
    """``struct book`` of ``race.c``."""

    used: int
    arrived: int
    successes: int
    refusals: int
    violations: int


BOOK = struct.Struct("<qQQQQ")


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    here = Path(__file__).parent
    made = tmp_path_factory.mktemp("race") / "race"
    include = here.parents[2] / "testbed/native/include"
    subprocess.run(
        ["cc", "-O1", f"-I{include}", str(here / "race.c"), "-ldl", "-o", str(made)],
        check=True,
        timeout=TIMEOUT_S,
    )
    return made


class Race:
    """Racers on one card, with their book."""

    def __init__(self, emulation: Emulation, program: Path) -> None:
        self.emulation, self.program = emulation, program
        self.book_file = emulation.root / "book"
        self.book_file.write_bytes(bytes(BOOK.size))
        self.racers: list[subprocess.Popen[bytes]] = []
        self.libraries = emulation.root / "driver"

    def start(
        self, racers: int, rounds: int, seed: int, part: int, *, own_namespace: bool = False
    ) -> subprocess.Popen[bytes]:
        arguments = map(str, (racers, rounds, seed, part))
        state = self.emulation.card() / "state"
        command = self.emulation.command(
            str(self.program), str(state), str(self.book_file), *arguments,
            own_namespace=own_namespace,
        )  # fmt: skip
        environment = self.emulation.environment(
            LD_LIBRARY_PATH=str(self.libraries), VGPU_EMU_CARDS=str(self.emulation.root / "cards")
        )
        started = subprocess.Popen(command, env=environment, stderr=subprocess.PIPE)
        self.racers.append(started)
        return started

    def run(self, racers: int, rounds: int, part: int, *, own_namespace: bool = False) -> Book:
        for seed in range(1, racers + 1):
            self.start(racers, rounds, seed, part, own_namespace=own_namespace)
        errors = [racer.communicate(timeout=TIMEOUT_S)[1] for racer in self.racers]
        assert [racer.returncode for racer in self.racers] == [0] * racers, errors
        return self.book()

    def book(self) -> Book:
        names = Book.__dataclass_fields__
        values = BOOK.unpack(self.book_file.read_bytes())
        return Book(**dict(zip(names, values, strict=True)))

    def end(self) -> None:
        for racer in self.racers:
            racer.kill()
            racer.communicate(timeout=TIMEOUT_S)


@pytest.fixture
def race(emulation: Emulation, program: Path) -> Iterator[Race]:
    made = Race(emulation, program)
    yield made
    made.end()


@contextmanager
def memory_lock(emulation: Emulation) -> Iterator[None]:
    """Hold the lock under which alone what processes have taken can grow."""
    with (emulation.card() / "cuda.lock").open("r+b") as file:
        deadline = time.monotonic() + TIMEOUT_S
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, card.LOCK_MEMORY)
                break
            except (BlockingIOError, PermissionError):
                assert time.monotonic() < deadline, "the memory lock is never free"
        yield


def taken(emulation: Emulation) -> int:
    """Bytes that all slots hold, credit included."""
    slots = emulation.state().slots
    return sum(s.memory_bytes + s.credit_bytes + s.context_bytes for s in slots)


@pytest.mark.parametrize("own_namespace", [False, True], ids=["one-namespace", "pid-1-each"])
def test_never_both(race: Race, own_namespace: bool) -> None:
    """Two that want up to the whole card, thousands of times."""
    book = race.run(2, 3000, part=1, own_namespace=own_namespace)
    assert book.successes > 300
    assert book.violations == 0
    assert book.used == 0


def test_eight_processes(race: Race, libraries: Path) -> None:
    rounds = 30_000 if libraries.name != "sanitized" else 10_000
    book = race.run(8, rounds, part=8)
    assert book.violations == 0
    assert book.successes > rounds
    assert book.refusals > 100  # they did fill the card
    with memory_lock(race.emulation):
        assert taken(race.emulation) <= CAPACITY


UNPAID = ("- (uint64_t)granules;", "- (uint64_t)(granules < 0 ? granules : 0);")
UNLOCKED = ("!lockfile_wait(&device->locks, CARD_LOCK_MEMORY, LOCK_PATIENCE_MS)", "false")
#: Between deciding and counting, so that others come between.
PAUSE = (
    "        if (more > room) {\n            result",
    "usleep(20);\n        if (more > room) {\n            result",
)


@pytest.mark.parametrize("libraries", ["plain"], indirect=True)
@pytest.mark.parametrize(
    ("defects", "shown"),
    [((UNPAID,), True), ((UNLOCKED, PAUSE), True), ((PAUSE,), False)],
    ids=["credit-is-not-paid", "decided-without-the-lock", "decided-slowly"],
)
def test_the_race_would_show_it(
    race: Race, tmp_path: Path, defects: tuple[tuple[str, str], ...], shown: bool
) -> None:
    """Controls: drivers with a defect; and one that is slow but right."""
    race.libraries = variant.build(tmp_path / "broken", replace={"account.c": defects})
    assert (race.run(8, 5000, part=8).violations > 0) is shown


def test_killed_at_any_moment(race: Race) -> None:
    """Whenever they die, what all slots hold fits the card, and comes back."""
    emulation, chance = race.emulation, random.Random(7)
    alive = [race.start(1, FOREVER, seed, 4) for seed in range(1, 6)]
    deadline = time.monotonic() + TIMEOUT_S
    while race.book().successes < 100:
        assert time.monotonic() < deadline, race.book()
    for turn in range(40):
        time.sleep(chance.random() * 0.02)  # not a wait: where it dies is the point
        victim = alive.pop(chance.randrange(len(alive)))
        victim.send_signal(signal.SIGKILL)
        assert victim.wait(TIMEOUT_S) == -signal.SIGKILL
        with memory_lock(emulation):
            assert taken(emulation) <= CAPACITY
        alive.append(race.start(1, FOREVER, 100 + turn, 4))
    before = race.book().successes
    while race.book().successes < before + 100:  # the others go on
        assert time.monotonic() < deadline + TIMEOUT_S, race.book()
    race.end()
    worker = emulation.start()
    worker("context(); p = call('cuMemAlloc', call('cuMemGetInfo')[0])")
    assert worker("call('cuMemGetInfo')[0]") == 0


def test_credit_of_an_idle_process_is_taken(emulation: Emulation) -> None:
    """What a process freed is its credit, and anybody's who needs it; also where it is stopped."""
    first, second = emulation.start(), emulation.start()
    first("context(); call('cuMemFree', call('cuMemAlloc', 70 * GIB))")
    assert emulation.state().slots[0].credit_bytes >= 70 << 30
    assert first("used()") == CONTEXT  # nobody's memory
    second("context()")
    first.process.send_signal(signal.SIGSTOP)
    try:
        second("p = call('cuMemAlloc', 75 * GIB)")
    finally:
        first.process.send_signal(signal.SIGCONT)
    assert emulation.state().slots[0].credit_bytes == 0
    assert first("error('cuMemAlloc', 10 * GIB)") == "CUDA_ERROR_OUT_OF_MEMORY"


def test_within_its_credit_a_process_needs_no_lock(emulation: Emulation) -> None:
    first = emulation.start()
    first("context(); call('cuMemFree', call('cuMemAlloc', 64 * MIB))")
    with memory_lock(emulation):
        first("p = call('cuMemAlloc', 64 * MIB)")
        assert emulation.state().slots[0].memory_bytes == 64 * MIB
        first("call('cuMemFree', p)")
        assert emulation.state().slots[0].memory_bytes == 0
