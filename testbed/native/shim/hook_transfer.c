/* Large fills and copies within the device's memory: no kernels, but they take its time, so
 * from 1 MiB on they pass like launches. Host copies use engines of their own and do not. */
#include "lookup.h"
#include "throttle.h"

#define LARGE (1u << 20)

/* Costs of the same kind grow with the bytes: one key for an eighth of a power of two. */
static uint64_t size_key(const char *kind, size_t bytes) {
    unsigned exponent = 63 - (unsigned)__builtin_clzll((unsigned long long)bytes | 1);
    unsigned eighth = exponent >= 3 ? (unsigned)(bytes >> (exponent - 3) & 7) : 0;
    return vgpu_work_key(&(struct vgpu_work){.what = kind, .grid = {exponent, eighth, 0}});
}

/* Not one: rows and arrays cost more a byte than a block of memory does. */
static const char fill[] = "fill", copy[] = "copy", rows[] = "rows", array[] = "array";

#define PASSING(kind, bytes, stream, per_thread, call)                                             \
    do {                                                                                           \
        if ((bytes) < LARGE || vgpu_throttle_passes()) return call;                                                     \
        struct vgpu_throttle throttle;                                                             \
        vgpu_throttle_enter(&throttle, size_key(kind, bytes), stream, per_thread);                 \
        CUresult result = call;                                                                    \
        vgpu_throttle_leave(&throttle, result);                                                    \
        return result;                                                                             \
    } while (0)

static size_t product(size_t a, size_t b) {
    size_t result;
    return __builtin_mul_overflow(a, b, &result) ? SIZE_MAX : result;
}

#define FILL(symbol, type, size, per_thread)                                                       \
    CUresult symbol(CUdeviceptr ptr, type value, size_t n) {                                       \
        PASSING(fill, product(n, size), NULL, per_thread, VGPU_CALL(symbol, ptr, value, n));       \
    }
#define FILL_ASYNC(symbol, type, size, per_thread)                                                 \
    CUresult symbol(CUdeviceptr ptr, type value, size_t n, CUstream stream) {                      \
        PASSING(fill, product(n, size), stream, per_thread,                                        \
                VGPU_CALL(symbol, ptr, value, n, stream));                                         \
    }
#define FILL_2D(symbol, type, size, per_thread)                                                    \
    CUresult symbol(CUdeviceptr ptr, size_t pitch, type value, size_t width, size_t height) {      \
        PASSING(fill, product(product(width, size), height), NULL, per_thread,                     \
                VGPU_CALL(symbol, ptr, pitch, value, width, height));                              \
    }
#define FILL_2D_ASYNC(symbol, type, size, per_thread)                                              \
    CUresult symbol(CUdeviceptr ptr, size_t pitch, type value, size_t width, size_t height,        \
                    CUstream stream) {                                                             \
        PASSING(fill, product(product(width, size), height), stream, per_thread,                   \
                VGPU_CALL(symbol, ptr, pitch, value, width, height, stream));                      \
    }
#define FILLS(bits, type, size)                                                                    \
    FILL(cuMemsetD##bits##_v2, type, size, false)                                                  \
    FILL(cuMemsetD##bits##_v2_ptds, type, size, true)                                              \
    FILL_ASYNC(cuMemsetD##bits##Async, type, size, false)                                          \
    FILL_ASYNC(cuMemsetD##bits##Async_ptsz, type, size, true)                                      \
    FILL_2D(cuMemsetD2D##bits##_v2, type, size, false)                                             \
    FILL_2D(cuMemsetD2D##bits##_v2_ptds, type, size, true)                                         \
    FILL_2D_ASYNC(cuMemsetD2D##bits##Async, type, size, false)                                     \
    FILL_2D_ASYNC(cuMemsetD2D##bits##Async_ptsz, type, size, true)
FILLS(8, unsigned char, 1)
FILLS(16, unsigned short, 2)
FILLS(32, unsigned int, 4)

#define COPY(symbol, per_thread)                                                                   \
    CUresult symbol(CUdeviceptr to, CUdeviceptr from, size_t bytes) {                              \
        PASSING(copy, bytes, NULL, per_thread, VGPU_CALL(symbol, to, from, bytes));                \
    }
#define COPY_ASYNC(symbol, per_thread)                                                             \
    CUresult symbol(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {             \
        PASSING(copy, bytes, stream, per_thread, VGPU_CALL(symbol, to, from, bytes, stream));      \
    }
COPY(cuMemcpyDtoD_v2, false)
COPY(cuMemcpyDtoD_v2_ptds, true)
COPY_ASYNC(cuMemcpyDtoDAsync_v2, false)
COPY_ASYNC(cuMemcpyDtoDAsync_v2_ptsz, true)

/* Copies whose direction the pointers tell. */
static bool on_device(CUdeviceptr ptr) {
    unsigned int type = 0;
    return VGPU_CALL(cuPointerGetAttribute, &type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, ptr) ==
               CUDA_SUCCESS &&
           type == CU_MEMORYTYPE_DEVICE;
}

static size_t counted(CUdeviceptr to, CUdeviceptr from, size_t bytes) {
    return bytes >= LARGE && on_device(to) && on_device(from) ? bytes : 0;
}

#define ANY_COPY(symbol, per_thread)                                                               \
    CUresult symbol(CUdeviceptr to, CUdeviceptr from, size_t bytes) {                              \
        size_t large = counted(to, from, bytes);                                                   \
        PASSING(copy, large, NULL, per_thread, VGPU_CALL(symbol, to, from, bytes));                \
    }
#define ANY_COPY_ASYNC(symbol, per_thread)                                                         \
    CUresult symbol(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {             \
        size_t large = counted(to, from, bytes);                                                   \
        PASSING(copy, large, stream, per_thread, VGPU_CALL(symbol, to, from, bytes, stream));      \
    }
ANY_COPY(cuMemcpy, false)
ANY_COPY(cuMemcpy_ptds, true)
ANY_COPY_ASYNC(cuMemcpyAsync, false)
ANY_COPY_ASYNC(cuMemcpyAsync_ptsz, true)

/* Planes and blocks, between linear memory and arrays: the device's work where both ends
 * lie on it. */
static bool end_on_device(int type, CUdeviceptr ptr) {
    return type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_ARRAY ||
           (type == CU_MEMORYTYPE_UNIFIED && on_device(ptr));
}

static size_t plane_bytes(const CUDA_MEMCPY2D *plane) {
    size_t bytes = plane == NULL ? 0 : product(plane->width_bytes, plane->height);
    return bytes >= LARGE && end_on_device(plane->from.type, plane->from.device) &&
                   end_on_device(plane->to.type, plane->to.device)
               ? bytes
               : 0;
}

static size_t block_bytes(const CUDA_MEMCPY3D *block) {
    size_t bytes = block == NULL ? 0
                                 : product(product(block->width_bytes, block->height), block->depth);
    return bytes >= LARGE && end_on_device(block->from.type, block->from.device) &&
                   end_on_device(block->to.type, block->to.device)
               ? bytes
               : 0;
}

#define SHAPED(symbol, type, bytes_of, per_thread)                                                 \
    CUresult symbol(const type *shape) {                                                           \
        size_t large = bytes_of(shape);                                                            \
        PASSING(rows, large, NULL, per_thread, VGPU_CALL(symbol, shape));                          \
    }
#define SHAPED_ASYNC(symbol, type, bytes_of, per_thread)                                           \
    CUresult symbol(const type *shape, CUstream stream) {                                          \
        size_t large = bytes_of(shape);                                                            \
        PASSING(rows, large, stream, per_thread, VGPU_CALL(symbol, shape, stream));                \
    }
SHAPED(cuMemcpy2D_v2, CUDA_MEMCPY2D, plane_bytes, false)
SHAPED(cuMemcpy2D_v2_ptds, CUDA_MEMCPY2D, plane_bytes, true)
SHAPED(cuMemcpy2DUnaligned_v2, CUDA_MEMCPY2D, plane_bytes, false)
SHAPED(cuMemcpy2DUnaligned_v2_ptds, CUDA_MEMCPY2D, plane_bytes, true)
SHAPED_ASYNC(cuMemcpy2DAsync_v2, CUDA_MEMCPY2D, plane_bytes, false)
SHAPED_ASYNC(cuMemcpy2DAsync_v2_ptsz, CUDA_MEMCPY2D, plane_bytes, true)
SHAPED(cuMemcpy3D_v2, CUDA_MEMCPY3D, block_bytes, false)
SHAPED(cuMemcpy3D_v2_ptds, CUDA_MEMCPY3D, block_bytes, true)
SHAPED_ASYNC(cuMemcpy3DAsync_v2, CUDA_MEMCPY3D, block_bytes, false)
SHAPED_ASYNC(cuMemcpy3DAsync_v2_ptsz, CUDA_MEMCPY3D, block_bytes, true)

/* Arrays lie on the device. */
#define ARRAYS(suffix, per_thread)                                                                 \
    CUresult cuMemcpyAtoA_v2##suffix(CUarray to, size_t to_offset, CUarray from,                   \
                                     size_t from_offset, size_t bytes) {                           \
        PASSING(array, bytes, NULL, per_thread,                                                    \
                VGPU_CALL(cuMemcpyAtoA_v2##suffix, to, to_offset, from, from_offset, bytes));      \
    }                                                                                              \
    CUresult cuMemcpyAtoD_v2##suffix(CUdeviceptr to, CUarray from, size_t offset, size_t bytes) {  \
        PASSING(array, bytes, NULL, per_thread,                                                    \
                VGPU_CALL(cuMemcpyAtoD_v2##suffix, to, from, offset, bytes));                      \
    }                                                                                              \
    CUresult cuMemcpyDtoA_v2##suffix(CUarray to, size_t offset, CUdeviceptr from, size_t bytes) {  \
        PASSING(array, bytes, NULL, per_thread,                                                    \
                VGPU_CALL(cuMemcpyDtoA_v2##suffix, to, offset, from, bytes));                      \
    }
ARRAYS(, false)
ARRAYS(_ptds, true)

/* Batches: one launch of all that lies on the device at both ends. */
static size_t sum_of(size_t a, size_t b) {
    size_t result;
    return __builtin_add_overflow(a, b, &result) ? SIZE_MAX : result;
}

static size_t batch_bytes(const CUdeviceptr *to, const CUdeviceptr *from, const size_t *bytes,
                          size_t count) {
    size_t all = 0, counted = 0;
    if (to == NULL || from == NULL || bytes == NULL) return 0;
    for (size_t i = 0; i < count; i++) all = sum_of(all, bytes[i]);
    if (all < LARGE) return 0; /* no need to ask where each of them lies */
    for (size_t i = 0; i < count; i++)
        if (on_device(to[i]) && on_device(from[i])) counted = sum_of(counted, bytes[i]);
    return counted;
}

/* Of an array the driver tells a texel's size by another call: this is the usual one, and decides
 * only from where on a copy is large. */
#define TEXEL 4

static size_t operation_bytes(const CUDA_MEMCPY3D_BATCH_OP *op) {
    bool arrays = op->from.type == CU_MEMCPY_OPERAND_TYPE_ARRAY ||
                  op->to.type == CU_MEMCPY_OPERAND_TYPE_ARRAY;
    return product(product(product(op->width, op->height), op->depth), arrays ? TEXEL : 1);
}

static bool operand_on_device(const CUmemcpy3DOperand *operand) {
    return operand->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ||
           (operand->type == CU_MEMCPY_OPERAND_TYPE_POINTER && on_device(operand->pointer.ptr));
}

static size_t operations_bytes(const CUDA_MEMCPY3D_BATCH_OP *list, size_t count) {
    size_t all = 0, counted = 0;
    if (list == NULL) return 0;
    for (size_t i = 0; i < count; i++) all = sum_of(all, operation_bytes(&list[i]));
    if (all < LARGE) return 0;
    for (size_t i = 0; i < count; i++)
        if (operand_on_device(&list[i].from) && operand_on_device(&list[i].to))
            counted = sum_of(counted, operation_bytes(&list[i]));
    return counted;
}

#define BATCHES(suffix, per_thread)                                                                \
    CUresult cuMemcpyBatchAsync##suffix(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,         \
                                        size_t count, void *attributes, size_t *indexes,           \
                                        size_t attribute_count, size_t *failed,                    \
                                        CUstream stream) {                                         \
        size_t large = batch_bytes(to, from, bytes, count);                                        \
        PASSING(copy, large, stream, per_thread,                                                   \
                VGPU_CALL(cuMemcpyBatchAsync##suffix, to, from, bytes, count, attributes, indexes, \
                          attribute_count, failed, stream));                                       \
    }                                                                                              \
    CUresult cuMemcpyBatchAsync_v2##suffix(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes,      \
                                           size_t count, void *attributes, size_t *indexes,        \
                                           size_t attribute_count, CUstream stream) {              \
        size_t large = batch_bytes(to, from, bytes, count);                                        \
        PASSING(copy, large, stream, per_thread,                                                   \
                VGPU_CALL(cuMemcpyBatchAsync_v2##suffix, to, from, bytes, count, attributes,       \
                          indexes, attribute_count, stream));                                      \
    }                                                                                              \
    CUresult cuMemcpy3DBatchAsync##suffix(size_t count, CUDA_MEMCPY3D_BATCH_OP *list,              \
                                          size_t *failed, unsigned long long flags,                \
                                          CUstream stream) {                                       \
        size_t large = operations_bytes(list, count);                                              \
        PASSING(rows, large, stream, per_thread,                                                   \
                VGPU_CALL(cuMemcpy3DBatchAsync##suffix, count, list, failed, flags, stream));      \
    }                                                                                              \
    CUresult cuMemcpy3DBatchAsync_v2##suffix(size_t count, CUDA_MEMCPY3D_BATCH_OP *list,           \
                                             unsigned long long flags, CUstream stream) {          \
        size_t large = operations_bytes(list, count);                                              \
        PASSING(rows, large, stream, per_thread,                                                   \
                VGPU_CALL(cuMemcpy3DBatchAsync_v2##suffix, count, list, flags, stream));           \
    }                                                                                              \
    CUresult cuMemcpyWithAttributesAsync##suffix(CUdeviceptr to, CUdeviceptr from, size_t bytes,   \
                                                 void *attributes, CUstream stream) {              \
        size_t large = counted(to, from, bytes);                                                   \
        PASSING(copy, large, stream, per_thread,                                                   \
                VGPU_CALL(cuMemcpyWithAttributesAsync##suffix, to, from, bytes, attributes,        \
                          stream));                                                                \
    }                                                                                              \
    CUresult cuMemcpy3DWithAttributesAsync##suffix(CUDA_MEMCPY3D_BATCH_OP *op,                     \
                                                   unsigned long long flags, CUstream stream) {    \
        size_t large = operations_bytes(op, 1);                                                    \
        PASSING(rows, large, stream, per_thread,                                                   \
                VGPU_CALL(cuMemcpy3DWithAttributesAsync##suffix, op, flags, stream));              \
    }
BATCHES(, false)
BATCHES(_ptsz, true)
