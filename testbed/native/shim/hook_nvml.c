/* Who uses the card, as NVML tells the container: its own processes only, under the pids of
 * its own namespace. NVML tells a container the whole node's pids, or none: then what the
 * library's own records say stands in. */
#include "account.h"
#include "device.h"
#include "lookup.h"
#include "shared.h"

#define MOST 512

struct members {
    int count;
    struct vgpu_member of[VGPU_MAX_PROCESSES];
};

/* False where this container has no say about the device: the driver's answer stands. */
static bool members_of(nvmlDevice_t device, struct members *members) {
    int entry = vgpu_active() ? vgpu_nvml_entry(device) : VGPU_NO_DEVICE;
    if (entry == VGPU_NO_DEVICE || !vgpu_enter()) return false;
    members->count = vgpu_members(entry, members->of);
    vgpu_leave();
    return true;
}

static bool among(const struct members *members, unsigned int pid) {
    for (int i = 0; i < members->count; i++)
        if (members->of[i].pid == pid) return true;
    return false;
}

/* --- what each holds -------------------------------------------------------------------- */

/* The card's own figure of those that NVML knows by our pids, the library's of the others. */
static unsigned int told(const struct members *members, const nvmlProcessInfo_t *card,
                         unsigned int known, nvmlProcessInfo_t out[VGPU_MAX_PROCESSES]) {
    unsigned int count = 0;
    for (int i = 0; i < members->count; i++) {
        nvmlProcessInfo_t info = {.pid = members->of[i].pid,
                                  .used_bytes = members->of[i].bytes,
                                  .gpu_instance = ~0u,
                                  .compute_instance = ~0u};
        for (unsigned int k = 0; k < known; k++)
            if (card[k].pid == info.pid) info = card[k];
        out[count++] = info;
    }
    return count;
}

static nvmlReturn_t answer(nvmlReturn_t result, struct members *members, unsigned int *count,
                           unsigned int room, const nvmlProcessInfo_t *card, unsigned int known,
                           void *infos, bool first_version) {
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) return result;
    nvmlProcessInfo_t found[VGPU_MAX_PROCESSES];
    unsigned int n = told(members, card, result == NVML_SUCCESS ? known : 0, found);
    *count = n;
    if (n == 0) return NVML_SUCCESS;
    if (room < n || infos == NULL) return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < n; i++)
        if (first_version)
            ((nvmlProcessInfo_v1_t *)infos)[i] =
                (nvmlProcessInfo_v1_t){.pid = found[i].pid, .used_bytes = found[i].used_bytes};
        else ((nvmlProcessInfo_t *)infos)[i] = found[i];
    return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                  nvmlProcessInfo_v1_t *infos) {
    if (VGPU_REAL(nvmlDeviceGetComputeRunningProcesses) == NULL)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    struct members members;
    if (count == NULL || !members_of(device, &members))
        return VGPU_REAL(nvmlDeviceGetComputeRunningProcesses)(device, count, infos);
    nvmlProcessInfo_v1_t first[MOST];
    nvmlProcessInfo_t card[MOST];
    unsigned int known = MOST, room = *count;
    nvmlReturn_t result =
        VGPU_REAL(nvmlDeviceGetComputeRunningProcesses)(device, &known, first);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < known && i < MOST; i++)
        card[i] = (nvmlProcessInfo_t){.pid = first[i].pid, .used_bytes = first[i].used_bytes};
    return answer(result, &members, count, room, card, known, infos, true);
}

#define LISTING(symbol)                                                                            \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {      \
        if (VGPU_REAL(symbol) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;                       \
        struct members members;                                                                    \
        if (count == NULL || !members_of(device, &members))                                        \
            return VGPU_REAL(symbol)(device, count, infos);                                        \
        nvmlProcessInfo_t card[MOST];                                                              \
        unsigned int known = MOST, room = *count;                                                  \
        nvmlReturn_t result = VGPU_REAL(symbol)(device, &known, card);                             \
        return answer(result, &members, count, room, card, known, infos, false);                   \
    }
LISTING(nvmlDeviceGetComputeRunningProcesses_v2)
LISTING(nvmlDeviceGetComputeRunningProcesses_v3)

/* --- of other kinds (graphics, MPS): the driver's own list, of our own processes ------------ */

#define OWN_LISTING(symbol, type)                                                                  \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *infos) {                   \
        if (VGPU_REAL(symbol) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;                       \
        struct members members;                                                                    \
        if (count == NULL || !members_of(device, &members))                                        \
            return VGPU_REAL(symbol)(device, count, infos);                                        \
        type card[MOST];                                                                           \
        unsigned int known = MOST, room = *count, kept = 0;                                        \
        nvmlReturn_t result = VGPU_REAL(symbol)(device, &known, card);                             \
        if (result != NVML_SUCCESS) return result;                                                 \
        for (unsigned int i = 0; i < known && i < MOST; i++)                                       \
            if (among(&members, card[i].pid)) card[kept++] = card[i];                              \
        *count = kept;                                                                             \
        if (kept > 0 && (room < kept || infos == NULL)) return NVML_ERROR_INSUFFICIENT_SIZE;       \
        for (unsigned int i = 0; i < kept; i++) infos[i] = card[i];                                \
        return NVML_SUCCESS;                                                                       \
    }
OWN_LISTING(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
OWN_LISTING(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t)
OWN_LISTING(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
OWN_LISTING(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
OWN_LISTING(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t)
OWN_LISTING(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)

/* --- how busy it is: with our own work, where the monitor tells; its memory's traffic is the
 * card's ---------------------------------------------------------------------------------- */

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates) {
    if (VGPU_REAL(nvmlDeviceGetUtilizationRates) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = VGPU_REAL(nvmlDeviceGetUtilizationRates)(device, rates);
    uint32_t own;
    if (result == NVML_SUCCESS && rates != NULL && vgpu_active() &&
        vgpu_shared_own_use(vgpu_nvml_entry(device), &own))
        rates->gpu = (own + 5) / 10;
    return result;
}

/* --- how each uses it: the driver's figures, of our own ------------------------------------ */

nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                             nvmlProcessUtilizationSample_t *samples,
                                             unsigned int *count, unsigned long long since_us) {
    if (VGPU_REAL(nvmlDeviceGetProcessUtilization) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result =
        VGPU_REAL(nvmlDeviceGetProcessUtilization)(device, samples, count, since_us);
    struct members members;
    if (result != NVML_SUCCESS || samples == NULL || !members_of(device, &members)) return result;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < *count; i++)
        if (among(&members, samples[i].pid)) samples[kept++] = samples[i];
    *count = kept;
    return kept > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *info) {
    if (VGPU_REAL(nvmlDeviceGetProcessesUtilizationInfo) == NULL)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = VGPU_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
    struct members members;
    if (result != NVML_SUCCESS || info->samples == NULL ||
        (info->version & 0xffffff) != sizeof *info || !members_of(device, &members))
        return result;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < info->count; i++)
        if (among(&members, info->samples[i].pid)) info->samples[kept++] = info->samples[i];
    info->count = kept;
    return kept > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
