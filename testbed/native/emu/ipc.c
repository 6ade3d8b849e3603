/* Device memory shared between processes by a handle of 64 bytes.
 *
 * The handle names the exporter's process and descriptor, so it is found through /proc:
 * both must see the same PID namespace, as on hardware (where containers have to share it
 * with their host for this).
 */
#define _GNU_SOURCE
#include "sharing.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC 0x6369707567707556ull

struct handle {
    uint64_t magic;
    uint64_t device, inode; /* of the file */
    int32_t pid, fd;
    uint64_t bytes; /* as they were asked for */
};
_Static_assert(sizeof(struct handle) <= sizeof(CUipcMemHandle), "handle");

/* What a range that was exported, or opened, has beside it. */
struct shared_range {
    struct sharing sharing;
    unsigned int opened;
};

/* Puts a file in the place of private pages. What another thread writes between the copy
 * and the change of pages is lost: the program asks for the handle before it shares. */
static CUresult move_to_file(struct range *range, struct shared_range *shared)
{
    if (!sharing_make(&shared->sharing, range->device, range->mapped_bytes, RANGE_DEVICE, NULL))
        return CUDA_ERROR_OPERATING_SYSTEM;
    const struct backing *own = &range->own;
    for (size_t page = own->low; page < own->high; page++) {
        size_t offset = page * CARD_PAGE;
        if (backing_touched(own, page) &&
            pwrite(shared->sharing.fd, (void *)(range->start + offset), CARD_PAGE,
                   (off_t)offset) != CARD_PAGE) {
            sharing_close(&shared->sharing);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (mmap((void *)range->start, range->mapped_bytes, PROT_READ | PROT_WRITE,
             MAP_SHARED | MAP_FIXED | MAP_NORESERVE, shared->sharing.fd, 0) == MAP_FAILED) {
        sharing_close(&shared->sharing);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    madvise((void *)range->start, range->mapped_bytes, MADV_NOHUGEPAGE);
    return CUDA_SUCCESS;
}

CUresult cuIpcGetMemHandle(CUipcMemHandle *result, CUdeviceptr pointer)
{
    CURRENT();
    struct range *range = space_find(&memory, (uintptr_t)pointer);
    if (result == NULL || range == NULL || range->kind != RANGE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    struct shared_range *shared = range->owner;
    if (shared == NULL) {
        shared = calloc(1, sizeof *shared);
        if (shared == NULL)
            return CUDA_ERROR_OUT_OF_MEMORY;
        CUresult moved = move_to_file(range, shared);
        if (moved != CUDA_SUCCESS) {
            free(shared);
            return moved;
        }
        range->owner = shared;
        range->own.shared = true;
    } else if (!sharing_ready(&shared->sharing)) {
        emu_log(EMU_LOG_ERROR, "cuIpcGetMemHandle: the program closed the memory's descriptor");
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    struct handle handle = {.magic = MAGIC,
                            .device = shared->sharing.device,
                            .inode = shared->sharing.inode,
                            .pid = getpid(),
                            .fd = shared->sharing.fd,
                            .bytes = range->bytes};
    memset(result, 0, sizeof *result);
    memcpy(result, &handle, sizeof handle);
    return CUDA_SUCCESS;
}

void ipc_release(struct range *range)
{
    struct shared_range *shared = range->owner;
    sharing_close(&shared->sharing);
    free(shared);
    range->owner = NULL;
}

static struct range *already_open(const struct handle *handle)
{
    for (size_t i = 0; i < memory.count; i++) {
        struct range *range = memory.ranges[i];
        if (range->kind != RANGE_IPC)
            continue;
        const struct shared_range *shared = range->owner;
        if (shared->sharing.device == handle->device && shared->sharing.inode == handle->inode)
            return range;
    }
    return NULL;
}

static CUresult open_file(const struct handle *handle, struct sharing *sharing,
                          struct sharing_label *label)
{
    char path[64];
    struct stat status;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", handle->pid, handle->fd);
    /* Looked at before it is opened: it may be another process's file by now, perhaps one
     * where opening has effects. */
    if (stat(path, &status) != 0 || status.st_dev != handle->device ||
        status.st_ino != handle->inode) {
        emu_log(EMU_LOG_ERROR,
                "cuIpcOpenMemHandle: process %d has no such memory; it ended, freed it, or lives "
                "in another PID namespace (which hardware refuses too)",
                handle->pid);
        return CUDA_ERROR_MAP_FAILED;
    }
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0 || !sharing_take(sharing, fd, label) || sharing->inode != handle->inode) {
        emu_log(EMU_LOG_ERROR, "cuIpcOpenMemHandle: %s: %s", path, strerror(errno));
        sharing_close(sharing);
        return CUDA_ERROR_MAP_FAILED;
    }
    return CUDA_SUCCESS;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *pointer, CUipcMemHandle given, unsigned int flags)
{
    CURRENT();
    struct handle handle;
    memcpy(&handle, &given, sizeof handle);
    if (pointer == NULL || (flags & ~CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (handle.magic != MAGIC)
        return CUDA_ERROR_INVALID_HANDLE;
    if (handle.pid == getpid()) /* as on hardware: not in the process that exported it */
        return CUDA_ERROR_INVALID_CONTEXT;
    struct range *range = already_open(&handle);
    if (range != NULL) {
        ((struct shared_range *)range->owner)->opened++;
        *pointer = range->start;
        return CUDA_SUCCESS;
    }
    struct shared_range *shared = calloc(1, sizeof *shared);
    range = calloc(1, sizeof *range);
    struct sharing_label label;
    CUresult result = shared == NULL || range == NULL
                          ? CUDA_ERROR_OUT_OF_MEMORY
                          : open_file(&handle, &shared->sharing, &label);
    if (result != CUDA_SUCCESS) {
        free(shared);
        free(range);
        return result;
    }
    struct device *device = sharing_device(&label);
    void *start = device != NULL && handle.bytes > 0 && handle.bytes <= label.bytes
                      ? pages_map(label.bytes, EMU_GRANULE, PROT_NONE)
                      : NULL;
    if (start == NULL || mmap(start, label.bytes, PROT_READ | PROT_WRITE,
                              MAP_SHARED | MAP_FIXED | MAP_NORESERVE, shared->sharing.fd,
                              0) == MAP_FAILED) {
        if (start != NULL)
            munmap(start, label.bytes);
        sharing_close(&shared->sharing);
        free(shared);
        free(range);
        return device == NULL ? CUDA_ERROR_INVALID_DEVICE : CUDA_ERROR_MAP_FAILED;
    }
    madvise(start, label.bytes, MADV_NOHUGEPAGE);
    /* The mapping keeps the memory; the number would only be one more to lose. */
    close(shared->sharing.fd);
    shared->sharing.fd = -1;
    shared->opened = 1;
    *range = (struct range){.start = (uintptr_t)start,
                            .bytes = handle.bytes,
                            .kind = RANGE_IPC,
                            .device = device,
                            .context = context,
                            .mapped_bytes = label.bytes,
                            .owner = shared};
    backing_make(&range->own, device, label.bytes);
    range->own.shared = true;
    range->backing = &range->own;
    *pointer = range->start;
    return space_add(&memory, range);
}

CUresult cuIpcOpenMemHandle(CUdeviceptr *pointer, CUipcMemHandle handle, unsigned int flags)
{
    return cuIpcOpenMemHandle_v2(pointer, handle, flags);
}

CUresult cuIpcCloseMemHandle(CUdeviceptr pointer)
{
    CURRENT();
    struct range *range = space_find(&memory, (uintptr_t)pointer);
    if (range == NULL || range->kind != RANGE_IPC || range->start != (uintptr_t)pointer)
        return CUDA_ERROR_INVALID_VALUE;
    if (--((struct shared_range *)range->owner)->opened == 0)
        memory_release(range);
    return CUDA_SUCCESS;
}
