#define _GNU_SOURCE
#include "nvml_probe.h"

#include <errno.h>

#include "account.h"
#include "clock.h"
#include "hooks.h"
#include "lookup.h"
#include "sys.h"

#define MOST 512

/* NVML opens files, and what fails there is not our program's affair: its errno is kept. */
static bool begin(const char *uuid, nvmlDevice_t *device) {
    int kept = errno;
    bool begun = VGPU_REAL(nvmlInit_v2) != NULL && VGPU_CALL(nvmlInit_v2) == NVML_SUCCESS;
    bool found = begun && VGPU_CALL(nvmlDeviceGetHandleByUUID, uuid, device) == NVML_SUCCESS;
    if (begun && !found) VGPU_CALL(nvmlShutdown);
    errno = kept;
    return found;
}

static void end(void) {
    int kept = errno;
    VGPU_CALL(nvmlShutdown);
    errno = kept;
}

static bool own_bytes(nvmlDevice_t device, nvmlProcessInfo_t infos[MOST], uint64_t *bytes) {
    unsigned int count = MOST;
    nvmlReturn_t result = VGPU_CALL(nvmlDeviceGetComputeRunningProcesses_v3, device, &count, infos);
    if (result != NVML_SUCCESS) {
        count = MOST;
        result = VGPU_CALL(nvmlDeviceGetComputeRunningProcesses_v2, device, &count, infos);
    }
    if (result != NVML_SUCCESS) return false;
    for (unsigned int i = 0; i < count && i < MOST; i++)
        if (infos[i].pid == (unsigned int)vgpu_getpid() && infos[i].used_bytes != ~0ull)
            *bytes += infos[i].used_bytes;
    return true;
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
    nvmlProcessInfo_t *infos = vgpu_scratch(MOST * sizeof *infos);
    if (infos != NULL) {
        sample.own_known = own_bytes(device, infos, &sample.own_bytes);
        vgpu_unmap(infos, MOST * sizeof *infos);
    }
    end();
    return sample;
}

int vgpu_nvml_index(const char *uuid) {
    nvmlDevice_t device;
    unsigned int index;
    if (!begin(uuid, &device)) return -1;
    nvmlReturn_t result = VGPU_CALL(nvmlDeviceGetIndex, device, &index);
    end();
    return result == NVML_SUCCESS && index < 1024 ? (int)index : -1;
}

/* --- utilisation ------------------------------------------------------------------------ */

#define NEAR (100 * VGPU_SEC)

static struct watched {
    bool open, known; /* known: our own pids were among NVML's once */
    nvmlDevice_t device;
    unsigned long long seen_us;
    int64_t retry, other_at; /* other_at: when NVML last showed another process */
    int64_t period;          /* between two samples */
    int splits;              /* samples that showed us and another at one time */
} watched[VGPU_MAX_DEVICES];

/* Some drivers give the whole of a sample's use to one process, now this one and now that (an
 * H200 with driver 580 does): alone that is right, beside a neighbour it is the toss of a coin.
 * So a driver must have shown that it divides a sample before it is believed there. */
#define SPLITS 2
#define BUSY 3 /* percent */

static void look_for_split(struct watched *w, const nvmlProcessUtilizationSample_t *samples,
                           const bool *own, unsigned int count) {
    for (unsigned int i = 0; i < count && w->splits < SPLITS; i++)
        for (unsigned int j = 0; own[i] && samples[i].sm >= BUSY && j < count; j++)
            if (!own[j] && samples[j].time_us == samples[i].time_us && samples[j].sm >= BUSY &&
                samples[i].sm + samples[j].sm <= 102) {
                w->splits++;
                break;
            }
}

/* NVML's time stamps are of the node's wall clock; a driver may have them of another. */
static bool monotonic(unsigned long long us, int64_t now, int64_t *ns) {
    int64_t time = (int64_t)us * 1000, real = vgpu_clock_real();
    if (time > real - NEAR && time < real + NEAR) time -= real - now;
    else if (time < now - NEAR || time > now + NEAR) return false;
    *ns = time;
    return true;
}

struct samples {
    nvmlProcessUtilizationSample_t of[MOST];
    bool own[MOST];
};

struct summed {
    unsigned long long newest_us;
    double own, other;
};

/* What NVML tells since the last look, summed; false where it tells nothing. */
static bool sum(struct watched *w, struct samples *samples,
                bool (*ours)(unsigned int pid, void *data), void *data, struct summed *summed) {
    unsigned int count = MOST;
    nvmlReturn_t result =
        VGPU_CALL(nvmlDeviceGetProcessUtilization, w->device, samples->of, &count, w->seen_us);
    if (result == NVML_ERROR_NOT_FOUND) count = 0;
    else if (result != NVML_SUCCESS) return false;
    if (count > MOST) count = MOST;
    for (unsigned int i = 0; i < count; i++) {
        const nvmlProcessUtilizationSample_t *sample = &samples->of[i];
        if (sample->time_us > summed->newest_us) summed->newest_us = sample->time_us;
        if (sample->sm > 100) continue; /* seen in the field */
        samples->own[i] = ours(sample->pid, data);
        w->known |= samples->own[i];
        *(samples->own[i] ? &summed->own : &summed->other) += sample->sm / 100.0;
    }
    look_for_split(w, samples->of, samples->own, count);
    return true;
}

bool vgpu_nvml_usage(int entry, const char *uuid, bool (*ours)(unsigned int pid, void *data),
                     void *data, bool beside, struct vgpu_usage *usage, int64_t now) {
    struct watched *w = &watched[entry];
    if (uuid[0] == '\0' || now < w->retry || VGPU_REAL(nvmlDeviceGetProcessUtilization) == NULL)
        return false;
    if (!w->open) { /* kept open: to begin anew costs more than a launch may wait */
        w->open = begin(uuid, &w->device);
        if (!w->open) {
            w->retry = now + 10 * VGPU_SEC;
            return false;
        }
    }
    struct samples *samples = vgpu_scratch(sizeof *samples);
    if (samples == NULL) return false;
    struct summed summed = {.own = 0};
    bool told = sum(w, samples, ours, data, &summed);
    vgpu_unmap(samples, sizeof *samples);
    if (!told) {
        w->retry = now + 10 * VGPU_SEC;
        return false;
    }
    if (summed.other > 0.02) w->other_at = now;
    unsigned long long before = w->seen_us, newest = summed.newest_us;
    if (newest <= before) return false; /* nobody was active, or nothing is new */
    w->seen_us = newest;
    if (before == 0 || !w->known || !monotonic(before, now, &usage->from) ||
        !monotonic(newest, now, &usage->until) || usage->until > now)
        return false;
    usage->from = usage->until - vgpu_nvml_interval(usage->until - usage->from, &w->period);
    beside |= w->other_at != 0 && now - w->other_at < 2 * VGPU_SEC;
    if (beside && w->splits < SPLITS) return false;
    usage->own = summed.own < 1 ? summed.own : 1;
    usage->other = summed.other < 1 ? summed.other : 1;
    return true;
}
