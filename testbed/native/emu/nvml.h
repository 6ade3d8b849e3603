/* Inside the emulated libnvidia-ml: the part of NVML's binary interface that it speaks
 * (own minimal declarations of documented types), and what its parts share.
 * Emulation, not NVIDIA.
 */
#ifndef VGPU_EMU_NVML_H
#define VGPU_EMU_NVML_H

#include "cards.h"
#include "lockfile.h"

#include <stdbool.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef enum {
    NVML_SUCCESS = 0,
    NVML_ERROR_UNINITIALIZED = 1,
    NVML_ERROR_INVALID_ARGUMENT = 2,
    NVML_ERROR_NOT_SUPPORTED = 3,
    NVML_ERROR_NO_PERMISSION = 4,
    NVML_ERROR_NOT_FOUND = 6,
    NVML_ERROR_INSUFFICIENT_SIZE = 7,
    NVML_ERROR_DRIVER_NOT_LOADED = 9,
    NVML_ERROR_TIMEOUT = 10,
    NVML_ERROR_FUNCTION_NOT_FOUND = 13,
    NVML_ERROR_GPU_IS_LOST = 15,
    NVML_ERROR_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_ERROR_UNKNOWN = 999
} nvmlReturn_t;

typedef struct device *nvmlDevice_t;

typedef struct {
    unsigned long long total, free, used;
} nvmlMemory_t;

typedef struct {
    unsigned int version;
    unsigned long long total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    char busIdLegacy[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    char busId[16];
    unsigned int domain, bus, device, pciDeviceId, pciSubSystemId;
    unsigned int reserved[4];
} nvmlPciInfo_v2_t;

typedef struct {
    unsigned int gpu, memory;
} nvmlUtilization_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    unsigned int pid;
    unsigned long long usedGpuMemory;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_v2_t;

typedef struct {
    unsigned int pid;
    unsigned long long timeStamp;
    unsigned int smUtil, memUtil, encUtil, decUtil;
} nvmlProcessUtilizationSample_t;

typedef struct {
    unsigned long long timeStamp;
    union {
        unsigned int uiVal;
        unsigned long long ullVal;
        double dVal;
    };
} nvmlSample_t;

typedef struct {
    unsigned long long timeStamp;
    unsigned int pid;
    unsigned int smUtil, memUtil, encUtil, decUtil, jpgUtil, ofaUtil;
} nvmlProcessUtilizationInfo_v1_t;

typedef struct {
    unsigned int version;
    unsigned int processSamplesCount;
    unsigned long long lastSeenTimeStamp;
    nvmlProcessUtilizationInfo_v1_t *procUtilArray;
} nvmlProcessesUtilizationInfo_t;

typedef struct event_set *nvmlEventSet_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
    unsigned int gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
    nvmlDevice_t device;
    unsigned long long eventType, eventData;
} nvmlEventData_v1_t;

#define NVML_EVENT_XID 8ull

/* A card as NVML's handle. Handles stay valid for the process's life. */
struct device {
    struct emu_card card;
    struct lockfile locks; /* cuda.lock, read only and never closed */
};

extern struct device nvml_devices[EMU_MAX_CARDS];
extern int nvml_count;

nvmlReturn_t nvml_enter(void);                    /* initialised? */
nvmlReturn_t nvml_device(const struct device *device); /* … and a card that is there */

#define ENTER()                                                                            \
    do {                                                                                   \
        nvmlReturn_t entered_ = nvml_enter();                                              \
        if (entered_ != NVML_SUCCESS)                                                      \
            return entered_;                                                               \
    } while (0)

#define DEVICE(device)                                                                     \
    do {                                                                                   \
        nvmlReturn_t entered_ = nvml_device(device);                                       \
        if (entered_ != NVML_SUCCESS)                                                      \
            return entered_;                                                               \
    } while (0)

#define NEED(condition)                                                                    \
    do {                                                                                   \
        if (!(condition))                                                                  \
            return NVML_ERROR_INVALID_ARGUMENT;                                            \
    } while (0)

/* A live process on a card. */
struct process {
    unsigned int pid; /* in our PID namespace; 0: it has none here */
    int slot;
    uint64_t bytes;
};

/* This process's own slot, which locks do not show to itself; -1: none. */
int nvml_own_slot(const struct device *device);

/* Fills up to CARD_MAX_SLOTS entries; returns how many. */
int nvml_processes(struct device *device, struct process processes[CARD_MAX_SLOTS]);

#endif
