#include "oversubscribe.h"

#include "charge.h"
#include "device.h"
#include "lookup.h"

#define ATTACH_GLOBAL 1

bool vgpu_beyond(CUresult result) {
    if (result != CUDA_ERROR_OUT_OF_MEMORY || !vgpu_enter()) return false;
    bool beyond = vgpu_oversubscribed();
    vgpu_leave();
    return beyond;
}

CUresult vgpu_or_managed(CUresult result, CUdeviceptr *ptr, size_t bytes) {
    return vgpu_beyond(result) ? VGPU_CALL(cuMemAllocManaged, ptr, bytes, ATTACH_GLOBAL) : result;
}

CUresult vgpu_allocate_managed(CUdeviceptr *ptr, size_t bytes, int entry) {
    int current;
    CUcontext ctx;
    if (!vgpu_current(&current, &ctx) || current != entry) return CUDA_ERROR_OUT_OF_MEMORY;
    struct vgpu_cost cost = vgpu_cost_of(bytes);
    if (!vgpu_take(entry, cost, "managed allocation", bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = VGPU_CALL(cuMemAllocManaged, ptr, bytes, ATTACH_GLOBAL);
    if (result == CUDA_SUCCESS && vgpu_keep(VGPU_POINTER, *ptr, entry, cost, ctx)) return result;
    if (result == CUDA_SUCCESS) VGPU_CALL(cuMemFree_v2, *ptr);
    vgpu_give(entry, cost);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

bool vgpu_is_managed(CUdeviceptr ptr) {
    unsigned int managed = 0;
    return VGPU_CALL(cuPointerGetAttribute, &managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, ptr) ==
               CUDA_SUCCESS &&
           managed != 0;
}
