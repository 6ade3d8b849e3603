#define _GNU_SOURCE
#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fake.h"

#define EXPORT __attribute__((visibility("default")))
#define MIB (1ull << 20)
#define GRANULE (2 * MIB)
#define MOST 65536

typedef unsigned long long ptr_t;

/* --- calls: counted, remembered, made to fail ---------------------------------- */

static struct call {
    const char *name;
    int calls;
    int fail_code, fail_times;
} calls[128];
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static struct call *call_of(const char *name) {
    for (int i = 0; i < 128; i++) {
        if (calls[i].name == NULL) calls[i].name = strdup(name);
        if (strcmp(calls[i].name, name) == 0) return &calls[i];
    }
    abort();
}

EXPORT int fake_calls(const char *name) { return call_of(name)->calls; }
EXPORT void fake_fail(const char *name, int code, int times) {
    call_of(name)->fail_code = code;
    call_of(name)->fail_times = times;
}

static int entered(const char *name) {
    pthread_mutex_lock(&mutex);
    struct call *call = call_of(name);
    call->calls++;
    int code = call->fail_times > 0 ? (call->fail_times--, call->fail_code) : 0;
    pthread_mutex_unlock(&mutex);
    return code;
}

#define ENTER                                                                                      \
    do {                                                                                           \
        int code_ = entered(__func__);                                                             \
        if (code_ != 0) return code_;                                                              \
    } while (0)

/* --- the card's count ------------------------------------------------------------ */

static uint64_t own[FAKE_CARDS];
static uint64_t small_sum[FAKE_CARDS];
EXPORT uint64_t fake_own(int card) { return own[card]; }
EXPORT uint64_t fake_peak(int card) { return fake_state()->cards[card].peak; }
EXPORT uint64_t fake_used(int card) { return fake_state()->cards[card].used; }

static uint64_t up(uint64_t bytes) { return (bytes + GRANULE - 1) / GRANULE * GRANULE; }

static int grow(int card, int64_t bytes) {
    struct fake_card *c = &fake_state()->cards[card];
    uint64_t used = __atomic_add_fetch((uint64_t *)&c->used, (uint64_t)bytes, __ATOMIC_SEQ_CST);
    if (bytes > 0 && used > c->total) {
        __atomic_sub_fetch((uint64_t *)&c->used, (uint64_t)bytes, __ATOMIC_SEQ_CST);
        return 2;
    }
    own[card] += (uint64_t)bytes;
    uint64_t peak = c->peak;
    while (used > peak && !__atomic_compare_exchange_n((uint64_t *)&c->peak, &peak, used, 0,
                                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {
    }
    return 0;
}

static int take(int card, uint64_t bytes) {
    if (bytes > MIB) return grow(card, (int64_t)up(bytes));
    uint64_t before = up(small_sum[card]), rounded = (bytes + 511) / 512 * 512;
    int code = grow(card, (int64_t)(up(small_sum[card] + rounded) - before));
    if (code == 0) small_sum[card] += rounded;
    return code;
}

static void give(int card, uint64_t bytes) {
    if (bytes > MIB) {
        grow(card, -(int64_t)up(bytes));
        return;
    }
    uint64_t before = up(small_sum[card]);
    small_sum[card] -= (bytes + 511) / 512 * 512;
    grow(card, (int64_t)up(small_sum[card]) - (int64_t)before);
}

/* --- devices ------------------------------------------------------------------------ */

static int card_of(int dev) {
    const char *order = getenv("FAKE_ORDER");
    return order == NULL ? dev : order[2 * dev] - '0';
}

EXPORT int cuInit(unsigned int flags) { (void)flags; ENTER; return 0; }
EXPORT int cuDeviceGetCount(int *count) { *count = fake_count(); return 0; }
EXPORT int cuDeviceGet(int *dev, int i) { *dev = i; return i < fake_count() ? 0 : 101; }
EXPORT int cuDeviceGetUuid(unsigned char *uuid, int dev) { fake_uuid(card_of(dev), uuid); return 0; }
/* FAKE_MIG: each card is one instance, whose uuid only the newer call tells */
EXPORT int cuDeviceGetUuid_v2(unsigned char *uuid, int dev) {
    int code = cuDeviceGetUuid(uuid, dev);
    if (getenv("FAKE_MIG") != NULL) uuid[0] = FAKE_INSTANCE;
    return code;
}
EXPORT int cuDeviceTotalMem_v2(size_t *bytes, int dev) {
    ENTER;
    *bytes = fake_state()->cards[card_of(dev)].total;
    return 0;
}
EXPORT int cuDeviceTotalMem(unsigned int *bytes, int dev) {
    ENTER;
    uint64_t total = fake_state()->cards[card_of(dev)].total;
    *bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned int)total;
    return 0;
}

/* --- contexts ------------------------------------------------------------------------- */

struct context {
    int dev, active, retained, ordered, streamed;
    uint64_t bytes;
};
static struct context primaries[FAKE_CARDS], created[256];
static __thread struct context *current;

static int start(struct context *ctx, int dev) {
    ctx->bytes = up(fake_number("FAKE_CONTEXT", 100 * MIB));
    int code = grow(card_of(dev), (int64_t)ctx->bytes);
    ctx->dev = dev;
    ctx->ordered = ctx->streamed = 0;
    ctx->active = code == 0;
    return code;
}

static void drop_allocations(struct context *ctx);
static void end(struct context *ctx) {
    drop_allocations(ctx);
    grow(card_of(ctx->dev), -(int64_t)ctx->bytes);
    ctx->active = 0;
    if (current == ctx) current = NULL;
}

EXPORT int cuDevicePrimaryCtxRetain(struct context **out, int dev) {
    ENTER;
    struct context *ctx = &primaries[dev];
    if (!ctx->active) {
        int code = start(ctx, dev);
        if (code != 0) return code;
    }
    ctx->retained++;
    *out = ctx;
    return 0;
}
static int release(int dev) {
    struct context *ctx = &primaries[dev];
    if (!ctx->active) return 201;
    if (--ctx->retained == 0) end(ctx);
    return 0;
}
EXPORT int cuDevicePrimaryCtxRelease(int dev) { ENTER; return release(dev); }
EXPORT int cuDevicePrimaryCtxRelease_v2(int dev) { ENTER; return release(dev); }
static int reset(int dev) {
    if (primaries[dev].active) end(&primaries[dev]);
    return 0;
}
EXPORT int cuDevicePrimaryCtxReset(int dev) { ENTER; return reset(dev); }
EXPORT int cuDevicePrimaryCtxReset_v2(int dev) { ENTER; return reset(dev); }
EXPORT int cuDevicePrimaryCtxGetState(int dev, unsigned int *flags, int *active) {
    *flags = 0;
    *active = primaries[dev].active;
    return 0;
}

static int create(struct context **out, int dev) {
    for (int i = 0; i < 256; i++)
        if (!created[i].active) {
            int code = start(&created[i], dev);
            if (code == 0) *out = current = &created[i];
            return code;
        }
    return 2;
}
EXPORT int cuCtxCreate(struct context **out, unsigned int f, int dev) { (void)f; ENTER; return create(out, dev); }
EXPORT int cuCtxCreate_v2(struct context **out, unsigned int f, int dev) { (void)f; ENTER; return create(out, dev); }
EXPORT int cuCtxCreate_v3(struct context **out, void *p, int n, unsigned int f, int dev) {
    (void)p; (void)n; (void)f; ENTER; return create(out, dev);
}
EXPORT int cuCtxCreate_v4(struct context **out, void *p, unsigned int f, int dev) {
    (void)p; (void)f; ENTER; return create(out, dev);
}
static int destroy(struct context *ctx) {
    if (ctx == NULL || !ctx->active) return 201;
    end(ctx);
    return 0;
}
EXPORT int cuCtxDestroy(struct context *ctx) { ENTER; return destroy(ctx); }
EXPORT int cuCtxDestroy_v2(struct context *ctx) { ENTER; return destroy(ctx); }
EXPORT int cuCtxSetCurrent(struct context *ctx) { current = ctx; return 0; }
EXPORT int cuCtxGetCurrent(struct context **out) { *out = current; return 0; }
EXPORT int cuCtxGetDevice(int *dev) {
    if (current == NULL) return 201;
    *dev = current->dev;
    return 0;
}
static __thread struct context *pushed;
EXPORT int cuCtxPushCurrent_v2(struct context *ctx) { pushed = current; current = ctx; return 0; }
EXPORT int cuCtxPopCurrent_v2(struct context **out) { *out = current; current = pushed; return 0; }

/* --- plain memory -------------------------------------------------------------------------- */

static struct item {
    ptr_t ptr;
    uint64_t bytes;
    int card;
    struct context *ctx;
    struct pool *pool;
    int freed, managed;
} items[MOST];
static int item_count;
static ptr_t next = 0x700000000000ull, next_v1 = 0x1000;

static int keep(ptr_t ptr, uint64_t bytes, int card, struct context *ctx, struct pool *pool) {
    pthread_mutex_lock(&mutex);
    int place = item_count < MOST ? item_count++ : -1;
    for (int i = 0; place < 0 && i < MOST; i++)
        if (items[i].ptr == 0) place = i;
    if (place >= 0)
        items[place] = (struct item){.ptr = ptr, .bytes = bytes, .card = card, .ctx = ctx, .pool = pool};
    pthread_mutex_unlock(&mutex);
    return place >= 0 ? 0 : 2;
}
static ptr_t address(ptr_t *from, uint64_t bytes) {
    return __atomic_fetch_add(from, (bytes + 511) / 512 * 512, __ATOMIC_SEQ_CST);
}
static struct item *item_of(ptr_t ptr) {
    for (int i = 0; i < item_count; i++)
        if (items[i].ptr == ptr && ptr != 0 && !items[i].freed) return &items[i];
    return NULL;
}
static int alloc(ptr_t *out, uint64_t bytes, ptr_t *from) {
    if (current == NULL) return 201;
    if (bytes == 0) return 1;
    pthread_mutex_lock(&mutex);
    int card = card_of(current->dev), code = take(card, bytes);
    pthread_mutex_unlock(&mutex);
    if (code != 0) return code;
    *out = address(from, bytes);
    return keep(*out, bytes, card, current, NULL);
}
static void drop_allocations(struct context *ctx) {
    for (int i = 0; i < item_count; i++)
        if (items[i].ptr != 0 && items[i].ctx == ctx && items[i].pool == NULL) {
            give(items[i].card, items[i].bytes);
            items[i].ptr = 0;
        }
}
static int pool_free(struct item *item);
static int free_item(ptr_t ptr) {
    struct item *item = item_of(ptr);
    if (item == NULL) return 1;
    if (item->pool != NULL) return pool_free(item);
    pthread_mutex_lock(&mutex);
    give(item->card, item->bytes);
    item->ptr = 0;
    pthread_mutex_unlock(&mutex);
    return 0;
}

EXPORT int cuMemAlloc_v2(ptr_t *out, size_t bytes) { ENTER; return alloc(out, bytes, &next); }
EXPORT int cuMemAlloc(unsigned int *out, unsigned int bytes) {
    ENTER;
    ptr_t wide = 0;
    int code = alloc(&wide, bytes, &next_v1);
    *out = (unsigned int)wide;
    return code;
}
EXPORT int cuMemAllocManaged(ptr_t *out, size_t bytes, unsigned int flags) {
    (void)flags; ENTER;
    if (getenv("FAKE_SWAP") == NULL) return alloc(out, bytes, &next);
    *out = address(&next, bytes); /* its pages are on the host */
    int code = keep(*out, 0, card_of(current->dev), current, NULL);
    if (code == 0) item_of(*out)->managed = 1;
    return code;
}
EXPORT int cuPointerGetAttribute(void *value, int attribute, ptr_t ptr) {
    struct item *item = item_of(ptr);
    if (item == NULL || (attribute != 2 && attribute != 8)) return 1;
    *(unsigned int *)value = attribute == 2 ? 2 : (unsigned int)item->managed;
    return 0;
}
static size_t pitch_of(size_t width) {
    size_t align = fake_number("FAKE_PITCH", 512);
    return (width + align - 1) / align * align;
}
EXPORT int cuMemAllocPitch_v2(ptr_t *out, size_t *pitch, size_t width, size_t height, unsigned int e) {
    (void)e; ENTER;
    *pitch = pitch_of(width);
    return alloc(out, *pitch * height, &next);
}
EXPORT int cuMemAllocPitch(unsigned int *out, unsigned int *pitch, unsigned int width,
                           unsigned int height, unsigned int e) {
    (void)e; ENTER;
    ptr_t wide = 0;
    *pitch = (unsigned int)pitch_of(width);
    int code = alloc(&wide, (uint64_t)*pitch * height, &next_v1);
    *out = (unsigned int)wide;
    return code;
}
EXPORT int cuMemFree_v2(ptr_t ptr) { ENTER; return free_item(ptr); }
EXPORT int cuMemFree(unsigned int ptr) { ENTER; return free_item(ptr); }
EXPORT int cuMemGetInfo_v2(size_t *free, size_t *total) {
    ENTER;
    if (current == NULL) return 201;
    struct fake_card *card = &fake_state()->cards[card_of(current->dev)];
    *total = card->total;
    *free = card->total - card->used;
    return 0;
}
EXPORT int cuMemGetInfo(unsigned int *free, unsigned int *total) {
    ENTER;
    *free = *total = UINT32_MAX;
    return current == NULL ? 201 : 0;
}

/* --- pools: FAKE_CHUNK is the step, FAKE_DEFER keeps frees until a synchronisation; FAKE_HIDDEN
 * is what the first allocation takes for the driver itself, for the life of the context ------- */

struct pool {
    int card, live;
    uint64_t reserved, used, pending, threshold;
};
static struct pool defaults[FAKE_CARDS], pools[64], *current_pool[FAKE_CARDS];

static struct pool *default_of(int dev) {
    defaults[dev].card = card_of(dev);
    defaults[dev].live = 1;
    return &defaults[dev];
}
EXPORT int cuDeviceGetDefaultMemPool(struct pool **out, int dev) { *out = default_of(dev); return 0; }
EXPORT int cuDeviceGetMemPool(struct pool **out, int dev) {
    *out = current_pool[dev] != NULL ? current_pool[dev] : default_of(dev);
    return 0;
}
EXPORT int cuDeviceSetMemPool(int dev, struct pool *pool) { current_pool[dev] = pool; return 0; }
EXPORT int cuMemPoolCreate(struct pool **out, const int *props) {
    ENTER;
    for (int i = 0; i < 64; i++)
        if (!pools[i].live) {
            pools[i] = (struct pool){.card = props[2] == 1 ? card_of(props[3]) : -1, .live = 1};
            *out = &pools[i];
            return 0;
        }
    return 2;
}
static void trim(struct pool *pool, uint64_t keep_bytes) {
    uint64_t least = pool->used + pool->pending;
    uint64_t chunk = fake_number("FAKE_CHUNK", GRANULE);
    uint64_t floor = least > keep_bytes ? least : keep_bytes;
    uint64_t target = (floor + chunk - 1) / chunk * chunk;
    if (target < pool->reserved) {
        grow(pool->card, -(int64_t)(pool->reserved - target));
        pool->reserved = target;
    }
}
EXPORT int cuMemPoolTrimTo(struct pool *pool, size_t keep_bytes) { ENTER; trim(pool, keep_bytes); return 0; }
EXPORT int cuMemPoolDestroy(struct pool *pool) { ENTER; trim(pool, 0); pool->live = 0; return 0; }
EXPORT int cuMemPoolGetAttribute(struct pool *pool, int attribute, uint64_t *value) {
    *value = attribute == 5 ? pool->reserved : attribute == 7 ? pool->used : pool->threshold;
    return 0;
}
EXPORT int cuMemPoolSetAttribute(struct pool *pool, int attribute, uint64_t *value) {
    ENTER;
    if (attribute == 4) pool->threshold = *value;
    return 0;
}
EXPORT int cuMemPoolImportFromShareableHandle(struct pool **out, void *handle, int type,
                                              unsigned long long flags) {
    (void)type; (void)flags; ENTER;
    *out = handle;
    return 0;
}
static int pool_alloc(ptr_t *out, size_t bytes, struct pool *pool) {
    if (bytes == 0) return 1;
    if (current != NULL && pool->card >= 0 && !current->ordered) {
        uint64_t hidden = fake_number("FAKE_HIDDEN", 0);
        int code = grow(card_of(current->dev), (int64_t)hidden);
        if (code != 0) return code;
        current->ordered = 1;
        current->bytes += hidden;
    }
    uint64_t rounded = (bytes + 511) / 512 * 512, chunk = fake_number("FAKE_CHUNK", GRANULE);
    uint64_t need = pool->used + pool->pending + rounded;
    if (need > pool->reserved) {
        uint64_t target = (need + chunk - 1) / chunk * chunk;
        if (pool->card >= 0) {
            int code = grow(pool->card, (int64_t)(target - pool->reserved));
            if (code != 0) return code;
        }
        pool->reserved = target;
    }
    pool->used += rounded;
    *out = address(&next, rounded);
    return keep(*out, rounded, pool->card, NULL, pool);
}
static int pool_free(struct item *item) {
    item->pool->used -= item->bytes;
    if (getenv("FAKE_DEFER") != NULL) {
        item->pool->pending += item->bytes;
    } else if (item->pool->reserved > item->pool->threshold) {
        trim(item->pool, item->pool->threshold);
    }
    item->ptr = 0;
    return 0;
}
static int synchronize(void) {
    for (int i = 0; i < FAKE_CARDS + 64; i++) {
        struct pool *pool = i < FAKE_CARDS ? &defaults[i] : &pools[i - FAKE_CARDS];
        if (!pool->live) continue;
        pool->pending = 0;
        if (pool->reserved > pool->threshold) trim(pool, pool->threshold);
    }
    return 0;
}
static int capture;
EXPORT void fake_capture(int on) { capture = on; }
EXPORT int cuStreamIsCapturing(void *stream, int *status) { (void)stream; *status = capture; return 0; }
EXPORT int cuStreamIsCapturing_ptsz(void *stream, int *status) { (void)stream; *status = capture; return 0; }
struct stream {
    int dev;
};
static struct stream streams[FAKE_CARDS];
/* FAKE_STREAM: what a context's first stream takes, and keeps when it is destroyed. */
EXPORT int cuStreamCreate(struct stream **out, unsigned int flags) {
    (void)flags; ENTER;
    uint64_t taken = current->streamed ? 0 : fake_number("FAKE_STREAM", 0);
    int code = grow(card_of(current->dev), (int64_t)taken);
    if (code != 0) return code;
    current->streamed = 1;
    current->bytes += taken;
    streams[current->dev].dev = current->dev;
    *out = &streams[current->dev];
    return 0;
}
EXPORT int cuStreamCreateWithPriority(struct stream **out, unsigned int flags, int priority) {
    (void)priority;
    return cuStreamCreate(out, flags);
}
EXPORT int cuStreamDestroy_v2(struct stream *stream) { (void)stream; ENTER; return 0; }
EXPORT int cuStreamGetCtx(struct stream *stream, struct context **ctx) {
    *ctx = &primaries[stream->dev];
    return 0;
}
static int dev_of(struct stream *stream) {
    return (uintptr_t)stream > 2 ? stream->dev : current->dev;
}
static int capture_alloc(ptr_t *out, size_t bytes);
static int async(ptr_t *out, size_t bytes, struct pool *pool, struct stream *stream) {
    if (current == NULL) return 201;
    if (capture) return capture_alloc(out, bytes);
    if (pool == NULL) cuDeviceGetMemPool(&pool, dev_of(stream));
    return pool_alloc(out, bytes, pool);
}
EXPORT int cuMemAllocAsync(ptr_t *out, size_t bytes, struct stream *s) { ENTER; return async(out, bytes, NULL, s); }
EXPORT int cuMemAllocAsync_ptsz(ptr_t *out, size_t bytes, struct stream *s) { ENTER; return async(out, bytes, NULL, s); }
EXPORT int cuMemAllocFromPoolAsync(ptr_t *out, size_t bytes, struct pool *p, struct stream *s) { ENTER; return async(out, bytes, p, s); }
EXPORT int cuMemAllocFromPoolAsync_ptsz(ptr_t *out, size_t bytes, struct pool *p, struct stream *s) { ENTER; return async(out, bytes, p, s); }
static int free_async(ptr_t ptr) { /* of managed memory nothing is said: take it as wrong */
    struct item *item = item_of(ptr);
    return item != NULL && item->managed ? 1 : free_item(ptr);
}
EXPORT int cuMemFreeAsync(ptr_t ptr, void *s) { (void)s; ENTER; return free_async(ptr); }
EXPORT int cuMemFreeAsync_ptsz(ptr_t ptr, void *s) { (void)s; ENTER; return free_async(ptr); }
EXPORT int cuStreamSynchronize(void *s) { (void)s; ENTER; return synchronize(); }
EXPORT int cuStreamSynchronize_ptsz(void *s) { (void)s; ENTER; return synchronize(); }
EXPORT int cuCtxSynchronize(void) { ENTER; return synchronize(); }
EXPORT int cuCtxSynchronize_v2(void *ctx) { (void)ctx; ENTER; return synchronize(); }

/* --- physical memory ------------------------------------------------------------------------------- */

static struct physical {
    uint64_t bytes;
    int card, handles, maps;
} physicals[1024];
static struct mapping {
    ptr_t ptr;
    uint64_t bytes;
    int physical;
} mappings[1024];

static void settle(int i) {
    struct physical *p = &physicals[i];
    if (p->bytes == 0 || p->handles != 0 || p->maps != 0) return;
    if (p->card >= 0) grow(p->card, -(int64_t)p->bytes);
    p->bytes = 0;
}
EXPORT int cuMemCreate(unsigned long long *handle, size_t bytes, const int *prop, unsigned long long f) {
    (void)f; ENTER;
    for (int i = 0; i < 1024; i++)
        if (physicals[i].bytes == 0) {
            int card = prop[2] == 1 ? card_of(prop[3]) : -1;
            if (card >= 0 && grow(card, (int64_t)bytes) != 0) return 2;
            physicals[i] = (struct physical){.bytes = bytes, .card = card, .handles = 1};
            *handle = 100 + (unsigned)i; /* reused as soon as it is free */
            return 0;
        }
    return 2;
}
EXPORT int cuMemRelease(unsigned long long handle) {
    ENTER;
    int i = (int)handle - 100;
    if (i < 0 || i >= 1024 || physicals[i].handles == 0) return 1;
    physicals[i].handles--;
    settle(i);
    return 0;
}
EXPORT int cuMemMap(ptr_t ptr, size_t bytes, size_t offset, unsigned long long handle, unsigned long long f) {
    (void)offset; (void)f; ENTER;
    int p = (int)handle - 100;
    if (p < 0 || p >= 1024 || physicals[p].handles == 0) return 1;
    for (int i = 0; i < 1024; i++)
        if (mappings[i].ptr == 0) {
            mappings[i] = (struct mapping){ptr, bytes, p};
            physicals[p].maps++;
            return 0;
        }
    return 2;
}
EXPORT int cuMemUnmap(ptr_t ptr, size_t bytes) {
    ENTER;
    int found = 0;
    for (int i = 0; i < 1024; i++)
        if (mappings[i].ptr >= ptr && mappings[i].ptr < ptr + bytes && mappings[i].ptr != 0) {
            physicals[mappings[i].physical].maps--;
            settle(mappings[i].physical);
            mappings[i].ptr = 0;
            found = 1;
        }
    return found ? 0 : 1;
}
EXPORT int cuMemRetainAllocationHandle(unsigned long long *handle, void *addr) {
    ENTER;
    for (int i = 0; i < 1024; i++)
        if (mappings[i].ptr != 0 && (ptr_t)(uintptr_t)addr >= mappings[i].ptr &&
            (ptr_t)(uintptr_t)addr < mappings[i].ptr + mappings[i].bytes) {
            physicals[mappings[i].physical].handles++;
            *handle = 100 + (unsigned)mappings[i].physical;
            return 0;
        }
    return 1;
}

/* --- arrays and graphs: only what is asked for ------------------------------------------------------- */

EXPORT int fake_take(unsigned long long bytes) { return grow(card_of(current->dev), (int64_t)bytes); }

static int array(void **out, uint64_t bytes) {
    ptr_t ptr = 0;
    int code = alloc(&ptr, bytes, &next);
    *out = (void *)(uintptr_t)ptr;
    return code;
}
EXPORT int cuArrayCreate_v2(void **out, const size_t *desc) {
    ENTER;
    size_t row = (desc[0] * 4 + 511) / 512 * 512;
    return array(out, row * (desc[1] ? desc[1] : 1));
}
EXPORT int cuArray3DCreate_v2(void **out, const size_t *desc) {
    ENTER;
    unsigned int flags = ((const unsigned int *)(desc + 3))[2];
    if (flags & 0xc0) { *out = (void *)0x10; return 0; }
    size_t row = (desc[0] * 4 + 511) / 512 * 512;
    return array(out, row * (desc[1] ? desc[1] : 1) * (desc[2] ? desc[2] : 1));
}
EXPORT int cuArrayDestroy(void *a) { ENTER; return a == (void *)0x10 ? 0 : free_item((ptr_t)(uintptr_t)a); }
EXPORT int cuMipmappedArrayCreate(void **out, const size_t *desc, unsigned int levels) {
    ENTER;
    uint64_t bytes = 0;
    for (size_t i = 0, w = desc[0], h = desc[1]; i < levels; i++, w /= 2, h /= 2)
        bytes += (h > 1 ? (w * 4 + 511) / 512 * 512 : w * 4) * (h ? h : 1);
    return array(out, bytes);
}
EXPORT int cuMipmappedArrayDestroy(void *a) { ENTER; return free_item((ptr_t)(uintptr_t)a); }

/* --- graphs: memory nodes reserve at the first launch, and keep it until they are trimmed.
 * FAKE_EAGER reserves when the node is added (and so does a graph's launch then not) -------- */

struct alloc_params {
    int pool[22];
    const void *access;
    size_t access_count, bytes;
    ptr_t ptr;
};
struct graph {
    int nodes;
    struct node {
        int type;
        struct alloc_params params;
    } node[16];
};
struct exec {
    uint64_t bytes[FAKE_CARDS];
    int mapped, live;
};
static struct graph graphs[64], captured;
static struct exec execs[64];
static int graph_count, exec_count;
static uint64_t graph_reserved[FAKE_CARDS];

static int add_alloc(struct graph *graph, struct alloc_params *params) {
    if (getenv("FAKE_EAGER") != NULL) {
        int code = grow(card_of(params->pool[3]), (int64_t)up(params->bytes));
        if (code != 0) return code;
        graph_reserved[params->pool[3]] += up(params->bytes);
    }
    graph->node[graph->nodes++] = (struct node){.type = 10, .params = *params};
    params->ptr = address(&next, params->bytes);
    return 0;
}
EXPORT int cuGraphCreate(struct graph **out, unsigned int flags) {
    (void)flags;
    *out = &graphs[graph_count++ % 64];
    (*out)->nodes = 0;
    return 0;
}
EXPORT int cuGraphAddMemAllocNode(struct node **n, struct graph *g, void *d, size_t c, struct alloc_params *p) {
    (void)d; (void)c; ENTER;
    if (g == NULL || p == NULL) return 1;
    *n = &g->node[g->nodes];
    return add_alloc(g, p);
}
static int add_node(struct node **n, struct graph *g, int *p) {
    if (p[0] != 10) return 0;
    *n = &g->node[g->nodes];
    return add_alloc(g, (struct alloc_params *)(p + 4));
}
EXPORT int cuGraphAddNode(void *n, void *g, void *d, size_t c, void *p) {
    (void)d; (void)c; ENTER; return add_node(n, g, p);
}
EXPORT int cuGraphAddNode_v2(void *n, void *g, void *d, void *e, size_t c, void *p) {
    (void)d; (void)e; (void)c; ENTER; return add_node(n, g, p);
}
static int capture_alloc(ptr_t *out, size_t bytes) {
    struct alloc_params params = {.pool = {1, 0, 1, current->dev}, .bytes = bytes};
    int code = add_alloc(&captured, &params);
    *out = params.ptr;
    return code;
}
EXPORT int fake_captured(struct graph **out) {
    cuGraphCreate(out, 0);
    **out = captured;
    captured.nodes = 0;
    return 0;
}
EXPORT int cuGraphGetNodes(struct graph *g, struct node **nodes, size_t *count) {
    for (int i = 0; nodes != NULL && i < g->nodes; i++) nodes[i] = &g->node[i];
    *count = (size_t)g->nodes;
    return 0;
}
EXPORT int cuGraphNodeGetType(struct node *node, int *type) { *type = node->type; return 0; }
EXPORT int cuGraphMemAllocNodeGetParams(struct node *node, struct alloc_params *out) {
    *out = node->params;
    return 0;
}
EXPORT int cuGraphInstantiateWithFlags(struct exec **out, struct graph *g, unsigned long long f) {
    (void)f; ENTER;
    struct exec *exec = &execs[exec_count++ % 64];
    *exec = (struct exec){.live = 1};
    for (int i = 0; i < g->nodes; i++) 
        exec->bytes[g->node[i].params.pool[3]] += up(g->node[i].params.bytes);
    *out = exec;
    return 0;
}
static int graph_run(struct exec *exec) {
    if (capture || exec->mapped || getenv("FAKE_EAGER") != NULL) return 0;
    for (int dev = 0; dev < FAKE_CARDS; dev++) {
        int code = exec->bytes[dev] == 0 ? 0 : grow(card_of(dev), (int64_t)exec->bytes[dev]);
        if (code != 0) return code;
        graph_reserved[dev] += exec->bytes[dev];
    }
    exec->mapped = 1;
    return 0;
}
EXPORT int cuGraphLaunch(struct exec *exec, void *s) { (void)s; ENTER; return graph_run(exec); }
EXPORT int cuGraphUpload(struct exec *exec, void *s) { (void)s; ENTER; return graph_run(exec); }
EXPORT int cuGraphExecDestroy(struct exec *exec) { ENTER; exec->live = 0; return 0; }
EXPORT int cuDeviceGraphMemTrim(int dev) {
    ENTER;
    grow(card_of(dev), -(int64_t)graph_reserved[dev]);
    graph_reserved[dev] = 0;
    for (int i = 0; i < 64; i++) execs[i].mapped = 0;
    return 0;
}
EXPORT int cuDeviceGetGraphMemAttribute(int dev, int attribute, uint64_t *value) {
    if (attribute != 2) return 1;
    *value = graph_reserved[dev];
    return 0;
}

/* --- cuGetProcAddress: FAKE_ALIAS answers with addresses that no export has ----------------------------- */

static int alias_v1(unsigned int *out, unsigned int bytes) { return cuMemAlloc(out, bytes); }
static int alias_v2(ptr_t *out, size_t bytes) { return cuMemAlloc_v2(out, bytes); }
static int alias_async(ptr_t *out, size_t bytes, struct stream *s) { return cuMemAllocAsync(out, bytes, s); }
static int alias_ptsz(ptr_t *out, size_t bytes, struct stream *s) { return cuMemAllocAsync_ptsz(out, bytes, s); }

EXPORT int cuGetProcAddress(const char *name, void **pfn, int version, uint64_t flags);
EXPORT int cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags, int *found);

static const struct {
    const char *base;
    int since, per_thread;
    void *entry, *alias;
} table[] = {
#define ROW(base, since, entry) {#base, since, 0, (void *)entry, NULL}
    {"cuMemAlloc", 2000, 0, (void *)cuMemAlloc, (void *)alias_v1},
    {"cuMemAlloc", 3020, 0, (void *)cuMemAlloc_v2, (void *)alias_v2},
    {"cuMemAllocAsync", 11020, 0, (void *)cuMemAllocAsync, (void *)alias_async},
    {"cuMemAllocAsync", 11020, 1, (void *)cuMemAllocAsync_ptsz, (void *)alias_ptsz},
    ROW(cuMemFree, 2000, cuMemFree),
    ROW(cuMemFree, 3020, cuMemFree_v2),
    ROW(cuMemGetInfo, 2000, cuMemGetInfo),
    ROW(cuMemGetInfo, 3020, cuMemGetInfo_v2),
    ROW(cuCtxCreate, 2000, cuCtxCreate),
    ROW(cuCtxCreate, 3020, cuCtxCreate_v2),
    ROW(cuCtxCreate, 11040, cuCtxCreate_v3),
    ROW(cuCtxCreate, 12050, cuCtxCreate_v4),
    ROW(cuGraphAddNode, 12020, cuGraphAddNode),
    ROW(cuGraphAddNode, 12030, cuGraphAddNode_v2),
    ROW(cuCtxSynchronize, 2000, cuCtxSynchronize),
    ROW(cuCtxSynchronize, 13000, cuCtxSynchronize_v2),
    ROW(cuDeviceGetCount, 2000, cuDeviceGetCount),
    ROW(cuGetProcAddress, 11030, cuGetProcAddress),
    ROW(cuGetProcAddress, 12000, cuGetProcAddress_v2),
};

int cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags, int *found) {
    ENTER;
    int best = -1;
    for (int i = 0; i < (int)(sizeof table / sizeof *table); i++)
        if (strcmp(table[i].base, name) == 0 && table[i].since <= version &&
            (best < 0 || table[i].since > table[best].since ||
             (table[i].since == table[best].since && table[i].per_thread == (int)(flags >> 1 & 1))))
            best = i;
    if (found != NULL) *found = best < 0;
    *pfn = NULL;
    if (best < 0) return 500;
    int alias = getenv("FAKE_ALIAS") != NULL && table[best].alias != NULL;
    *pfn = alias ? table[best].alias : table[best].entry;
    return 0;
}
int cuGetProcAddress(const char *name, void **pfn, int version, uint64_t flags) {
    ENTER;
    return cuGetProcAddress_v2(name, pfn, version, flags, NULL);
}

/* --- copies between arrays: right only with the arguments that the test gives --------------- */

EXPORT int cuMemcpyAtoA_v2(ptr_t to, size_t at, ptr_t from, size_t begin, size_t bytes) {
    ENTER;
    return to == 1 && at == 2 && from == 3 && begin == 4 && bytes == 4 * MIB ? 0 : 1;
}
EXPORT int cuMemcpyAtoD_v2(ptr_t to, ptr_t from, size_t begin, size_t bytes) {
    ENTER;
    return to == 1 && from == 3 && begin == 4 && bytes == 4 * MIB ? 0 : 1;
}
EXPORT int cuMemcpyDtoA_v2(ptr_t to, size_t at, ptr_t from, size_t bytes) {
    ENTER;
    return to == 1 && at == 2 && from == 3 && bytes == 4 * MIB ? 0 : 1;
}

/* --- batches of copies: right only with what the test gives behind the copies themselves ----- */

#define A_STREAM ((void *)9)

struct operand {
    int type;
    ptr_t pointer, rest[3];
};
struct operation {
    struct operand from, to;
    size_t width, height, depth;
    int order;
    unsigned int flags;
};

static int pair(ptr_t to, ptr_t from, size_t bytes) {
    return item_of(to) != NULL && item_of(from) != NULL && to != from && bytes == 4 * MIB ? 0 : 1;
}
static int batch(const ptr_t *to, const ptr_t *from, const size_t *bytes, size_t count, void *attributes,
                 size_t *indexes, size_t attribute_count, void *stream) {
    if (count != 1 || attributes != (void *)5 || indexes != (void *)6 || attribute_count != 7 ||
        stream != A_STREAM)
        return 1;
    return pair(to[0], from[0], bytes[0]);
}
static int operations(size_t count, const struct operation *list, unsigned long long flags,
                      void *stream) {
    if (count != 1 || flags != 7 || stream != A_STREAM) return 1;
    return pair(list->to.pointer, list->from.pointer, list->width * list->height * list->depth);
}

#define BATCHES(suffix)                                                                            \
    EXPORT int cuMemcpyBatchAsync##suffix(ptr_t *to, ptr_t *from, size_t *bytes, size_t count,     \
                                          void *attributes, size_t *indexes, size_t many,          \
                                          size_t *failed, void *stream) {                          \
        ENTER;                                                                                     \
        return failed == (void *)8                                                                 \
                   ? batch(to, from, bytes, count, attributes, indexes, many, stream)              \
                   : 1;                                                                            \
    }                                                                                              \
    EXPORT int cuMemcpyBatchAsync_v2##suffix(ptr_t *to, ptr_t *from, size_t *bytes, size_t count,  \
                                             void *attributes, size_t *indexes, size_t many,       \
                                             void *stream) {                                       \
        ENTER;                                                                                     \
        return batch(to, from, bytes, count, attributes, indexes, many, stream);                   \
    }                                                                                              \
    EXPORT int cuMemcpy3DBatchAsync##suffix(size_t count, struct operation *list, size_t *failed,  \
                                            unsigned long long flags, void *stream) {              \
        ENTER;                                                                                     \
        return failed == (void *)8 ? operations(count, list, flags, stream) : 1;                   \
    }                                                                                              \
    EXPORT int cuMemcpy3DBatchAsync_v2##suffix(size_t count, struct operation *list,               \
                                               unsigned long long flags, void *stream) {           \
        ENTER;                                                                                     \
        return operations(count, list, flags, stream);                                             \
    }                                                                                              \
    EXPORT int cuMemcpyWithAttributesAsync##suffix(ptr_t to, ptr_t from, size_t bytes,             \
                                                   void *attributes, void *stream) {               \
        ENTER;                                                                                     \
        return attributes == (void *)5 && stream == A_STREAM ? pair(to, from, bytes) : 1;          \
    }                                                                                              \
    EXPORT int cuMemcpy3DWithAttributesAsync##suffix(struct operation *op,                         \
                                                     unsigned long long flags, void *stream) {     \
        ENTER;                                                                                     \
        return operations(1, op, flags, stream);                                                   \
    }
BATCHES()
BATCHES(_ptsz)
