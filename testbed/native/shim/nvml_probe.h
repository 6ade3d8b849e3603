/* What NVML says about this process and its card, for what the driver API does not
 * tell (the cost of a context, the order of cards). Absent NVML is no error. */
#ifndef VGPU_SHIM_NVML_PROBE_H
#define VGPU_SHIM_NVML_PROBE_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger.h"

struct vgpu_sample {
    bool own_known; /* the process list is readable; own_bytes is 0 where we are not in it */
    uint64_t own_bytes;
    bool used_known;
    uint64_t used_bytes; /* of the whole card */
};

struct vgpu_sample vgpu_nvml_sample(const char *uuid);
int vgpu_nvml_index(const char *uuid); /* -1 = not known */

#define VGPU_NVML_LONGEST VGPU_SEC    /* between two samples (nvml.h: 1/6 s to 1 s) */
#define VGPU_NVML_SHORTEST (20 * VGPU_MS)

/* The interval (ns) that a sample is of, which NVML does not tell: the gap since the newest one
 * before, but for samples in between that nobody asked for: of each process the newest alone is told,
 * and a program that launches nothing for a second does not ask. Taken for the whole gap, its use in
 * the last sixth would be charged six times. `period`: the least gap so far, 0 at first. */
static inline int64_t vgpu_nvml_interval(int64_t gap, int64_t *period) {
    if (*period == 0) *period = VGPU_NVML_LONGEST;
    if (gap >= VGPU_NVML_SHORTEST && gap < *period) *period = gap;
    return gap > *period * 3 / 2 ? *period : gap;
}

/* NVML's newest utilisation of a device's processes, told apart by `ours`. False where NVML
 * tells none, or not of processes that this container knows by pid (then it counts in
 * another PID namespace), or divides no sample between processes and others are at work
 * (`beside`, or NVML showed one). `entry` numbers what is remembered between calls. */
bool vgpu_nvml_usage(int entry, const char *uuid, bool (*ours)(unsigned int pid, void *data),
                     void *data, bool beside, struct vgpu_usage *usage, int64_t now);

#endif
