"""The monitor's part of a benchmark without a cluster: NVML's samples into regions.

``python -m testbed.lab.bench.feeder DRIVER_ROOT HOOK``, a process of its own, since one
process reads one driver root, and since the library's locks must not be dropped by it. It
reads lines from stdin, each the tenants there are from now on:
``{"<pid>": "<pod uid>", …}``, answers each with a line, and ends with its input.
"""

from __future__ import annotations

import json
import os
import selectors
import sys
import time
from pathlib import Path

from testbed.stack.devices.driver_root import find_driver_root
from testbed.stack.devices.nvidia import Nvml
from testbed.stack.devices.readings import CardReading
from testbed.stack.monitor.feed import Feed
from testbed.stack.monitor.utilization import Sampler
from testbed.stack.monitor.whose import Owner

CONTAINER = "main"
#: How often regions are looked at anew, and cards read, as the monitor does.
_LOOK_S = 1.0


class Feeder:
    """One driver root's cards and the regions below one hook path."""

    def __init__(self, nvml: Nvml, hook: Path) -> None:
        self._nvml = nvml
        self._samplers = {device.uuid: Sampler() for device in nvml.devices()}
        self._feed = Feed(hook)
        self._owners: dict[int, Owner] = {}
        self._readings: dict[str, CardReading] = {}
        self._looked = 0.0

    def tenants(self, line: str) -> None:
        """Take over who there is."""
        self._owners = {
            int(pid): Owner(pod_uid=uid, container=CONTAINER)
            for pid, uid in json.loads(line).items()
        }
        self._looked = 0.0
        self.step()

    def step(self) -> float:
        """Pass on what is new; return how long nothing will be, in s."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_S:
            self._looked = now
            self._feed.look((owner.pod_uid, owner.container) for owner in self._owners.values())
            self._feed.mirror(time.monotonic_ns())
            self._readings = {uuid: self._nvml.read(uuid) for uuid in self._samplers}
        for uuid, sampler in self._samplers.items():
            if time.monotonic_ns() < sampler.due_ns:
                continue
            reading = self._nvml.utilization(uuid, sampler.since_us, sampler.card_since_us)
            window = sampler.take(reading, now_ns=time.monotonic_ns(), real_ns=time.time_ns())
            if window is not None:
                self._feed.feed(uuid, window, self._owners, self._readings.get(uuid))
        due = min(sampler.due_ns for sampler in self._samplers.values()) / 1e9
        return max(0.0, min(due, self._looked + _LOOK_S) - time.monotonic())


def main(root: str, hook: str) -> int:
    """Feed until stdin ends."""
    nvml = Nvml(find_driver_root(root))
    try:
        feeder = Feeder(nvml, Path(hook))
        with selectors.DefaultSelector() as selector:
            selector.register(0, selectors.EVENT_READ)
            rest = b""
            while True:
                if not selector.select(feeder.step()):
                    continue
                chunk = os.read(0, 1 << 16)
                if not chunk:
                    return 0
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    feeder.tenants(line.decode())
                    sys.stdout.write("taken\n")
                    sys.stdout.flush()
    finally:
        nvml.close()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
