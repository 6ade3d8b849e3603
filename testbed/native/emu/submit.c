/* From operations to the queues of a stream: how long each takes and on what, the default
 * stream's rules, full queues, and which calls return when. */
#define _GNU_SOURCE
#include "driver.h"

#include "callback.h"

#include <stdlib.h>

/* From pageable memory, up to so much is taken over by the call itself (CUDA driver API,
 * "API synchronization behavior"). */
#define STAGED_BYTES 65536

/* --- the default stream ------------------------------------------------------------------- */

static bool blocking(const struct CUstream_st *stream)
{
    return (stream->state.flags & CU_STREAM_NON_BLOCKING) == 0;
}

static CUresult wait_for(struct CUstream_st *stream, struct line *line, uint64_t now_ns)
{
    return time_push(stream->state.context->device, &stream->line,
                     &(struct work){.kind = WORK_WAIT,
                                    .arrived_ns = now_ns,
                                    .as.wait = {line, line->pushed}});
}

/* The legacy default stream waits for all blocking streams of its context, and they for it. */
CUresult submit_order(struct CUstream_st *stream)
{
    CUcontext context = stream->state.context;
    struct CUstream_st *legacy = &context->null_stream;
    if (stream == legacy) {
        struct queue *queue = &context->device->time.queue;
        for (size_t i = 0; i < queue->count; i++) {
            struct line *line = queue->lines[i];
            const struct CUstream_st *other = line->owner;
            if (other == legacy || other->state.context != context || !blocking(other) ||
                other->legacy_met >= line->pushed)
                continue;
            /* Pushing may tidy the list: begin again, each is met once. */
            ((struct CUstream_st *)line->owner)->legacy_met = line->pushed;
            CUresult result = wait_for(stream, line, emu_now_ns());
            if (result != CUDA_SUCCESS)
                return result;
            i = (size_t)-1;
        }
        return CUDA_SUCCESS;
    }
    if (blocking(stream) && stream->legacy_seen < legacy->line.pushed) {
        stream->legacy_seen = legacy->line.pushed;
        if (!line_idle(&legacy->line))
            return wait_for(stream, &legacy->line, emu_now_ns());
    }
    return CUDA_SUCCESS;
}

/* --- what an operation costs ------------------------------------------------------------------ */

static bool on_device(uintptr_t address, bool *pinned)
{
    const struct range *range = space_find(&memory, address);
    *pinned = range != NULL;
    return range != NULL && range_on_device(range);
}

/* Fills in the work; *wait: the call returns when it is over. */
static void cost_of_copy(const struct card_description *card, const struct op *op,
                         struct work *work, bool *wait)
{
    uint64_t bytes = (uint64_t)op->as.copy.width * op->as.copy.height * op->as.copy.depth;
    bool to_pinned, from_pinned;
    bool to = on_device(op->as.copy.to, &to_pinned);
    bool from = on_device(op->as.copy.from, &from_pinned);
    work->width = QUEUE_WHOLE;
    if (to && from) {
        work->kind = WORK_DEVICE;
        work->left_ns = copy_duration_ns(card, COPY_DEVICE_DEVICE, bytes);
        return; /* never waited for, as on hardware */
    }
    work->kind = to ? WORK_COPY_IN : WORK_COPY_OUT;
    work->left_ns = copy_duration_ns(card, COPY_HOST_DEVICE, bytes);
    bool pinned = to ? from_pinned : to_pinned;
    *wait = op->synchronous || (!pinned && (!to || bytes > STAGED_BYTES));
}

static void cost_of(struct device *device, const struct op *op, struct work *work, bool *wait)
{
    const struct card_description *card = device_description(device);
    switch (op->kind) {
    case OP_KERNEL: {
        struct duration duration = kernel_duration(card, &op->as.kernel.cost);
        work->left_ns = duration.ns;
        work->width = duration.width;
        break;
    }
    case OP_COPY: cost_of_copy(card, op, work, wait); break;
    case OP_SET:
        work->left_ns = copy_duration_ns(card, COPY_FILL,
                                         (uint64_t)op->as.set.width * op->as.set.height *
                                             op->as.set.element);
        break;
    default: break;
    }
}

/* --- queueing ------------------------------------------------------------------------------------ */

/* An operation whose turn to touch memory comes behind a function of the program. */
static void do_later(void *data)
{
    op_run(data);
    free(data);
}

static CUresult push_effect(struct CUstream_st *stream, const struct op *op, uint64_t now_ns)
{
    struct op *later = malloc(sizeof *later);
    if (later == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *later = *op;
    CUresult result = callback_push(stream->state.context->device, &stream->line, do_later,
                                    later, now_ns);
    if (result != CUDA_SUCCESS)
        free(later);
    return result;
}

static CUresult push(struct CUstream_st *stream, const struct op *op, uint64_t now_ns,
                     bool counted, bool *wait)
{
    struct device *device = stream->state.context->device;
    struct work work = {.kind = WORK_DEVICE,
                        .counted = counted,
                        .width = QUEUE_WHOLE,
                        .arrived_ns = now_ns};
    switch (op->kind) {
    case OP_HOST:
        return callback_push(device, &stream->line, op->as.host.function, op->as.host.data,
                             now_ns);
    case OP_EVENT: return event_record(op->as.event, stream, now_ns);
    case OP_EMPTY:
    case OP_ALLOC: /* the memory of a graph lives as long as the graph */
    case OP_FREE: return CUDA_SUCCESS;
    default: break;
    }
    cost_of(device, op, &work, wait);
    return time_push(device, &stream->line, &work);
}

/* A program that only launches and copies makes no other call that would notice that its
 * slot's lock is gone: look now and then. */
#define LOOK_EVERY_NS 100000000ull

static void count(struct device *device, const struct op *op, uint64_t now_ns)
{
    if (now_ns > device->looked_ns + LOOK_EVERY_NS) {
        device->looked_ns = now_ns;
        account_own_slot(device);
    }
    if (device->slot < 0)
        return;
    struct card_slot *slot = &device->card.state->slots[device->slot];
    if (op->kind == OP_KERNEL)
        __atomic_fetch_add(&slot->launches, 1, __ATOMIC_RELAXED);
    else if (op->kind == OP_COPY)
        __atomic_fetch_add(&slot->copied_bytes,
                           (uint64_t)op->as.copy.width * op->as.copy.height * op->as.copy.depth,
                           __ATOMIC_RELAXED);
}

void submit_room(struct CUstream_st *stream)
{
    struct device *device = stream->state.context->device;
    while (time_full(device, &stream->line)) {
        uint64_t next = stream->line.done + 1;
        driver_unlock();
        time_wait(device, &stream->line, next);
        driver_lock();
    }
}

CUresult submit_one(struct CUstream_st *stream, const struct op *op, uint64_t now_ns,
                    bool counted, bool *wait)
{
    struct device *device = stream->state.context->device;
    CUresult result = CUDA_SUCCESS;
    if (op_touches(op) && device->time.queue.hosts > 0) {
        result = push_effect(stream, op, now_ns);
    } else if (op_touches(op)) {
        driver_unlock();
        result = op_run(op);
        driver_lock();
    }
    if (result == CUDA_SUCCESS)
        result = push(stream, op, now_ns, counted, wait);
    if (result == CUDA_SUCCESS)
        count(device, op, now_ns);
    return result;
}

CUresult submit(struct CUstream_st *stream, const struct op *op)
{
    struct device *device = stream->state.context->device;
    bool wait = false;
    driver_lock();
    submit_room(stream);
    uint64_t now = emu_now_ns();
    CUresult result = submit_order(stream);
    if (result == CUDA_SUCCESS)
        result = submit_one(stream, op, now, true, &wait);
    uint64_t position = stream->line.pushed;
    driver_unlock();
    if (result == CUDA_SUCCESS && wait)
        time_wait(device, &stream->line, position);
    return result;
}
