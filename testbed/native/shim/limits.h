/* What this container may use: a copy, so that whoever spoils the shared file or the
 * environment changes nothing in a running process. The limits (not the devices) are taken
 * anew when the region's constant part was changed as a whole, checksum and all. */
#ifndef VGPU_SHIM_LIMITS_H
#define VGPU_SHIM_LIMITS_H

#include <stdbool.h>
#include <stdint.h>

#include "region.h"

struct vgpu_limits {
    bool from_region;
    bool broken;   /* a region that should be there is not valid: refuse every allocation */
    bool enforced; /* something to count: a region, or a limit in the environment */
    uint32_t count;
    bool oversubscribe;
    bool oom_killer; /* ACTIVE_OOM_KILLER: who asks while the container is over its limit, ends */
    char uuids[VGPU_MAX_DEVICES][VGPU_UUID_BYTES]; /* empty = known by number only */
    uint64_t memory[VGPU_MAX_DEVICES];             /* bytes, 0 = none */
    uint32_t compute[VGPU_MAX_DEVICES];            /* percent, 0 or >= 100 = none */
    uint32_t policy;                               /* enum vgpu_policy */
    uint32_t priority;                             /* 0 = high */
    uint32_t floor; /* percent of a low priority beside a high one, 0 = none */
    uint64_t tenant; /* the container's id on card pages, 0 = it has none */
};

/* The limits of the environment (CUDA_DEVICE_MEMORY_LIMIT[_i], CUDA_DEVICE_SM_LIMIT[_i] and
 * what goes with them), for a container without a region. */
void vgpu_limits_from_environment(struct vgpu_limits *limits);

/* ACTIVE_OOM_KILLER, which holds beside a region too. */
void vgpu_killer_from_environment(struct vgpu_limits *limits);

/* The limits of a region's constant part (already validated). */
void vgpu_limits_from_constant(struct vgpu_limits *limits, const struct vgpu_constant *constant);

/* Those that can change while the container runs. */
void vgpu_memory_from_constant(struct vgpu_limits *limits, const struct vgpu_constant *constant);
void vgpu_compute_from_constant(struct vgpu_limits *limits, const struct vgpu_constant *constant);

/* "30720m", "2g", "512k", "1048576"; 0 = none. False where the text is not a size. */
bool vgpu_parse_size(const char *text, uint64_t *bytes);

#endif
