/* Memory nodes of graphs, and what graphs keep reserved of each card.
 *
 * A node's memory comes from a pool of the device that only graphs use. It is taken when the
 * node is added (hardware gives the address then and the memory at instantiation), lives as
 * long as the graph or an executable made from it, and stays reserved afterwards until
 * cuDeviceGraphMemTrim.
 */
#include "graph.h"
#include "pool.h"

static CUmemoryPool graph_pool(struct device *device)
{
    if (device->graph_pool == NULL) {
        device->graph_pool = pool_make(device);
        if (device->graph_pool != NULL)
            device->graph_pool->threshold = UINT64_MAX;
    }
    return device->graph_pool;
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    GRAPH(graph);
    if (node == NULL || parameters == NULL || parameters->bytesize == 0 ||
        (count > 0 && dependencies == NULL) ||
        parameters->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = device_at(parameters->poolProps.location.id);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (parameters->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    CUmemoryPool pool = graph_pool(device);
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUdeviceptr pointer;
    CUresult result = pool_allocate(pool, &pointer, parameters->bytesize, NULL);
    if (result != CUDA_SUCCESS)
        return result;
    result = graph_append_after(graph, &(struct op){.kind = OP_ALLOC, .as.pointer = pointer},
                                dependencies, count, node);
    if (result != CUDA_SUCCESS)
        memory_free(pointer);
    else
        parameters->dptr = pointer;
    return result;
}

CUresult cuGraphAddMemFreeNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                               size_t count, CUdeviceptr pointer)
{
    GRAPH(graph);
    if (node == NULL || (count > 0 && dependencies == NULL) || !graph_owns(graph, pointer))
        return CUDA_ERROR_INVALID_VALUE;
    return graph_append_after(graph, &(struct op){.kind = OP_FREE, .as.pointer = pointer},
                              dependencies, count, node);
}

CUresult cuGraphMemAllocNodeGetParams(CUgraphNode node, CUDA_MEM_ALLOC_NODE_PARAMS *parameters)
{
    ENTER();
    LOCKED();
    if (node == NULL || parameters == NULL || node->op.kind != OP_ALLOC)
        return CUDA_ERROR_INVALID_VALUE;
    const struct range *range = space_find(&memory, (uintptr_t)node->op.as.pointer);
    if (range == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *parameters = (CUDA_MEM_ALLOC_NODE_PARAMS){
        .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                      .location = {CU_MEM_LOCATION_TYPE_DEVICE, range->device->ordinal}},
        .bytesize = range->bytes,
        .dptr = node->op.as.pointer};
    return CUDA_SUCCESS;
}

CUresult cuGraphMemFreeNodeGetParams(CUgraphNode node, CUdeviceptr *pointer)
{
    ENTER();
    LOCKED();
    if (node == NULL || pointer == NULL || node->op.kind != OP_FREE)
        return CUDA_ERROR_INVALID_VALUE;
    *pointer = node->op.as.pointer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
    ENTER();
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED();
    if (device->graph_pool != NULL)
        pool_trim(device->graph_pool, 0);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                      void *value)
{
    ENTER();
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    const struct CUmemPoolHandle_st none = {0}, *pool = device->graph_pool;
    if (pool == NULL)
        pool = &none;
    cuuint64_t *bytes = value;
    switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT: *bytes = pool->used; return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: *bytes = pool->used_high; return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT: *bytes = pool->reserved; return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH: *bytes = pool->reserved_high; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                      void *value)
{
    ENTER();
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL || *(const cuuint64_t *)value != 0) /* the high marks can be reset */
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    CUmemoryPool pool = graph_pool(device);
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    switch (attribute) {
    case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH: pool->used_high = pool->used; return CUDA_SUCCESS;
    case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
        pool->reserved_high = pool->reserved;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}
