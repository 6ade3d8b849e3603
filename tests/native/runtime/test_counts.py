"""Kernels whose result is a size: behind them nothing was counted."""

from __future__ import annotations

from collections.abc import Callable

import pytest

Script = Callable[..., str]

CUB = "_ZN14at_cuda_detail3cub6detail"
SUM = (
    CUB + "6reduce28DeviceReduceSingleTileKernelINS2_10policy_hubI{}yN4cuda3std3__44plusIvEEE"
    "10Policy1000EPiSC_iS9_iiNS7_8identityEEEvT0_T1_T2_T3_T4_T6_"
)
SELECT = CUB + "4scan23DeviceCompactInitKernelINS0_13ScanTileStateIiLb1EEEP{}EEvT_iT0_"
RUNS = CUB + "4scan23DeviceCompactInitKernelINS0_24ReduceByKeyScanTileStateIliLb1EEEP{}EEvT_iT0_"

LAUNCH = """
none = c.c_size_t(0)
image = getattr(rt, "__cudaRegisterFatBinary")(c.c_char_p(b"image"))
place = c.c_void_p()
assert rt.cudaMalloc(c.byref(place), 64) == 0
out = c.c_void_p(place.value + 16)
other = c.c_void_p(place.value)
values = [c.addressof(other)] * 3
def launched(name, host, stream=5, arguments=True, position=None):
    register(at(image), at(host), name)
    if position is not None: values[position] = c.addressof(out)
    given = (c.c_void_p * 3)(*values) if arguments else None
    values[:] = [c.addressof(other)] * 3
    grid = dim3(1, 1, 1)
    kernel = c.c_void_p()
    assert getattr(rt, "__cudaGetKernel")(c.byref(kernel), at(host)) == 0
    how = [lambda: rt.cudaLaunchKernel(at(host), grid, grid, given, none, at(stream)),
           lambda: getattr(rt, "__cudaLaunchKernel")(kernel, grid, grid, given, none, at(stream))]
    start = len(log())
    assert [f() for f in how] == [0, 0]
    return [line for line in log()[start:] if not line.startswith("launch")]
"""


@pytest.mark.parametrize(
    ("name", "position", "size"),
    [(SUM.format("i"), 1, 4), (SUM.format("l"), 1, 8), (SELECT.format("i"), 2, 4),
     (SELECT.format("l"), 2, 8), (RUNS.format("l"), 2, 8)],
)  # fmt: skip
def test_the_count_is_cleared_behind_the_launch(
    script: Script, name: str, position: int, size: int
) -> None:
    out = script(LAUNCH + f"print(launched({name.encode()!r}, 0x1000, position={position}))")
    assert out.strip() == str([f"set 16 0 {size} 5"] * 2)


@pytest.mark.parametrize(
    "name",
    [
        SUM.format("f"),  # a sum of floats is no size
        SUM.replace("SingleTile", "").format("i"),
        SELECT.replace("{}EEvT_iT0_", "iEEvT_PT0_"),
        "_ZN2at6native13reduce_kernelILi512ELi1ENS0_8ReduceOpIlEEEEvT1_",
        "DeviceReduceSingleTileKernel",
    ],
)
def test_other_kernels_are_left_alone(script: Script, name: str) -> None:
    assert script(LAUNCH + f"print(launched({name.encode()!r}, 0x1000))").strip() == "[]"


def test_a_launch_without_parameters_is_left_alone(script: Script) -> None:
    name = SELECT.format("i").encode()
    out = script(LAUNCH + f"print(launched({name!r}, 0x1000, arguments=False))")
    assert out.strip() == "[]"


def test_a_handle_that_comes_again_is_what_its_last_name_says(script: Script) -> None:
    counting, plain = SELECT.format("i").encode(), b"DeviceOther"
    out = script(
        LAUNCH + f"first = len(launched({counting!r}, 0x1000, position=2))\n"
        f"second = len(launched({plain!r}, 0x2000))\n"
        f"print(first, second, len(launched({counting!r}, 0x3000, position=2)))"
    )
    assert out.split() == ["2", "0", "2"]


def test_a_refused_memset_is_not_the_programs_error(script: Script) -> None:
    name = SELECT.format("i").encode()
    script(
        LAUNCH
        + f"""
fake("fake_set_result").value = 1
assert len(launched({name!r}, 0x1000, position=2)) == 2
assert rt.cudaGetLastError() == 0
"""
    )


def test_a_refused_launch_counts_nothing(script: Script) -> None:
    name = SELECT.format("i").encode()
    script(
        LAUNCH
        + f"""
launched({name!r}, 0x1000, position=2)
fake("fake_result").value = 700
given = (c.c_void_p * 3)(*values)
before = len(log())
assert rt.cudaLaunchKernel(at(0x1000), dim3(1, 1, 1), dim3(1, 1, 1), given, none, None) == 700
assert not [l for l in log()[before:] if l.startswith("set")]
assert rt.cudaGetLastError() == 700 and rt.cudaGetLastError() == 0
"""
    )
