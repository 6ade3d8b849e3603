/* What the driver knows about a pointer. */
#include "driver.h"

#include <string.h>

static bool pinned(const struct range *range)
{
    return range->kind == RANGE_HOST || range->kind == RANGE_REGISTERED;
}

/* Writes the value; for an unknown pointer the value that means so, and an error. */
static CUresult get(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    const struct range *range = space_find(&memory, (uintptr_t)pointer);
    CUresult known = range != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT: {
        CUcontext context = range == NULL            ? NULL
                            : range->context != NULL ? range->context
                                                     : range->device->primary;
        *(CUcontext *)data = context;
        return known;
    }
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned int *)data = range == NULL   ? 0
                                : pinned(range) ? CU_MEMORYTYPE_HOST
                                                : CU_MEMORYTYPE_DEVICE;
        return known;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = range != NULL ? pointer : 0;
        return known;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER: {
        bool readable = range != NULL && (pinned(range) || range->kind == RANGE_MANAGED);
        *(void **)data = readable ? (void *)(uintptr_t)pointer : NULL;
        return readable ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    }
    case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        *(unsigned int *)data = range != NULL && range->kind == RANGE_MANAGED;
        return known;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = range != NULL ? range->device->ordinal : -2;
        return known;
    case CU_POINTER_ATTRIBUTE_BUFFER_ID:
    case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
        *(unsigned long long *)data = range != NULL ? range->id : 0;
        return known;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
    case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
        *(CUdeviceptr *)data = range != NULL ? range->start : 0;
        return known;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
    case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
        *(size_t *)data = range != NULL ? range->bytes : 0;
        return known;
    case CU_POINTER_ATTRIBUTE_MAPPED:
        *(unsigned int *)data = range != NULL;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
        *(unsigned int *)data = range == NULL                 ? 0
                                : range->kind == RANGE_MAPPED ? range->access
                                                              : CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return known;
    case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
        *(CUmemoryPool *)data =
            range != NULL && range->kind == RANGE_POOL ? pool_of(range) : NULL;
        return known;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(unsigned int *)data = range != NULL && range->kind == RANGE_DEVICE;
        return known;
    case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
    case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
    case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
        *(unsigned int *)data = 0;
        return known;
    case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
        *(unsigned long long *)data = 0;
        return known;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attribute, CUdeviceptr pointer)
{
    ENTER();
    if (data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    return get(data, attribute, pointer);
}

/* Unlike the single question, this one succeeds for unknown pointers. */
CUresult cuPointerGetAttributes(unsigned int count, CUpointer_attribute *attributes, void **data,
                                CUdeviceptr pointer)
{
    ENTER();
    if (attributes == NULL || data == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    for (unsigned int i = 0; i < count; i++)
        if (data[i] != NULL)
            get(data[i], attributes[i], pointer);
    return CUDA_SUCCESS;
}

CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attribute,
                               CUdeviceptr pointer)
{
    ENTER();
    if (value == NULL || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    return space_find(&memory, (uintptr_t)pointer) != NULL ? CUDA_SUCCESS
                                                           : CUDA_ERROR_INVALID_VALUE;
}
