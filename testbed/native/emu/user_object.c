/* User objects: what a graph keeps alive for the program. */
#include "graph.h"

#include <stdlib.h>

CUresult cuUserObjectCreate(CUuserObject *result, void *data, CUhostFn destroy,
                            unsigned int references, unsigned int flags)
{
    ENTER();
    (void)flags;
    if (result == NULL || destroy == NULL || references == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUuserObject object = malloc(sizeof *object);
    if (object == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *object = (struct CUuserObject_st){references, destroy, data};
    *result = object;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRetain(CUuserObject object, unsigned int count)
{
    ENTER();
    if (object == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    object->references += count;
    return CUDA_SUCCESS;
}

CUresult cuUserObjectRelease(CUuserObject object, unsigned int count)
{
    ENTER();
    driver_lock();
    if (object == NULL || count == 0 || count > object->references) {
        driver_unlock();
        return CUDA_ERROR_INVALID_VALUE;
    }
    object->references -= count;
    bool last = object->references == 0;
    driver_unlock();
    if (last) {
        object->destroy(object->data);
        free(object);
    }
    return CUDA_SUCCESS;
}

CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject object, unsigned int count,
                                 unsigned int flags)
{
    GRAPH(graph);
    if (object == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct keepsake *kept = malloc(sizeof *kept);
    if (kept == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *kept = (struct keepsake){object, count, graph->keepsakes};
    graph->keepsakes = kept;
    if ((flags & 1u) == 0) /* 1: the caller's references move to the graph */
        object->references += count;
    return CUDA_SUCCESS;
}

CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject object, unsigned int count)
{
    ENTER();
    driver_lock();
    unsigned int given_back = 0;
    if (graph_valid(graph))
        for (struct keepsake *kept = graph->keepsakes; kept != NULL; kept = kept->next)
            if (kept->object == object && kept->count >= count) {
                kept->count -= count;
                given_back = count;
                break;
            }
    driver_unlock();
    return given_back > 0 ? cuUserObjectRelease(object, given_back) : CUDA_ERROR_INVALID_VALUE;
}
