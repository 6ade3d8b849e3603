#define _GNU_SOURCE
#include "device.h"

#include <stdatomic.h>
#include <stdio.h>

#include "account.h"
#include "log.h"
#include "lookup.h"
#include "nvml_probe.h"

#define CACHED 64

/* (epoch, entry + 2): void after a fork, where the child may see other devices. */
static _Atomic uint64_t cache[CACHED];

static void format(const CUuuid *uuid, const char *prefix, char text[64]) {
    const unsigned char *b = uuid->bytes;
    snprintf(text, 64,
             "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", prefix,
             b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8], b[9], b[10], b[11], b[12],
             b[13], b[14], b[15]);
}

bool vgpu_device_uuid(CUdevice dev, char text[64]) {
    CUuuid uuid;
    if (VGPU_CALL(cuDeviceGetUuid_v2, &uuid, dev) != CUDA_SUCCESS &&
        VGPU_CALL(cuDeviceGetUuid, &uuid, dev) != CUDA_SUCCESS)
        return false;
    format(&uuid, "GPU", text);
    return true;
}

static int find_entry(CUdevice dev) {
    char text[64] = "";
    if (!vgpu_device_uuid(dev, text)) return VGPU_NO_DEVICE;
    int entry = vgpu_entry(text, VGPU_NO_DEVICE);
    CUuuid uuid;
    if (entry == VGPU_NO_DEVICE && VGPU_CALL(cuDeviceGetUuid_v2, &uuid, dev) == CUDA_SUCCESS) {
        char mig[64];
        format(&uuid, "MIG", mig);
        entry = vgpu_entry(mig, VGPU_NO_DEVICE);
    }
    if (entry == VGPU_NO_DEVICE) { /* limits known by number only: the container's order */
        int index = vgpu_nvml_index(text);
        entry = vgpu_entry(text, index >= 0 ? index : dev);
    }
    if (entry == VGPU_NO_DEVICE)
        VGPU_LOG(VGPU_LOG_ERROR, "device %d (%s) was not given to this container", dev, text);
    return entry;
}

int vgpu_device_entry(CUdevice dev) {
    if (dev < 0 || dev >= CACHED) return VGPU_NO_DEVICE;
    uint64_t seen = atomic_load(&cache[dev]);
    if (seen >> 8 == vgpu_epoch() && (seen & 0xff) != 0) return (int)(seen & 0xff) - 2;
    int entry = find_entry(dev);
    if (entry != VGPU_NO_DEVICE)
        atomic_store(&cache[dev], (uint64_t)vgpu_epoch() << 8 | (uint64_t)(entry + 2));
    return entry;
}

bool vgpu_current(int *entry, CUcontext *ctx) {
    CUdevice dev;
    if (VGPU_CALL(cuCtxGetCurrent, ctx) != CUDA_SUCCESS || *ctx == NULL ||
        VGPU_CALL(cuCtxGetDevice, &dev) != CUDA_SUCCESS)
        return false;
    *entry = vgpu_device_entry(dev);
    return true;
}

bool vgpu_stream_entry(CUstream stream, int *entry, CUdevice *dev) {
    int count = 0;
    if ((uintptr_t)stream > 2 && VGPU_CALL(cuDeviceGetCount, &count) == CUDA_SUCCESS && count > 1) {
        CUcontext ctx, popped;
        if (VGPU_CALL(cuStreamGetCtx, stream, &ctx) != CUDA_SUCCESS ||
            VGPU_CALL(cuCtxPushCurrent_v2, ctx) != CUDA_SUCCESS)
            return false;
        CUresult result = VGPU_CALL(cuCtxGetDevice, dev);
        VGPU_CALL(cuCtxPopCurrent_v2, &popped);
        if (result != CUDA_SUCCESS) return false;
    } else if (VGPU_CALL(cuCtxGetDevice, dev) != CUDA_SUCCESS) {
        return false;
    }
    *entry = vgpu_device_entry(*dev);
    return true;
}
