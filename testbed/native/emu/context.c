/* Contexts: primary ones, those of cuCtxCreate, and each thread's stack of them. */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define STACK 64
#define API_VERSION 3020

static __thread CUcontext stack[STACK];
static __thread int depth;

static uint64_t last_id;

CUcontext context_current(void)
{
    return depth > 0 ? stack[depth - 1] : NULL;
}

bool context_alive(CUcontext context)
{
    return context != NULL && context->magic == CONTEXT_MAGIC && context->retained > 0;
}

CUresult context_need(CUcontext *context)
{
    *context = context_current();
    if (*context == NULL)
        return CUDA_ERROR_INVALID_CONTEXT;
    return context_alive(*context) ? CUDA_SUCCESS : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

static void set_defaults(CUcontext context)
{
    static const size_t limits[CU_LIMIT_MAX] = {1024, 1 << 20, 8 << 20, 2, 2048, 128};
    memcpy(context->limits, limits, sizeof limits);
    context->api_version = API_VERSION;
    context->null_stream.state =
        (struct stream_state){.magic = STREAM_MAGIC, .context = context, .id = 1};
    context->null_stream.line.owner = &context->null_stream;
}

static CUcontext make(struct device *device, bool primary)
{
    CUcontext context = calloc(1, sizeof *context);
    if (context == NULL)
        return NULL;
    context->magic = CONTEXT_MAGIC;
    context->device = device;
    context->primary = primary;
    context->id = ++last_id;
    set_defaults(context);
    return context;
}

CUcontext context_primary(struct device *device)
{
    if (device->primary == NULL)
        device->primary = make(device, true);
    return device->primary;
}

static CUresult charge(struct device *device)
{
    return account_charge(device, (int64_t)device_description(device)->context_bytes, 0, 0);
}

/* Everything of the context goes; the structure stays, for stale handles. */
static void destroy(CUcontext context)
{
    context->retained = 0;
    stream_forget_context(context);
    memory_free_context(context);
    if (context->primary)
        pools_reset(context->device);
    account_charge(context->device, -(int64_t)device_description(context->device)->context_bytes,
                   0, 0);
    set_defaults(context);
    context->peers = 0;
}

/* --- primary contexts ---------------------------------------------------------- */

CUresult cuDevicePrimaryCtxRetain(CUcontext *result, CUdevice ordinal)
{
    ENTER();
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (result == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    CUcontext context = context_primary(device);
    if (context == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (context->retained == 0) {
        CUresult charged = charge(device);
        if (charged != CUDA_SUCCESS)
            return charged;
    }
    context->retained++;
    *result = context;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice ordinal)
{
    ENTER();
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED();
    if (!context_alive(device->primary))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (device->primary->retained == 1)
        destroy(device->primary);
    else
        device->primary->retained--;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice ordinal)
{
    return cuDevicePrimaryCtxRelease_v2(ordinal);
}

CUresult cuDevicePrimaryCtxReset_v2(CUdevice ordinal)
{
    ENTER();
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED();
    if (context_alive(device->primary))
        destroy(device->primary);
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxReset(CUdevice ordinal)
{
    return cuDevicePrimaryCtxReset_v2(ordinal);
}

CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags)
{
    ENTER();
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED();
    CUcontext context = context_primary(device);
    if (context == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags)
{
    return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int *flags, int *active)
{
    ENTER();
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED();
    if (flags != NULL)
        *flags = device->primary != NULL ? device->primary->flags : 0;
    if (active != NULL)
        *active = context_alive(device->primary);
    return CUDA_SUCCESS;
}

/* --- contexts of one's own ------------------------------------------------------- */

static CUresult create(CUcontext *result, unsigned int flags, CUdevice ordinal)
{
    ENTER();
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (result == NULL || depth == STACK)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    CUcontext context = make(device, false);
    if (context == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult charged = charge(device);
    if (charged != CUDA_SUCCESS) {
        free(context);
        return charged;
    }
    context->flags = flags;
    context->retained = 1;
    stack[depth++] = context;
    *result = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *result, unsigned int flags, CUdevice ordinal)
{
    return create(result, flags, ordinal);
}

CUresult cuCtxCreate_v2(CUcontext *result, unsigned int flags, CUdevice ordinal)
{
    return create(result, flags, ordinal);
}

CUresult cuCtxCreate_v3(CUcontext *result, CUexecAffinityParam *affinity, int count,
                        unsigned int flags, CUdevice ordinal)
{
    if (affinity != NULL && count > 0)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(result, flags, ordinal);
}

CUresult cuCtxCreate_v4(CUcontext *result, CUctxCreateParams *parameters, unsigned int flags,
                        CUdevice ordinal)
{
    if (parameters != NULL && parameters->numExecAffinityParams > 0)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (parameters != NULL && parameters->cigParams != NULL)
        return CUDA_ERROR_NOT_SUPPORTED;
    return create(result, flags, ordinal);
}

CUresult cuCtxDestroy_v2(CUcontext context)
{
    ENTER();
    LOCKED();
    if (context == NULL || context->magic != CONTEXT_MAGIC || context->primary)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (!context_alive(context))
        return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    destroy(context);
    if (context_current() == context)
        depth--;
    return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext context)
{
    return cuCtxDestroy_v2(context);
}

CUresult cuCtxAttach(CUcontext *result, unsigned int flags)
{
    ENTER();
    if (result == NULL || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    CUresult need = context_need(result);
    if (need == CUDA_SUCCESS)
        (*result)->retained++;
    return need;
}

CUresult cuCtxDetach(CUcontext context)
{
    ENTER();
    driver_lock();
    bool last = !context_alive(context) || context->retained == 1;
    if (!last)
        context->retained--;
    driver_unlock();
    return last ? cuCtxDestroy_v2(context) : CUDA_SUCCESS;
}

/* --- the thread's stack ------------------------------------------------------------ */

CUresult cuCtxPushCurrent_v2(CUcontext context)
{
    ENTER();
    LOCKED();
    if (depth == STACK)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context_alive(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    stack[depth++] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context)
{
    return cuCtxPushCurrent_v2(context);
}

CUresult cuCtxPopCurrent_v2(CUcontext *context)
{
    ENTER();
    if (depth == 0)
        return CUDA_ERROR_INVALID_CONTEXT;
    depth--;
    if (context != NULL)
        *context = stack[depth];
    return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent(CUcontext *context)
{
    return cuCtxPopCurrent_v2(context);
}

CUresult cuCtxSetCurrent(CUcontext context)
{
    ENTER();
    LOCKED();
    if (context == NULL) {
        if (depth > 0)
            depth--;
        return CUDA_SUCCESS;
    }
    if (!context_alive(context))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (depth == 0)
        depth = 1;
    stack[depth - 1] = context;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *context)
{
    ENTER();
    if (context == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *context = context_current();
    return CUDA_SUCCESS;
}

/* --- waiting for its work ------------------------------------------------------------- */

void context_drain(CUcontext context)
{
    struct device *device = context->device;
    struct queue *queue = &device->time.queue;
    uint64_t asked = emu_now_ns();
    for (;;) {
        driver_lock();
        struct line *line = NULL;
        uint64_t position = 0;
        for (size_t i = 0; line == NULL && i < queue->count; i++) {
            const struct CUstream_st *stream = queue->lines[i]->owner;
            if (stream->state.context != context)
                continue;
            line = queue->lines[i];
            position = line->pushed;
            /* Not for what other threads go on to launch. */
            while (position > line->done && line_at(line, position)->arrived_ns > asked)
                position--;
            if (position <= line->done)
                line = NULL;
        }
        driver_unlock();
        if (line == NULL)
            return;
        time_wait(device, line, position);
    }
}

CUresult cuCtxSynchronize_v2(CUcontext asked)
{
    ENTER();
    driver_lock();
    CUresult result = CUDA_SUCCESS;
    if (asked == NULL)
        result = context_need(&asked);
    if (result == CUDA_SUCCESS && !context_alive(asked))
        result = CUDA_ERROR_INVALID_CONTEXT;
    if (result == CUDA_SUCCESS)
        for (struct CUstream_st *stream = asked->streams; stream != NULL; stream = stream->next)
            if (stream->state.capture != NULL)
                result = capture_refuse(stream);
    driver_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    context_drain(asked);
    LOCKED();
    pools_settle();
    return CUDA_SUCCESS;
}

CUresult cuCtxSynchronize(void)
{
    return cuCtxSynchronize_v2(NULL);
}
