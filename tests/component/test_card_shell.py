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


def said(*arguments):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "card", "shell", *arguments, "--", "python", "-c", TORCH],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_torch_finds_the_card_and_the_limiter_holds_it_to_its_cap():
    assert said("--card", "a100-40gb", "--gpumem", "4096") == "refused NVIDIA A100-SXM4-40GB"
    # Without the limiter the same program gets what it asks for.
    assert said("--card", "a100-40gb") == "fits NVIDIA A100-SXM4-40GB"
