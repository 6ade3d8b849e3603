"""Hold programs to a share of the machine's own card, alone and in pairs, with the control.

``PYTHONPATH=. python3 tests/gpu/share.py LIBVGPU.SO [FILE]``: needs a card and gcc; of this
package only the region's and the page's makers. Shares are device time by work done: kernels
of a length that was calibrated alone, counted. No monitor runs, so the library has no
feedback beside a neighbour and must stay below its limit. Prints JSON.

On an emulated card: ``PROBE_EMULATED=1 PROBE_UUID=GPU-…`` and the driver box of a driver root
in ``LD_LIBRARY_PATH``.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from probe import Probe

from testbed.native.page import make_page
from testbed.native.region import Policy, RegionConstant, RegionDevice, make_region

SECONDS = 5


class Tenants:
    """Containers' regions and their card's page, in a folder of ours."""

    def __init__(self, probe: Probe, library: str, folder: Path) -> None:
        self.probe, self.library, self.folder = probe, library, folder
        self.uuid = os.environ.get("PROBE_UUID") or self.ask_uuid()
        make_page(folder / f"{self.uuid}.page", self.uuid)
        self.made = 0

    def ask_uuid(self) -> str:
        query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        answer = subprocess.run(query, capture_output=True, text=True, check=True)
        return answer.stdout.split()[0]

    def run(
        self, *tenants: tuple[int, float, str], policy: Policy = Policy.FORCE, bare: bool = False
    ) -> list[Any]:
        """Run (limit, kernel us, pattern) side by side; ``bare`` leaves the library out."""
        running = []
        for limit, kernel_us, pattern in tenants:
            env = dict(self.probe.env)
            if not bare:
                env |= self.environment(limit, policy)
            command = [str(self.probe.program), "hog", str(kernel_us), str(SECONDS), pattern]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env))
        return [json.loads(process.communicate(timeout=60)[0]) for process in running]

    def environment(self, limit: int, policy: Policy) -> dict[str, str]:
        self.made += 1
        place = self.folder / f"tenant-{self.made}"
        place.mkdir()
        region = make_region(
            place,
            self.uuid,
            RegionConstant(
                devices=(RegionDevice(uuid=self.uuid, memory_limit_bytes=0, sm_limit_pct=limit),),
                pod_uid=f"pod-{self.made}",
                container_name="main",
                policy=policy,
            ),
        )
        return {
            "LD_PRELOAD": self.library,
            "CUDA_DEVICE_MEMORY_SHARED_CACHE": str(region),
            "VGPU_PAGE_FOLDER": str(self.folder),
        }

    def cost(self, **env: str) -> Any:
        done = subprocess.run(
            [str(self.probe.program), "cost"],
            env={**self.probe.env, **env},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return json.loads(done.stdout)


def main() -> int:
    library = str(Path(sys.argv[1]).resolve())
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as name:
        probe = Probe(Path(name))
        if "PROBE_EMULATED" in os.environ:  # a turn of its kernel is a nanosecond
            probe.env["PROBE_TURNS_PER_US"] = "1000"
        else:
            (facts,) = probe.together(("facts",), seconds=90)
            probe.env["PROBE_TURNS_PER_US"] = str(facts["turns_per_us"])
        tenants = Tenants(probe, library, Path(name))
        result["cost"] = {
            "bare": tenants.cost(),
            "unlimited": tenants.cost(**tenants.environment(0, Policy.DEFAULT)),
            "limited": tenants.cost(**tenants.environment(90, Policy.FORCE)),
        }
        result["lone"] = [
            {"limit": limit, **tenants.run((limit, us, pattern))[0]}
            for limit, us, pattern in (
                (30, 20, "deep"),
                (10, 100, "deep"),
                (30, 100, "deep"),
                (75, 100, "deep"),
                (30, 100, "sync"),
                (30, 5000, "deep"),
                (75, 5000, "sync"),
                (30, 50000, "deep"),
            )
        ]
        result["lone_default"] = tenants.run((30, 100, "deep"), policy=Policy.DEFAULT)
        result["pairs"] = [
            {"kernel_us": us, "shares": tenants.run((30, us, "deep"), (70, us, "deep"))}
            for us in (100, 5000, 50000)
        ]
        result["control"] = {
            "lone": tenants.run((30, 100, "deep"), bare=True),
            "pair": tenants.run((30, 100, "deep"), (70, 100, "deep"), bare=True),
        }
    text = json.dumps(result, indent=1)
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(text + "\n")
    print(text)
    over = [row for row in result["lone"] if row["share_pct"] > row["limit"] + 2]
    for pair in result["pairs"]:
        over += [
            s
            for s, limit in zip(pair["shares"], (30, 70), strict=True)
            if s["share_pct"] > limit + 2
        ]
    free = result["control"]["lone"][0]["share_pct"] > 60
    return 0 if not over and free else 1


if __name__ == "__main__":
    os.environ.setdefault("PYTHONDONTWRITEBYTECODE", "1")
    sys.exit(main())
