"""The unmodified torch wheel on an emulated A100 of 80 GB."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import stat
import subprocess
from collections.abc import Callable
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from testbed.card import profiles
from testbed.lab.images import ldcache, pytorch, venv
from testbed.lab.progress import QuietProgress
from testbed.native.standins.elf import read
from testbed.units import GIB, MIB

pytestmark = pytest.mark.slow

Run = Callable[..., dict[str, Any]]
Cards = Callable[..., Path]
Start = Callable[..., Any]
_A100 = profiles.load("a100-80gb").figures
#: What NVML tells, and what the driver API has for programs.
CARD = _A100["memory_bytes"].value
TOTAL = CARD - _A100["reserved_bytes"].value

#: What the driver gives at most, asked for without torch: falling steps down to 2 MiB.
CONTROL = """
import ctypes as c, json
cuda = c.CDLL("libcuda.so.1")
context, p, free, total = c.c_void_p(), c.c_uint64(), c.c_size_t(), c.c_size_t()
assert cuda.cuInit(0) == 0
assert cuda.cuDevicePrimaryCtxRetain(c.byref(context), 0) == 0
assert cuda.cuCtxSetCurrent(context) == 0
assert cuda.cuMemGetInfo_v2(c.byref(free), c.byref(total)) == 0
before, taken, step = total.value - free.value, 0, 1 << 33
while step >= 1 << 21:
    error = cuda.cuMemAlloc_v2(c.byref(p), c.c_size_t(step))
    if error:
        assert error == 2, error
        step //= 2
    else:
        taken += step
print(json.dumps({"taken": taken, "before": before, "total": total.value}))
"""

#: Pieces of 1 MiB at the end: with a cache torch takes 20 MiB at a time for somewhat larger
#: ones, and 2 MiB for these.
FILL = """
torch.cuda.init(); torch.cuda.synchronize()
empty = torch.empty(0, device="cuda"); torch.cuda.synchronize()
before = used()
kept, step, message = [], 8 * GIB, ""
while step >= MIB:
    try:
        kept.append(torch.empty(step, dtype=torch.uint8, device="cuda"))
    except (torch.OutOfMemoryError, torch.AcceleratorError) as error:
        message, kind = str(error), type(error).__name__
        step //= 2
full = used()
count = len(kept)
kept.clear(); torch.cuda.empty_cache()
after = used()
back = torch.empty(40 * GIB, dtype=torch.uint8, device="cuda")
again = used()
del back; torch.cuda.empty_cache()
say(before=before, full=full, count=count, after=after, again=again, message=message,
    kind=kind, equal=round_trip(), backend=torch.cuda.get_allocator_backend())
"""


@pytest.mark.parametrize(
    ("backend", "kind", "env"),
    [
        # Without its cache torch passes the driver's error on as it is.
        ("native", "AcceleratorError", {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}),
        ("native", "OutOfMemoryError", {"PYTORCH_CUDA_ALLOC_CONF": "backend:native"}),
        ("native", "OutOfMemoryError", {"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"}),
        (
            "cudaMallocAsync",
            "OutOfMemoryError",
            {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        ),
    ],
    ids=["uncached", "native", "expandable", "async"],
)
def test_out_of_memory_at_the_right_byte(
    cards: Cards, start: Start, run: Run, backend: str, kind: str, env: dict[str, str]
) -> None:
    root = cards()
    (control,) = start(root, CONTROL, prelude="").ends()
    assert control["total"] == TOTAL
    most = control["before"] + control["taken"]
    # The plain control ends within one granule of the card's end.
    assert TOTAL - 2 * MIB < most <= TOTAL

    found = run(root, FILL, **env)
    assert (found["backend"], found["kind"]) == (backend, kind)
    assert found["full"] == most, f"{(most - found['full']) / MIB} MiB were not reached"
    assert found["count"] > 10
    assert "out of memory" in found["message"]
    # Everything given back, then half of the card again, then right data.
    assert found["after"] == found["before"]
    assert found["again"] - found["before"] == 40 * GIB
    assert found["equal"] is True


def test_data_survives_copies_and_memsets(cards: Cards, run: Run) -> None:
    found = run(
        cards(),
        """
n = 4 * MIB
data = torch.randint(0, 255, (n,), dtype=torch.uint8)
a = data.cuda()
b = torch.empty_like(a); b.copy_(a)
pinned = data.pin_memory()
side = torch.cuda.Stream()
with torch.cuda.stream(side):
    c = pinned.cuda(non_blocking=True)
side.synchronize()
host = torch.empty(n, dtype=torch.uint8, pin_memory=True); host.copy_(c, non_blocking=True)
torch.cuda.synchronize()
z = torch.empty(n, dtype=torch.uint8, device="cuda"); z.copy_(data); z.zero_()
grid = torch.arange(0, 100, dtype=torch.int32).reshape(10, 10)
say(card=torch.equal(b.cpu(), data), pinned=torch.equal(host, data), is_pinned=pinned.is_pinned(),
    zero=int(z.cpu().max()), part=torch.equal(a[100:200].cpu(), data[100:200]),
    grid=torch.equal(grid.cuda().cpu(), grid), big=round_trip())
""",
    )
    assert found["card"] and found["pinned"] and found["is_pinned"] and found["part"]
    assert found["zero"] == 0 and found["grid"] and found["big"]


def test_zeros_of_most_of_the_card_cost_no_memory(cards: Cards, run: Run) -> None:
    found = run(
        cards(),
        """
import resource
x = torch.zeros(60 * GIB, dtype=torch.uint8, device="cuda")
tail = x[-4 * MIB:].cpu()
say(max=int(tail.max()), rss_mib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
""",
    )
    assert found["max"] == 0
    assert found["rss_mib"] < 1500


def test_what_the_card_is(cards: Cards, run: Run) -> None:
    found = run(
        cards(2),
        """
p = torch.cuda.get_device_properties(1)
free, total = torch.cuda.mem_get_info(1)
torch.cuda.set_device(1)
x = torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
y = x[: 64 * MIB].to("cuda:0")
say(count=torch.cuda.device_count(), name=p.name, total=p.total_memory, info=total,
    sms=p.multi_processor_count, capability=torch.cuda.get_device_capability(1),
    shared=p.shared_memory_per_block_optin, used1=used(1), used0=used(0), at=str(y.device),
    current=torch.cuda.current_device(), cudnn=torch.backends.cudnn.version(),
    nccl=torch.cuda.nccl.version())
""",
    )
    assert found["count"] == 2 and "A100" in found["name"]
    assert found["total"] == found["info"] == TOTAL
    assert found["sms"] == 108 and found["capability"] == [8, 0]
    assert found["shared"] == 163 * 1024
    assert found["used1"] - found["used0"] == 3 * GIB - 64 * MIB
    assert found["at"] == "cuda:0" and found["current"] == 1
    assert found["cudnn"] == 92600 and found["nccl"] == [2, 30, 7]


def test_visible_devices(cards: Cards, start: Start, run: Run) -> None:
    root = cards(2)
    text = "say(count=torch.cuda.device_count())"
    assert run(root, text, CUDA_VISIBLE_DEVICES="1")["count"] == 1
    none = """
import ctypes, json
n = ctypes.c_int(-1)
error = ctypes.CDLL("libcudart.so.13").cudaGetDeviceCount(ctypes.byref(n))
print(json.dumps({"error": error, "count": n.value}))
"""
    (found,) = start(root, none, prelude="", CUDA_VISIBLE_DEVICES="").ends()
    assert found == {"error": 100, "count": 0}  # cudaErrorNoDevice


def test_two_processes_share_a_card_and_a_killed_one_gives_back(cards: Cards, start: Start) -> None:
    root = cards()
    holder = start(
        root,
        """
x = torch.empty(60 * GIB, dtype=torch.uint8, device="cuda")
say(used=used())
until("never")
""",
    )
    other = start(
        root,
        """
until("held")
try:
    torch.empty(30 * GIB, dtype=torch.uint8, device="cuda")
    say(message="none")
except torch.OutOfMemoryError as error:
    say(message=str(error), used=used())
until("killed")
import time
end = time.monotonic() + 10
while used() > 10 * GIB and time.monotonic() < end:
    time.sleep(0.02)
x = torch.empty(70 * GIB, dtype=torch.uint8, device="cuda")
say(used=used())
""",
    )
    held = holder.says()["used"]
    other.hears("held")
    first = other.says()
    # torch asks NVML who else is there.
    assert re.search(rf"Process {holder.pid} has 6\d\.\d+ GiB memory in use", first["message"]), (
        first["message"]
    )
    assert first["used"] > held
    holder.kill()
    other.hears("killed")
    (last,) = other.ends()
    assert 70 * GIB < last["used"] < 72 * GIB


def test_nvml_beside_torch(cards: Cards, start: Start) -> None:
    """Each nvmlShutdown closes what libnvidia-ml opened: the process must stay counted."""
    root = cards()
    script = start(
        root,
        """
import pynvml as n
x = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
def own():
    handle = n.nvmlDeviceGetHandleByIndex(0)
    found = [p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(handle)
             if p.pid == os.getpid()]
    return found, n.nvmlDeviceGetMemoryInfo(handle).total
for _ in range(100):
    n.nvmlInit(); n.nvmlDeviceGetCount(); n.nvmlShutdown()
n.nvmlInit(); (before, total) = own()
y = torch.empty(3 * GIB, dtype=torch.uint8, device="cuda")
(after, _) = own()
n.nvmlShutdown()
say(before=before, after=after, total=total, used=used())
until("end")
""",
    )
    said = script.says()
    assert said["total"] == CARD
    assert len(said["before"]) == len(said["after"]) == 1
    assert said["after"][0] - said["before"][0] == 3 * GIB
    # Seen from outside too.
    outside = start(
        root,
        """
import json, pynvml as n
n.nvmlInit()
h = n.nvmlDeviceGetHandleByIndex(0)
print(json.dumps({str(p.pid): p.usedGpuMemory for p in n.nvmlDeviceGetComputeRunningProcesses(h)}))
""",
        prelude="",
    )
    (seen,) = outside.ends()
    assert seen == {str(script.pid): said["after"][0]}
    script.hears("end")
    script.ends()


def test_a_program_that_closes_all_descriptors_stays_counted(cards: Cards, start: Start) -> None:
    root = cards()
    script = start(
        root,
        """
x = torch.empty(8 * GIB, dtype=torch.uint8, device="cuda")
os.closerange(3, 4096)
y = torch.empty(8 * GIB, dtype=torch.uint8, device="cuda")
equal = round_trip(8)
say(used=used(), equal=equal)
until("end")
say(used=used())
""",
    )
    said = script.says()
    assert said["used"] > 16 * GIB and said["equal"] is True
    # A sweep by another process takes the slots of the dead, and this one is alive.
    (control,) = start(root, CONTROL, prelude="").ends()
    assert TOTAL - 2 * MIB < control["before"] + control["taken"] <= TOTAL
    assert control["before"] > said["used"]
    script.hears("end")
    (last,) = script.ends()
    assert last["used"] == said["used"]


def test_fork(cards: Cards, run: Run) -> None:
    """A child of a process that uses the card: torch refuses it, the parent stays whole."""
    found = run(
        cards(),
        """
x = torch.empty(4 * GIB, dtype=torch.uint8, device="cuda")
before = used()
read, write = os.pipe()
pid = os.fork()
if not pid:
    import signal; signal.alarm(30)
    try:
        torch.empty(GIB, device="cuda"); text = "no error"
    except RuntimeError as error:
        text = str(error)
    os.write(write, text.encode()); os._exit(0)
os.close(write)
text = os.read(read, 4096).decode()
status = os.waitpid(pid, 0)[1]
y = torch.empty(GIB, dtype=torch.uint8, device="cuda")
say(text=text, status=status, grown=used() - before, equal=round_trip(8))
""",
    )
    assert "Cannot re-initialize CUDA in forked subprocess" in found["text"]
    assert found["status"] == 0 and found["equal"] is True
    assert found["grown"] >= GIB


def test_fork_before_the_card_is_used(cards: Cards, run: Run) -> None:
    """As a data loader's parent does: import torch, fork, use the card in both."""
    found = run(
        cards(),
        """
assert torch.cuda.is_available() and not torch.cuda.is_initialized()
read, write = os.pipe()
pid = os.fork()
x = torch.empty(2 * GIB, dtype=torch.uint8, device="cuda")
if not pid:
    os.write(write, json.dumps(round_trip(8)).encode()); os._exit(0)
os.close(write)
child = os.read(read, 4096).decode()
status = os.waitpid(pid, 0)[1]
say(child=child, status=status, used=used(), equal=round_trip(8))
""",
        # Counting the cards through NVML leaves CUDA alone in the parent, as torch advises.
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
    )
    assert found["child"] == "true" and found["status"] == 0 and found["equal"]
    # The child is gone, and its 2 GiB with it.
    assert 2 * GIB < found["used"] < 3.5 * GIB


def test_streams_events_and_graphs(cards: Cards, run: Run) -> None:
    found = run(
        cards(),
        """
first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
a = torch.ones(MIB, dtype=torch.uint8).cuda()
b = torch.empty_like(a)
first.record()
b.copy_(a)
last.record(); last.synchronize()
graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
with torch.cuda.stream(side):
    c = torch.empty_like(a); c.copy_(b); side.synchronize()
    with torch.cuda.graph(graph, stream=side):
        c.copy_(b)
c.zero_(); torch.cuda.synchronize()
cleared = int(c.cpu().max())
graph.replay(); torch.cuda.synchronize()
say(ms=first.elapsed_time(last), cleared=cleared, replayed=int(c.cpu().min()), query=last.query())
""",
    )
    assert 0 <= found["ms"] < 10_000 and found["query"] is True
    assert found["cleared"] == 0 and found["replayed"] == 1


def test_what_is_not_emulated_says_so(cards: Cards, run: Run) -> None:
    found = run(
        cards(),
        """
x = torch.empty(64, 64, device="cuda")
def fails(f):
    try:
        f(); return ""
    except RuntimeError as error:
        return str(error)
say(solve=fails(lambda: torch.linalg.solve(x, x)), fft=fails(lambda: torch.fft.fft(x)),
    grid=fails(lambda: torch.cudnn_affine_grid_generator(x[:2, :3].reshape(1, 2, 3), 1, 1, 4, 4)),
    again=fails(lambda: torch.fft.fft(x)), equal=round_trip(8))
""",
    )
    assert "cusolver error" in found["solve"]
    assert "CUFFT" in found["fft"] and found["again"]
    assert "not emulated in this version" in found["grid"]
    for title in ("cuSOLVER", "cuFFT", "cuDNN"):
        line = f"{title} is not emulated in this version of vgpu-testbed"
        assert found["errors"].count(line) == 1
    assert found["equal"] is True


# --- the environment -------------------------------------------------------------


def test_the_wheels_libraries_are_untouched(environment: Path) -> None:
    (record,) = environment.glob("lib/python3.*/site-packages/torch-*.dist-info/RECORD")
    site = record.parent.parent
    checked = 0
    for name, digest, _ in csv.reader(record.read_text().splitlines()):
        # The two of half a gigabyte each are left out, for time.
        if re.match(r"torch/.*\.so", name) and not re.search(r"torch_(cuda|cpu)\.so", name):
            data = (site / name).read_bytes()
            found = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
            assert digest == f"sha256={found.decode()}", name
            checked += 1
    assert checked >= 8
    assert not (site / "nvidia").exists() and not (site / "triton").exists()


def test_the_environment_is_closed_and_open_to_every_reader(environment: Path) -> None:
    assert venv.open_links(environment) == []
    closed = []
    for where, folders, files in os.walk(environment):
        for name in (*folders, *files):
            mode = (Path(where) / name).lstat().st_mode
            wanted = 0o555 if stat.S_ISDIR(mode) else 0o444
            if not stat.S_ISLNK(mode) and mode & wanted != wanted:
                closed.append(name)
    assert closed == []


def test_the_environment_sees_no_package_of_the_host(environment: Path) -> None:
    done = subprocess.run(
        [environment / "bin" / "python3", "-c", "import sys; print('\\n'.join(sys.path))"],
        capture_output=True, text=True, timeout=240, env={"PATH": "/usr/bin"}, cwd="/",
    )  # fmt: skip
    folders = [p for p in done.stdout.split("\n") if "packages" in p]
    assert folders == [str(p) for p in environment.glob("lib/python3.*/site-packages")]


def test_the_packages_agree_with_each_other(environment: Path) -> None:
    """The lock file is installed without a resolver: what is there must be what was asked."""
    (folder,) = environment.glob("lib/python3.*/site-packages")
    there = {canonicalize_name(d.name): d for d in distributions(path=[str(folder)])}
    asked = [(name, Requirement(r)) for name, d in there.items() for r in d.requires or ()]
    wrong = [
        f"{name}: {need}, not {there[of].version}"
        for name, need in asked
        if (of := canonicalize_name(need.name)) in there
        and (need.marker is None or need.marker.evaluate({"extra": ""}))
        and not need.specifier.contains(there[of].version)
    ]
    assert {"torch", "sympy", "mpmath"} <= there.keys() and wrong == []


#: What a container sees, without one: the folders at their places, and no variables.
CONTAINER = """
mount -t tmpfs tmpfs /opt
mkdir -p /opt/testbed/pytorch
mount --no-canonicalize --bind /proc/self/fd/5 /opt/testbed/pytorch
mount -t tmpfs tmpfs /usr/local
mkdir -p /usr/local/vgpu/driver /usr/local/vgpu/cards
mount --no-canonicalize --bind /proc/self/fd/6 /usr/local/vgpu/driver
mount --no-canonicalize --bind /proc/self/fd/7 /usr/local/vgpu/cards
mount --no-canonicalize --bind /proc/self/fd/8 /etc/ld.so.cache
cd /
exec env -i PATH=/usr/bin HOME=/nowhere /opt/testbed/pytorch/bin/python3 -c "$1"
"""


def test_found_in_containers_without_any_variable(environment: Path, cards: Cards) -> None:
    root = cards()
    driver = sorted((root / "driver").iterdir())
    library_cache = ldcache.prepare(QuietProgress(), driver, environment, (pytorch.STANDINS,))
    folders = (environment, root / "driver", root / "cards", library_cache)
    namespaces = ["--mount"] if os.geteuid() == 0 else ["--user", "--map-root-user", "--mount"]
    # Held open by number: the mounts hide the paths that lead to them.
    numbers = " ".join(f'{n}<"${n - 3}"' for n in range(5, 9))
    done = subprocess.run(
        ["unshare", *namespaces, "sh", "-euc", f"exec {numbers}\n" + CONTAINER, "sh",
         "import torch, pynvml, sys; pynvml.nvmlInit(); x = torch.zeros(1).cuda()\n"
         "print(x.device, pynvml.nvmlDeviceGetCount(), sys.prefix)",
         *folders],
        capture_output=True, text=True, timeout=240,
    )  # fmt: skip
    assert done.stdout.split() == ["cuda:0", "1", "/opt/testbed/pytorch"], done.stderr


def test_stand_ins_cover_what_torch_links(environment: Path) -> None:
    own = {p.name: p for p in environment.glob("lib/python3.*/site-packages/torch/lib/*.so*")}
    ours = {p.name: read(p) for p in (environment / "standins").iterdir()}
    needed = {n for p in own.values() for n in read(p).needed} - set(own)
    assert {n for n in needed if re.match(r"lib(cu|nv|nccl)", n)} - set(ours) == {"libcuda.so.1"}
    assert len(ours) == 13
