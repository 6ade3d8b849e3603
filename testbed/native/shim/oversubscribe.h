/* A limit above the card's memory: what the card has no room for lies elsewhere, where the
 * driver moves it or the device reaches it, and counts against the limit all the same. */
#ifndef VGPU_SHIM_OVERSUBSCRIBE_H
#define VGPU_SHIM_OVERSUBSCRIBE_H

#include <stdbool.h>

#include "hooks.h"

/* Whether the driver's answer says that the card is full, and the limit may be beyond it. */
bool vgpu_beyond(CUresult result);

/* The driver's answer, or managed memory where that was "full" and the limit is beyond it. */
CUresult vgpu_or_managed(CUresult result, CUdeviceptr *ptr, size_t bytes);

/* Managed memory of the current context, charged and remembered as a pointer of its own:
 * for what was asked of a pool. */
CUresult vgpu_allocate_managed(CUdeviceptr *ptr, size_t bytes, int entry);

bool vgpu_is_managed(CUdeviceptr ptr);

#endif
