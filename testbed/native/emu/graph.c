/* Stream capture and graphs. A graph is the list of its work in the order in which it
 * was recorded, which is one order that its dependencies allow. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define GRAPH_MAGIC 0x6870617247535645ull
#define EXEC_MAGIC 0x6365784547535645ull

struct CUgraphNode_st {
    struct op op;
};

/* Memory that was allocated while capturing: lives as long as a graph or an executable
 * graph made from it. */
struct graph_memory {
    unsigned int references;
    CUdeviceptr *pointers;
    size_t count, room;
};

struct keepsake { /* a user object that the graph holds */
    CUuserObject object;
    unsigned int count;
    struct keepsake *next;
};

struct CUuserObject_st {
    unsigned int references;
    CUhostFn destroy;
    void *data;
};

struct CUgraph_st {
    uint64_t magic, id;
    struct CUgraphNode_st **nodes;
    size_t count, room;
    struct graph_memory *memory;
    struct keepsake *keepsakes;
};

struct CUgraphExec_st {
    uint64_t magic, flags;
    struct op *ops;
    size_t count;
    struct graph_memory *memory;
};

static uint64_t last_graph, last_capture;
static struct capture *captures; /* all that ever were */

static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

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
        CUdeviceptr *grown = realloc(kept->pointers, room * sizeof *grown);
        if (grown == NULL)
            return false;
        kept->pointers = grown;
        kept->room = room;
    }
    kept->pointers[kept->count++] = pointer;
    return true;
}

static bool graph_owns(CUgraph graph, CUdeviceptr pointer)
{
    for (size_t i = 0; i < graph->memory->count; i++)
        if (graph->memory->pointers[i] == pointer)
            return true;
    return false;
}

static void memory_put(struct graph_memory *kept)
{
    if (--kept->references > 0)
        return;
    for (size_t i = 0; i < kept->count; i++)
        memory_free(kept->pointers[i]);
    free(kept->pointers);
    free(kept);
}

CUresult graph_append(CUgraph graph, const struct op *op, CUgraphNode *node)
{
    if (graph->count == graph->room) {
        size_t room = graph->room == 0 ? 64 : graph->room * 2;
        struct CUgraphNode_st **grown = realloc(graph->nodes, room * sizeof *grown);
        if (grown == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        graph->nodes = grown;
        graph->room = room;
    }
    struct CUgraphNode_st *made = malloc(sizeof *made);
    if (made == NULL || (op->kind == OP_ALLOC && !remember(graph->memory, op->as.pointer))) {
        free(made);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    made->op = *op;
    graph->nodes[graph->count++] = made;
    if (node != NULL)
        *node = made;
    return CUDA_SUCCESS;
}

CUgraphNode graph_last(CUgraph graph)
{
    return graph->count > 0 ? graph->nodes[graph->count - 1] : NULL;
}

void graph_drop(CUgraph graph)
{
    memory_put(graph->memory);
    for (size_t i = 0; i < graph->count; i++)
        free(graph->nodes[i]);
    free(graph->nodes);
    graph->magic = 0;
    free(graph);
}

/* --- capture ------------------------------------------------------------------------ */

CUresult capture_record(struct CUstream_st *stream, const struct op *op)
{
    struct capture *capture = stream->state.capture;
    if (capture->invalidated)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (op->kind == OP_FREE && !graph_owns(capture->graph, op->as.pointer))
        return CUDA_ERROR_INVALID_VALUE; /* memory from before the capture: not emulated */
    return graph_append(capture->graph, op, NULL);
}

CUresult capture_refuse(struct CUstream_st *stream)
{
    stream->state.capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_join(struct CUstream_st *stream, struct capture *capture)
{
    if (stream->state.capture == capture)
        return CUDA_SUCCESS;
    if (stream->state.capture != NULL) {
        stream->state.capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (stream == &stream->state.context->null_stream) {
        capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    if (capture->count == capture->room) {
        size_t room = capture->room == 0 ? 8 : capture->room * 2;
        struct CUstream_st **grown = realloc(capture->streams, room * sizeof(void *));
        if (grown == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        capture->streams = grown;
        capture->room = room;
    }
    capture->streams[capture->count++] = stream;
    stream->state.capture = capture;
    return CUDA_SUCCESS;
}

static void finish(struct capture *capture)
{
    for (size_t i = 0; i < capture->count; i++)
        capture->streams[i]->state.capture = NULL;
    capture->count = 0;
    capture->id = 0;
    capture->origin = NULL;
    capture->graph = NULL;
}

void capture_leave(struct CUstream_st *stream)
{
    struct capture *capture = stream->state.capture;
    if (capture == NULL)
        return;
    capture->invalidated = true;
    stream->state.capture = NULL;
    for (size_t i = 0; i < capture->count; i++)
        if (capture->streams[i] == stream) {
            capture->streams[i] = capture->streams[--capture->count];
            break;
        }
    if (capture->origin == stream) {
        CUgraph graph = capture->into_given_graph ? NULL : capture->graph;
        finish(capture);
        if (graph != NULL)
            graph_drop(graph);
    }
}

static CUresult begin(CUstream handle, CUgraph into, CUstreamCaptureMode mode)
{
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if ((int)mode < 0 || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    if (stream == &stream->state.context->null_stream)
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    if (stream->state.capture != NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    struct capture *capture = captures;
    while (capture != NULL && capture->id != 0)
        capture = capture->next;
    if (capture == NULL) {
        capture = calloc(1, sizeof *capture);
        if (capture == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        capture->next = captures;
        captures = capture;
    }
    capture->graph = into != NULL ? into : graph_make();
    if (capture->graph == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    capture->into_given_graph = into != NULL;
    capture->invalidated = false;
    capture->origin = stream;
    capture->id = ++last_capture;
    result = capture_join(stream, capture);
    if (result != CUDA_SUCCESS) {
        CUgraph graph = into == NULL ? capture->graph : NULL;
        finish(capture);
        if (graph != NULL)
            graph_drop(graph);
    }
    return result;
}

CUresult cuStreamBeginCapture_v2(CUstream handle, CUstreamCaptureMode mode)
{
    ENTER();
    LOCKED();
    return begin(handle, NULL, mode);
}

CUresult cuStreamBeginCapture(CUstream handle)
{
    return cuStreamBeginCapture_v2(handle, CU_STREAM_CAPTURE_MODE_GLOBAL);
}

CUresult cuStreamBeginCaptureToGraph(CUstream handle, CUgraph graph,
                                     const CUgraphNode *dependencies,
                                     const CUgraphEdgeData *edges, size_t count,
                                     CUstreamCaptureMode mode)
{
    ENTER();
    (void)dependencies, (void)edges, (void)count;
    LOCKED();
    return graph_valid(graph) ? begin(handle, graph, mode) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamEndCapture(CUstream handle, CUgraph *result)
{
    ENTER();
    LOCKED();
    struct CUstream_st *stream;
    CUresult found = stream_find(handle, &stream);
    if (found != CUDA_SUCCESS)
        return found;
    struct capture *capture = stream->state.capture;
    if (result == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *result = NULL;
    if (capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (capture->origin != stream) {
        capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
    }
    CUgraph graph = capture->graph;
    bool invalidated = capture->invalidated, given = capture->into_given_graph;
    finish(capture);
    if (invalidated) {
        if (!given)
            graph_drop(graph);
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    }
    *result = graph;
    return CUDA_SUCCESS;
}

static CUstreamCaptureStatus status_of(const struct CUstream_st *stream)
{
    if (stream->state.capture == NULL)
        return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream->state.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                              : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult cuStreamIsCapturing(CUstream handle, CUstreamCaptureStatus *status)
{
    ENTER();
    LOCKED();
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v3(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies,
                                   const CUgraphEdgeData **edges, size_t *count)
{
    ENTER();
    LOCKED();
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (status == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *status = status_of(stream);
    struct capture *capture =
        *status == CU_STREAM_CAPTURE_STATUS_ACTIVE ? stream->state.capture : NULL;
    static __thread CUgraphNode last; /* stays valid until the thread's next call */
    last = capture != NULL ? graph_last(capture->graph) : NULL;
    if (id != NULL)
        *id = capture != NULL ? capture->id : 0;
    if (graph != NULL)
        *graph = capture != NULL ? capture->graph : NULL;
    if (dependencies != NULL)
        *dependencies = last != NULL ? &last : NULL;
    if (edges != NULL)
        *edges = NULL;
    if (count != NULL)
        *count = last != NULL;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCaptureInfo_v2(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id,
                                   CUgraph *graph, const CUgraphNode **dependencies, size_t *count)
{
    return cuStreamGetCaptureInfo_v3(handle, status, id, graph, dependencies, NULL, count);
}

CUresult cuStreamGetCaptureInfo(CUstream handle, CUstreamCaptureStatus *status, cuuint64_t *id)
{
    return cuStreamGetCaptureInfo_v3(handle, status, id, NULL, NULL, NULL, NULL);
}

CUresult cuStreamUpdateCaptureDependencies_v2(CUstream handle, CUgraphNode *dependencies,
                                              const CUgraphEdgeData *edges, size_t count,
                                              unsigned int flags)
{
    ENTER();
    (void)dependencies, (void)edges, (void)count, (void)flags;
    LOCKED();
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    return stream->state.capture != NULL ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_STATE;
}

CUresult cuStreamUpdateCaptureDependencies(CUstream handle, CUgraphNode *dependencies,
                                           size_t count, unsigned int flags)
{
    return cuStreamUpdateCaptureDependencies_v2(handle, dependencies, NULL, count, flags);
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
    ENTER();
    if (mode == NULL || (int)*mode < 0 || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    CUstreamCaptureMode before = thread_mode;
    thread_mode = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

/* --- graphs by hand ------------------------------------------------------------------- */

#define GRAPH(graph)                                                                       \
    ENTER();                                                                               \
    LOCKED();                                                                              \
    do {                                                                                   \
        if (!graph_valid(graph))                                                           \
            return CUDA_ERROR_INVALID_VALUE;                                               \
    } while (0)

CUresult cuGraphCreate(CUgraph *graph, unsigned int flags)
{
    ENTER();
    if (graph == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    *graph = graph_make();
    return *graph != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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
        if (graph_append(made, &op, NULL) != CUDA_SUCCESS) {
            graph_drop(made);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        made->nodes[i]->op.kind = graph->nodes[i]->op.kind;
    }
    *clone = made;
    return CUDA_SUCCESS;
}

static CUresult add(CUgraphNode *node, CUgraph graph, const struct op *op)
{
    GRAPH(graph);
    return graph_append(graph, op, node);
}

CUresult cuGraphAddEmptyNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                             size_t count)
{
    (void)dependencies, (void)count;
    return add(node, graph, &(struct op){.kind = OP_EMPTY});
}

CUresult cuGraphAddKernelNode_v2(CUgraphNode *node, CUgraph graph,
                                 const CUgraphNode *dependencies, size_t count,
                                 const CUDA_KERNEL_NODE_PARAMS_v2 *parameters)
{
    (void)dependencies, (void)count;
    if (parameters == NULL || (parameters->func == NULL && parameters->kern == NULL))
        return CUDA_ERROR_INVALID_VALUE;
    return add(node, graph,
               &(struct op){.kind = OP_KERNEL,
                            .as.function = parameters->func != NULL
                                               ? parameters->func
                                               : (CUfunction)(void *)parameters->kern});
}

CUresult cuGraphAddKernelNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t count, const CUDA_KERNEL_NODE_PARAMS_v1 *parameters)
{
    (void)dependencies, (void)count;
    if (parameters == NULL || parameters->func == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return add(node, graph,
               &(struct op){.kind = OP_KERNEL, .as.function = parameters->func});
}

CUresult cuGraphAddMemsetNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                              size_t count, const CUDA_MEMSET_NODE_PARAMS_v1 *parameters,
                              CUcontext context)
{
    (void)dependencies, (void)count, (void)context;
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
                                       .element = parameters->elementSize}});
}

CUresult cuGraphAddHostNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *dependencies,
                            size_t count, const CUDA_HOST_NODE_PARAMS_v1 *parameters)
{
    (void)dependencies, (void)count;
    if (parameters == NULL || parameters->fn == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return add(node, graph,
               &(struct op){.kind = OP_HOST, .as.host = {parameters->fn, parameters->userData}});
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
    if (nodes != NULL && *count > 0 && graph->count > 0)
        nodes[0] = graph->nodes[0];
    *count = graph->count > 0;
    return CUDA_SUCCESS;
}

CUresult cuGraphGetEdges_v2(CUgraph graph, CUgraphNode *from, CUgraphNode *to,
                            CUgraphEdgeData *edges, size_t *count)
{
    GRAPH(graph);
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    size_t all = graph->count > 0 ? graph->count - 1 : 0;
    for (size_t i = 0; from != NULL && to != NULL && i < *count && i < all; i++) {
        from[i] = graph->nodes[i];
        to[i] = graph->nodes[i + 1];
        if (edges != NULL)
            memset(&edges[i], 0, sizeof edges[i]);
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
        if (i > 0)
            fprintf(file, "  n%zu -> n%zu;\n", i - 1, i);
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

/* --- executable graphs ------------------------------------------------------------------ */

static CUresult copy_ops(CUgraphExec exec, CUgraph graph)
{
    struct op *ops = calloc(graph->count + 1, sizeof *ops);
    if (ops == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    for (size_t i = 0; i < graph->count; i++)
        ops[i] = graph->nodes[i]->op;
    free(exec->ops);
    exec->ops = ops;
    exec->count = graph->count;
    return CUDA_SUCCESS;
}

CUresult cuGraphInstantiateWithFlags(CUgraphExec *result, CUgraph graph, unsigned long long flags)
{
    GRAPH(graph);
    if (result == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUgraphExec exec = calloc(1, sizeof *exec);
    if (exec == NULL || copy_ops(exec, graph) != CUDA_SUCCESS) {
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
    memory_put(exec->memory);
    free(exec->ops);
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
    struct op *ops = NULL;
    size_t count = 0;
    struct device *device = NULL;
    if (result == CUDA_SUCCESS) {
        /* A copy, so that another thread may destroy the graph meanwhile. */
        count = exec->count;
        device = stream->state.context->device;
        ops = malloc((count + 1) * sizeof *ops);
        if (ops == NULL)
            result = CUDA_ERROR_OUT_OF_MEMORY;
        else
            memcpy(ops, exec->ops, count * sizeof *ops);
        for (size_t i = 0; result == CUDA_SUCCESS && stream->state.capture != NULL && i < count;
             i++)
            result = capture_record(stream, &ops[i]); /* a child graph, flattened */
        if (result == CUDA_SUCCESS && stream->state.capture != NULL)
            count = 0;
    }
    driver_unlock();
    for (size_t i = 0; result == CUDA_SUCCESS && i < count; i++)
        result = op_run(device, &ops[i]);
    free(ops);
    return result;
}

CUresult cuGraphExecUpdate_v2(CUgraphExec exec, CUgraph graph, CUgraphExecUpdateResultInfo *info)
{
    EXEC(exec);
    if (!graph_valid(graph) || info == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memset(info, 0, sizeof *info);
    bool same = exec->count == graph->count;
    for (size_t i = 0; same && i < exec->count; i++)
        same = exec->ops[i].kind == graph->nodes[i]->op.kind;
    if (!same) {
        info->result = CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED;
        return CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    }
    return copy_ops(exec, graph);
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

/* --- memory of graphs: part of the default pool here ---------------------------------- */

CUresult cuDeviceGraphMemTrim(CUdevice ordinal)
{
    ENTER();
    return device_at(ordinal) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                      void *value)
{
    ENTER();
    if (device_at(ordinal) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (value == NULL || (int)attribute < 0 || attribute > CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH)
        return CUDA_ERROR_INVALID_VALUE;
    *(cuuint64_t *)value = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceSetGraphMemAttribute(CUdevice ordinal, CUgraphMem_attribute attribute,
                                      void *value)
{
    ENTER();
    (void)attribute;
    if (device_at(ordinal) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    return value != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* --- user objects ---------------------------------------------------------------------- */

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
