"""Memory nodes of graphs."""

from __future__ import annotations

import pytest
from emu_harness import Worker

MIB = 1 << 20


@pytest.fixture
def graphs(worker: Worker) -> Worker:
    worker("""
        base = used()
        graph = call('cuGraphCreate', 0)
        kinds = driver.CUgraphMem_attribute
        def node(size):
            wish = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
            wish.poolProps.allocType = driver.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
            wish.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
            wish.bytesize = size
            made = call('cuGraphAddMemAllocNode', graph, None, 0, wish)
            return made, wish.dptr
        def kept(name):
            return int(call('cuDeviceGetGraphMemAttribute', 0,
                            getattr(kinds, 'CU_GRAPH_MEM_ATTR_' + name)))
    """)
    return worker


def test_life_of_a_node(graphs: Worker) -> None:
    graphs("made, p = node(5 * MIB)")
    assert graphs("used() - base") == 6 * MIB
    assert graphs("(kept('USED_MEM_CURRENT'), kept('RESERVED_MEM_CURRENT'))") == [6 * MIB, 6 * MIB]
    graphs("freed = call('cuGraphAddMemFreeNode', graph, [made], 1, p)")
    assert graphs("call('cuGraphNodeGetType', made).name") == "CU_GRAPH_NODE_TYPE_MEM_ALLOC"
    assert graphs("call('cuGraphMemAllocNodeGetParams', made).bytesize") == 5 * MIB
    assert graphs("int(call('cuGraphMemFreeNodeGetParams', freed)) == int(p)")
    graphs("exe = call('cuGraphInstantiate', graph, 0); call('cuGraphLaunch', exe, 0)")
    graphs("call('cuCtxSynchronize'); call('cuGraphDestroy', graph)")
    assert graphs("kept('USED_MEM_CURRENT')") == 6 * MIB  # the executable has it
    graphs("call('cuGraphExecDestroy', exe)")
    # Freed, and kept for the next graph until it is trimmed.
    assert graphs("(kept('USED_MEM_CURRENT'), kept('RESERVED_MEM_CURRENT'))") == [0, 6 * MIB]
    assert graphs("used() - base") == 6 * MIB
    graphs("call('cuDeviceGraphMemTrim', 0)")
    assert graphs("used() - base") == 0
    assert graphs("kept('RESERVED_MEM_HIGH')") == 6 * MIB


def test_bad_calls(graphs: Worker) -> None:
    graphs("p = call('cuMemAlloc', MIB); wish = driver.CUDA_MEM_ALLOC_NODE_PARAMS()")
    assert graphs("error('cuGraphAddMemAllocNode', graph, None, 0, wish)") == (
        "CUDA_ERROR_INVALID_VALUE"
    )
    assert graphs("error('cuGraphAddMemFreeNode', graph, None, 0, p)") == "CUDA_ERROR_INVALID_VALUE"


def test_out_of_memory(graphs: Worker) -> None:
    graphs("p = call('cuMemAlloc', call('cuMemGetInfo')[0])")
    graphs("""
        wish = driver.CUDA_MEM_ALLOC_NODE_PARAMS()
        wish.poolProps.location.type = driver.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        wish.bytesize = MIB
    """)
    assert graphs("error('cuGraphAddMemAllocNode', graph, None, 0, wish)") == (
        "CUDA_ERROR_OUT_OF_MEMORY"
    )
