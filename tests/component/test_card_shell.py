"""PyTorch on an emulated card without a cluster, with and without the limiter."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = "from testbed.cli import main; main()"
TORCH = """
import torch
try:
    kept = torch.empty(6 << 30, dtype=torch.int8, device="cuda")
    print("fits", torch.cuda.get_device_name())
except torch.OutOfMemoryError:
    print("refused", torch.cuda.get_device_name())
"""


def said(*arguments, text=TORCH, code=0):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "card", "shell", *arguments, "--", "python", "-c", text],
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == code, done.stderr
    return done.stdout.strip()


BEYOND = """
import torch
kept = [torch.empty(1 << 30, dtype=torch.int8, device="cuda") for _ in range(42)]
print(torch.cuda.mem_get_info()[1] >> 20)
"""


def test_torch_beyond_the_card():
    """42 GiB on a card of 40, by PyTorch's own allocator."""
    arguments = ("--card", "a100-40gb", "--gpumem", "46080")
    assert said(*arguments, "--oversubscribe", text=BEYOND) == "46080"
    # Without it there is no such limit.
    assert said(*arguments, text=BEYOND, code=2) == ""


def test_torch_finds_the_card_and_the_limiter_holds_it_to_its_cap():
    assert said("--card", "a100-40gb", "--gpumem", "4096") == "refused NVIDIA A100-SXM4-40GB"
    # Without the limiter the same program gets what it asks for.
    assert said("--card", "a100-40gb") == "fits NVIDIA A100-SXM4-40GB"
