/* What the driver takes on the card for itself while a call runs, beside what the call asks
 * for. No call tells it, so the most is charged before and what was measured afterwards. */
#ifndef VGPU_SHIM_GROWTH_H
#define VGPU_SHIM_GROWTH_H

#include "cuda_abi.h"
#include "nvml_probe.h"

/* Measured on an H200 (driver 580): 70 MiB with PyTorch's first streams, in no pool and not of
 * the context. */
#define VGPU_MOST_GROWTH (72ull << 20)

/* So near to the limit NVML is asked (a millisecond or two): above what a driver was seen to take
 * at a time, far below what it takes in all. */
#define VGPU_NEAR (256ull << 20)

struct vgpu_growth {
    bool watched;
    int entry;
    CUdevice device;
    uint64_t charged, held;
    struct vgpu_sample before;
};

/* Around the first stream-ordered allocation of a device; before and after, nothing happens.
 * False = the most that it may take does not fit. */
bool vgpu_growth_begin(struct vgpu_growth *growth, int entry, CUdevice device);
void vgpu_growth_cancel(struct vgpu_growth *growth); /* the call is not made */
void vgpu_growth_end(struct vgpu_growth *growth, CUresult result);

/* Compares what NVML counts for this process with what it counted itself, where `bytes` more
 * come near to the limit: streams, code and heaps take memory that no call tells. Nothing
 * happens where NVML does not know this process: there the monitor's readings count. True = the
 * driver has taken more than was known. */
bool vgpu_growth_look(int entry, uint64_t bytes);

#endif
