/* Executable graphs, and what graphs say of their memory. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>
#include <string.h>

CUresult cuGraphInstantiateWithFlags(CUgraphExec *result, CUgraph graph, unsigned long long flags)
{
    GRAPH(graph);
    if (result == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (exec == NULL || plan_make(&exec->plan, graph) != CUDA_SUCCESS) {
        free(exec);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    exec->magic = EXEC_MAGIC;
    exec->flags = flags;
    exec->memory = graph->memory;
    exec->memory->references++;
    *result = exec;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node,
                               char *log, size_t log_bytes)
{
    if (error_node != NULL)
        *error_node = NULL;
    if (log != NULL && log_bytes > 0)
        *log = '\0';
    return cuGraphInstantiateWithFlags(exec, graph, 0);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error_node, char *log,
                            size_t log_bytes)
{
    return cuGraphInstantiate_v2(exec, graph, error_node, log, log_bytes);
}

CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph,
                                      CUDA_GRAPH_INSTANTIATE_PARAMS *parameters)
{
    if (parameters == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    parameters->hErrNode_out = NULL;
    parameters->result_out = CUDA_GRAPH_INSTANTIATE_SUCCESS;
    return cuGraphInstantiateWithFlags(exec, graph, parameters->flags);
}

#define EXEC(exec)                                                                         \
    ENTER();                                                                               \
    LOCKED();                                                                              \
    do {                                                                                   \
        if ((exec) == NULL || (exec)->magic != EXEC_MAGIC)                                 \
            return CUDA_ERROR_INVALID_VALUE;                                               \
    } while (0)

CUresult cuGraphExecDestroy(CUgraphExec exec)
{
    EXEC(exec);
    graph_memory_put(exec->memory);
    plan_free(&exec->plan);
    exec->magic = 0;
    free(exec);
    return CUDA_SUCCESS;
}

CUresult cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t *flags)
{
    EXEC(exec);
    if (flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = exec->flags;
    return CUDA_SUCCESS;
}

CUresult cuGraphUpload(CUgraphExec exec, CUstream handle)
{
    EXEC(exec);
    struct CUstream_st *stream;
    return stream_find(handle, &stream);
}

CUresult cuGraphLaunch(CUgraphExec exec, CUstream handle)
{
    ENTER();
    driver_lock();
    struct CUstream_st *stream;
    CUresult result = exec == NULL || exec->magic != EXEC_MAGIC ? CUDA_ERROR_INVALID_VALUE
                                                                : stream_find(handle, &stream);
    struct plan plan = {0};
    if (result == CUDA_SUCCESS && stream->state.capture != NULL)
        for (size_t i = 0; result == CUDA_SUCCESS && i < exec->plan.count; i++)
            result = capture_record(stream, &exec->plan.steps[i].op); /* a child, flattened */
    else if (result == CUDA_SUCCESS) /* a copy: another thread may destroy the graph meanwhile */
        result = plan_copy(&plan, &exec->plan);
    driver_unlock();
    if (result == CUDA_SUCCESS && plan.count > 0)
        result = plan_launch(&plan, stream);
    plan_free(&plan);
    return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    EXEC(exec);
    if (!graph_valid(graph) || info == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memset(info, 0, sizeof *info);
    bool same = exec->plan.count == graph->count;
    for (size_t i = 0; same && i < exec->plan.count; i++)
        same = exec->plan.steps[i].op.kind == graph->nodes[i]->op.kind;
    if (!same) {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    struct plan plan;
    CUresult result = plan_make(&plan, graph);
    if (result == CUDA_SUCCESS) {
        plan_free(&exec->plan);
        exec->plan = plan;
    }
    return result;
}

CUresult cuGraphExecUpdate(CUgraphExec exec, CUgraph graph, CUgraphNode *error_node,
                           CUgraphExecUpdateResult *update)
{
    CUgraphExecUpdateResultInfo info = {0};
    CUresult result = cuGraphExecUpdate_v2(exec, graph, &info);
    if (error_node != NULL)
        *error_node = NULL;
    if (update != NULL)
        *update = info.result;
    return result;
}
