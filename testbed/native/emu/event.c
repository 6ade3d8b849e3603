/* Events: handles, recording, asking, waiting. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>

#define EVENT_DISABLE_TIMING 2u

/* Destroyed handles go to a free list, never to the allocator: a stale one is an error then
 * and not a crash, and works that hold one look at its serial. */
static struct CUevent_st *free_events;

#define EVENT(event)                                                                       \
    ENTER();                                                                               \
    LOCKED();                                                                              \
    do {                                                                                   \
        if ((event) == NULL || (event)->magic != EVENT_MAGIC)                              \
            return CUDA_ERROR_INVALID_HANDLE;                                              \
    } while (0)

static bool captured(const struct CUevent_st *event)
{
    return event->capture != NULL && event->capture->id == event->capture_id;
}

CUresult cuEventCreate(CUevent *result, unsigned int flags)
{
    CURRENT();
    if (result == NULL || (flags & ~7u) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUevent_st *event = free_events;
    if (event != NULL)
        free_events = event->next;
    else
        event = calloc(1, sizeof *event);
    if (event == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *event = (struct CUevent_st){.magic = EVENT_MAGIC,
                                 .flags = flags,
                                 .context = context,
                                 .front = {event->front.nodes, 0, event->front.room},
                                 .serial = event->serial + 1}; /* void: what is queued of it */
    *result = event;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent event)
{
    EVENT(event);
    event->magic = 0;
    event->next = free_events;
    free_events = event;
    return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event)
{
    return cuEventDestroy_v2(event);
}

CUresult event_record(CUevent event, struct CUstream_st *stream, uint64_t arrived_ns)
{
    struct device *device = stream->state.context->device;
    event->capture = NULL;
    event->recorded = event->pending = true;
    event->serial++;
    uint64_t cost = device_description(device)->event_ns;
    if (cost > 0 && (event->flags & EVENT_DISABLE_TIMING) == 0 && !line_idle(&stream->line)) {
        CUresult result = time_push(device, &stream->line,
                                    &(struct work){.kind = WORK_DEVICE,
                                                   .width = QUEUE_WHOLE,
                                                   .arrived_ns = arrived_ns,
                                                   .left_ns = cost});
        if (result != CUDA_SUCCESS)
            return result;
    }
    event->device = device;
    event->line = &stream->line;
    event->position = stream->line.pushed + 1;
    return time_push(device, &stream->line,
                     &(struct work){.kind = WORK_MARK,
                                    .arrived_ns = arrived_ns,
                                    .as.mark = {event, event->serial}});
}

void event_done(CUevent event, uint64_t serial, uint64_t now_ns)
{
    if (event->magic != EVENT_MAGIC || event->serial != serial)
        return; /* recorded anew, or destroyed */
    event->pending = false;
    event->time_ns = now_ns;
}

CUresult cuEventRecordWithFlags(CUevent event, CUstream handle, unsigned int flags)
{
    EVENT(event);
    if ((flags & ~1u) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (event->context != stream->state.context)
        return CUDA_ERROR_INVALID_HANDLE;
    if (stream->state.capture == NULL) {
        result = submit_order(stream);
        return result == CUDA_SUCCESS ? event_record(event, stream, emu_now_ns()) : result;
    }
    if ((flags & 1u) != 0) /* external: a node of the graph */
        return capture_record(stream, &(struct op){.kind = OP_EVENT, .as.event = event});
    return capture_mark(event, stream);
}

CUresult cuEventRecord(CUevent event, CUstream handle)
{
    return cuEventRecordWithFlags(event, handle, 0);
}

/* Is the last record over? Looks, where it may be. */
static bool over(struct CUevent_st *event)
{
    if (event->recorded && event->pending)
        time_look(event->device, emu_now_ns());
    return !event->recorded || !event->pending;
}

CUresult cuEventQuery(CUevent event)
{
    EVENT(event);
    if (captured(event))
        return CUDA_ERROR_CAPTURED_EVENT;
    return over(event) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

CUresult cuEventSynchronize(CUevent event)
{
    ENTER();
    driver_lock();
    CUresult result = event == NULL || event->magic != EVENT_MAGIC ? CUDA_ERROR_INVALID_HANDLE
                      : captured(event)                             ? CUDA_ERROR_CAPTURED_EVENT
                                                                    : CUDA_SUCCESS;
    bool wait = result == CUDA_SUCCESS && event->recorded && event->pending;
    struct device *device = wait ? event->device : NULL;
    struct line *line = wait ? event->line : NULL;
    uint64_t position = wait ? event->position : 0;
    driver_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    if (wait)
        time_wait(device, line, position);
    LOCKED();
    pools_settle();
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime_v2(float *milliseconds, CUevent start, CUevent end)
{
    EVENT(start);
    if (end == NULL || end->magic != EVENT_MAGIC || !start->recorded || !end->recorded ||
        ((start->flags | end->flags) & EVENT_DISABLE_TIMING) != 0)
        return CUDA_ERROR_INVALID_HANDLE;
    if (captured(start) || captured(end))
        return CUDA_ERROR_CAPTURED_EVENT;
    if (milliseconds == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (!over(start) || !over(end))
        return CUDA_ERROR_NOT_READY;
    *milliseconds = (float)((double)((int64_t)end->time_ns - (int64_t)start->time_ns) / 1e6);
    return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    return cuEventElapsedTime_v2(milliseconds, start, end);
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event, unsigned int flags)
{
    EVENT(event);
    if ((flags & ~1u) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (captured(event))
        return capture_wait(stream, event);
    if (stream->state.capture != NULL && event->recorded && flags == 0)
        return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
    if (stream->state.capture != NULL || over(event))
        return CUDA_SUCCESS;
    result = submit_order(stream);
    if (result != CUDA_SUCCESS)
        return result;
    return time_push(stream->state.context->device, &stream->line,
                     &(struct work){.kind = WORK_WAIT,
                                    .arrived_ns = emu_now_ns(),
                                    .as.wait = {event->line, event->position}});
}
