"""The unmodified torch wheel under the library, with each of its allocator back-ends.

Optional: runs where the PyTorch environment has been made already (the torch tests and
``make e2e`` make it).
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
from pathlib import Path

import pytest
import shim_harness as harness
from shim_harness import GIB, MIB

from testbed.card import driver_root
from testbed.card.spec import CardSpec
from testbed.lab.images import pytorch
from testbed.lab.progress import QuietProgress
from testbed.native import build, card
from testbed.native.region import RegionConstant, RegionDevice, make_region, read_region

CAP = 20 * GIB
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "vgpu-testbed" / "pytorch"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CACHE.is_dir(), reason="no PyTorch environment has been made"),
]

SCRIPT = """
import json, sys, torch
MIB = 1 << 20
def say(**values):
    print(json.dumps(values), flush=True)
    sys.stdin.readline()
torch.zeros(1, device="cuda")
held, size, errors = [], 8 << 30, 0
while size >= 2 * MIB:
    try:
        held.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
    except (torch.cuda.OutOfMemoryError, torch.AcceleratorError) as error:
        # Without its cache torch 2.15 raises the general error, of the same cause.
        assert "out of memory" in str(error), error
        errors, size = errors + 1, size // 2
say(errors=errors, info=torch.cuda.mem_get_info(),
    properties=torch.cuda.get_device_properties(0).total_memory)
del held
torch.cuda.empty_cache()
torch.cuda.synchronize()
data = torch.randint(0, 255, (64 * MIB,), dtype=torch.uint8)
say(equal=torch.equal(data.cuda().cpu(), data))
"""


@pytest.mark.parametrize(
    "allocator",
    ["", "expandable_segments:True", "backend:cudaMallocAsync"],
    ids=["native", "expandable", "async"],
)
@pytest.mark.parametrize("library", [True, False], ids=["capped", "control"])
def test_torch_fills_its_cap(tmp_path: Path, allocator: str, library: bool) -> None:
    build.build(["emu", "runtime"])
    environment = pytorch.prepare(QuietProgress())
    root = tmp_path / "root"
    (uuid,) = driver_root.make(root, [CardSpec(profile="a100-80gb")], budget_bytes=GIB)
    constant = RegionConstant(devices=(RegionDevice(uuid=uuid, memory_limit_bytes=CAP),))
    region = make_region(tmp_path, "cache", constant)
    command = pytorch.host_command(environment, root)
    variables = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), **command.environ}
    if allocator:
        variables["PYTORCH_CUDA_ALLOC_CONF"] = allocator
    else:
        variables["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"
    if library:
        variables["LD_PRELOAD"] = str(harness.shim())
        variables["CUDA_DEVICE_MEMORY_SHARED_CACHE"] = str(region)
    process = subprocess.Popen(
        [*command.argv, "-c", SCRIPT],
        env=variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (512 * GIB, 512 * GIB)),
    )
    try:
        assert process.stdout is not None and process.stdin is not None
        line = process.stdout.readline()
        assert line, process.stderr.read() if process.stderr else ""
        full = json.loads(line)
        state = card.read(root / "cards" / uuid / "state")
        on_card = sum(slot.context_bytes + slot.memory_bytes for slot in state.slots)
        if library:
            # Its segments are of 20 MiB where it maps them itself, else of 2.
            step = 20 * MIB if "expandable" in allocator else 2 * MIB
            assert CAP - step <= on_card <= CAP
            assert read_region(region).used[0].total_bytes == on_card
            assert full["info"] == [CAP - on_card, CAP]
            assert full["properties"] == CAP
            assert full["errors"] > 0
        else:
            assert on_card > 70 * GIB
            assert full["info"][1] > 70 * GIB
        process.stdin.write("\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline()) == {"equal": True}
    finally:
        process.kill()
        process.communicate(timeout=harness.DEADLINE)
