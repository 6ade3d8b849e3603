/* What operations cost: see cost.h. Pure. */
#include "cost.h"

#include <stddef.h>

#define TILE 128       /* rows and columns of C that one block makes */
#define PER_BLOCK 1024 /* elements that one block moves */

uint64_t times(uint64_t a, uint64_t b)
{
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) ? UINT64_MAX : product;
}

uint64_t plus(uint64_t a, uint64_t b)
{
    uint64_t sum;
    return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

unsigned int blas_bits(int type)
{
    switch (type) {
    case CUDA_R_4I:
    case CUDA_R_4U:
    case CUDA_R_4F_E2M1:
        return 4;
    case CUDA_R_8I:
    case CUDA_R_8U:
    case CUDA_R_8F_E4M3:
    case CUDA_R_8F_E5M2:
    case CUDA_R_8F_UE8M0:
    case CUDA_R_6F_E2M3: /* kept in bytes */
    case CUDA_R_6F_E3M2:
        return 8;
    case CUDA_R_16F:
    case CUDA_R_16BF:
    case CUDA_C_8I:
        return 16;
    case CUDA_R_32F:
    case CUDA_R_32I:
    case CUDA_C_16F:
    case CUDA_C_16BF:
        return 32;
    case CUDA_R_64F:
    case CUDA_R_64I:
    case CUDA_C_32F:
        return 64;
    case CUDA_C_64F:
        return 128;
    default:
        return 0;
    }
}

bool blas_complex(int type)
{
    return type == CUDA_C_32F || type == CUDA_C_64F || type == CUDA_C_16F || type == CUDA_C_16BF ||
           type == CUDA_C_8I;
}

unsigned int dnn_bits(int type)
{
    switch (type) {
    case CUDNN_DATA_FP4_E2M1:
        return 4;
    case CUDNN_DATA_INT8:
    case CUDNN_DATA_UINT8:
    case CUDNN_DATA_BOOLEAN:
    case CUDNN_DATA_FP8_E4M3:
    case CUDNN_DATA_FP8_E5M2:
    case CUDNN_DATA_FP8_E8M0:
        return 8;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
        return 16;
    case CUDNN_DATA_FLOAT:
    case CUDNN_DATA_INT32:
        return 32;
    case CUDNN_DATA_DOUBLE:
    case CUDNN_DATA_INT64:
        return 64;
    default:
        return 0;
    }
}

enum precision blas_precision(int type, int compute, int math)
{
    switch (type) {
    case CUDA_R_64F:
    case CUDA_C_64F:
        return PRECISION_FP64;
    case CUDA_R_32F:
    case CUDA_C_32F:
        break;
    default:
        return blas_bits(type) == 16 || blas_complex(type) ? PRECISION_FP16 : PRECISION_INT8;
    }
    switch (compute) {
    case CUBLAS_COMPUTE_32F_FAST_16F:
    case CUBLAS_COMPUTE_32F_FAST_16BF:
        return PRECISION_FP16;
    case CUBLAS_COMPUTE_32F_FAST_TF32:
        return PRECISION_TF32;
    case CUBLAS_COMPUTE_32F:
        return (math & (CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION - 1)) ==
                       CUBLAS_TF32_TENSOR_OP_MATH
                   ? PRECISION_TF32
                   : PRECISION_FP32;
    default:
        return PRECISION_FP32;
    }
}

enum precision dnn_precision(int type, bool tensor_cores)
{
    switch (type) {
    case CUDNN_DATA_DOUBLE:
        return PRECISION_FP64;
    case CUDNN_DATA_HALF:
    case CUDNN_DATA_BFLOAT16:
        return PRECISION_FP16;
    case CUDNN_DATA_INT8:
    case CUDNN_DATA_UINT8:
    case CUDNN_DATA_FP8_E4M3:
    case CUDNN_DATA_FP8_E5M2:
    case CUDNN_DATA_FP4_E2M1:
        return PRECISION_INT8;
    default:
        return tensor_cores ? PRECISION_TF32 : PRECISION_FP32;
    }
}

static uint64_t bytes_of(uint64_t elements, unsigned int bits)
{
    return times(elements, bits) / 8;
}

static uint64_t tiles(uint64_t elements, uint64_t tile)
{
    return elements / tile + (elements % tile != 0);
}

struct work product_work(const struct product *p, enum precision precision)
{
    uint64_t outputs = times(times(p->m, p->n), p->batch);
    struct work work = {.kind = WORK_MATMUL, .precision = precision, .depth = p->k};
    if (outputs == 0)
        return work;
    work.flops = times(times(outputs, p->k), blas_complex(p->a_type) ? 8 : 2);
    work.bytes = bytes_of(times(times(p->m, p->k), p->share_a ? 1 : p->batch),
                          blas_bits(p->a_type));
    work.bytes = plus(work.bytes, bytes_of(times(times(p->k, p->n), p->share_b ? 1 : p->batch),
                                           blas_bits(p->b_type)));
    work.bytes = plus(work.bytes,
                      times(bytes_of(outputs, blas_bits(p->c_type)), p->read_c ? 2 : 1));
    work.blocks = times(times(tiles(p->m, TILE), tiles(p->n, TILE)), p->batch);
    return work;
}

struct work triangle_work(uint64_t order, uint64_t columns, uint64_t batch, int type)
{
    uint64_t square = times(times(order, order), batch);
    uint64_t sides = times(times(order, columns), batch);
    return (struct work){
        .kind = WORK_MATMUL,
        .precision = blas_precision(type, CUBLAS_COMPUTE_32F, CUBLAS_DEFAULT_MATH),
        .flops = times(times(square, columns), blas_complex(type) ? 4 : 1),
        .bytes = plus(bytes_of(square, blas_bits(type)) / 2,
                      times(bytes_of(sides, blas_bits(type)), 2)),
        .blocks = times(times(tiles(order, TILE), tiles(columns, TILE)), batch),
        .depth = order,
    };
}

struct work vector_work(uint64_t n, unsigned int flops, unsigned int moved, int type)
{
    return (struct work){
        .kind = WORK_MEMORY,
        /* Vectors are not for tensor cores. */
        .precision = type == CUDA_R_64F || type == CUDA_C_64F ? PRECISION_FP64 : PRECISION_FP32,
        .flops = times(times(n, flops), blas_complex(type) ? 4 : 1),
        .bytes = bytes_of(times(n, moved), blas_bits(type)),
        .blocks = tiles(n, PER_BLOCK),
    };
}

struct work memory_work(uint64_t bytes)
{
    return (struct work){
        .kind = WORK_MEMORY,
        .precision = PRECISION_FP32,
        .bytes = bytes,
        .blocks = tiles(bytes, PER_BLOCK * sizeof(float)),
    };
}
