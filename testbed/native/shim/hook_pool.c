/* Stream-ordered memory. A pool keeps what is freed, so what counts is what the pool
 * reserves on the card. Before an allocation the most that the pool can grow is charged;
 * afterwards the charge becomes what the driver says. Where the most does not fit, pools
 * first give back what they only keep. So the card's count stays within the cap.
 *
 * A pool grows in chunks that no call tells: two megabytes until a greater step was
 * seen. The one allocation that shows it is undone if it passed the limit. */
#include "pools.h"

#include <string.h>

#include "charge.h"
#include "device.h"
#include "graphs.h"
#include "growth.h"
#include "log.h"
#include "lookup.h"
#include "oversubscribe.h"
#include "sys.h"
#include "throttle.h"

#define MOST_POOLS 256
#define CARDS 64

static struct vgpu_lock lock; /* held over driver calls: two growing pools measure apart */
static struct pool {
    CUmemoryPool handle; /* NULL = destroyed with allocations outstanding */
    bool counted;        /* not: host memory, and imported pools (the exporter is charged) */
    bool shared;         /* its pointers can be exported: nothing else may stand in for them */
    int entry;
    uint64_t charged;
} pools[MOST_POOLS];
static _Atomic int count; /* changed under the lock, looked at before it */
static _Atomic int freed; /* something may come back at the next synchronisation */
static uint64_t chunk = VGPU_GRANULE;

void vgpu_pools_forget(void) {
    atomic_store(&lock.state, 0);
    atomic_store(&freed, 0);
    memset(pools, 0, sizeof pools);
    count = 0;
}

/* --- called with the lock held ---------------------------------------------------- */

static struct pool *find(CUmemoryPool handle) {
    for (int i = 0; i < count; i++)
        if (pools[i].handle == handle && handle != NULL) return &pools[i];
    return NULL;
}

static struct pool *add(CUmemoryPool handle, int entry, bool counted) {
    struct pool *pool = find(handle);
    if (pool == NULL) {
        if (count == MOST_POOLS) return NULL;
        pool = &pools[count++];
    }
    *pool = (struct pool){.handle = handle, .counted = counted, .entry = entry};
    return pool;
}

static uint64_t measure(struct pool *pool) {
    uint64_t reserved = 0;
    if (!pool->counted || pool->handle == NULL ||
        VGPU_CALL(cuMemPoolGetAttribute, pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT,
                  &reserved) != CUDA_SUCCESS)
        return pool->charged;
    reserved = vgpu_granules(reserved);
    if (reserved != pool->charged && vgpu_enter()) {
        if (reserved > pool->charged)
            vgpu_charge_unchecked(pool->entry,
                                  (struct vgpu_cost){.large = reserved - pool->charged});
        else vgpu_uncharge(pool->entry, (struct vgpu_cost){.large = pool->charged - reserved});
        vgpu_leave();
    }
    pool->charged = reserved;
    return reserved;
}

static bool give_back(int entry, uint64_t need) {
    uint64_t given = 0;
    for (int i = 0; i < count && given < need; i++) {
        if (pools[i].entry != entry || !pools[i].counted || pools[i].handle == NULL) continue;
        uint64_t before = measure(&pools[i]), want = need - given;
        if (before == 0) continue;
        VGPU_CALL(cuMemPoolTrimTo, pools[i].handle, before > want ? before - want : 0);
        uint64_t after = measure(&pools[i]);
        given += before > after ? before - after : 0;
    }
    return given > 0;
}

/* A pool that we did not see being made is a device's default one. */
static struct pool *adopt(CUmemoryPool handle, int entry) {
    struct pool *pool = find(handle);
    if (pool != NULL) return pool;
    int devices = 0;
    VGPU_CALL(cuDeviceGetCount, &devices);
    for (CUdevice dev = 0; dev < devices && dev < CARDS; dev++) {
        CUmemoryPool standard = NULL;
        if (VGPU_CALL(cuDeviceGetDefaultMemPool, &standard, dev) == CUDA_SUCCESS &&
            standard == handle)
            return add(handle, vgpu_device_entry(dev), true);
    }
    return add(handle, entry, true);
}

static bool reserve(int entry, uint64_t bytes) {
    if (!vgpu_enter()) return true;
    struct vgpu_cost cost = {.large = bytes};
    bool fits = vgpu_charge_far(entry, cost, VGPU_NEAR) || vgpu_charge(entry, cost);
    vgpu_leave();
    return fits;
}

/* --- allocating --------------------------------------------------------------------- */

struct request {
    CUdeviceptr *ptr;
    size_t bytes;
    bool explicit_pool;
    CUmemoryPool pool;
    CUstream stream;
    bool per_thread;
};

static CUresult call(const struct request *request) {
    CUdeviceptr *ptr = request->ptr;
    if (request->explicit_pool)
        return request->per_thread ? VGPU_CALL(cuMemAllocFromPoolAsync_ptsz, ptr, request->bytes,
                                               request->pool, request->stream)
                                   : VGPU_CALL(cuMemAllocFromPoolAsync, ptr, request->bytes,
                                               request->pool, request->stream);
    return request->per_thread
               ? VGPU_CALL(cuMemAllocAsync_ptsz, ptr, request->bytes, request->stream)
               : VGPU_CALL(cuMemAllocAsync, ptr, request->bytes, request->stream);
}

static void synchronize(const struct request *request) {
    if (request->per_thread) VGPU_CALL(cuStreamSynchronize_ptsz, request->stream);
    else VGPU_CALL(cuStreamSynchronize, request->stream);
}

static bool capturing(const struct request *request) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = request->per_thread
                          ? VGPU_CALL(cuStreamIsCapturing_ptsz, request->stream, &status)
                          : VGPU_CALL(cuStreamIsCapturing, request->stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

static uint64_t most_growth(uint64_t bytes) {
    uint64_t granules = vgpu_granules(bytes);
    return granules > UINT64_MAX / 4 ? granules : (granules + chunk - 1) & ~(chunk - 1);
}

/* Frees what showed that the pool grows in greater steps than thought. */
static CUresult undo(const struct request *request, struct pool *pool, uint64_t before) {
    if (request->per_thread) VGPU_CALL(cuMemFreeAsync_ptsz, *request->ptr, request->stream);
    else VGPU_CALL(cuMemFreeAsync, *request->ptr, request->stream);
    synchronize(request);
    VGPU_CALL(cuMemPoolTrimTo, pool->handle, before);
    measure(pool);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

/* Charges the growth of the pool, and with the first allocation of a device what the driver
 * takes for itself. */
static bool charge_most(struct pool *pool, uint64_t growth, struct vgpu_growth *own, CUdevice dev) {
    vgpu_growth_look(pool->entry, growth);
    /* Another device's pool: whose state the driver then makes, is not known here. */
    if (vgpu_device_entry(dev) == pool->entry && !vgpu_growth_begin(own, pool->entry, dev))
        return false;
    if (reserve(pool->entry, growth)) return true;
    vgpu_growth_cancel(own);
    return false;
}

static CUresult allocate_locked(const struct request *request, struct pool *pool, CUdevice dev,
                                bool *card_full) {
    uint64_t growth = most_growth(request->bytes), before = measure(pool);
    struct vgpu_growth own = {.watched = false};
    if (!charge_most(pool, growth, &own, dev)) {
        synchronize(request); /* frees that this stream has yet to come to */
        measure(pool);
        uint64_t need = growth > UINT64_MAX / 2 ? growth : growth + VGPU_MOST_GROWTH;
        if (!charge_most(pool, growth, &own, dev) &&
            !(give_back(pool->entry, need) && charge_most(pool, growth, &own, dev))) {
            vgpu_refuse(pool->entry, "stream-ordered allocation", request->bytes);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        before = pool->charged;
    }
    pool->charged += growth;
    CUresult result = call(request);
    uint64_t after = measure(pool);
    vgpu_growth_end(&own, result);
    *card_full = !pool->shared && vgpu_beyond(result);
    if (result != CUDA_SUCCESS || after <= before + growth) return result;
    while (chunk < after - before) chunk *= 2;
    VGPU_LOG(VGPU_LOG_INFO, "pools grow by up to %llu bytes", (unsigned long long)chunk);
    if (!vgpu_passed_limit(pool->entry)) return result;
    vgpu_refuse(pool->entry, "stream-ordered allocation", request->bytes);
    return undo(request, pool, before);
}

static CUresult allocate(struct request request) {
    int entry;
    CUdevice dev;
    if (request.ptr == NULL || request.bytes == 0 || !vgpu_active() ||
        !vgpu_stream_entry(request.stream, &entry, &dev))
        return call(&request);
    if (capturing(&request)) {
        struct vgpu_graph_use use; /* it becomes a graph's memory */
        if (!vgpu_graph_adding(&use, entry, dev, request.bytes, true))
            return CUDA_ERROR_OUT_OF_MEMORY;
        CUresult captured = call(&request);
        vgpu_graph_done(&use, captured);
        return captured;
    }
    if (!request.explicit_pool &&
        VGPU_CALL(cuDeviceGetMemPool, &request.pool, dev) != CUDA_SUCCESS)
        return call(&request);
    vgpu_lock(&lock);
    struct pool *pool = adopt(request.pool, entry);
    bool card_full = false;
    CUresult result = pool == NULL     ? CUDA_ERROR_OUT_OF_MEMORY
                      : pool->counted ? allocate_locked(&request, pool, dev, &card_full)
                                      : call(&request);
    int owner = pool == NULL ? VGPU_NO_DEVICE : pool->entry;
    vgpu_unlock(&lock);
    return card_full ? vgpu_allocate_managed(request.ptr, request.bytes, owner) : result;
}

CUresult cuMemAllocAsync(CUdeviceptr *ptr, size_t bytes, CUstream stream) {
    return allocate((struct request){.ptr = ptr, .bytes = bytes, .stream = stream});
}

CUresult cuMemAllocAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUstream stream) {
    return allocate(
        (struct request){.ptr = ptr, .bytes = bytes, .stream = stream, .per_thread = true});
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool,
                                 CUstream stream) {
    return allocate((struct request){
        .ptr = ptr, .bytes = bytes, .pool = pool, .explicit_pool = true, .stream = stream});
}

CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *ptr, size_t bytes, CUmemoryPool pool,
                                      CUstream stream) {
    return allocate((struct request){.ptr = ptr,
                                     .bytes = bytes,
                                     .pool = pool,
                                     .explicit_pool = true,
                                     .stream = stream,
                                     .per_thread = true});
}

/* --- giving back ----------------------------------------------------------------------- */

void vgpu_pools_measure(void) {
    if (count == 0) return;
    vgpu_lock(&lock);
    for (int i = 0; i < count; i++) measure(&pools[i]);
    vgpu_unlock(&lock);
}

void vgpu_pools_freed(void) {
    atomic_store(&freed, 1);
    vgpu_pools_measure();
}

bool vgpu_pools_give_back(int entry, uint64_t need) {
    if (count == 0) return false;
    vgpu_lock(&lock);
    bool given = give_back(entry, need);
    vgpu_unlock(&lock);
    return given;
}

static CUresult changed(CUresult result) {
    if (result == CUDA_SUCCESS && vgpu_active()) vgpu_pools_measure();
    return result;
}

/* Pools shrink when the program waits: only then is the charge of an idle process right. */
static CUresult synchronized(CUresult result) {
    return atomic_load_explicit(&freed, memory_order_relaxed) ? changed(result) : result;
}

/* Managed memory that stands in for a pool's: freed when the stream has come to it, which
 * is waited for, since the driver frees such memory at once. */
static CUresult free_stand_in(CUdeviceptr ptr, CUstream stream, bool per_thread) {
    CUresult result = per_thread ? VGPU_CALL(cuStreamSynchronize_ptsz, stream)
                                 : VGPU_CALL(cuStreamSynchronize, stream);
    return result == CUDA_SUCCESS ? synchronized(VGPU_CALL(cuMemFree_v2, ptr)) : result;
}

static CUresult call_free(CUdeviceptr ptr, CUstream stream, bool per_thread, bool known) {
    struct request of = {.stream = stream, .per_thread = per_thread};
    if (known && vgpu_oversubscribed() && vgpu_is_managed(ptr) && !capturing(&of))
        return free_stand_in(ptr, stream, per_thread);
    return per_thread ? VGPU_CALL(cuMemFreeAsync_ptsz, ptr, stream)
                      : VGPU_CALL(cuMemFreeAsync, ptr, stream);
}

/* `free` of plain memory is legal here, too (cuMemAlloc'ed pointers). */
static CUresult free_async(CUdeviceptr ptr, CUstream stream, bool per_thread) {
    struct vgpu_item item;
    bool known = vgpu_lift(VGPU_POINTER, ptr, &item);
    CUresult result = call_free(ptr, stream, per_thread, known);
    if (known) vgpu_settle(VGPU_POINTER, &item, result);
    else if (result == CUDA_SUCCESS) atomic_store(&freed, 1);
    return known ? result : changed(result);
}

CUresult cuMemFreeAsync(CUdeviceptr ptr, CUstream stream) { return free_async(ptr, stream, false); }

CUresult cuMemFreeAsync_ptsz(CUdeviceptr ptr, CUstream stream) {
    return free_async(ptr, stream, true);
}

CUresult cuStreamSynchronize(CUstream stream) {
    struct vgpu_synchronization s;
    vgpu_throttle_syncing(&s, NULL, stream, false, false);
    CUresult result = VGPU_CALL(cuStreamSynchronize, stream);
    vgpu_throttle_synced(&s, result);
    return synchronized(result);
}

CUresult cuStreamSynchronize_ptsz(CUstream stream) {
    struct vgpu_synchronization s;
    vgpu_throttle_syncing(&s, NULL, stream, true, false);
    CUresult result = VGPU_CALL(cuStreamSynchronize_ptsz, stream);
    vgpu_throttle_synced(&s, result);
    return synchronized(result);
}

CUresult cuCtxSynchronize(void) {
    struct vgpu_synchronization s;
    vgpu_throttle_syncing(&s, NULL, NULL, false, true);
    CUresult result = VGPU_REAL(cuCtxSynchronize) == NULL ? CUDA_ERROR_NOT_FOUND
                                                          : VGPU_REAL(cuCtxSynchronize)();
    vgpu_throttle_synced(&s, result);
    return synchronized(result);
}

CUresult cuCtxSynchronize_v2(CUcontext ctx) {
    struct vgpu_synchronization s;
    vgpu_throttle_syncing(&s, ctx, NULL, false, true);
    CUresult result = VGPU_CALL(cuCtxSynchronize_v2, ctx);
    vgpu_throttle_synced(&s, result);
    return synchronized(result);
}

/* --- the pools themselves ------------------------------------------------------------------ */

CUresult cuMemPoolCreate(CUmemoryPool *pool, const CUmemPoolProps *props) {
    CUresult result = VGPU_CALL(cuMemPoolCreate, pool, props);
    if (result != CUDA_SUCCESS || pool == NULL || props == NULL || !vgpu_active()) return result;
    int type = props->location.type, id = props->location.id;
    bool device = type == CU_MEM_LOCATION_TYPE_DEVICE ||
                  type == CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN;
    int entry = device ? vgpu_device_entry(type == CU_MEM_LOCATION_TYPE_DEVICE ? id : id & 0xff)
                       : VGPU_NO_DEVICE;
    vgpu_lock(&lock);
    struct pool *kept = add(*pool, entry, device);
    if (kept != NULL) kept->shared = props->handle_types != 0;
    vgpu_unlock(&lock);
    if (kept != NULL) return result;
    VGPU_CALL(cuMemPoolDestroy, *pool);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *pool, void *handle, int type,
                                            unsigned long long flags) {
    CUresult result =
        VGPU_CALL(cuMemPoolImportFromShareableHandle, pool, handle, type, flags);
    if (result != CUDA_SUCCESS || pool == NULL || !vgpu_active()) return result;
    vgpu_lock(&lock);
    add(*pool, VGPU_NO_DEVICE, false);
    vgpu_unlock(&lock);
    return result;
}

/* Memory still out lives on in the driver, but cannot be asked for: it stays charged. */
CUresult cuMemPoolDestroy(CUmemoryPool handle) {
    if (!vgpu_active()) return VGPU_CALL(cuMemPoolDestroy, handle);
    vgpu_lock(&lock);
    struct pool *pool = find(handle);
    if (pool != NULL) {
        VGPU_CALL(cuMemPoolTrimTo, handle, 0);
        measure(pool);
    }
    CUresult result = VGPU_CALL(cuMemPoolDestroy, handle);
    if (result == CUDA_SUCCESS && pool != NULL) {
        pool->handle = NULL;
        if (pool->charged == 0) *pool = pools[--count];
    }
    vgpu_unlock(&lock);
    return result;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    return changed(VGPU_CALL(cuMemPoolTrimTo, pool, keep));
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CUresult result = VGPU_CALL(cuMemPoolSetAttribute, pool, attribute, value);
    return attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? changed(result) : result;
}
