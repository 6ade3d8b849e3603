/* Virtual memory management: addresses, physical memory, and mappings between them.
 *
 * Physical memory is a shared anonymous mapping, mapped a second time at the reserved
 * address (mremap with an old size of 0). So no descriptor is needed, which a program
 * could run out of or close; and one handle can be mapped at several addresses. Only
 * memory that was created to be exported has one, for as long as it lives.
 */
#define _GNU_SOURCE
#include "sharing.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <fcntl.h>
#include <sys/mman.h>

#define FABRIC_HANDLE 8

struct physical {
    struct device *device; /* NULL: on the host */
    size_t bytes;
    void *home;
    unsigned int handles, mappings;
    CUmemAllocationProp properties;
    uint32_t index;
    struct backing backing;
    struct sharing sharing;
    bool imported; /* who exported it pays for it */
};

static struct space reservations;

/* Handles are an index and a serial number, so that a stale one is recognised. */
static struct entry {
    struct physical *physical;
    uint32_t serial;
} *table;
static size_t entries, first_free; /* no free entry before first_free */

static struct physical *find(CUmemGenericAllocationHandle handle)
{
    size_t index = (size_t)(handle & 0xffffffff);
    if (index == 0 || index > entries || table[index - 1].serial != handle >> 32)
        return NULL;
    return table[index - 1].physical;
}

static CUmemGenericAllocationHandle handle_of(const struct physical *physical)
{
    return (uint64_t)table[physical->index].serial << 32 | (physical->index + 1);
}

static bool enter_table(struct physical *physical)
{
    for (size_t i = first_free; i < entries; i++)
        if (table[i].physical == NULL) {
            table[i].physical = physical;
            table[i].serial++;
            physical->index = (uint32_t)i;
            first_free = i + 1;
            return true;
        }
    size_t more = entries == 0 ? 64 : entries * 2;
    struct entry *grown = realloc(table, more * sizeof *grown);
    if (grown == NULL)
        return false;
    memset(grown + entries, 0, (more - entries) * sizeof *grown);
    table = grown;
    size_t first = entries;
    entries = more;
    table[first] = (struct entry){physical, 1};
    physical->index = (uint32_t)first;
    first_free = first + 1;
    return true;
}

static void put(struct physical *physical)
{
    if (physical->handles > 0 || physical->mappings > 0)
        return;
    table[physical->index].physical = NULL;
    if (physical->index < first_free)
        first_free = physical->index;
    if (physical->device != NULL) {
        backing_free(&physical->backing);
        if (!physical->imported)
            account_charge(physical->device, 0, -(int64_t)physical->bytes, 0);
    }
    munmap(physical->home, physical->bytes);
    sharing_close(&physical->sharing);
    free(physical);
}

CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties,
                                       CUmemAllocationGranularity_flags option)
{
    ENTER();
    (void)option;
    if (granularity == NULL || properties == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = EMU_GRANULE;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t bytes, size_t align, CUdeviceptr wish,
                             unsigned long long flags)
{
    ENTER();
    (void)wish;
    if (pointer == NULL || bytes == 0 || bytes % EMU_GRANULE != 0 || flags != 0 ||
        (align & (align - 1)) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    void *start = pages_map(bytes, align > EMU_GRANULE ? align : EMU_GRANULE, PROT_NONE);
    struct range *range = calloc(1, sizeof *range);
    if (start == NULL || range == NULL) {
        if (start != NULL)
            munmap(start, bytes);
        free(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    range->start = (uintptr_t)start;
    range->bytes = bytes;
    *pointer = range->start;
    return space_add(&reservations, range);
}

static struct range *mapping_in(uintptr_t start, size_t bytes)
{
    struct range *next = space_find(&memory, start);
    if (next == NULL)
        next = space_next(&memory, start);
    return next != NULL && next->start < start + bytes ? next : NULL;
}

CUresult cuMemAddressFree(CUdeviceptr pointer, size_t bytes)
{
    ENTER();
    LOCKED();
    struct range *range = space_find(&reservations, (uintptr_t)pointer);
    if (range == NULL || range->start != (uintptr_t)pointer || range->bytes != bytes ||
        mapping_in(range->start, bytes) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    munmap((void *)range->start, bytes);
    space_remove(&reservations, range);
    return CUDA_SUCCESS;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *properties, unsigned long long flags)
{
    ENTER();
    if (handle == NULL || properties == NULL || flags != 0 || bytes == 0 ||
        bytes % EMU_GRANULE != 0 || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_INVALID_VALUE;
    if ((properties->requestedHandleTypes & FABRIC_HANDLE) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct device *device = NULL;
    if (properties->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
        device = device_at(properties->location.id);
        if (device == NULL)
            return CUDA_ERROR_INVALID_DEVICE;
    } else if (properties->location.type != CU_MEM_LOCATION_TYPE_HOST &&
               properties->location.type != CU_MEM_LOCATION_TYPE_HOST_NUMA) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    LOCKED();
    struct physical *physical = calloc(1, sizeof *physical);
    if (physical == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *physical = (struct physical){.device = device,
                                  .bytes = bytes,
                                  .handles = 1,
                                  .properties = *properties,
                                  .sharing = {.fd = -1}};
    CUresult result =
        device != NULL ? account_charge(device, 0, (int64_t)bytes, 0) : CUDA_SUCCESS;
    if (result != CUDA_SUCCESS) {
        free(physical);
        return result;
    }
    bool export = device != NULL && (properties->requestedHandleTypes &
                                     CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0;
    bool file = export && sharing_make(&physical->sharing, device, bytes, RANGE_MAPPED, properties);
    physical->home = export && !file
                         ? MAP_FAILED
                         : mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                                MAP_SHARED | MAP_NORESERVE | (file ? 0 : MAP_ANONYMOUS),
                                physical->sharing.fd, 0);
    backing_make(&physical->backing, device, bytes);
    physical->backing.shared = export;
    if (physical->home == MAP_FAILED || !enter_table(physical)) {
        if (physical->home != MAP_FAILED)
            munmap(physical->home, bytes);
        sharing_close(&physical->sharing);
        if (device != NULL)
            account_charge(device, 0, -(int64_t)bytes, 0);
        free(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = handle_of(physical);
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    ENTER();
    LOCKED();
    struct physical *physical = find(handle);
    if (physical == NULL || physical->handles == 0)
        return CUDA_ERROR_INVALID_VALUE;
    physical->handles--;
    put(physical);
    return CUDA_SUCCESS;
}

/* --- between processes --------------------------------------------------------- */

CUresult cuMemExportToShareableHandle(void *result, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)
{
    ENTER();
    LOCKED();
    struct physical *physical = find(handle);
    if (result == NULL || flags != 0 || physical == NULL || physical->handles == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    if ((physical->properties.requestedHandleTypes & CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) == 0)
        return CUDA_ERROR_INVALID_VALUE; /* not created for it */
    int fd = sharing_ready(&physical->sharing)
                 ? fcntl(physical->sharing.fd, F_DUPFD_CLOEXEC, 3)
                 : -1;
    if (fd < 0) {
        emu_log(EMU_LOG_ERROR, "cuMemExportToShareableHandle: no descriptor; the program closed "
                               "the driver's, or has too many open");
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    *(int *)result = fd;
    return CUDA_SUCCESS;
}

CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *given,
                                        CUmemAllocationHandleType type)
{
    ENTER();
    if (handle == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_NOT_SUPPORTED;
    LOCKED();
    struct sharing sharing;
    struct sharing_label label;
    int fd = fcntl((int)(intptr_t)given, F_DUPFD_CLOEXEC, 3); /* the program keeps its own */
    if (fd < 0 || !sharing_take(&sharing, fd, &label))
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = sharing_device(&label);
    struct physical *physical = calloc(1, sizeof *physical);
    void *home = MAP_FAILED;
    if (device != NULL && label.kind == RANGE_MAPPED && physical != NULL)
        home = mmap(NULL, label.bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE,
                    sharing.fd, 0);
    if (home == MAP_FAILED) {
        sharing_close(&sharing);
        free(physical);
        return device == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_INVALID_VALUE;
    }
    *physical = (struct physical){.device = device,
                                  .bytes = label.bytes,
                                  .home = home,
                                  .handles = 1,
                                  .properties = label.properties,
                                  .sharing = sharing,
                                  .imported = true};
    physical->properties.location.id = device->ordinal;
    backing_make(&physical->backing, device, label.bytes);
    physical->backing.shared = true;
    if (!enter_table(physical)) {
        munmap(home, label.bytes);
        sharing_close(&sharing);
        free(physical);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *handle = handle_of(physical);
    return CUDA_SUCCESS;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address)
{
    ENTER();
    LOCKED();
    struct range *range = space_find(&memory, (uintptr_t)address);
    if (handle == NULL || range == NULL || range->kind != RANGE_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    struct physical *physical = range->owner;
    physical->handles++;
    *handle = handle_of(physical);
    return CUDA_SUCCESS;
}

CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *properties,
                                                CUmemGenericAllocationHandle handle)
{
    ENTER();
    LOCKED();
    struct physical *physical = find(handle);
    if (properties == NULL || physical == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *properties = physical->properties;
    return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr pointer, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)
{
    ENTER();
    LOCKED();
    struct physical *physical = find(handle);
    uintptr_t start = (uintptr_t)pointer;
    struct range *room = space_find(&reservations, start);
    if (physical == NULL || physical->handles == 0 || flags != 0 || bytes == 0 ||
        (bytes | offset | start) % EMU_GRANULE != 0 || offset > physical->bytes ||
        bytes > physical->bytes - offset || room == NULL ||
        bytes > room->start + room->bytes - start)
        return CUDA_ERROR_INVALID_VALUE;
    if (mapping_in(start, bytes) != NULL)
        return CUDA_ERROR_ALREADY_MAPPED;
    struct range *range = calloc(1, sizeof *range);
    if (range == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (mremap((char *)physical->home + offset, 0, bytes, MREMAP_MAYMOVE | MREMAP_FIXED,
               (void *)start) == MAP_FAILED) {
        emu_log(EMU_LOG_ERROR, "cuMemMap: %s (vm.max_map_count?)", strerror(errno));
        free(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    /* Nobody may touch it before cuMemSetAccess. */
    mprotect((void *)start, bytes, PROT_NONE);
    *range = (struct range){.start = start,
                            .bytes = bytes,
                            .kind = physical->device != NULL ? RANGE_MAPPED : RANGE_HOST,
                            .device = physical->device != NULL ? physical->device : &devices[0],
                            .backing = physical->device != NULL ? &physical->backing : NULL,
                            .backing_offset = offset,
                            .owner = physical};
    CUresult result = space_add(&memory, range);
    if (result == CUDA_SUCCESS)
        physical->mappings++;
    return result;
}

/* Every mapping that begins in the range must lie in it as a whole. */
static CUresult check_mappings(uintptr_t start, size_t bytes)
{
    for (uintptr_t at = start; at < start + bytes;) {
        struct range *range = space_find(&memory, at);
        if (range == NULL || range->owner == NULL || range->kind == RANGE_POOL ||
            range->start != at || range->bytes > start + bytes - at)
            return CUDA_ERROR_INVALID_VALUE;
        at += range->bytes;
    }
    return CUDA_SUCCESS;
}

CUresult cuMemUnmap(CUdeviceptr pointer, size_t bytes)
{
    ENTER();
    LOCKED();
    uintptr_t start = (uintptr_t)pointer;
    CUresult result = check_mappings(start, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    for (uintptr_t at = start; at < start + bytes;) {
        struct range *range = space_find(&memory, at);
        struct physical *physical = range->owner;
        if (mmap((void *)at, range->bytes, PROT_NONE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) == MAP_FAILED)
            return CUDA_ERROR_OUT_OF_MEMORY;
        at += range->bytes;
        space_remove(&memory, range);
        physical->mappings--;
        put(physical);
    }
    return CUDA_SUCCESS;
}

CUresult cuMemSetAccess(CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc *access,
                        size_t count)
{
    ENTER();
    LOCKED();
    uintptr_t start = (uintptr_t)pointer;
    if (access == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned int flags = 0;
    for (size_t i = 0; i < count; i++) {
        if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            device_at(access[i].location.id) == NULL)
            return CUDA_ERROR_INVALID_DEVICE;
        flags |= (unsigned int)access[i].flags;
    }
    CUresult result = check_mappings(start, bytes);
    if (result != CUDA_SUCCESS)
        return result;
    for (uintptr_t at = start; at < start + bytes;) {
        struct range *range = space_find(&memory, at);
        range->access = flags;
        at += range->bytes;
    }
    int protection = flags == 0                                    ? PROT_NONE
                     : flags == CU_MEM_ACCESS_FLAGS_PROT_READ      ? PROT_READ
                                                                   : PROT_READ | PROT_WRITE;
    return mprotect((void *)start, bytes, protection) == 0 ? CUDA_SUCCESS
                                                           : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location,
                        CUdeviceptr pointer)
{
    ENTER();
    LOCKED();
    struct range *range = space_find(&memory, (uintptr_t)pointer);
    if (flags == NULL || location == NULL || range == NULL || range->kind != RANGE_MAPPED)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = range->access;
    return CUDA_SUCCESS;
}
