/* Graphs: their work, their memory, and making them by hand. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t last_graph;

/* --- graphs ------------------------------------------------------------------------- */

bool graph_valid(CUgraph graph)
{
    return graph != NULL && graph->magic == GRAPH_MAGIC;
}

CUgraph graph_make(void)
{
    CUgraph graph = calloc(1, sizeof *graph);
    if (graph == NULL)
        return NULL;
    graph->memory = calloc(1, sizeof *graph->memory);
    if (graph->memory == NULL) {
        free(graph);
        return NULL;
    }
    graph->memory->references = 1;
    graph->magic = GRAPH_MAGIC;
    graph->id = ++last_graph;
    return graph;
}

static bool remember(struct graph_memory *kept, CUdeviceptr pointer)
{
    if (kept->count == kept->room) {
        size_t room = kept->room == 0 ? 16 : kept->room * 2;
        struct graph_block *grown = realloc(kept->blocks, room * sizeof *grown);
        if (grown == NULL)
            return false;
        kept->blocks = grown;
        kept->room = room;
    }
    const struct range *range = space_find(&memory, (uintptr_t)pointer);
    kept->blocks[kept->count++] =
        (struct graph_block){pointer, range != NULL ? range->id : 0};
    return true;
}

bool graph_owns(CUgraph graph, CUdeviceptr pointer)
{
    for (size_t i = 0; i < graph->memory->count; i++)
        if (graph->memory->blocks[i].pointer == pointer)
            return true;
    return false;
}

void graph_memory_put(struct graph_memory *kept)
{
    if (--kept->references > 0)
        return;
    for (size_t i = 0; i < kept->count; i++) {
        const struct range *range = space_find(&memory, (uintptr_t)kept->blocks[i].pointer);
        if (range != NULL && range->id == kept->blocks[i].id)
            memory_free(kept->blocks[i].pointer);
    }
    free(kept->blocks);
    free(kept);
}

static bool remember_order(struct CUgraphNode_st *node, const CUgraphNode *after, size_t count)
{
    if (count == 0)
        return true;
    node->after = calloc(count, sizeof *node->after);
    if (node->after == NULL)
        return false;
    for (size_t i = 0; i < count; i++)
        node->after[node->after_count++] = after[i]->index;
    return true;
}

CUresult graph_append_after(CUgraph graph, const struct op *op, const CUgraphNode *after,
                            size_t count, CUgraphNode *node)
{
    for (size_t i = 0; i < count; i++)
        if (after == NULL || after[i] == NULL || after[i]->index >= graph->count ||
            graph->nodes[after[i]->index] != after[i])
            return CUDA_ERROR_INVALID_VALUE;
    if (graph->count == graph->room) {
        size_t room = graph->room == 0 ? 64 : graph->room * 2;
        struct CUgraphNode_st **grown = realloc(graph->nodes, room * sizeof *grown);
        if (grown == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        graph->nodes = grown;
        graph->room = room;
    }
    struct CUgraphNode_st *made = calloc(1, sizeof *made);
    if (made == NULL || !remember_order(made, after, count) ||
        (op->kind == OP_ALLOC && !remember(graph->memory, op->as.pointer))) {
        if (made != NULL)
            free(made->after);
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->op = *op;
    made->index = graph->count;
    graph->nodes[graph->count++] = made;
    if (node != NULL)
        *node = made;
    return CUDA_SUCCESS;
}

CUresult graph_append(CUgraph graph, const struct op *op, CUgraphNode *node)
{
    CUgraphNode last = graph_last(graph);
    return graph_append_after(graph, op, &last, last != NULL, node);
}

CUgraphNode graph_last(CUgraph graph)
{
    return graph->count > 0 ? graph->nodes[graph->count - 1] : NULL;
}

void graph_drop(CUgraph graph)
{
    graph_memory_put(graph->memory);
    for (size_t i = 0; i < graph->count; i++) {
        free(graph->nodes[i]->after);
        free(graph->nodes[i]);
    }
    free(graph->nodes);
    graph->magic = 0;
    free(graph);
}

/* --- graphs by hand ------------------------------------------------------------------- */

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    ENTER();
    if (graph == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    *graph = graph_make();
    return *graph != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static bool copy_order(struct CUgraphNode_st *to, const struct CUgraphNode_st *from)
{
    if (from->after_count == 0)
        return true;
    to->after = malloc(from->after_count * sizeof *to->after);
    if (to->after == NULL)
        return false;
    memcpy(to->after, from->after, from->after_count * sizeof *to->after);
    to->after_count = from->after_count;
    return true;
}

CUresult cuGraphClone(CUgraph *clone, CUgraph graph)
{
    GRAPH(graph);
    if (clone == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraph made = graph_make();
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    free(made->memory);
    made->memory = graph->memory;
    made->memory->references++;
    for (size_t i = 0; i < graph->count; i++) {
        struct op op = graph->nodes[i]->op;
        if (op.kind == OP_ALLOC)
            op.kind = OP_EMPTY; /* the memory is shared, not allocated again */
        CUgraphNode copy;
        struct CUgraphNode_st *from = graph->nodes[i];
        if (graph_append_after(made, &op, NULL, 0, &copy) != CUDA_SUCCESS ||
            !copy_order(copy, from)) {
            graph_drop(made);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        made->nodes[i]->op.kind = graph->nodes[i]->op.kind;
    }
    *clone = made;
    return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *node, CUgraph graph, const struct op *op,
                    const CUgraphNode *after, size_t count)
{
    GRAPH(graph);
    return graph_append_after(graph, op, after, count, node);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                             size_t count)
{
    return add(node, graph, &(struct op){.kind = OP_EMPTY}, dependencies, count);
}

static CUresult add_kernel(CUgraphNode *node, CUgraph graph, CUfunction handle,
                           const CUDA_KERNEL_NODE_PARAMS_v1 *given, const CUgraphNode *after,
                           size_t count)
{
    const struct function *function = function_of(handle);
    uint64_t threads = (uint64_t)given->blockDimX * given->blockDimY * given->blockDimZ;
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (threads == 0 || threads > 1024)
        return CUDA_ERROR_INVALID_VALUE;
    struct op op = {.kind = OP_KERNEL};
    op.as.kernel.function = handle;
    op.as.kernel.cost =
        launch_cost(function, (uint64_t)given->gridDimX * given->gridDimY * given->gridDimZ,
                    threads, given->sharedMemBytes, given->kernelParams, given->extra);
    return add(node, graph, &op, after, count);
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph,
                                 const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS_v2 *parameters)
{
    if (parameters == NULL || (parameters->func == NULL && parameters->kern == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    CUDA_KERNEL_NODE_PARAMS_v1 first;
    memcpy(&first, parameters, sizeof first); /* the second version is the first and more */
    return add_kernel(node, graph,
                      parameters->func != NULL ? parameters->func
                                               : (CUfunction)(void *)parameters->kern,
                      &first, dependencies, count);
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
    if (parameters == NULL || parameters->func == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return add_kernel(node, graph, parameters->func, parameters, dependencies, count);
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS_v1 *parameters,
                              CUcontext context)
{
    (void)context;
    if (parameters == NULL || (parameters->elementSize != 1 && parameters->elementSize != 2 &&
                               parameters->elementSize != 4))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = parameters->width * parameters->elementSize;
    return add(node, graph,
               &(struct op){.kind = OP_SET,
                            .as.set = {.to = (uintptr_t)parameters->dst,
                                       .width = parameters->width,
                                       .height = parameters->height,
                                       .pitch = parameters->height > 1 ? parameters->pitch : row,
                                       .value = parameters->value,
                                       .element = parameters->elementSize}},
               dependencies, count);
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                            size_t count, const CUDA_HOST_NODE_PARAMS_v1 *parameters)
{
    if (parameters == NULL || parameters->fn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return add(node, graph,
               &(struct op){.kind = OP_HOST, .as.host = {parameters->fn, parameters->userData}},
               dependencies, count);
}

CUresult cuGraphGetNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    GRAPH(graph);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (nodes != NULL) {
        size_t room = *count;
        for (size_t i = 0; i < room; i++)
            nodes[i] = i < graph->count ? graph->nodes[i] : NULL;
        if (room < graph->count)
            return CUDA_SUCCESS;
    }
    *count = graph->count;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetRootNodes(CUgraph graph, CUgraphNode *nodes, size_t *count)
{
    GRAPH(graph);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    size_t roots = 0;
    for (size_t i = 0; i < graph->count; i++)
        if (graph->nodes[i]->after_count == 0) {
            if (nodes != NULL && roots < *count)
                nodes[roots] = graph->nodes[i];
            roots++;
        }
    *count = roots;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
                            CUgraphEdgeData *edges, size_t *count)
{
    GRAPH(graph);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    size_t all = 0;
    for (size_t i = 0; i < graph->count; i++)
        for (size_t j = 0; j < graph->nodes[i]->after_count; j++, all++) {
            if (from == NULL || to == NULL || all >= *count)
                continue;
            from[all] = graph->nodes[graph->nodes[i]->after[j]];
            to[all] = graph->nodes[i];
            if (edges != NULL)
                memset(&edges[all], 0, sizeof edges[all]);
        }
    *count = all;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges(CUgraph graph, CUgraphNode *from, CUgraphNode *to, size_t *count)
{
    return cuGraphGetEdges_v2(graph, from, to, NULL, count);
}

CUresult cuGraphGetId(CUgraph graph, unsigned int *id)
{
    GRAPH(graph);
    if (id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *id = (unsigned int)graph->id;
    return CUDA_SUCCESS;
}

CUresult cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType *type)
{
    static const CUgraphNodeType types[] = {
        [OP_KERNEL] = CU_GRAPH_NODE_TYPE_KERNEL,
        [OP_COPY] = CU_GRAPH_NODE_TYPE_MEMCPY,
        [OP_SET] = CU_GRAPH_NODE_TYPE_MEMSET,
        [OP_HOST] = CU_GRAPH_NODE_TYPE_HOST,
        [OP_EVENT] = CU_GRAPH_NODE_TYPE_EVENT_RECORD,
        [OP_EMPTY] = CU_GRAPH_NODE_TYPE_EMPTY,
        [OP_ALLOC] = CU_GRAPH_NODE_TYPE_MEM_ALLOC,
        [OP_FREE] = CU_GRAPH_NODE_TYPE_MEM_FREE,
    };
    ENTER();
    if (node == NULL || type == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *type = types[node->op.kind];
    return CUDA_SUCCESS;
}

CUresult cuGraphDebugDotPrint(CUgraph graph, const char *path, unsigned int flags)
{
    GRAPH(graph);
    (void)flags;
    FILE *file = path != NULL ? fopen(path, "we") : NULL;
    if (file == NULL)
        return CUDA_ERROR_OPERATING_SYSTEM;
    fprintf(file, "digraph emulated {\n");
    for (size_t i = 0; i < graph->count; i++) {
        fprintf(file, "  n%zu [label=\"%d\"];\n", i, (int)graph->nodes[i]->op.kind);
        for (size_t j = 0; j < graph->nodes[i]->after_count; j++)
            fprintf(file, "  n%zu -> n%zu;\n", graph->nodes[i]->after[j], i);
    }
    fprintf(file, "}\n");
    return fclose(file) == 0 ? CUDA_SUCCESS : CUDA_ERROR_OPERATING_SYSTEM;
}

CUresult cuGraphDestroy(CUgraph graph)
{
    GRAPH(graph);
    for (struct keepsake *kept = graph->keepsakes, *next; kept != NULL; kept = next) {
        next = kept->next;
        kept->object->references -= kept->count;
        if (kept->object->references == 0) {
            CUhostFn destroy = kept->object->destroy;
            void *data = kept->object->data;
            free(kept->object);
            driver_unlock(); /* the program's function runs without our lock */
            destroy(data);
            driver_lock();
        }
        free(kept);
    }
    graph_drop(graph);
    return CUDA_SUCCESS;
}
