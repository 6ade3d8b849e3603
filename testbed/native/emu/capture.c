/* Stream capture: work of one or several streams becomes a graph. */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>

#define SET_DEPENDENCIES 1u /* of cuStreamUpdateCaptureDependencies; 0 adds */

static uint64_t last_capture;
static struct capture *captures; /* all that ever were */

static __thread CUstreamCaptureMode thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static CUresult front_add(struct front *front, CUgraphNode node)
{
    for (size_t i = 0; i < front->count; i++)
        if (front->nodes[i] == node)
            return CUDA_SUCCESS;
    if (front->count == front->room) {
        size_t room = front->room == 0 ? 4 : front->room * 2;
        CUgraphNode *grown = realloc(front->nodes, room * sizeof(CUgraphNode));
        if (grown == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        front->nodes = grown;
        front->room = room;
    }
    front->nodes[front->count++] = node;
    return CUDA_SUCCESS;
}

CUresult capture_record(struct CUstream_st *stream, const struct op *op)
{
    struct capture *capture = stream->state.capture;
    if (capture->invalidated)
        return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (op->kind == OP_FREE && !graph_owns(capture->graph, op->as.pointer))
        return CUDA_ERROR_INVALID_VALUE; /* memory from before the capture: not emulated */
    CUgraphNode node;
    CUresult result = graph_append_after(capture->graph, op, stream->front.nodes,
                                         stream->front.count, &node);
    if (result == CUDA_SUCCESS) {
        stream->front.count = 0;
        result = front_add(&stream->front, node);
    }
    return result;
}

CUresult capture_mark(struct CUevent_st *event, const struct CUstream_st *stream)
{
    event->capture = stream->state.capture;
    event->capture_id = event->capture->id;
    event->front.count = 0;
    CUresult result = CUDA_SUCCESS;
    for (size_t i = 0; i < stream->front.count && result == CUDA_SUCCESS; i++)
        result = front_add(&event->front, stream->front.nodes[i]);
    return result;
}

CUresult capture_wait(struct CUstream_st *stream, const struct CUevent_st *event)
{
    CUresult result = capture_join(stream, event->capture);
    for (size_t i = 0; i < event->front.count && result == CUDA_SUCCESS; i++)
        result = front_add(&stream->front, event->front.nodes[i]);
    return result;
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
    stream->front.count = 0;
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
    (void)edges;
    LOCKED();
    if (!graph_valid(graph) || (dependencies == NULL && count > 0))
        return CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *stream;
    CUresult result = begin(handle, graph, mode);
    if (result == CUDA_SUCCESS)
        result = stream_find(handle, &stream);
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = front_add(&stream->front, dependencies[i]);
    return result;
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
    if (id != NULL)
        *id = capture != NULL ? capture->id : 0;
    if (graph != NULL)
        *graph = capture != NULL ? capture->graph : NULL;
    if (dependencies != NULL)
        *dependencies = capture != NULL && stream->front.count > 0 ? stream->front.nodes : NULL;
    if (edges != NULL)
        *edges = NULL;
    if (count != NULL)
        *count = capture != NULL ? stream->front.count : 0;
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
    (void)edges;
    LOCKED();
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->state.capture == NULL)
        return CUDA_ERROR_ILLEGAL_STATE;
    if (flags > SET_DEPENDENCIES || (dependencies == NULL && count > 0))
        return CUDA_ERROR_INVALID_VALUE;
    if (flags == SET_DEPENDENCIES)
        stream->front.count = 0;
    for (size_t i = 0; i < count && result == CUDA_SUCCESS; i++)
        result = front_add(&stream->front, dependencies[i]);
    return result;
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
