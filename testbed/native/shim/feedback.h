/* What NVML says of this container's use of a device: by the monitor, which sees every
 * process of the node, else by NVML in the container. */
#ifndef VGPU_SHIM_FEEDBACK_H
#define VGPU_SHIM_FEEDBACK_H

#include <stdbool.h>

#include "ledger.h"

struct vgpu_place;

/* The newest sample, if it is new to this process. `beside`: others are at work on the card. */
bool vgpu_feedback(struct vgpu_place *place, bool beside, struct vgpu_usage *usage, int64_t now);

#endif
