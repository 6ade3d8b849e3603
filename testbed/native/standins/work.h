/* Work of known cost on the emulated card: what a stand-in launches instead of a kernel.
 *
 * A launch goes through the public driver API, found as any program finds it (dlopen,
 * dlsym, cuGetProcAddress), so that a preloaded library sees an ordinary kernel launch.
 * The kernels are of an image that the emulated driver knows as its own:
 *
 *     VGPU-EMULATED-KERNELS 1
 *     <name> work
 *
 * with the parameters uint64 flops, uint64 bytes, uint32 precision, and lasting
 * max(flops / rate of the precision, bytes / memory bandwidth) and the launch overhead.
 * Nothing is computed: outputs keep what was in their memory.
 */
#ifndef VGPU_WORK_H
#define VGPU_WORK_H

#include "vendor.h"

enum precision {
    PRECISION_FP32,
    PRECISION_TF32,
    PRECISION_FP16, /* and bf16 */
    PRECISION_FP64,
    PRECISION_INT8, /* and fp8 */
    PRECISIONS
};

enum work_kind { WORK_MATMUL, WORK_CONVOLUTION, WORK_MEMORY, WORK_KINDS };

struct work {
    enum work_kind kind;
    enum precision precision;
    uint64_t flops, bytes;
    uint64_t blocks; /* of the launch: what whoever watches launches sees of the size … */
    uint64_t depth;  /* … and, in the kernel's name, its power of two: products per output */
};

/* Finds the driver and gives it the image, once. CUDA_SUCCESS, or the driver's result. */
CUresult work_ready(void);

/* Launches in the calling thread's context. Work without any flop and byte is none. */
CUresult work_launch(const struct work *work, CUstream stream);

#endif
