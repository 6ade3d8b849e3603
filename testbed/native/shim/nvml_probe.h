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

/* NVML's newest utilisation of a device's processes, told apart by `ours`. False where NVML
 * tells none, or not of processes that this container knows by pid (then it counts in
 * another PID namespace), or divides no sample between processes and others are at work
 * (`beside`, or NVML showed one). `entry` numbers what is remembered between calls. */
bool vgpu_nvml_usage(int entry, const char *uuid, bool (*ours)(unsigned int pid, void *data),
                     void *data, bool beside, struct vgpu_usage *usage, int64_t now);

#endif
