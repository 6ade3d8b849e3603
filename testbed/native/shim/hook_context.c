/* Contexts: each costs device memory that no call names. It is measured around its
 * making: by NVML's figure for this process where NVML knows us, else by what the card
 * uses more, else taken as other processes of the container found it, else a default. */
#include "contexts.h"

#include <string.h>

#include "charge.h"
#include "device.h"
#include "graphs.h"
#include "log.h"
#include "lookup.h"
#include "nvml_probe.h"
#include "place.h"
#include "pools.h"
#include "sys.h"
#include "throttle.h"

#define DEFAULT_CONTEXT (512ull << 20) /* above what the cards that we know of take */
#define LEAST_CONTEXT (16ull << 20)    /* a neighbour's allocation may fall into the ... */
#define MOST_CONTEXT (1ull << 30)      /* ... card's figure: believe it within reason */
#define CARDS 64

static struct vgpu_lock making; /* one at a time: else one measures the other's */
static struct primary {
    bool charged;
    int entry;
    uint64_t bytes;
    CUcontext ctx;
} primaries[CARDS];

void vgpu_contexts_forget(void) {
    atomic_store(&making.state, 0);
    memset(primaries, 0, sizeof primaries);
}

struct make { /* one creating call, of whichever version */
    enum { RETAIN, CREATE_V1, CREATE_V2, CREATE_V3, CREATE_V4 } call;
    CUcontext *ctx;
    void *params;
    int count;
    unsigned int flags;
    CUdevice dev;
};

static CUresult call(const struct make *make) {
    switch (make->call) {
    case RETAIN: return VGPU_CALL(cuDevicePrimaryCtxRetain, make->ctx, make->dev);
    case CREATE_V1: return VGPU_CALL(cuCtxCreate, make->ctx, make->flags, make->dev);
    case CREATE_V2: return VGPU_CALL(cuCtxCreate_v2, make->ctx, make->flags, make->dev);
    case CREATE_V3:
        return VGPU_CALL(cuCtxCreate_v3, make->ctx, make->params, make->count, make->flags,
                         make->dev);
    default: return VGPU_CALL(cuCtxCreate_v4, make->ctx, make->params, make->flags, make->dev);
    }
}

static uint64_t measured(const struct vgpu_sample *before, const struct vgpu_sample *after,
                         uint64_t expected) {
    if (before->own_known && after->own_known && after->own_bytes > before->own_bytes)
        return vgpu_granules(after->own_bytes - before->own_bytes);
    if (before->used_known && after->used_known && after->used_bytes > before->used_bytes) {
        uint64_t grown = after->used_bytes - before->used_bytes;
        if (grown >= LEAST_CONTEXT && grown <= MOST_CONTEXT) return vgpu_granules(grown);
    }
    return expected;
}

static bool charge(int entry, uint64_t bytes) {
    if (!vgpu_enter()) return true;
    bool fits = vgpu_charge_context(entry, bytes);
    vgpu_leave();
    return fits;
}

static void correct(int entry, uint64_t charged, uint64_t actual) {
    if (!vgpu_enter()) return;
    vgpu_correct_context(entry, charged, actual);
    vgpu_leave();
}

static uint64_t expect(int entry) {
    uint64_t bytes = 0;
    if (vgpu_enter()) {
        bytes = vgpu_expected_context(entry);
        vgpu_leave();
    }
    return bytes != 0 ? bytes : DEFAULT_CONTEXT;
}

/* Makes a context and tells its cost. Called with `making` held. */
static CUresult make_charged(const struct make *make, int entry, uint64_t *bytes) {
    char uuid[64] = "";
    vgpu_device_uuid(make->dev, uuid);
    uint64_t expected = expect(entry);
    if (!charge(entry, expected) &&
        !(vgpu_pools_give_back(entry, expected) && charge(entry, expected))) {
        if (vgpu_enter()) {
            vgpu_refused(entry, "context", expected);
            vgpu_leave();
        }
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct vgpu_sample before = vgpu_nvml_sample(uuid);
    CUresult result = call(make);
    struct vgpu_sample after = before;
    if (result == CUDA_SUCCESS) after = vgpu_nvml_sample(uuid);
    *bytes = result == CUDA_SUCCESS ? measured(&before, &after, expected) : 0;
    correct(entry, expected, *bytes);
    if (result == CUDA_SUCCESS) vgpu_place_arrive(entry, make->dev);
    VGPU_LOG(VGPU_LOG_INFO, "context on device %d: result %d, %llu bytes", entry, result,
             (unsigned long long)*bytes);
    return result;
}

static bool of_context(struct vgpu_item *item, void *data) {
    if (item->context != *(uint64_t *)data) return false;
    vgpu_uncharge(item->entry, item->cost);
    return true;
}

/* The driver frees what a context holds when it goes. */
static void gone(CUcontext ctx, int entry, uint64_t bytes) {
    uint64_t key = (uint64_t)(uintptr_t)ctx;
    vgpu_throttle_context_gone(ctx);
    if (!vgpu_enter()) return;
    vgpu_track_each(VGPU_POINTER, of_context, &key);
    vgpu_track_each(VGPU_ARRAY, of_context, &key);
    vgpu_correct_context(entry, bytes, 0);
    vgpu_leave();
    vgpu_pools_measure();
    vgpu_graphs_context_gone(entry);
}

/* --- the primary context: charged once, however often it is retained ------------ */

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev) {
    struct make make = {.call = RETAIN, .ctx = ctx, .dev = dev};
    if (ctx == NULL || dev < 0 || dev >= CARDS || !vgpu_active()) return call(&make);
    int entry = vgpu_device_entry(dev);
    if (entry == VGPU_NO_DEVICE) return call(&make);
    vgpu_lock(&making);
    struct primary *primary = &primaries[dev];
    CUresult result;
    if (primary->charged) {
        result = call(&make);
    } else {
        uint64_t bytes;
        result = make_charged(&make, entry, &bytes);
        if (result == CUDA_SUCCESS)
            *primary = (struct primary){.charged = true, .entry = entry, .bytes = bytes, .ctx = *ctx};
    }
    vgpu_unlock(&making);
    return result;
}

static CUresult released(CUresult result, CUdevice dev) {
    unsigned int flags;
    int active = 1;
    if (result != CUDA_SUCCESS || dev < 0 || dev >= CARDS || !primaries[dev].charged ||
        VGPU_CALL(cuDevicePrimaryCtxGetState, dev, &flags, &active) != CUDA_SUCCESS || active)
        return result;
    struct primary *primary = &primaries[dev];
    gone(primary->ctx, primary->entry, primary->bytes);
    primary->charged = false;
    return result;
}

#define RELEASING(symbol)                                                                          \
    CUresult symbol(CUdevice dev) {                                                                \
        if (!vgpu_active()) return VGPU_CALL(symbol, dev);                                         \
        vgpu_lock(&making);                                                                        \
        CUresult result = released(VGPU_CALL(symbol, dev), dev);                                   \
        vgpu_unlock(&making);                                                                      \
        return result;                                                                             \
    }
RELEASING(cuDevicePrimaryCtxRelease)
RELEASING(cuDevicePrimaryCtxRelease_v2)
RELEASING(cuDevicePrimaryCtxReset)
RELEASING(cuDevicePrimaryCtxReset_v2)

/* --- further contexts: each costs its own ------------------------------------------ */

static CUresult create(const struct make *make) {
    int entry = make->ctx == NULL || !vgpu_active() ? VGPU_NO_DEVICE : vgpu_device_entry(make->dev);
    if (entry == VGPU_NO_DEVICE) return call(make);
    vgpu_lock(&making);
    uint64_t bytes;
    CUresult result = make_charged(make, entry, &bytes);
    if (result == CUDA_SUCCESS)
        vgpu_keep(VGPU_CONTEXT, (uint64_t)(uintptr_t)*make->ctx, entry,
                  (struct vgpu_cost){.large = 0}, NULL);
    struct vgpu_item *item;
    if (result == CUDA_SUCCESS && vgpu_enter()) {
        item = vgpu_tracked(VGPU_CONTEXT, (uint64_t)(uintptr_t)*make->ctx);
        if (item != NULL) item->bytes = bytes;
        vgpu_leave();
    }
    vgpu_unlock(&making);
    return result;
}

CUresult cuCtxCreate(CUcontext *ctx, unsigned int flags, CUdevice dev) {
    return create(&(struct make){.call = CREATE_V1, .ctx = ctx, .flags = flags, .dev = dev});
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev) {
    return create(&(struct make){.call = CREATE_V2, .ctx = ctx, .flags = flags, .dev = dev});
}

CUresult cuCtxCreate_v3(CUcontext *ctx, void *affinity, int count, unsigned int flags,
                        CUdevice dev) {
    return create(&(struct make){.call = CREATE_V3,
                                 .ctx = ctx,
                                 .params = affinity,
                                 .count = count,
                                 .flags = flags,
                                 .dev = dev});
}

CUresult cuCtxCreate_v4(CUcontext *ctx, void *params, unsigned int flags, CUdevice dev) {
    return create(&(struct make){
        .call = CREATE_V4, .ctx = ctx, .params = params, .flags = flags, .dev = dev});
}

#define DESTROYING(symbol)                                                                         \
    CUresult symbol(CUcontext ctx) {                                                               \
        if (!vgpu_active()) return VGPU_CALL(symbol, ctx);                                         \
        struct vgpu_item item;                                                                     \
        vgpu_lock(&making);                                                                        \
        CUresult result = VGPU_CALL(symbol, ctx);                                                  \
        if (result == CUDA_SUCCESS && vgpu_lift(VGPU_CONTEXT, (uint64_t)(uintptr_t)ctx, &item))    \
            gone(ctx, item.entry, item.bytes);                                                     \
        vgpu_unlock(&making);                                                                      \
        return result;                                                                             \
    }
DESTROYING(cuCtxDestroy)
DESTROYING(cuCtxDestroy_v2)

/* The old way to hold a context more than once (deprecated): it goes with the last detach. */
CUresult cuCtxAttach(CUcontext *ctx, unsigned int flags) {
    CUresult result = VGPU_CALL(cuCtxAttach, ctx, flags);
    if (result != CUDA_SUCCESS || !vgpu_enter()) return result;
    struct vgpu_item *item = vgpu_tracked(VGPU_CONTEXT, (uint64_t)(uintptr_t)*ctx);
    if (item != NULL) item->handles++;
    vgpu_leave();
    return result;
}

static bool attached_once_less(uint64_t key) {
    if (!vgpu_enter()) return false;
    struct vgpu_item *item = vgpu_tracked(VGPU_CONTEXT, key);
    bool more = item != NULL && item->handles > 0;
    if (more) item->handles--;
    vgpu_leave();
    return more;
}

CUresult cuCtxDetach(CUcontext ctx) {
    if (!vgpu_active()) return VGPU_CALL(cuCtxDetach, ctx);
    uint64_t key = (uint64_t)(uintptr_t)ctx;
    struct vgpu_item item;
    vgpu_lock(&making);
    CUresult result = VGPU_CALL(cuCtxDetach, ctx);
    if (result == CUDA_SUCCESS && !attached_once_less(key)) {
        if (vgpu_lift(VGPU_CONTEXT, key, &item)) gone(ctx, item.entry, item.bytes);
        for (CUdevice dev = 0; dev < CARDS; dev++)
            if (primaries[dev].charged && primaries[dev].ctx == ctx) released(result, dev);
    }
    vgpu_unlock(&making);
    return result;
}
