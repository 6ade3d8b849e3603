/* Event sets: XID errors, as the fault commands write them into the card's state. */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdlib.h>
#include <time.h>

#define POLL_NS 10000000

struct event_set {
    struct {
        nvmlDevice_t device;
        uint64_t seen;
    } watched[EMU_MAX_CARDS];
    int count;
};

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set)
{
    ENTER();
    NEED(set != NULL);
    *set = calloc(1, sizeof **set);
    return *set != NULL ? NVML_SUCCESS : NVML_ERROR_UNKNOWN;
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set)
{
    ENTER();
    NEED(set != NULL);
    free(set);
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, unsigned long long *types)
{
    DEVICE(device);
    NEED(types != NULL);
    *types = NVML_EVENT_XID;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, unsigned long long types,
                                             nvmlEventSet_t set)
{
    DEVICE(device);
    NEED(set != NULL);
    if ((types & ~NVML_EVENT_XID) != 0)
        return NVML_ERROR_NOT_SUPPORTED;
    for (int i = 0; i < set->count; i++)
        if (set->watched[i].device == device)
            return NVML_SUCCESS;
    set->watched[set->count].device = device;
    set->watched[set->count].seen =
        __atomic_load_n(&device->card.state->faults.xid_count, __ATOMIC_ACQUIRE);
    set->count++;
    return NVML_SUCCESS;
}

static bool next_event(nvmlEventSet_t set, nvmlEventData_t *data)
{
    for (int i = 0; i < set->count; i++) {
        struct card_faults *faults = &set->watched[i].device->card.state->faults;
        uint64_t count = __atomic_load_n(&faults->xid_count, __ATOMIC_ACQUIRE);
        if (count == set->watched[i].seen)
            continue;
        set->watched[i].seen = count;
        *data = (nvmlEventData_t){.device = set->watched[i].device,
                                  .eventType = NVML_EVENT_XID,
                                  .eventData = __atomic_load_n(&faults->xid, __ATOMIC_RELAXED),
                                  .gpuInstanceId = 0xffffffffu,
                                  .computeInstanceId = 0xffffffffu};
        return true;
    }
    return false;
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data,
                                        unsigned int timeout_ms)
{
    ENTER();
    NEED(set != NULL && data != NULL);
    uint64_t deadline = emu_now_ns() + (uint64_t)timeout_ms * 1000000;
    while (!next_event(set, data)) {
        if (emu_now_ns() >= deadline)
            return NVML_ERROR_TIMEOUT;
        nanosleep(&(struct timespec){.tv_nsec = POLL_NS}, NULL);
    }
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_v1_t *data,
                                     unsigned int timeout_ms)
{
    nvmlEventData_t full;
    nvmlReturn_t result = nvmlEventSetWait_v2(set, &full, timeout_ms);
    if (result == NVML_SUCCESS)
        *data = (nvmlEventData_v1_t){full.device, full.eventType, full.eventData};
    return result;
}
