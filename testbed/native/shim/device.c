#define _GNU_SOURCE
#include "device.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

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

/* Of an instance (MIG) the newer call tells its own uuid, the older one its card's (CUDA driver
 * API, cuDeviceGetUuid_v2). */
struct identity {
    CUuuid own, card;
    bool has_own, has_card;
};

static struct identity identity_of(CUdevice dev) {
    struct identity id;
    id.has_own = VGPU_CALL(cuDeviceGetUuid_v2, &id.own, dev) == CUDA_SUCCESS;
    id.has_card = VGPU_CALL(cuDeviceGetUuid, &id.card, dev) == CUDA_SUCCESS;
    return id;
}

static bool is_instance(const struct identity *id) {
    return id->has_own && id->has_card && memcmp(&id->own, &id->card, sizeof id->own) != 0;
}

bool vgpu_device_uuid(CUdevice dev, char text[64]) {
    struct identity id = identity_of(dev);
    if (!id.has_own && !id.has_card) return false;
    format(id.has_own ? &id.own : &id.card, is_instance(&id) ? "MIG" : "GPU", text);
    return true;
}

/* A container may have been given an instance, or a card that was cut into instances. */
static int entry_of_instance(const struct identity *id) {
    char text[64];
    format(&id->own, "MIG", text);
    int entry = vgpu_entry(text, VGPU_NO_DEVICE);
    if (entry != VGPU_NO_DEVICE || !id->has_card) return entry;
    format(&id->card, "GPU", text);
    return vgpu_entry(text, VGPU_NO_DEVICE);
}

static int find_entry(CUdevice dev) {
    char text[64] = "";
    if (!vgpu_device_uuid(dev, text)) return VGPU_NO_DEVICE;
    int entry = vgpu_entry(text, VGPU_NO_DEVICE);
    struct identity id = identity_of(dev);
    if (entry == VGPU_NO_DEVICE && id.has_own) entry = entry_of_instance(&id);
    if (entry == VGPU_NO_DEVICE) { /* limits known by number only: the container's order */
        int index = is_instance(&id) ? -1 : vgpu_nvml_index(text);
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

bool vgpu_entry_uuid(int entry, char text[64]) {
    for (CUdevice dev = 0; dev < CACHED; dev++)
        if (atomic_load(&cache[dev]) == ((uint64_t)vgpu_epoch() << 8 | (uint64_t)(entry + 2)))
            return vgpu_device_uuid(dev, text);
    return false;
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
