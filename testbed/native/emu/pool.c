/* Memory pools: stream-ordered allocation.
 *
 * A pool reserves card memory in granules of 2 MiB and packs blocks into them. Freed
 * blocks stay reserved until the next synchronisation, and then as far as the release
 * threshold allows. All work is done when its call returns, so a freed block can be
 * used again at once, on any stream.
 */
#define _GNU_SOURCE
#include "pool.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define ARENA_BYTES (1ull << 30)

struct block {
    size_t start, end;
};

/* A piece of address space of a pool; its granules are reserved one by one. */
struct arena {
    struct CUmemPoolHandle_st *pool;
    struct arena *next;
    uintptr_t base;
    size_t bytes;
    uint8_t *reserved;    /* one a granule */
    struct block *blocks; /* sorted */
    size_t count, room;
    struct backing backing;
};


static struct CUmemPoolHandle_st *pools;

CUmemoryPool pool_make(struct device *device)
{
    CUmemoryPool pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return NULL;
    pool->device = device;
    pool->reuse[0] = pool->reuse[1] = pool->reuse[2] = 1;
    pool->next = pools;
    pools = pool;
    return pool;
}

CUmemoryPool pool_default(struct device *device)
{
    if (device->default_pool == NULL) {
        device->default_pool = pool_make(device);
        if (device->default_pool == NULL)
            return NULL;
        device->default_pool->is_default = true;
        device->current_pool = device->default_pool;
    }
    return device->default_pool;
}

CUmemoryPool pool_of(const struct range *range)
{
    return ((const struct arena *)range->owner)->pool;
}

bool pool_valid(const CUmemoryPool pool)
{
    for (const struct CUmemPoolHandle_st *each = pools; each != NULL; each = each->next)
        if (each == pool)
            return !pool->destroyed;
    return false;
}

/* --- placing blocks ----------------------------------------------------------------- */

static struct arena *arena_make(CUmemoryPool pool, size_t bytes)
{
    struct arena *arena = calloc(1, sizeof *arena);
    if (arena == NULL)
        return NULL;
    arena->pool = pool;
    arena->bytes = bytes > ARENA_BYTES ? emu_round_up(bytes, EMU_GRANULE) : ARENA_BYTES;
    arena->reserved = calloc(arena->bytes / EMU_GRANULE, 1);
    arena->base = (uintptr_t)pages_map(arena->bytes, EMU_GRANULE, PROT_READ | PROT_WRITE);
    if (arena->reserved == NULL || arena->base == 0) {
        if (arena->base != 0)
            munmap((void *)arena->base, arena->bytes);
        free(arena->reserved);
        free(arena);
        return NULL;
    }
    backing_make(&arena->backing, pool->device, arena->bytes);
    arena->next = pool->arenas;
    pool->arenas = arena;
    return arena;
}

static void arena_free(struct arena *arena)
{
    for (struct arena **link = &arena->pool->arenas; *link != NULL; link = &(*link)->next)
        if (*link == arena) {
            *link = arena->next;
            break;
        }
    backing_free(&arena->backing);
    munmap((void *)arena->base, arena->bytes);
    free(arena->reserved);
    free(arena->blocks);
    free(arena);
}

static size_t unreserved(const struct arena *arena, size_t start, size_t end)
{
    size_t count = 0;
    for (size_t i = start / EMU_GRANULE; i * EMU_GRANULE < end; i++)
        count += arena->reserved[i] == 0;
    return count;
}

/* First place for `bytes` between the blocks; with `reserved_only`, where no granule
 * has to be reserved for it. Returns the arena's size where there is none. */
static size_t place(const struct arena *arena, size_t bytes, bool reserved_only, size_t *index)
{
    size_t unit = bytes >= EMU_GRANULE ? EMU_GRANULE : EMU_SMALL_UNIT;
    size_t start = 0;
    for (size_t i = 0; i <= arena->count; i++) {
        size_t limit = i < arena->count ? arena->blocks[i].start : arena->bytes;
        start = emu_round_up(start, unit);
        while (start + bytes <= limit) {
            *index = i;
            if (!reserved_only)
                return start;
            size_t granule = start / EMU_GRANULE;
            while (granule * EMU_GRANULE < start + bytes && arena->reserved[granule] != 0)
                granule++;
            if (granule * EMU_GRANULE >= start + bytes)
                return start;
            start = (granule + 1) * EMU_GRANULE;
        }
        if (i < arena->count && arena->blocks[i].end > start)
            start = arena->blocks[i].end;
    }
    return arena->bytes;
}

static CUresult reserve(struct arena *arena, size_t start, size_t end)
{
    CUmemoryPool pool = arena->pool;
    uint64_t bytes = unreserved(arena, start, end) * EMU_GRANULE;
    if (pool->max_bytes > 0 && pool->reserved + bytes > pool->max_bytes)
        return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = account_charge(pool->device, 0, (int64_t)bytes, 0);
    if (result != CUDA_SUCCESS)
        return result;
    for (size_t i = start / EMU_GRANULE; i * EMU_GRANULE < end; i++)
        arena->reserved[i] = 1;
    pool->reserved += bytes;
    if (pool->reserved > pool->reserved_high)
        pool->reserved_high = pool->reserved;
    return CUDA_SUCCESS;
}

static CUresult insert(struct arena *arena, size_t index, struct block block)
{
    if (arena->count == arena->room) {
        size_t room = arena->room == 0 ? 64 : arena->room * 2;
        struct block *grown = realloc(arena->blocks, room * sizeof *grown);
        if (grown == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        arena->blocks = grown;
        arena->room = room;
    }
    memmove(&arena->blocks[index + 1], &arena->blocks[index],
            (arena->count - index) * sizeof block);
    arena->blocks[index] = block;
    arena->count++;
    return CUDA_SUCCESS;
}

CUresult pool_allocate(CUmemoryPool pool, CUdeviceptr *pointer, size_t bytes, CUcontext context)
{
    if (pointer == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes == 0) { /* allowed here, unlike in cuMemAlloc */
        *pointer = 0;
        return CUDA_SUCCESS;
    }
    if (bytes > emu_card_capacity(pool->device->card.state))
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t size = bytes > EMU_SMALL_BYTES ? emu_round_up(bytes, EMU_GRANULE)
                                          : emu_round_up(bytes, EMU_SMALL_UNIT);
    struct arena *arena = NULL;
    size_t start = 0, index = 0;
    for (int pass = 0; pass < 2 && arena == NULL; pass++)
        for (struct arena *each = pool->arenas; each != NULL; each = each->next) {
            start = place(each, size, pass == 0, &index);
            if (start < each->bytes) {
                arena = each;
                break;
            }
        }
    if (arena == NULL) {
        arena = arena_make(pool, size);
        start = index = 0;
        if (arena == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
    }
    struct range *range = calloc(1, sizeof *range);
    CUresult result =
        range == NULL ? CUDA_ERROR_OUT_OF_MEMORY : reserve(arena, start, start + size);
    if (result == CUDA_SUCCESS)
        result = insert(arena, index, (struct block){start, start + size});
    if (result != CUDA_SUCCESS) {
        free(range);
        return result;
    }
    *range = (struct range){.start = arena->base + start,
                            .bytes = bytes,
                            .kind = RANGE_POOL,
                            .device = pool->device,
                            .context = context,
                            .backing = &arena->backing,
                            .backing_offset = start,
                            .owner = arena};
    pool->used += size;
    if (pool->used > pool->used_high)
        pool->used_high = pool->used;
    *pointer = range->start;
    return space_add(&memory, range);
}

/* --- giving back ----------------------------------------------------------------------- */

/* Gives granules without a block back to the card until `keep` bytes are reserved. */
void pool_trim(CUmemoryPool pool, uint64_t keep)
{
    uint64_t freed = 0;
    for (struct arena *arena = pool->arenas, *next; arena != NULL; arena = next) {
        next = arena->next;
        size_t block = arena->count;
        for (size_t i = arena->bytes / EMU_GRANULE; i > 0 && pool->reserved - freed > keep; i--) {
            size_t start = (i - 1) * EMU_GRANULE;
            while (block > 0 && arena->blocks[block - 1].start >= start + EMU_GRANULE)
                block--;
            bool busy = block > 0 && arena->blocks[block - 1].end > start;
            if (busy || arena->reserved[i - 1] == 0)
                continue;
            arena->reserved[i - 1] = 0;
            freed += EMU_GRANULE;
        }
    }
    if (freed == 0)
        return;
    pool->reserved -= freed;
    account_charge(pool->device, 0, -(int64_t)freed, 0);
    for (struct arena *arena = pool->arenas, *next; arena != NULL; arena = next) {
        next = arena->next;
        if (arena->count == 0 && unreserved(arena, 0, arena->bytes) == arena->bytes / EMU_GRANULE)
            arena_free(arena);
    }
}

void pool_discard_if_done(CUmemoryPool pool)
{
    if (!pool->destroyed || pool->used > 0)
        return;
    pool_trim(pool, 0);
    for (struct CUmemPoolHandle_st **link = &pools; *link != NULL; link = &(*link)->next)
        if (*link == pool) {
            *link = pool->next;
            break;
        }
    free(pool);
}

CUresult pool_release(struct range *range)
{
    struct arena *arena = range->owner;
    CUmemoryPool pool = arena->pool;
    size_t start = range->start - arena->base;
    size_t low = 0, high = arena->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (arena->blocks[middle].start < start)
            low = middle + 1;
        else
            high = middle;
    }
    struct block block = arena->blocks[low];
    memmove(&arena->blocks[low], &arena->blocks[low + 1],
            (arena->count - low - 1) * sizeof block);
    arena->count--;
    pool->used -= block.end - block.start;
    /* What was in it is undefined from now on: the host gets its pages back. */
    if (backing_forget(&arena->backing, block.start, block.end - block.start) > 0) {
        uintptr_t first = emu_round_up(range->start, CARD_PAGE);
        uintptr_t last = (arena->base + block.end) / CARD_PAGE * CARD_PAGE;
        madvise((void *)first, last - first, MADV_DONTNEED);
    }
    space_remove(&memory, range);
    pool_discard_if_done(pool);
    return CUDA_SUCCESS;
}

void pools_settle(void)
{
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next)
        if (pool->reserved > pool->threshold)
            pool_trim(pool, pool->threshold);
}

void pools_reset(struct device *device)
{
    for (size_t i = memory.count; i > 0; i--) {
        struct range *range = memory.ranges[i - 1];
        if (range->kind == RANGE_POOL && range->device == device)
            pool_release(range);
    }
    for (CUmemoryPool pool = pools; pool != NULL; pool = pool->next)
        if (pool->device == device)
            pool_trim(pool, 0);
}
