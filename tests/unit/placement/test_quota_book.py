"""What a namespace uses goes back to nothing, however large or odd the numbers are."""

from __future__ import annotations

import pytest

from testbed.stack.placement.effective import Charge
from testbed.stack.placement.quota import Amount, Quotas


@pytest.mark.parametrize("mem", [0, 1, 81_920, 2**31, 2**70])
@pytest.mark.parametrize("core", [0, 1, 100, 1600, 65_535, 65_536, 2**40])
def test_a_pod_gives_back_what_it_took(mem, core):
    quotas = Quotas()
    for number in range(3):
        quotas.charge("other", f"ns-{number}", [Charge(mem_mib=5, core_pct=7)], "DCU")
    charges = [Charge(slots=1, mem_mib=mem, core_pct=core), Charge(slots=1, mem_mib=1)]
    quotas.charge("uid", "ns", charges)
    quotas.charge("uid", "ns", charges)  # told twice
    quotas.charge("beside", "ns", [Charge(mem_mib=3, core_pct=2)])
    assert quotas.used("ns") == Amount(mem_mib=mem + 4, core_pct=core + 2)
    quotas.release("uid")
    quotas.release("uid")
    assert quotas.used("ns") == Amount(mem_mib=3, core_pct=2)
    assert quotas.used("ns-2", "DCU") == Amount(mem_mib=5, core_pct=7)
    assert quotas.used("ns-1", "DCU") == Amount(mem_mib=0, core_pct=0)
