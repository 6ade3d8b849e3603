/* Memory nodes of graphs. Their memory comes and goes with launches, and lives on in a
 * pool of its own that only the driver sees: it cannot be held below a limit by calls
 * that we see. So under a limit such a node is refused as not supported, which says what
 * it is (CUDA_ERROR_OUT_OF_MEMORY would send the program looking for memory). */
#include "account.h"
#include "device.h"
#include "lookup.h"

static bool refused(void) {
    int entry;
    CUcontext ctx;
    if (!vgpu_active() || !vgpu_current(&entry, &ctx) || !vgpu_enter()) return false;
    bool limit = vgpu_limit(entry) != 0;
    if (limit) vgpu_refused(entry, "memory node of a graph (not supported under a limit)", 0);
    vgpu_leave();
    return limit;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                size_t count, void *params) {
    if (refused()) return CUDA_ERROR_NOT_SUPPORTED;
    return VGPU_CALL(cuGraphAddMemAllocNode, node, graph, deps, count, params);
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count,
                        CUgraphNodeParams *params) {
    if (params != NULL && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && refused())
        return CUDA_ERROR_NOT_SUPPORTED;
    return VGPU_CALL(cuGraphAddNode, node, graph, deps, count, params);
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                           const void *edges, size_t count, CUgraphNodeParams *params) {
    if (params != NULL && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC && refused())
        return CUDA_ERROR_NOT_SUPPORTED;
    return VGPU_CALL(cuGraphAddNode_v2, node, graph, deps, edges, count, params);
}
