/* Which limit belongs to which of the program's devices. Called outside of the state. */
#ifndef VGPU_SHIM_DEVICE_H
#define VGPU_SHIM_DEVICE_H

#include <stdbool.h>

#include "hooks.h"

/* The entry of a CUDA device, by its uuid: CUDA_VISIBLE_DEVICES may have renumbered. */
int vgpu_device_entry(CUdevice dev);

/* The current context and its device's entry. False where no context is current. */
bool vgpu_current(int *entry, CUcontext *ctx);

/* The entry of a stream's device (NULL and the two default handles: the current one). */
bool vgpu_stream_entry(CUstream stream, int *entry, CUdevice *dev);

/* The entry of a device of NVML's. */
int vgpu_nvml_entry(nvmlDevice_t device);

/* The uuid of an entry's device, of those that were met so far. */
bool vgpu_entry_uuid(int entry, char text[64]);

/* uuid as NVML writes it, "GPU-" and 36 characters. */
bool vgpu_device_uuid(CUdevice dev, char text[64]);

#endif
