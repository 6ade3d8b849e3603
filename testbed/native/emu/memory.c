/* Device, managed and pinned memory. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* How the card counts an allocation: small ones by sum, the others in granules. */
static void split(size_t bytes, uint64_t *large, uint64_t *small)
{
    *large = bytes > EMU_SMALL_BYTES ? emu_round_up(bytes, EMU_GRANULE) : 0;
    *small = bytes <= EMU_SMALL_BYTES ? emu_round_up(bytes, EMU_SMALL_UNIT) : 0;
}

/* Charges the card; managed memory goes beyond it where there is no room. */
static CUresult charge(struct range *range)
{
    struct device *device = range->device;
    if (range->kind != RANGE_MANAGED)
        return account_charge(device, 0, (int64_t)range->large, (int64_t)range->small);
    if (range->large > 0) {
        uint64_t asked = range->large;
        CUresult result = account_managed(device, asked, &range->large);
        if (result == CUDA_SUCCESS)
            range->swapped = asked - range->large;
        return result;
    }
    CUresult result = account_charge(device, 0, 0, (int64_t)range->small);
    if (result == CUDA_ERROR_OUT_OF_MEMORY) {
        account_swap_out(device, 0, (int64_t)range->small);
        range->swapped = range->small;
        range->small = 0;
        result = CUDA_SUCCESS;
    }
    return result;
}

static void discharge(const struct range *range)
{
    account_charge(range->device, 0, -(int64_t)range->large, -(int64_t)range->small);
    if (range->swapped > 0)
        account_swap_out(range->device, 0, -(int64_t)range->swapped);
}

/* Freed device memory is likely to be asked for again in the same size. The program itself
 * writes to the other kinds, without our knowledge: nobody knows which pages to drop. */
static bool recycled(const struct range *range)
{
    return (range->kind == RANGE_DEVICE || range->kind == RANGE_ARRAY) && !range->own.shared;
}

static void *map(const struct range *range)
{
    size_t align = range->bytes > EMU_SMALL_BYTES ? EMU_GRANULE : CARD_PAGE;
    if (recycled(range))
        return addresses_take(range->mapped_bytes, align);
    return pages_map(range->mapped_bytes, align, PROT_READ | PROT_WRITE);
}

static void unmap(struct range *range)
{
    void *start = (void *)range->start;
    if (!recycled(range)) {
        munmap(start, range->mapped_bytes);
        return;
    }
    const struct backing *own = &range->own;
    if (own->high > own->low)
        madvise((char *)start + own->low * CARD_PAGE, (own->high - own->low) * CARD_PAGE,
                MADV_DONTNEED);
    addresses_give(start, range->mapped_bytes);
}

CUresult memory_allocate(CUdeviceptr *pointer, size_t bytes, enum range_kind kind,
                         unsigned int flags, bool charged)
{
    CUcontext context;
    CUresult result = context_need(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (pointer == NULL || bytes == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (bytes > (size_t)1 << 46)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct range *range = calloc(1, sizeof *range);
    if (range == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    range->bytes = bytes;
    range->kind = kind;
    range->flags = flags;
    range->device = context->device;
    range->context = context;
    range->mapped_bytes = emu_round_up(bytes, bytes > EMU_SMALL_BYTES ? EMU_GRANULE : CARD_PAGE);
    if (charged) {
        split(bytes, &range->large, &range->small);
        result = charge(range);
        if (result != CUDA_SUCCESS) {
            free(range);
            return result;
        }
    }
    range->start = (uintptr_t)map(range);
    if (range->start == 0) {
        discharge(range);
        free(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    if (kind != RANGE_HOST) {
        backing_make(&range->own, range->device, range->mapped_bytes);
        range->backing = &range->own;
    }
    *pointer = range->start;
    return space_add(&memory, range);
}

void memory_release(struct range *range)
{
    unmap(range);
    if (range->own.shared)
        ipc_release(range);
    if (range->backing != NULL)
        backing_free(range->backing);
    discharge(range);
    space_remove(&memory, range);
}

uint64_t memory_evict(struct device *device, uint64_t bytes)
{
    uint64_t evicted = 0;
    for (size_t i = 0; i < memory.count && evicted < bytes; i++) {
        struct range *range = memory.ranges[i];
        if (range->kind != RANGE_MANAGED || range->device != device)
            continue;
        uint64_t part = emu_round_up(bytes - evicted, EMU_GRANULE);
        part = part < range->large ? part : range->large;
        range->large -= part;
        range->swapped += part;
        evicted += part;
    }
    return evicted;
}

static struct range *exact(uintptr_t address)
{
    struct range *range = space_find(&memory, address);
    return range != NULL && range->start == address ? range : NULL;
}

CUresult memory_free(CUdeviceptr pointer)
{
    if (pointer == 0)
        return CUDA_SUCCESS;
    struct range *range = exact((uintptr_t)pointer);
    if (range == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (range->kind == RANGE_POOL)
        return pool_release(range);
    if (range->kind != RANGE_DEVICE && range->kind != RANGE_MANAGED)
        return CUDA_ERROR_INVALID_VALUE;
    memory_release(range);
    return CUDA_SUCCESS;
}

void memory_free_context(CUcontext context)
{
    /* Mapped memory and pools belong to the device, not to a context. */
    for (size_t i = memory.count; i > 0; i--) {
        struct range *range = memory.ranges[i - 1];
        if (range->context != context)
            continue;
        if (range->kind == RANGE_DEVICE || range->kind == RANGE_MANAGED ||
            range->kind == RANGE_HOST || range->kind == RANGE_ARRAY || range->kind == RANGE_IPC)
            memory_release(range);
        else if (range->kind == RANGE_REGISTERED)
            space_remove(&memory, range);
    }
}

CUresult cuMemGetInfo_v2(size_t *available, size_t *total)
{
    CURRENT();
    uint64_t capacity = emu_card_capacity(context->device->card.state);
    uint64_t used = account_used(context->device);
    if (available != NULL)
        *available = used < capacity ? capacity - used : 0;
    if (total != NULL)
        *total = capacity;
    return CUDA_SUCCESS;
}

CUresult cuMemAlloc_v2(CUdeviceptr *pointer, size_t bytes)
{
    ENTER();
    LOCKED();
    return memory_allocate(pointer, bytes, RANGE_DEVICE, 0, true);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *pointer, size_t *pitch, size_t width, size_t height,
                            unsigned int element)
{
    ENTER();
    if (pitch == NULL || width == 0 || height == 0 ||
        (element != 4 && element != 8 && element != 16))
        return CUDA_ERROR_INVALID_VALUE;
    size_t row = emu_round_up(width, 512), bytes;
    if (__builtin_mul_overflow(row, height, &bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    LOCKED();
    CUresult result = memory_allocate(pointer, bytes, RANGE_DEVICE, 0, true);
    if (result == CUDA_SUCCESS)
        *pitch = row;
    return result;
}

/* Managed memory may exceed the card, as on hardware. It takes what room the card has when
 * it is allocated; the rest lies outside, is counted apart (`swapped_bytes`) and comes in
 * by a prefetch. Other allocations of the same process push it out. */
CUresult cuMemAllocManaged(CUdeviceptr *pointer, size_t bytes, unsigned int flags)
{
    ENTER();
    if (flags != 1 && flags != 2)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    return memory_allocate(pointer, bytes, RANGE_MANAGED, flags, true);
}

CUresult cuMemFree_v2(CUdeviceptr pointer)
{
    ENTER();
    driver_lock();
    CUcontext context;
    CUresult result = context_need(&context);
    bool idle = result == CUDA_SUCCESS && context->device->time.queue.count == 0;
    driver_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    if (!idle)
        context_drain(context); /* a free waits for the device, as a synchronisation does */
    LOCKED();
    pools_settle();
    return memory_free(pointer);
}

CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *bytes, CUdeviceptr pointer)
{
    CURRENT();
    struct range *range = space_find(&memory, (uintptr_t)pointer);
    if (range == NULL || range->kind == RANGE_REGISTERED)
        return CUDA_ERROR_NOT_FOUND;
    if (base != NULL)
        *base = range->start;
    if (bytes != NULL)
        *bytes = range->bytes;
    return CUDA_SUCCESS;
}

/* --- pinned memory of the host -------------------------------------------------- */

CUresult cuMemHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    ENTER();
    if (pointer == NULL || (flags & ~7u) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    CUdeviceptr address = 0;
    CUresult result = memory_allocate(&address, bytes, RANGE_HOST, flags, false);
    if (result == CUDA_SUCCESS)
        *pointer = (void *)(uintptr_t)address;
    return result;
}

CUresult cuMemAllocHost_v2(void **pointer, size_t bytes)
{
    return cuMemHostAlloc(pointer, bytes, 0);
}

CUresult cuMemFreeHost(void *pointer)
{
    CURRENT();
    struct range *range = exact((uintptr_t)pointer);
    if (range == NULL || range->kind != RANGE_HOST || range->owner != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memory_release(range);
    return CUDA_SUCCESS;
}

CUresult cuMemHostRegister_v2(void *pointer, size_t bytes, unsigned int flags)
{
    CURRENT();
    uintptr_t start = (uintptr_t)pointer;
    if (pointer == NULL || bytes == 0 || start + bytes < start)
        return CUDA_ERROR_INVALID_VALUE;
    struct range *next = space_next(&memory, start);
    if (space_find(&memory, start) != NULL || (next != NULL && next->start < start + bytes))
        return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    struct range *range = calloc(1, sizeof *range);
    if (range == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *range = (struct range){.start = start,
                            .bytes = bytes,
                            .kind = RANGE_REGISTERED,
                            .flags = flags,
                            .device = context->device,
                            .context = context};
    return space_add(&memory, range);
}

CUresult cuMemHostRegister(void *pointer, size_t bytes, unsigned int flags)
{
    return cuMemHostRegister_v2(pointer, bytes, flags);
}

CUresult cuMemHostUnregister(void *pointer)
{
    CURRENT();
    struct range *range = exact((uintptr_t)pointer);
    if (range == NULL || range->kind != RANGE_REGISTERED)
        return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    space_remove(&memory, range);
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *result, void *pointer, unsigned int flags)
{
    CURRENT();
    struct range *range = space_find(&memory, (uintptr_t)pointer);
    if (result == NULL || flags != 0 || range == NULL || range_on_device(range))
        return CUDA_ERROR_INVALID_VALUE;
    *result = (uintptr_t)pointer;
    return CUDA_SUCCESS;
}

CUresult cuMemHostGetFlags(unsigned int *flags, void *pointer)
{
    CURRENT();
    struct range *range = space_find(&memory, (uintptr_t)pointer);
    if (flags == NULL || range == NULL || range_on_device(range))
        return CUDA_ERROR_INVALID_VALUE;
    *flags = range->flags;
    return CUDA_SUCCESS;
}

/* --- hints about managed memory: advice is taken, without effect --------------------------- */

static CUresult hint(CUdeviceptr pointer, size_t bytes)
{
    LOCKED();
    struct range *range = space_find(&memory, (uintptr_t)pointer);
    if (range == NULL || range->kind != RANGE_MANAGED || bytes == 0 ||
        bytes > range->start + range->bytes - (uintptr_t)pointer)
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuMemAdvise(CUdeviceptr pointer, size_t bytes, CUmem_advise advice, CUdevice device)
{
    ENTER();
    (void)advice, (void)device;
    return hint(pointer, bytes);
}

CUresult cuMemAdvise_v2(CUdeviceptr pointer, size_t bytes, CUmem_advise advice,
                        CUmemLocation location)
{
    ENTER();
    (void)advice, (void)location;
    return hint(pointer, bytes);
}

/* Moves as much of the range as was asked for, in whole granules. */
static CUresult prefetch(CUdeviceptr pointer, size_t bytes, int to)
{
    CUresult result = hint(pointer, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    LOCKED();
    struct range *range = space_find(&memory, (uintptr_t)pointer);
    if (range == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (to >= 0 && device_at(to) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    uint64_t part = emu_round_up(bytes, EMU_GRANULE);
    if (to >= 0 && to == range->device->ordinal && range->large + range->swapped >= EMU_GRANULE) {
        part = part < range->swapped ? part : range->swapped;
        uint64_t moved = 0;
        if (part > 0)
            result = account_swap_in(range->device, part, &moved);
        range->swapped -= moved;
        range->large += moved;
    } else if (to < 0) {
        part = part < range->large ? part : range->large;
        if (part > 0)
            account_swap_out(range->device, (int64_t)part, (int64_t)part);
        range->large -= part;
        range->swapped += part;
    }
    return result;
}

CUresult cuMemPrefetchAsync(CUdeviceptr pointer, size_t bytes, CUdevice device, CUstream stream)
{
    ENTER();
    (void)stream;
    return prefetch(pointer, bytes, device);
}

CUresult cuMemPrefetchAsync_v2(CUdeviceptr pointer, size_t bytes, CUmemLocation location,
                               unsigned int flags, CUstream stream)
{
    ENTER();
    (void)flags, (void)stream;
    return prefetch(pointer, bytes,
                    location.type == CU_MEM_LOCATION_TYPE_DEVICE ? location.id : -1);
}

CUresult cuMemRangeGetAttribute(void *value, size_t size, CUmem_range_attribute attribute,
                                CUdeviceptr pointer, size_t bytes)
{
    ENTER();
    if (value == NULL || size < sizeof(int))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = hint(pointer, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    switch (attribute) {
    case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY: memset(value, 0, size); return CUDA_SUCCESS;
    case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
    case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
        for (size_t i = 0; i < size / sizeof(int); i++)
            ((int *)value)[i] = -2; /* CU_DEVICE_INVALID: no hint was kept */
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_NOT_SUPPORTED;
    }
}

CUresult cuMemRangeGetAttributes(void **values, size_t *sizes, CUmem_range_attribute *attributes,
                                 size_t count, CUdeviceptr pointer, size_t bytes)
{
    if (values == NULL || sizes == NULL || attributes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        CUresult result =
            cuMemRangeGetAttribute(values[i], sizes[i], attributes[i], pointer, bytes);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}
