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

static const char fill[] = "fill", copy[] = "copy";

#define PASSING(kind, bytes, stream, per_thread, call)                                             \
    do {                                                                                           \
        if ((bytes) < LARGE) return call;                                                          \
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
