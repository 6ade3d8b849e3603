"""One greedy PyTorch process: allocates until refused or past a limit in MiB, prints JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import torch

MIB = 1 << 20


def on_the_card() -> list[int]:
    """Return what nvidia-smi counts for this process, MiB; it runs without the library."""
    plain = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    query = ["nvidia-smi", "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"]
    text = subprocess.run(query, capture_output=True, text=True, env=plain, check=False).stdout
    rows = [line.split(",") for line in text.splitlines()]
    return [int(row[1]) for row in rows if row[0].strip() == str(os.getpid())]


def main() -> None:
    limit = int(sys.argv[1]) * MIB
    free, total = torch.cuda.mem_get_info()
    kept: list[torch.Tensor] = []
    refused, step, text = 0, 1024, ""
    while step >= 2:
        if sum(t.numel() for t in kept) + step * MIB > limit:
            break
        try:
            kept.append(torch.empty(step * MIB, dtype=torch.uint8, device="cuda"))
        except (torch.OutOfMemoryError, RuntimeError) as error:
            refused, text, step = refused + 1, str(error)[:300], step // 2
    torch.cuda.synchronize()
    answer = {
        "total_mib": total // MIB,
        "free_mib_at_start": free // MIB,
        "properties_mib": torch.cuda.get_device_properties(0).total_memory // MIB,
        "held_mib": sum(t.numel() for t in kept) // MIB,
        "refused": refused,
        "card_mib": on_the_card(),
        "free_mib_at_end": torch.cuda.mem_get_info()[0] // MIB,
        "text": text,
    }
    kept.clear()
    torch.cuda.empty_cache()
    count = 1 << 20
    numbers = torch.arange(count, device="cuda")
    square = torch.randn(512, 512, device="cuda")
    answer["survived"] = (
        int(numbers.sum()) == count * (count - 1) // 2 and float((square @ square).abs().sum()) > 0
    )
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
