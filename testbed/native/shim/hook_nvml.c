/* Who uses the card, as NVML tells the container: its own processes only, under the pids of
 * its own namespace. NVML tells a container the whole node's pids, or none: then what the
 * library's own records say stands in. */
#include "account.h"
#include "device.h"
#include "lookup.h"
#include "shared.h"
#include "sys.h"

#define MOST 512

struct members {
    int count;
    struct vgpu_member of[VGPU_MAX_PROCESSES];
};

/* What a question needs meanwhile: 110 KiB, which is more than some threads' stacks are. */
struct scratch {
    struct members members;
    nvmlProcessInfo_v1_t first[MOST];
    nvmlProcessInfo_t card[MOST];
    nvmlProcessInfo_t found[VGPU_MAX_PROCESSES];
    nvmlProcessDetail_v1_t details[MOST + VGPU_MAX_PROCESSES];
    unsigned int pids[VGPU_MAX_PROCESSES];
};

enum say {
    THE_DRIVERS, /* this container has no say about the device: the driver's answer stands */
    OURS,
    NO_MEMORY,
};

static enum say members_of(nvmlDevice_t device, struct scratch **scratch) {
    int entry = vgpu_active() ? vgpu_nvml_entry(device) : VGPU_NO_DEVICE;
    if (entry == VGPU_NO_DEVICE || !vgpu_enter()) return THE_DRIVERS;
    struct scratch *own = *scratch = vgpu_scratch(sizeof *own);
    if (own != NULL) own->members.count = vgpu_members(entry, own->members.of);
    vgpu_leave();
    return own != NULL ? OURS : NO_MEMORY;
}

static bool among(const struct members *members, unsigned int pid) {
    for (int i = 0; i < members->count; i++)
        if (members->of[i].pid == pid) return true;
    return false;
}

/* --- what each holds -------------------------------------------------------------------- */

/* The card's own figure of those that NVML knows by our pids, the library's of the others. */
static unsigned int told(struct scratch *scratch, unsigned int known) {
    unsigned int count = 0;
    for (int i = 0; i < scratch->members.count; i++) {
        nvmlProcessInfo_t info = {.pid = scratch->members.of[i].pid,
                                  .used_bytes = scratch->members.of[i].bytes,
                                  .gpu_instance = ~0u,
                                  .compute_instance = ~0u};
        for (unsigned int k = 0; k < known; k++)
            if (scratch->card[k].pid == info.pid) info = scratch->card[k];
        scratch->found[count++] = info;
    }
    return count;
}

static nvmlReturn_t answer(nvmlReturn_t result, struct scratch *scratch, unsigned int *count,
                           unsigned int known, void *infos, bool first_version) {
    if (result != NVML_SUCCESS && result != NVML_ERROR_INSUFFICIENT_SIZE) return result;
    unsigned int room = *count;
    unsigned int n = told(scratch, result != NVML_SUCCESS ? 0 : known < MOST ? known : MOST);
    const nvmlProcessInfo_t *found = scratch->found;
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
    struct scratch *scratch = NULL;
    enum say say = count == NULL ? THE_DRIVERS : members_of(device, &scratch);
    if (say == THE_DRIVERS)
        return VGPU_REAL(nvmlDeviceGetComputeRunningProcesses)(device, count, infos);
    if (say == NO_MEMORY) return NVML_ERROR_MEMORY;
    unsigned int known = MOST;
    nvmlReturn_t result =
        VGPU_REAL(nvmlDeviceGetComputeRunningProcesses)(device, &known, scratch->first);
    for (unsigned int i = 0; result == NVML_SUCCESS && i < known && i < MOST; i++)
        scratch->card[i] = (nvmlProcessInfo_t){.pid = scratch->first[i].pid,
                                               .used_bytes = scratch->first[i].used_bytes};
    result = answer(result, scratch, count, known, infos, true);
    vgpu_unmap(scratch, sizeof *scratch);
    return result;
}

#define LISTING(symbol)                                                                            \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, nvmlProcessInfo_t *infos) {      \
        if (VGPU_REAL(symbol) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;                       \
        struct scratch *scratch = NULL;                                                            \
        enum say say = count == NULL ? THE_DRIVERS : members_of(device, &scratch);                 \
        if (say == THE_DRIVERS) return VGPU_REAL(symbol)(device, count, infos);                    \
        if (say == NO_MEMORY) return NVML_ERROR_MEMORY;                                            \
        unsigned int known = MOST;                                                                 \
        nvmlReturn_t result = VGPU_REAL(symbol)(device, &known, scratch->card);                    \
        result = answer(result, scratch, count, known, infos, false);                              \
        vgpu_unmap(scratch, sizeof *scratch);                                                      \
        return result;                                                                             \
    }
LISTING(nvmlDeviceGetComputeRunningProcesses_v2)
LISTING(nvmlDeviceGetComputeRunningProcesses_v3)

/* --- of other kinds (graphics, MPS): the driver's own list, of our own processes ------------ */

#define OWN_LISTING(symbol, type, list)                                                            \
    nvmlReturn_t symbol(nvmlDevice_t device, unsigned int *count, type *infos) {                   \
        if (VGPU_REAL(symbol) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;                       \
        struct scratch *scratch = NULL;                                                            \
        enum say say = count == NULL ? THE_DRIVERS : members_of(device, &scratch);                 \
        if (say == THE_DRIVERS) return VGPU_REAL(symbol)(device, count, infos);                    \
        if (say == NO_MEMORY) return NVML_ERROR_MEMORY;                                            \
        type *card = scratch->list;                                                                \
        unsigned int known = MOST, room = *count, kept = 0;                                        \
        nvmlReturn_t result = VGPU_REAL(symbol)(device, &known, card);                             \
        if (result == NVML_SUCCESS) {                                                              \
            for (unsigned int i = 0; i < known && i < MOST; i++)                                   \
                if (among(&scratch->members, card[i].pid)) card[kept++] = card[i];                 \
            *count = kept;                                                                         \
            if (kept > 0 && (room < kept || infos == NULL)) result = NVML_ERROR_INSUFFICIENT_SIZE; \
            for (unsigned int i = 0; result == NVML_SUCCESS && i < kept; i++) infos[i] = card[i];  \
        }                                                                                          \
        vgpu_unmap(scratch, sizeof *scratch);                                                      \
        return result;                                                                             \
    }
OWN_LISTING(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, first)
OWN_LISTING(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_t, card)
OWN_LISTING(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, card)
OWN_LISTING(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, first)
OWN_LISTING(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_t, card)
OWN_LISTING(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, card)

/* --- of any kind at once -------------------------------------------------------------------- */

#define COMPUTE 0

/* What the driver tells of our own, and of those that compute also who it does not know. */
static unsigned int own_details(struct scratch *scratch, unsigned int known, unsigned int mode) {
    nvmlProcessDetail_v1_t *of = scratch->details;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < known; i++)
        if (among(&scratch->members, of[i].pid)) of[kept++] = of[i];
    unsigned int told = kept;
    for (int i = 0; mode == COMPUTE && i < scratch->members.count; i++) {
        const struct vgpu_member *member = &scratch->members.of[i];
        bool twice = false;
        for (unsigned int k = 0; k < told; k++) twice |= of[k].pid == member->pid;
        if (!twice)
            of[kept++] = (nvmlProcessDetail_v1_t){.pid = member->pid,
                                                  .used_bytes = member->bytes,
                                                  .gpu_instance = ~0u,
                                                  .compute_instance = ~0u};
    }
    return kept;
}

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device,
                                                   nvmlProcessDetailList_v1_t *list) {
    if (VGPU_REAL(nvmlDeviceGetRunningProcessDetailList) == NULL)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    struct scratch *scratch = NULL;
    bool known_version = list != NULL && (list->version & 0xffffff) == sizeof *list;
    enum say say = known_version ? members_of(device, &scratch) : THE_DRIVERS;
    if (say == THE_DRIVERS)
        return VGPU_REAL(nvmlDeviceGetRunningProcessDetailList)(device, list);
    if (say == NO_MEMORY) return NVML_ERROR_MEMORY;
    nvmlProcessDetailList_v1_t all = *list;
    all.count = MOST;
    all.processes = scratch->details;
    nvmlReturn_t result = VGPU_REAL(nvmlDeviceGetRunningProcessDetailList)(device, &all);
    if (result == NVML_SUCCESS) {
        unsigned int kept =
            own_details(scratch, all.count < MOST ? all.count : MOST, list->mode);
        if (kept > 0 && (list->count < kept || list->processes == NULL))
            result = NVML_ERROR_INSUFFICIENT_SIZE;
        for (unsigned int i = 0; result == NVML_SUCCESS && i < kept; i++)
            list->processes[i] = scratch->details[i];
        list->count = kept;
    }
    vgpu_unmap(scratch, sizeof *scratch);
    return result;
}

/* Those of the past too, and nobody knows whose they were: only who lives is told. */
nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t device, unsigned int *count,
                                         unsigned int *pids) {
    if (VGPU_REAL(nvmlDeviceGetAccountingPids) == NULL) return NVML_ERROR_FUNCTION_NOT_FOUND;
    struct scratch *scratch = NULL;
    enum say say = count == NULL ? THE_DRIVERS : members_of(device, &scratch);
    if (say == THE_DRIVERS) return VGPU_REAL(nvmlDeviceGetAccountingPids)(device, count, pids);
    if (say == NO_MEMORY) return NVML_ERROR_MEMORY;
    unsigned int known = VGPU_MAX_PROCESSES, kept = 0;
    nvmlReturn_t result =
        VGPU_REAL(nvmlDeviceGetAccountingPids)(device, &known, scratch->pids);
    if (result == NVML_SUCCESS) {
        for (unsigned int i = 0; i < known && i < VGPU_MAX_PROCESSES; i++)
            if (among(&scratch->members, scratch->pids[i])) scratch->pids[kept++] = scratch->pids[i];
        if (kept > 0 && (*count < kept || pids == NULL)) result = NVML_ERROR_INSUFFICIENT_SIZE;
        for (unsigned int i = 0; result == NVML_SUCCESS && i < kept; i++)
            pids[i] = scratch->pids[i];
        *count = kept;
    }
    vgpu_unmap(scratch, sizeof *scratch);
    return result;
}

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
    struct scratch *scratch = NULL;
    if (result != NVML_SUCCESS || samples == NULL) return result;
    enum say say = members_of(device, &scratch);
    if (say != OURS) return say == NO_MEMORY ? NVML_ERROR_MEMORY : result;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < *count; i++)
        if (among(&scratch->members, samples[i].pid)) samples[kept++] = samples[i];
    *count = kept;
    vgpu_unmap(scratch, sizeof *scratch);
    return kept > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                   nvmlProcessesUtilizationInfo_t *info) {
    if (VGPU_REAL(nvmlDeviceGetProcessesUtilizationInfo) == NULL)
        return NVML_ERROR_FUNCTION_NOT_FOUND;
    nvmlReturn_t result = VGPU_REAL(nvmlDeviceGetProcessesUtilizationInfo)(device, info);
    if (result != NVML_SUCCESS || info->samples == NULL ||
        (info->version & 0xffffff) != sizeof *info)
        return result;
    struct scratch *scratch = NULL;
    enum say say = members_of(device, &scratch);
    if (say != OURS) return say == NO_MEMORY ? NVML_ERROR_MEMORY : result;
    unsigned int kept = 0;
    for (unsigned int i = 0; i < info->count; i++)
        if (among(&scratch->members, info->samples[i].pid))
            info->samples[kept++] = info->samples[i];
    info->count = kept;
    vgpu_unmap(scratch, sizeof *scratch);
    return kept > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}
