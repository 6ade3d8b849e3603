#define _GNU_SOURCE
#include "nvml_probe.h"

#include "account.h"
#include "hooks.h"
#include "lookup.h"
#include "sys.h"

#define MOST 512

static bool begin(const char *uuid, nvmlDevice_t *device) {
    if (VGPU_REAL(nvmlInit_v2) == NULL || VGPU_CALL(nvmlInit_v2) != NVML_SUCCESS) return false;
    if (VGPU_CALL(nvmlDeviceGetHandleByUUID, uuid, device) == NVML_SUCCESS) return true;
    VGPU_CALL(nvmlShutdown);
    return false;
}

struct vgpu_sample vgpu_nvml_sample(const char *uuid) {
    struct vgpu_sample sample = {.own_known = false};
    nvmlDevice_t device;
    if (!begin(uuid, &device)) return sample;
    nvmlMemory_t memory;
    if (VGPU_CALL(nvmlDeviceGetMemoryInfo, device, &memory) == NVML_SUCCESS) {
        sample.used_known = true;
        sample.used_bytes = memory.used;
    }
    nvmlProcessInfo_t infos[MOST];
    unsigned int count = MOST;
    nvmlReturn_t result = VGPU_CALL(nvmlDeviceGetComputeRunningProcesses_v3, device, &count, infos);
    if (result != NVML_SUCCESS) {
        count = MOST;
        result = VGPU_CALL(nvmlDeviceGetComputeRunningProcesses_v2, device, &count, infos);
    }
    if (result == NVML_SUCCESS) {
        sample.own_known = true;
        for (unsigned int i = 0; i < count && i < MOST; i++)
            if (infos[i].pid == (unsigned int)vgpu_getpid() && infos[i].used_bytes != ~0ull)
                sample.own_bytes += infos[i].used_bytes;
    }
    VGPU_CALL(nvmlShutdown);
    return sample;
}

int vgpu_nvml_index(const char *uuid) {
    nvmlDevice_t device;
    unsigned int index;
    if (!begin(uuid, &device)) return -1;
    nvmlReturn_t result = VGPU_CALL(nvmlDeviceGetIndex, device, &index);
    VGPU_CALL(nvmlShutdown);
    return result == NVML_SUCCESS && index < 1024 ? (int)index : -1;
}
