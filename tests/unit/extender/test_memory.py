"""Memory is lean while lists are read and at hand afterwards."""

from __future__ import annotations

import mmap
import subprocess
import sys

import pytest

_PIECES = """
from pathlib import Path
from testbed.native import heap
assert heap.keep({mmap}, {trim})

def faults():
    return int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[7])

bytes(1_000_000)
before = faults()
for _ in range(100):
    bytes(bytearray(1_000_000))
print(faults() - before)
"""


@pytest.mark.parametrize(("kept", "least", "most"), [(65536, 20_000, 10**9), (16 << 20, 0, 2_000)])
def test_pieces_are_kept_or_given_back_as_is_said(kept, least, most):
    """What comes from the kernel anew has a page fault for each page that is written."""
    code = _PIECES.format(mmap=kept, trim=kept)
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    pages = 2 * 100 * 1_000_000 // mmap.PAGESIZE
    assert least < pages  # the bound can be reached
    assert least <= int(ran.stdout) <= most


def test_garbage_is_looked_for_seldom_until_lists_are_read():
    code = (
        "import gc\n"
        "from testbed.stack.extender import memory\n"
        "usual = gc.get_threshold()\n"
        "memory.before_lists(); assert gc.isenabled() and gc.get_threshold()[0] > 100 * usual[0]\n"
        "memory.after_lists(); assert gc.get_threshold() == usual\n"
        "assert gc.get_freeze_count() > 1000\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
