/* Streams: handles, asking, waiting. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

/* Destroyed handles go to free lists, never to the allocator: a stale handle is then
 * an error and not a crash. */
static struct CUstream_st *free_streams;
static uint64_t last_stream_id = 16;

static struct CUstream_st *thread_stream(CUcontext context)
{
    static uint64_t threads;
    static __thread uint64_t own;
    static __thread struct CUstream_st *last;
    if (last != NULL && last->state.context == context)
        return last;
    if (own == 0)
        own = ++threads;
    struct CUstream_st *stream = context->thread_streams;
    while (stream != NULL && stream->thread != own)
        stream = stream->next;
    if (stream == NULL) {
        stream = calloc(1, sizeof *stream);
        if (stream == NULL)
            return NULL;
        stream->thread = own;
        stream->state = (struct stream_state){
            .magic = STREAM_MAGIC, .context = context, .id = ++last_stream_id};
        stream->line.owner = stream;
        stream->next = context->thread_streams;
        context->thread_streams = stream;
    }
    last = stream;
    return stream;
}

CUresult stream_find(CUstream handle, struct CUstream_st **stream)
{
    if (handle == NULL || handle == CU_STREAM_LEGACY || handle == CU_STREAM_PER_THREAD) {
        CUcontext context;
        CUresult result = context_need(&context);
        if (result != CUDA_SUCCESS)
            return result;
        *stream = handle == CU_STREAM_PER_THREAD || (handle == NULL && driver_own_default())
                      ? thread_stream(context)
                      : &context->null_stream;
        return *stream != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (handle->state.magic != STREAM_MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (!context_alive(handle->state.context))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *stream = handle;
    return CUDA_SUCCESS;
}

CUresult stream_submit(CUstream handle, const struct op *op)
{
    driver_lock();
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS || stream->state.capture != NULL) {
        if (result == CUDA_SUCCESS)
            result = capture_record(stream, op);
        driver_unlock();
        return result;
    }
    driver_unlock();
    return submit(stream, op);
}

static void retire(struct CUstream_st *stream)
{
    capture_leave(stream);
    /* What is queued goes on without the handle, and positions count on: whoever takes
     * the structure next continues them. */
    stream->state.magic = 0;
    stream->next = free_streams;
    free_streams = stream;
}

void stream_forget_context(CUcontext context)
{
    struct queue *queue = &context->device->time.queue;
    time_look(context->device, emu_now_ns());
    for (size_t i = 0; i < queue->count; i++) {
        const struct CUstream_st *stream = queue->lines[i]->owner;
        if (stream->state.context == context) {
            queue_drop(queue, queue->lines[i]);
            i = (size_t)-1; /* the list was tidied */
        }
    }
    time_look(context->device, emu_now_ns());
    while (context->streams != NULL) {
        struct CUstream_st *stream = context->streams;
        context->streams = stream->next;
        retire(stream);
    }
    for (struct CUstream_st *own = context->thread_streams; own != NULL; own = own->next)
        capture_leave(own);
}

CUresult cuStreamCreateWithPriority(CUstream *result, unsigned int flags, int priority)
{
    CURRENT();
    if (result == NULL || (flags & ~CU_STREAM_NON_BLOCKING) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    /* One that is still at work for its former handle stays where it is. */
    struct CUstream_st **link = &free_streams;
    while (*link != NULL && !line_idle(&(*link)->line))
        link = &(*link)->next;
    struct CUstream_st *stream = *link;
    if (stream != NULL)
        *link = stream->next;
    else
        stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    stream->state = (struct stream_state){
        .magic = STREAM_MAGIC,
        .context = context,
        .flags = flags,
        .priority = priority > 0 ? 0 : priority < -5 ? -5 : priority,
        .id = ++last_stream_id,
    };
    stream->line.owner = stream;
    stream->line.priority = stream->state.priority;
    stream->legacy_seen = 0;
    stream->legacy_met = stream->line.pushed;
    stream->next = context->streams;
    context->streams = stream;
    *result = stream;
    return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *result, unsigned int flags)
{
    return cuStreamCreateWithPriority(result, flags, 0);
}

/* `stream`, lock held. */
#define STREAM(handle)                                                                     \
    ENTER();                                                                               \
    LOCKED();                                                                              \
    struct CUstream_st *stream;                                                            \
    do {                                                                                   \
        CUresult found_ = stream_find(handle, &stream);                                    \
        if (found_ != CUDA_SUCCESS)                                                        \
            return found_;                                                                 \
    } while (0)

CUresult cuStreamDestroy_v2(CUstream handle)
{
    STREAM(handle);
    if (stream != handle)
        return CUDA_ERROR_INVALID_HANDLE; /* the default streams stay */
    struct CUstream_st **link = &stream->state.context->streams;
    while (*link != NULL && *link != stream)
        link = &(*link)->next;
    if (*link == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *link = stream->next;
    retire(stream);
    return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle)
{
    return cuStreamDestroy_v2(handle);
}

CUresult cuStreamGetPriority(CUstream handle, int *priority)
{
    STREAM(handle);
    if (priority == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *priority = stream->state.priority;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetFlags(CUstream handle, unsigned int *flags)
{
    STREAM(handle);
    if (flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = stream->state.flags;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream handle, unsigned long long *id)
{
    STREAM(handle);
    if (id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *id = stream->state.context->id << 32 | stream->state.id;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream handle, CUcontext *context)
{
    STREAM(handle);
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *context = stream->state.context;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx_v2(CUstream handle, CUcontext *context, CUgreenCtx *green)
{
    STREAM(handle);
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *context = stream->state.context;
    if (green != NULL)
        *green = NULL;
    return CUDA_SUCCESS;
}

CUresult cuStreamGetDevice(CUstream handle, CUdevice *device)
{
    STREAM(handle);
    if (device == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *device = stream->state.context->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream handle)
{
    ENTER();
    driver_lock();
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && stream->state.capture != NULL)
        result = capture_refuse(stream);
    if (result == CUDA_SUCCESS) /* the default stream's end is that of all blocking ones */
        result = submit_order(stream);
    struct device *device = result == CUDA_SUCCESS ? stream->state.context->device : NULL;
    uint64_t position = result == CUDA_SUCCESS ? stream->line.pushed : 0;
    driver_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    time_wait(device, &stream->line, position);
    LOCKED();
    pools_settle();
    return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream handle)
{
    STREAM(handle);
    if (stream->state.capture != NULL)
        return capture_refuse(stream);
    CUresult result = submit_order(stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!line_idle(&stream->line))
        time_look(stream->state.context->device, emu_now_ns());
    return line_idle(&stream->line) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

struct callback {
    CUstreamCallback function;
    CUstream stream;
    void *data;
};

static void call_back(void *data)
{
    struct callback callback = *(struct callback *)data;
    free(data);
    callback.function(callback.stream, CUDA_SUCCESS, callback.data);
}

CUresult cuStreamAddCallback(CUstream handle, CUstreamCallback callback, void *data,
                             unsigned int flags)
{
    ENTER();
    if (callback == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    driver_lock();
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result == CUDA_SUCCESS && stream->state.capture != NULL)
        result = capture_refuse(stream);
    driver_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    struct callback *made = malloc(sizeof *made);
    if (made == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *made = (struct callback){callback, handle, data};
    result = submit(stream, &(struct op){.kind = OP_HOST, .as.host = {call_back, made}});
    if (result != CUDA_SUCCESS)
        free(made);
    return result;
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void *data)
{
    ENTER();
    if (function == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return stream_submit(handle, &(struct op){.kind = OP_HOST, .as.host = {function, data}});
}

CUresult cuLaunchHostFunc_v2(CUstream handle, CUhostFn function, void *data, unsigned int mode)
{
    (void)mode;
    return cuLaunchHostFunc(handle, function, data);
}

CUresult cuStreamGetAttribute(CUstream handle, CUstreamAttrID attribute, CUstreamAttrValue *value)
{
    STREAM(handle);
    (void)attribute;
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memset(value, 0, sizeof *value);
    return CUDA_SUCCESS;
}

CUresult cuStreamSetAttribute(CUstream handle, CUstreamAttrID attribute,
                              const CUstreamAttrValue *value)
{
    STREAM(handle);
    (void)attribute;
    return value != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamCopyAttributes(CUstream to, CUstream from)
{
    STREAM(from);
    return stream_find(to, &stream);
}

CUresult cuStreamAttachMemAsync(CUstream handle, CUdeviceptr pointer, size_t bytes,
                                unsigned int flags)
{
    STREAM(handle);
    (void)bytes, (void)flags;
    struct range *range = space_find(&memory, (uintptr_t)pointer);
    return range != NULL && range->kind == RANGE_MANAGED ? CUDA_SUCCESS
                                                         : CUDA_ERROR_INVALID_VALUE;
}

/* --- memory operations of a stream ------------------------------------------------- */

static CUresult write_value(CUstream handle, CUdeviceptr address, cuuint64_t value, size_t bytes)
{
    struct op op = {.kind = OP_SET,
                    .as.set = {.to = (uintptr_t)address,
                               .width = bytes / 4,
                               .height = 1,
                               .pitch = bytes,
                               .value = (uint32_t)value,
                               .element = 4}};
    if (bytes == 8) {
        op.as.set.width = 1;
        CUresult result = stream_submit(handle, &op);
        if (result != CUDA_SUCCESS)
            return result;
        op.as.set.to += 4;
        op.as.set.value = (uint32_t)(value >> 32);
    }
    return stream_submit(handle, &op);
}

CUresult cuStreamWriteValue32_v2(CUstream handle, CUdeviceptr address, cuuint32_t value,
                                 unsigned int flags)
{
    ENTER();
    (void)flags;
    return address % 4 == 0 ? write_value(handle, address, value, 4) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuStreamWriteValue64_v2(CUstream handle, CUdeviceptr address, cuuint64_t value,
                                 unsigned int flags)
{
    ENTER();
    (void)flags;
    return address % 8 == 0 ? write_value(handle, address, value, 8) : CUDA_ERROR_INVALID_VALUE;
}
