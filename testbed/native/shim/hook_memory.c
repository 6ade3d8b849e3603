/* Plain device memory: cuMemAlloc, cuMemAllocPitch, cuMemAllocManaged, cuMemFree. */
#include "charge.h"
#include "device.h"
#include "lookup.h"
#include "oversubscribe.h"
#include "pools.h"

/* After the driver's answer: remembers the pointer, or gives the charge back. What
 * cannot be remembered is freed again, so that nothing is held uncounted. */
static CUresult conclude(CUresult result, CUdeviceptr ptr, int entry, struct vgpu_cost cost,
                         CUcontext ctx) {
    if (result == CUDA_SUCCESS && vgpu_keep(VGPU_POINTER, ptr, entry, cost, ctx)) return result;
    if (result == CUDA_SUCCESS) {
        VGPU_CALL(cuMemFree_v2, ptr);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    vgpu_give(entry, cost);
    return result;
}

CUresult cuMemAlloc_v2(CUdeviceptr *ptr, size_t bytes) {
    int entry;
    CUcontext ctx;
    if (ptr == NULL || bytes == 0 || !vgpu_active() || !vgpu_current(&entry, &ctx))
        return VGPU_CALL(cuMemAlloc_v2, ptr, bytes);
    struct vgpu_cost cost = vgpu_cost_of(bytes);
    if (!vgpu_take(entry, cost, "allocation", bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = vgpu_or_managed(VGPU_CALL(cuMemAlloc_v2, ptr, bytes), ptr, bytes);
    return conclude(result, result == CUDA_SUCCESS ? *ptr : 0, entry, cost, ctx);
}

CUresult cuMemAlloc(CUdeviceptr_v1 *ptr, unsigned int bytes) {
    int entry;
    CUcontext ctx;
    if (ptr == NULL || bytes == 0 || !vgpu_active() || !vgpu_current(&entry, &ctx))
        return VGPU_CALL(cuMemAlloc, ptr, bytes);
    struct vgpu_cost cost = vgpu_cost_of(bytes);
    if (!vgpu_take(entry, cost, "allocation", bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = VGPU_CALL(cuMemAlloc, ptr, bytes);
    return conclude(result, result == CUDA_SUCCESS ? *ptr : 0, entry, cost, ctx);
}

/* Counted in full when made: where its pages are is the driver's to move. */
CUresult cuMemAllocManaged(CUdeviceptr *ptr, size_t bytes, unsigned int flags) {
    int entry;
    CUcontext ctx;
    if (ptr == NULL || bytes == 0 || !vgpu_active() || !vgpu_current(&entry, &ctx))
        return VGPU_CALL(cuMemAllocManaged, ptr, bytes, flags);
    struct vgpu_cost cost = vgpu_cost_of(bytes);
    if (!vgpu_take(entry, cost, "managed allocation", bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = VGPU_CALL(cuMemAllocManaged, ptr, bytes, flags);
    return conclude(result, result == CUDA_SUCCESS ? *ptr : 0, entry, cost, ctx);
}

/* Rows are aligned by the driver, to 512 bytes on every card that we know of: charge
 * that first, and correct it by the pitch that the driver chose. */
#define PITCH_ALIGNMENT 512ull

static uint64_t row_of(uint64_t width) {
    return (width + PITCH_ALIGNMENT - 1) & ~(PITCH_ALIGNMENT - 1);
}

static uint64_t pitched(uint64_t width, uint64_t height) {
    uint64_t row = row_of(width), bytes;
    return row < width || __builtin_mul_overflow(row, height, &bytes) ? UINT64_MAX / 2 : bytes;
}

static CUresult correct(CUresult result, CUdeviceptr ptr, uint64_t bytes, int entry,
                        struct vgpu_cost cost, CUcontext ctx) {
    if (result != CUDA_SUCCESS) return conclude(result, 0, entry, cost, ctx);
    struct vgpu_cost actual = vgpu_cost_of(bytes);
    if (actual.large == cost.large && actual.small == cost.small)
        return conclude(result, ptr, entry, cost, ctx);
    if (!vgpu_retake(entry, cost, actual, "pitched allocation", bytes)) {
        VGPU_CALL(cuMemFree_v2, ptr);
        vgpu_give(entry, cost);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return conclude(result, ptr, entry, actual, ctx);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *ptr, size_t *pitch, size_t width, size_t height,
                            unsigned int element) {
    int entry;
    CUcontext ctx;
    if (ptr == NULL || pitch == NULL || width == 0 || height == 0 || !vgpu_active() ||
        !vgpu_current(&entry, &ctx))
        return VGPU_CALL(cuMemAllocPitch_v2, ptr, pitch, width, height, element);
    uint64_t bytes = pitched(width, height);
    struct vgpu_cost cost = vgpu_cost_of(bytes);
    if (!vgpu_take(entry, cost, "pitched allocation", bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = VGPU_CALL(cuMemAllocPitch_v2, ptr, pitch, width, height, element);
    if (vgpu_beyond(result)) {
        result = vgpu_or_managed(result, ptr, bytes);
        if (result == CUDA_SUCCESS) *pitch = row_of(width);
    }
    bool made = result == CUDA_SUCCESS;
    return correct(result, made ? *ptr : 0, made ? *pitch * height : 0, entry, cost, ctx);
}

CUresult cuMemAllocPitch(CUdeviceptr_v1 *ptr, unsigned int *pitch, unsigned int width,
                         unsigned int height, unsigned int element) {
    int entry;
    CUcontext ctx;
    if (ptr == NULL || pitch == NULL || width == 0 || height == 0 || !vgpu_active() ||
        !vgpu_current(&entry, &ctx))
        return VGPU_CALL(cuMemAllocPitch, ptr, pitch, width, height, element);
    uint64_t bytes = pitched(width, height);
    struct vgpu_cost cost = vgpu_cost_of(bytes);
    if (!vgpu_take(entry, cost, "pitched allocation", bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = VGPU_CALL(cuMemAllocPitch, ptr, pitch, width, height, element);
    bool made = result == CUDA_SUCCESS;
    return correct(result, made ? *ptr : 0, made ? (uint64_t)*pitch * height : 0, entry, cost,
                   ctx);
}

/* A pointer that we do not know is the driver's business: imported memory, or a pool's,
 * whose size then has changed. */
static CUresult concluded_free(CUresult result, bool known, const struct vgpu_item *item) {
    if (known) vgpu_settle(VGPU_POINTER, item, result);
    else if (result == CUDA_SUCCESS) vgpu_pools_freed();
    return result;
}

CUresult cuMemFree_v2(CUdeviceptr ptr) {
    struct vgpu_item item;
    bool known = vgpu_lift(VGPU_POINTER, ptr, &item);
    return concluded_free(VGPU_CALL(cuMemFree_v2, ptr), known, &item);
}

CUresult cuMemFree(CUdeviceptr_v1 ptr) {
    struct vgpu_item item;
    bool known = vgpu_lift(VGPU_POINTER, ptr, &item);
    return concluded_free(VGPU_CALL(cuMemFree, ptr), known, &item);
}
