"""One cap for all processes of a container, whatever happens to them."""

from __future__ import annotations

import ctypes
import fcntl
import os
import random
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import shim_harness as harness
from shim_harness import CONTEXT, GIB, MIB, OUT_OF_MEMORY, Container

from testbed.native import region_layout as layout
from testbed.native.region import lock_path

Make = Callable[..., Container]

OWN_NAMESPACE = ("unshare", "--pid", "--fork", "--kill-child")
can_unshare = (
    shutil.which("unshare") is not None
    and subprocess.run([*OWN_NAMESPACE, "true"], capture_output=True, check=False).returncode == 0
)
needs_unshare = pytest.mark.skipif(not can_unshare, reason="no right to make PID namespaces")
#: All parties in one namespace, and each as pid 1 of its own.
everywhere = pytest.mark.parametrize(
    "prefix", [(), pytest.param(OWN_NAMESPACE, marks=needs_unshare)], ids=["shared", "pid1"]
)


@everywhere
def test_all_processes_share_the_cap(gibibyte: Container, prefix: tuple[str, ...]) -> None:
    """D3"""
    with gibibyte.start(prefix=prefix) as first, gibibyte.start(prefix=prefix) as second:
        if prefix:
            assert first("__import__('os').getpid()") == second("__import__('os').getpid()") == 1
        first("context()")
        second("context()")
        assert first("alloc(600 * MIB)")[0] == 0
        used = 2 * CONTEXT + 600 * MIB
        assert second("info()") == [0, GIB - used, GIB]
        assert second("nvml_memory()") == [GIB, GIB - used, used]
        assert second("alloc(600 * MIB)")[0] == OUT_OF_MEMORY
        assert second("fill()") == GIB - used
        assert first("fake_peak()") == GIB
        assert gibibyte.used() == GIB


def test_control_of_sharing(gibibyte: Container) -> None:
    control = gibibyte.without_library()
    with control.start() as first, control.start() as second:
        first("context()")
        second("context()")
        assert first("alloc(600 * MIB)")[0] == 0
        assert second("alloc(600 * MIB)")[0] == 0


_RACE = """
import time
codes = []
for i in range(100):
    while time.monotonic_ns() < {start} + i * 4_000_000: pass
    code, ptr = alloc(600 * MIB)
    codes.append(code)
    while time.monotonic_ns() < {start} + i * 4_000_000 + 2_000_000: pass
    if code == 0: free(ptr)
answer = codes
"""
#: Two that the host never lets run at the same time do not meet; then they try again.
_RACES = 50


@everywhere
def test_two_processes_never_both_pass(gibibyte: Container, prefix: tuple[str, ...]) -> None:
    """D2: a hundred rounds of 600 MiB each at the same instant, cap 1 GiB."""
    with gibibyte.start(prefix=prefix) as first, gibibyte.start(prefix=prefix) as second:
        first("context()")
        second("context()")
        for _ in range(_RACES):
            race = _RACE.format(start=time.monotonic_ns() + 100_000_000)
            first.send(race)
            second.send(race)
            one, two = first.receive(), second.receive()
            assert set(one) | set(two) <= {0, OUT_OF_MEMORY}
            assert one.count(0) + two.count(0) > 50  # it is the other one that stood in the way
            if OUT_OF_MEMORY in one + two:
                break
        else:
            raise AssertionError(f"they did not meet in {_RACES} races")
        assert first("fake_peak()") <= GIB
        assert first("fake_peak()") >= 600 * MIB
        assert gibibyte.used() == 2 * CONTEXT


def test_threads_never_both_pass(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        program(
            "import threading\n"
            "ctx = c_void_p(); cuda().cuCtxGetCurrent(byref(ctx))\n"
            "def work():\n"
            "    cuda().cuCtxSetCurrent(ctx)\n"
            "    for _ in range(200):\n"
            "        code, ptr = alloc(600 * MIB)\n"
            "        if code == 0: free(ptr)\n"
            "threads = [threading.Thread(target=work) for _ in range(4)]\n"
            "[t.start() for t in threads]; [t.join() for t in threads]"
        )
        assert program("fake_peak()") <= GIB
        assert gibibyte.used() == CONTEXT


@everywhere
def test_a_killed_process_gives_back(gibibyte: Container, prefix: tuple[str, ...]) -> None:
    with gibibyte.start(prefix=prefix) as survivor:
        survivor("context()")
        with gibibyte.start(prefix=prefix) as victim:
            victim("context()")
            assert victim("alloc(700 * MIB)")[0] == 0
            assert survivor("alloc(700 * MIB)")[0] == OUT_OF_MEMORY
            victim.kill()
            # In a namespace of its own it is killed by its parent's death, a little later.
            wait_for(lambda: len(gibibyte.view().processes) == 1)
        assert survivor("info()[1]") == GIB - CONTEXT
        assert survivor("alloc(700 * MIB)")[0] == 0
        assert [p.record for p in gibibyte.view().processes] == [0]


def test_the_first_context_may_pass_the_cap_also_after_a_killed_one(container: Make) -> None:
    """D1: the dead one's record is nobody's use."""
    box = container(CONTEXT // 2)
    with box.start() as victim:
        assert victim("context()") == 0
        with box.start() as other:
            assert other("context()") == OUT_OF_MEMORY  # control: as long as it lives
        victim.kill()
    with box.start() as program:
        assert program("context()") == 0


def test_killed_at_any_instant(gibibyte: Container) -> None:
    """D9: whatever a process was doing, the others go on at once."""
    chance = random.Random(3)
    with gibibyte.start() as survivor:
        survivor("context()")
        for _ in range(15):
            with gibibyte.start() as victim:
                victim("context()")
                victim.send("while True: free(alloc(700 * MIB)[1])")
                until = time.monotonic() + chance.random() * 0.01
                while time.monotonic() < until:
                    pass
                victim.kill()
            code, ptr = survivor("alloc(900 * MIB)")
            assert code == 0
            survivor(f"free({ptr})")
        assert gibibyte.used() == CONTEXT


_HOLDER = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(lock, fcntl.LOCK_EX, 1, int(sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@everywhere
def test_killed_inside_the_lock(gibibyte: Container, prefix: tuple[str, ...]) -> None:
    """D9, the certain way: the lock is held, then its holder is killed."""
    assert gibibyte.region is not None
    arguments = [str(lock_path(gibibyte.region)), str(layout.LOCK_ACCOUNT)]
    with gibibyte.start(prefix=prefix) as program:
        program("context()")
        holder = subprocess.Popen(
            [*prefix, "python3", "-c", _HOLDER, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"held\n"
            assert program("free(alloc(2 * MIB)[1])") == 0  # far from the limit nobody waits
            program.send("alloc(700 * MIB)")
            wait_for(lambda: somebody_waits_for(lock_path(gibibyte.region)))
        finally:
            holder.kill()
            holder.communicate(timeout=harness.DEADLINE)
        assert program.receive()[0] == 0


def wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + harness.DEADLINE
    while not condition():
        assert time.monotonic() < deadline, f"did not happen within {harness.DEADLINE:g} s"
        time.sleep(0.01)


def somebody_waits_for(file: Path) -> bool:
    """Tell whether a lock of a file is waited for; others' locks are on other files."""
    inode = f":{file.stat().st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return any("->" in line and inode in line for line in lines)


def test_records_are_taken_again(gibibyte: Container) -> None:
    """D10: the one that leaves takes nobody else's record with it."""
    with gibibyte.start() as first:
        first("context()")
        with gibibyte.start() as second:
            second("context()")
            with gibibyte.start() as third:
                third("context()")
                third("alloc(100 * MIB)")
                second.kill()
                third("alloc(50 * MIB)")
                with gibibyte.start() as fourth:
                    fourth("context()")
                    view = gibibyte.view()
                    assert {p.record: p.uses[0].total_bytes for p in view.processes} == {
                        0: CONTEXT,
                        2: CONTEXT + 150 * MIB,
                        3: CONTEXT,
                    }
                    assert gibibyte.used() == 3 * CONTEXT + 150 * MIB


_FORK = """
import os
pid = os.fork()
if pid == 0:
    {child}
    os._exit(0)
answer = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
"""


@pytest.mark.parametrize("child", ["pass", "alloc(100 * MIB)", "context(); alloc(100 * MIB)"])
def test_a_forked_child_leaves_the_parent_alone(gibibyte: Container, child: str) -> None:
    """D11"""
    with gibibyte.start() as program:
        program("context()")
        program("alloc(300 * MIB)")
        before = [(p.record, p.uses) for p in gibibyte.view().processes]
        assert program(_FORK.format(child=child)) == 0
        assert [(p.record, p.uses) for p in gibibyte.view().processes] == before
        assert program("info()[1]") == GIB - CONTEXT - 300 * MIB


def test_a_forked_child_is_counted(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        program("alloc(300 * MIB)")
        child = (
            "assert alloc(800 * MIB)[0] == 2\n"
            "    assert alloc(600 * MIB)[0] == 0\n"
            "    assert info()[1] == GIB - 100 * MIB - 900 * MIB"
        )
        assert program(_FORK.format(child=child)) == 0


def test_fork_while_another_thread_is_inside(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        program("context()")
        program(
            "import os, threading\n"
            "ctx = c_void_p(); cuda().cuCtxGetCurrent(byref(ctx))\n"
            "stop = False\n"
            "def work():\n"
            "    cuda().cuCtxSetCurrent(ctx)\n"
            "    while not stop: free(alloc(10 * MIB)[1])\n"
            "thread = threading.Thread(target=work); thread.start()\n"
            "nvml()"
        )
        for _ in range(30):
            # through NVML: the double of the driver has a lock of its own
            assert program(_FORK.format(child="assert nvml_memory()[0] == GIB")) == 0
        program("stop = True; thread.join()")
        assert gibibyte.used() == CONTEXT


CLOSING = {
    "closerange": "import os; os.closerange(3, 65536)",
    "own descriptor": "import os; os.close(os.open(LOCK, os.O_RDONLY))",
    "reused number": (
        "import os; os.closerange(3, 65536)\n"
        "[os.open('/dev/null', os.O_RDONLY) for _ in range(1100)]"
    ),
}


@pytest.mark.parametrize("how", CLOSING)
def test_locks_dropped_by_the_program_come_back(gibibyte: Container, how: str) -> None:
    assert gibibyte.region is not None
    with gibibyte.start() as careless, gibibyte.start() as other:
        careless("context()")
        other("context()")
        _, ptr = careless("alloc(300 * MIB)")
        careless(f"LOCK = {str(lock_path(gibibyte.region))!r}")
        careless(CLOSING[how])
        assert careless("info()[1]") == GIB - 2 * CONTEXT - 300 * MIB  # noticed at the next call
        assert other("info()[1]") == GIB - 2 * CONTEXT - 300 * MIB
        assert other("alloc(700 * MIB)")[0] == OUT_OF_MEMORY
        # And when the other one took the record back in between:
        careless(CLOSING[how])
        assert other("info()[1]") == GIB - CONTEXT
        assert careless(f"free({ptr})") == 0
        assert gibibyte.used() == 2 * CONTEXT
        assert careless("alloc(400 * MIB)")[0] == 0
        assert other("alloc(700 * MIB)")[0] == OUT_OF_MEMORY
        assert gibibyte.used() == 2 * CONTEXT + 400 * MIB


def test_hamis_view_is_kept(gibibyte: Container) -> None:
    assert gibibyte.region is not None
    with gibibyte.start() as program:
        program("context()")
        program("alloc(300 * MIB)")
        hami = layout.HamiRegion.from_buffer_copy(gibibyte.region.read_bytes())
        slot = hami.slots[0]
        assert hami.slot_count == 1
        assert slot.pid == program("__import__('os').getpid()")
        assert slot.status == 1
        assert slot.sequence % 2 == 0 != slot.sequence
        used = slot.used[0]
        assert (used.context_bytes, used.buffer_bytes) == (CONTEXT, 300 * MIB)
        assert used.total_bytes == CONTEXT + 300 * MIB
        assert bytes(hami.semaphore) == bytes(32)


@pytest.fixture
def all_records_taken(gibibyte: Container) -> Iterator[None]:
    assert gibibyte.region is not None
    lock = os.open(lock_path(gibibyte.region), os.O_RDWR)
    fcntl.lockf(lock, fcntl.LOCK_EX, layout.MAX_PROCESSES, 0)
    yield
    os.close(lock)


@pytest.mark.usefixtures("all_records_taken")
def test_without_a_record_nothing_is_allocated(gibibyte: Container) -> None:
    with gibibyte.start() as program:
        assert program("context()") == OUT_OF_MEMORY
        assert program("create(2 * MIB)")[0] == OUT_OF_MEMORY


def test_figures_of_others_cannot_overflow(gibibyte: Container) -> None:
    assert gibibyte.region is not None
    start = layout.EXT_OFFSET + layout.Extension.records.offset
    with gibibyte.start() as first, gibibyte.start() as second:
        first("context()")
        second("context()")
        with gibibyte.region.open("r+b") as file:
            for i in range(2):
                offset = start + i * ctypes.sizeof(layout.ProcessRecord) + 64
                file.seek(offset)
                file.write(struct.pack("<QQQ", 2**64 - 1, 2**63, 2**64 - 1))
            file.seek(layout.EXT_OFFSET + layout.Extension.record_count.offset)
            file.write(struct.pack("<I", 2**32 - 1))
        assert first("info()") == [0, 0, GIB]
        assert first("alloc(2 * MIB)")[0] == OUT_OF_MEMORY


# --- where the limits come from ---------------------------------------------------------


def test_limits_from_the_environment_alone(container: Make) -> None:
    with container(GIB, by="environment").start() as program:
        program("context()")
        assert program("fill()") == GIB - CONTEXT
        assert program("total()") == GIB
        assert program("fake_peak()") == GIB


@pytest.mark.parametrize(
    ("text", "total"),
    [("512m", 512 * MIB), ("1g", GIB), ("524288k", 512 * MIB), ("1073741824", GIB), ("1G", GIB)]
    + [(text, 16 * GIB) for text in ("0m", "0", "99999999999999999999g", "-1", "12x", "m")],
)
def test_spellings_of_a_limit(container: Make, text: str, total: int) -> None:
    """D14; and what is no size is no limit, rather than some limit."""
    box = container(by="environment")
    with box.start(CUDA_DEVICE_MEMORY_LIMIT=text) as program:
        program("context()")
        assert program("total()") == total


def test_the_numbered_limit_wins(container: Make) -> None:
    box = container(GIB, by="environment")
    with box.start(CUDA_DEVICE_MEMORY_LIMIT="2g") as program:
        assert program("total()") == GIB


def test_forked_children_share_the_environments_limit(container: Make) -> None:
    with container(GIB, by="environment").start() as program:
        program("context()")
        program("alloc(300 * MIB)")
        child = "assert [alloc(n * MIB)[0] for n in (800, 600)] == [2, 0]"
        assert program(_FORK.format(child=child)) == 0
        assert program("alloc(600 * MIB)")[0] == 0  # the child's is back


def test_the_region_wins_over_the_environment(gibibyte: Container) -> None:
    for text in ("8g", "100m"):
        with gibibyte.start(CUDA_DEVICE_MEMORY_LIMIT_0=text) as program:
            assert program("total()") == GIB


def test_nothing_set_changes_nothing(container: Make) -> None:
    with container(by="nothing").start() as program:
        program("context()")
        assert program("fill()") == 16 * GIB - CONTEXT
        assert program("info()[2]") == 16 * GIB


def test_later_changes_do_not_reach_a_running_process(gibibyte: Container) -> None:
    assert gibibyte.region is not None
    start = layout.EXT_OFFSET + layout.Extension.constant.offset
    with gibibyte.start() as program:
        program("context()")
        with gibibyte.region.open("r+b") as file:
            file.seek(start + layout.Constant.memory_limit.offset)
            file.write(struct.pack("<Q", 1 << 60))
        program("import os; os.environ['CUDA_DEVICE_MEMORY_LIMIT_0'] = '8g'")
        assert program("fill()") == GIB - CONTEXT


def damage(path: Path, how: str) -> None:
    with path.open("r+b") as file:
        if how == "cut":
            file.truncate(layout.HAMI_BYTES)
            return
        member = layout.Extension.constant.offset + layout.Constant.memory_limit.offset
        file.seek(layout.EXT_OFFSET + (0 if how == "magic" else member))
        file.write(struct.pack("<Q", 1 << 60))


DAMAGES = {
    "cut": "is too short or cannot be mapped",
    "magic": "is not valid (magic, version or checksum)",
    "checksum": "is not valid (magic, version or checksum)",
}
ENVIRONMENT = "the limits of the environment hold"


def told(program: harness.Program) -> str:
    """Return the one line that a program was told, without being asked."""
    (line,) = program.finish()[1].splitlines()
    start, _, rest = line.partition("] ")
    assert start == f"[vgpu {program.pid}"
    return rest


@pytest.mark.parametrize("how", DAMAGES)
def test_an_invalid_region_leaves_the_environments_limit(container: Make, how: str) -> None:
    box = container(GIB)
    assert box.region is not None
    damage(box.region, how)
    with box.start(CUDA_DEVICE_MEMORY_LIMIT_0="512m") as program:
        program("context()")
        assert program("fill()") == 512 * MIB - CONTEXT
        assert told(program) == f"region {box.region} {DAMAGES[how]}: {ENVIRONMENT}"
    with box.start() as program:
        program("context()")
        assert program("alloc(2 * GIB)")[0] == 0
        assert told(program).endswith("nothing is limited")


def test_a_region_that_is_missing_is_told_and_one_that_nobody_named_is_not(
    container: Make,
) -> None:
    box = container(by="none")
    with box.start(CUDA_DEVICE_MEMORY_SHARED_CACHE="/nowhere/cache") as program:
        program("context()")
        assert told(program) == "region /nowhere/cache is missing: nothing is limited"
    with box.start(CUDA_DEVICE_MEMORY_LIMIT_0="512m") as program:
        program("context()")
        assert program.finish()[1] == ""
    with box.start(CUDA_DEVICE_MEMORY_SHARED_CACHE="/nowhere/cache") as program:
        program("1 + 1")
        assert program.finish()[1] == "", "it does not use the card"


@pytest.fixture
def fixed(tmp_path: Path) -> Path:
    """A library whose fixed place lies in the test's folder."""
    link = tmp_path / "fixed-region"
    return harness.shim(defines=(f'-DVGPU_REGION_LINK="{link}"',))


def test_a_process_without_environment_is_capped(
    tmp_path: Path, gibibyte: Container, fixed: Path
) -> None:
    """W8: by the fixed link; and it shares the region with those that have the variable."""
    assert gibibyte.region is not None
    (tmp_path / "fixed-region").symlink_to(gibibyte.region.relative_to(tmp_path))
    cleared = {
        key: value
        for key, value in gibibyte.environment.items()
        if not key.startswith(("CUDA", "LD_PRELOAD"))
    }
    box = Container(
        library=fixed,
        driver=gibibyte.driver,
        environment={**cleared, "LD_PRELOAD": str(fixed)},
        region=gibibyte.region,
    )
    with box.start() as program, gibibyte.start() as other:
        program("context()")
        assert program("total()") == GIB
        other("context()")
        other("alloc(600 * MIB)")
        assert program("alloc(600 * MIB)")[0] == OUT_OF_MEMORY
        # nor does it help to name another region
    with box.start(CUDA_DEVICE_MEMORY_SHARED_CACHE="/nowhere") as program:
        assert program("total()") == GIB


def test_a_fixed_region_that_is_damaged_refuses(
    tmp_path: Path, gibibyte: Container, fixed: Path
) -> None:
    assert gibibyte.region is not None
    damage(gibibyte.region, "checksum")
    (tmp_path / "fixed-region").symlink_to(gibibyte.region)
    environment = {**gibibyte.environment, "LD_PRELOAD": str(fixed)}
    del environment["CUDA_DEVICE_MEMORY_SHARED_CACHE"]
    box = Container(library=fixed, driver=gibibyte.driver, environment=environment)
    with box.start() as program:
        assert program("context()") == OUT_OF_MEMORY
        assert told(program).endswith("allocations are refused")
    with box.start(CUDA_DEVICE_MEMORY_LIMIT_0="512m") as program:
        assert program("context()") == 0
        assert program("fill()") == 512 * MIB - CONTEXT
        assert told(program).endswith(ENVIRONMENT)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can enter (pytest's are private)."""
    folder = Path(tempfile.mkdtemp(prefix="vgpu-shim-"))
    folder.chmod(0o777)
    yield folder
    shutil.rmtree(folder)


@pytest.mark.skipif(
    os.geteuid() != 0 or shutil.which("setpriv") is None, reason="needs root and setpriv"
)
@pytest.mark.parametrize("mode", [0o666, 0o644, 0o600])
def test_a_second_user(container: Make, open_folder: Path, mode: int) -> None:
    """D21: works where the files let it; else its limits hold for itself, or it is refused."""
    box = container(GIB)
    assert box.region is not None
    shutil.copytree(box.region.parent, open_folder / "c", symlinks=True)
    (open_folder / "c").chmod(0o777)
    for name in ("driver/libcuda.so.1", "driver/libnvidia-ml.so.1", "libvgpu.so"):
        (open_folder / name).parent.mkdir(exist_ok=True)
        source = box.driver / Path(name).name if "driver" in name else box.library
        assert source is not None
        shutil.copy(source, open_folder / name)
    (open_folder / "card").touch()
    (open_folder / "card").chmod(0o666)
    shutil.copy(harness.HERE / "child.py", open_folder)
    region = open_folder / "c" / "cache.cache"
    region.chmod(mode)
    lock_path(region).chmod(mode)
    environment = {
        **{k: v for k, v in box.environment.items() if k.startswith(("FAKE", "ASAN", "UBSAN"))},
        **harness.preload_of(open_folder / "libvgpu.so", sanitized=box.sanitized),
        "LD_LIBRARY_PATH": str(open_folder / "driver"),
        "FAKE_CARD": str(open_folder / "card"),
        "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
        "CUDA_DEVICE_MEMORY_LIMIT_0": "512m",
        "PATH": os.environ["PATH"],
    }
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "env"]
    command += [f"{key}={value}" for key, value in environment.items()]
    with harness.Program(
        [*command, "/usr/bin/python3", "-u", str(open_folder / "child.py")], box.base()
    ) as program:
        assert program("__import__('os').getuid()") == 65534
        assert program("context()") == 0
        expected = {0o666: GIB, 0o644: GIB, 0o600: 512 * MIB}[mode]
        assert program("total()") == expected
        assert program("fill()") == expected - CONTEXT
        _, errors = program.finish()
        assert len(errors.splitlines()) == (mode != 0o666)
        assert {0o666: "", 0o644: "counts alone", 0o600: ENVIRONMENT}[mode] in errors
