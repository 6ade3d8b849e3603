/* Kernels and graphs: each passes the throttle under a key of what makes it cost the same. */
#include "graphs.h"
#include "lookup.h"
#include "throttle.h"

#define GATED(key, stream, per_thread, call)                                                       \
    do {                                                                                           \
        if (VGPU_LIKELY(vgpu_throttle_passes())) return call;                                      \
        struct vgpu_throttle throttle;                                                             \
        vgpu_throttle_enter(&throttle, key, stream, per_thread);                                   \
        CUresult result = call;                                                                    \
        vgpu_throttle_leave(&throttle, result);                                                    \
        return result;                                                                             \
    } while (0)

static uint64_t kernel_key(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                           unsigned by, unsigned bz, unsigned shared) {
    return vgpu_work_key(&(struct vgpu_work){
        .what = f, .grid = {gx, gy, gz}, .block = {bx, by, bz}, .shared = shared});
}

#define KERNEL(symbol, per_thread)                                                                 \
    CUresult symbol(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,               \
                    unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,        \
                    CUstream stream, void **parameters, void **extra) {                            \
        GATED(kernel_key(f, gx, gy, gz, bx, by, bz, shared), stream, per_thread,                   \
              VGPU_CALL(symbol, f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra));    \
    }
KERNEL(cuLaunchKernel, false)
KERNEL(cuLaunchKernel_ptsz, true)

#define COOPERATIVE(symbol, per_thread)                                                            \
    CUresult symbol(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,               \
                    unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,        \
                    CUstream stream, void **parameters) {                                          \
        GATED(kernel_key(f, gx, gy, gz, bx, by, bz, shared), stream, per_thread,                   \
              VGPU_CALL(symbol, f, gx, gy, gz, bx, by, bz, shared, stream, parameters));           \
    }
COOPERATIVE(cuLaunchCooperativeKernel, false)
COOPERATIVE(cuLaunchCooperativeKernel_ptsz, true)

static uint64_t config_key(const CUlaunchConfig *c, CUfunction f) {
    return kernel_key(f, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1],
                      c->block[2], c->shared_bytes);
}

#define KERNEL_EX(symbol, per_thread)                                                              \
    CUresult symbol(const CUlaunchConfig *config, CUfunction f, void **parameters,                 \
                    void **extra) {                                                                \
        if (config == NULL) return VGPU_CALL(symbol, config, f, parameters, extra);                \
        GATED(config_key(config, f), config->stream, per_thread,                                   \
              VGPU_CALL(symbol, config, f, parameters, extra));                                    \
    }
KERNEL_EX(cuLaunchKernelEx, false)
KERNEL_EX(cuLaunchKernelEx_ptsz, true)

/* One launch on several devices at once: the wait is that of the current one, which is all
 * that can be measured without changing contexts under the program. */
CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int count,
                                              unsigned int flags) {
    if (list == NULL || count == 0)
        return VGPU_CALL(cuLaunchCooperativeKernelMultiDevice, list, count, flags);
    const CUDA_LAUNCH_PARAMS *p = &list[0];
    GATED(kernel_key(p->function, p->grid[0], p->grid[1], p->grid[2], p->block[0], p->block[1],
                     p->block[2], p->shared_bytes),
          p->stream, false, VGPU_CALL(cuLaunchCooperativeKernelMultiDevice, list, count, flags));
}

/* Before CUDA 4 the block's shape was a property of the function. */
CUresult cuLaunch(CUfunction f) {
    GATED(kernel_key(f, 1, 1, 1, 0, 0, 0, 0), NULL, false, VGPU_CALL(cuLaunch, f));
}

CUresult cuLaunchGrid(CUfunction f, int width, int height) {
    GATED(kernel_key(f, (unsigned)width, (unsigned)height, 1, 0, 0, 0, 0), NULL, false,
          VGPU_CALL(cuLaunchGrid, f, width, height));
}

CUresult cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    GATED(kernel_key(f, (unsigned)width, (unsigned)height, 1, 0, 0, 0, 0), stream, false,
          VGPU_CALL(cuLaunchGridAsync, f, width, height, stream));
}

/* --- graphs: one launch is one long kernel ------------------------------------------------ */

static uint64_t graph_key(CUgraphExec exec) {
    return vgpu_work_key(&(struct vgpu_work){.what = exec});
}

static CUresult gated(CUgraphExec exec, CUstream stream) {
    GATED(graph_key(exec), stream, false, VGPU_CALL(cuGraphLaunch, exec, stream));
}

static CUresult gated_per_thread(CUgraphExec exec, CUstream stream) {
    GATED(graph_key(exec), stream, true, VGPU_CALL(cuGraphLaunch_ptsz, exec, stream));
}

#define WITH_ITS_MEMORY(symbol, launch, per_thread)                                                \
    CUresult symbol(CUgraphExec exec, CUstream stream) {                                           \
        struct vgpu_graph_use use;                                                                 \
        if (!vgpu_graph_launching(&use, exec, stream, per_thread))                                 \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
        CUresult result = launch(exec, stream);                                                    \
        vgpu_graph_done(&use, result);                                                             \
        return result;                                                                             \
    }
WITH_ITS_MEMORY(cuGraphLaunch, gated, false)
WITH_ITS_MEMORY(cuGraphLaunch_ptsz, gated_per_thread, true)

/* What changes a graph makes what was learned of it a guess. */
#define CHANGING(exec, call)                                                                       \
    do {                                                                                           \
        CUresult result = call;                                                                    \
        if (result == CUDA_SUCCESS) vgpu_throttle_changed(exec);                                   \
        return result;                                                                             \
    } while (0)

CUresult cuGraphExecDestroy(CUgraphExec exec) {
    vgpu_graph_exec_gone(exec);
    CHANGING(exec, VGPU_CALL(cuGraphExecDestroy, exec));
}
CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *node, int *info) {
    CHANGING(exec, VGPU_CALL(cuGraphExecUpdate, exec, graph, node, info));
}
CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, void *info) {
    CHANGING(exec, VGPU_CALL(cuGraphExecUpdate_v2, exec, graph, info));
}
CUresult cuGraphExecKernelNodeSetParams(CUgraphExec exec, CUgraphNode node, const void *params) {
    CHANGING(exec, VGPU_CALL(cuGraphExecKernelNodeSetParams, exec, node, params));
}
CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec exec, CUgraphNode node,
                                           const void *params) {
    CHANGING(exec, VGPU_CALL(cuGraphExecKernelNodeSetParams_v2, exec, node, params));
}
CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec exec, CUgraphNode node, const void *params,
                                        CUcontext ctx) {
    CHANGING(exec, VGPU_CALL(cuGraphExecMemcpyNodeSetParams, exec, node, params, ctx));
}
CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec exec, CUgraphNode node, const void *params,
                                        CUcontext ctx) {
    CHANGING(exec, VGPU_CALL(cuGraphExecMemsetNodeSetParams, exec, node, params, ctx));
}
CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraph child) {
    CHANGING(exec, VGPU_CALL(cuGraphExecChildGraphNodeSetParams, exec, node, child));
}
CUresult cuGraphExecNodeSetParams(CUgraphExec exec, CUgraphNode node, CUgraphNodeParams *params) {
    CHANGING(exec, VGPU_CALL(cuGraphExecNodeSetParams, exec, node, params));
}
CUresult cuGraphNodeSetEnabled(CUgraphExec exec, CUgraphNode node, unsigned int enabled) {
    CHANGING(exec, VGPU_CALL(cuGraphNodeSetEnabled, exec, node, enabled));
}
