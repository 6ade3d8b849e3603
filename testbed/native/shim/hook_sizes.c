/* What a program is told about the size of its card: the cap is the card (driver API
 * and NVML alike), what the whole container holds is used. */
#include <limits.h>
#include <string.h>

#include "account.h"
#include "device.h"
#include "log.h"
#include "lookup.h"

struct sizes {
    uint64_t total, free, used;
};

static uint64_t least(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* False where the device has no limit: then the driver's own answer stands. */
static bool capped(int entry, uint64_t total, uint64_t free, struct sizes *sizes) {
    if (!vgpu_enter()) return false;
    uint64_t limit = vgpu_limit(entry);
    if (limit != 0) {
        sizes->total = vgpu_oversubscribed() ? limit : least(limit, total);
        sizes->used = least(vgpu_used(entry), sizes->total);
        sizes->free = sizes->total - sizes->used;
        if (!vgpu_oversubscribed()) sizes->free = least(sizes->free, free);
    }
    vgpu_leave();
    return limit != 0;
}

CUresult cuInit(unsigned int flags) {
    CUresult result = VGPU_CALL(cuInit, flags);
    if (result == CUDA_SUCCESS && vgpu_enter()) {
        vgpu_announce();
        vgpu_leave();
    }
    return result;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev) {
    CUresult result = VGPU_CALL(cuDeviceTotalMem_v2, bytes, dev);
    struct sizes sizes;
    if (result == CUDA_SUCCESS && bytes != NULL && vgpu_active() &&
        capped(vgpu_device_entry(dev), *bytes, *bytes, &sizes))
        *bytes = sizes.total;
    return result;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev) {
    CUresult result = VGPU_CALL(cuDeviceTotalMem, bytes, dev);
    struct sizes sizes;
    if (result == CUDA_SUCCESS && bytes != NULL && vgpu_active() &&
        capped(vgpu_device_entry(dev), *bytes, *bytes, &sizes))
        *bytes = (unsigned int)least(sizes.total, *bytes);
    return result;
}

CUresult cuMemGetInfo_v2(size_t *free, size_t *total) {
    CUresult result = VGPU_CALL(cuMemGetInfo_v2, free, total);
    struct sizes sizes;
    int entry;
    CUcontext ctx;
    if (result == CUDA_SUCCESS && free != NULL && total != NULL && vgpu_active() &&
        vgpu_current(&entry, &ctx) && capped(entry, *total, *free, &sizes)) {
        *free = sizes.free;
        *total = sizes.total;
    }
    return result;
}

CUresult cuMemGetInfo(unsigned int *free, unsigned int *total) {
    CUresult result = VGPU_CALL(cuMemGetInfo, free, total);
    struct sizes sizes;
    int entry;
    CUcontext ctx;
    if (result == CUDA_SUCCESS && free != NULL && total != NULL && vgpu_active() &&
        vgpu_current(&entry, &ctx) && capped(entry, *total, *free, &sizes)) {
        *free = (unsigned int)least(sizes.free, *free);
        *total = (unsigned int)least(sizes.total, *total);
    }
    return result;
}

int vgpu_nvml_entry(nvmlDevice_t device) {
    char uuid[VGPU_UUID_TEXT] = "";
    unsigned int index = 0;
    if (VGPU_CALL(nvmlDeviceGetUUID, device, uuid, sizeof uuid) != NVML_SUCCESS)
        return VGPU_NO_DEVICE;
    if (strncmp(uuid, "MIG-", 4) == 0) { /* its index is among its card's instances */
        int entry = vgpu_entry(uuid, VGPU_NO_DEVICE);
        nvmlDevice_t card;
        if (entry != VGPU_NO_DEVICE ||
            VGPU_CALL(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, device, &card) !=
                NVML_SUCCESS ||
            VGPU_CALL(nvmlDeviceGetUUID, card, uuid, sizeof uuid) != NVML_SUCCESS)
            return entry;
        return vgpu_entry(uuid, VGPU_NO_DEVICE);
    }
    bool known = VGPU_CALL(nvmlDeviceGetIndex, device, &index) == NVML_SUCCESS && index < 1024;
    return vgpu_entry(uuid, known ? (int)index : VGPU_NO_DEVICE);
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory) {
    if (VGPU_REAL(nvmlDeviceGetMemoryInfo) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = VGPU_REAL(nvmlDeviceGetMemoryInfo)(device, memory);
    struct sizes sizes;
    if (result == NVML_SUCCESS && memory != NULL && vgpu_active() &&
        capped(vgpu_nvml_entry(device), memory->total, memory->free, &sizes)) {
        memory->total = sizes.total;
        memory->free = sizes.free;
        memory->used = sizes.used;
    }
    return result;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory) {
    if (VGPU_REAL(nvmlDeviceGetMemoryInfo_v2) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = VGPU_REAL(nvmlDeviceGetMemoryInfo_v2)(device, memory);
    struct sizes sizes;
    if (result == NVML_SUCCESS && memory != NULL && vgpu_active() &&
        capped(vgpu_nvml_entry(device), memory->total, memory->free, &sizes)) {
        memory->total = sizes.total;
        memory->reserved = 0; /* the card's, not this container's */
        memory->free = sizes.free;
        memory->used = sizes.used;
    }
    return result;
}
