/* How long a piece of work takes on a card that has nothing else to do. Pure. */
#ifndef VGPU_EMU_DURATION_H
#define VGPU_EMU_DURATION_H

#include "card.h"

enum kernel_model {
    MODEL_GEOMETRY = 0, /* by grid and block: nothing else is known of the kernel */
    MODEL_CYCLES,       /* one parameter: int64, cycles of the SM clock (torch.cuda._sleep) */
    MODEL_SPIN,         /* one parameter: uint64, ns */
    MODEL_WORK,         /* uint64 flops, uint64 bytes, uint32 precision */
};

enum precision { PRECISION_FP32, PRECISION_TF32, PRECISION_FP16, PRECISION_FP64, PRECISION_INT8 };

/* What a launch says. */
struct cost {
    enum kernel_model model;
    uint64_t amount; /* CYCLES: cycles; SPIN: ns; WORK: flops */
    uint64_t bytes;
    uint32_t precision;
    uint32_t threads; /* of a block */
    uint64_t blocks;
    uint32_t shared_bytes; /* of a block */
};

struct duration {
    uint64_t ns;
    uint32_t width; /* part of the device that it fills, of 65536 */
};

/* Blocks of that size that one SM holds at a time: by threads (in whole warps), blocks and
 * shared memory (CUDA C++ Programming Guide, "Maximize Utilization"; registers are not
 * known); 0: none fits. */
uint32_t blocks_per_sm(const struct card_description *card, uint32_t threads,
                       uint64_t shared_bytes);

/* Kernels. Geometry: launch overhead + the longer of its waves of blocks (each of
 * WAVE_CYCLES, assumed) and its memory traffic (BYTES_A_THREAD, assumed: an element-wise
 * kernel of PyTorch reads and writes four floats a thread). */
struct duration kernel_duration(const struct card_description *card, const struct cost *cost);

enum copy_kind { COPY_HOST_DEVICE, COPY_DEVICE_DEVICE, COPY_FILL };

/* Copies and memsets: overhead + bytes / bandwidth; within the device what is read and
 * what is written both count. */
uint64_t copy_duration_ns(const struct card_description *card, enum copy_kind kind,
                          uint64_t bytes);

#endif
