/* The calls of stream-ordered allocation. */
#define _GNU_SOURCE
#include "pool.h"

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *pointer, size_t bytes, CUmemoryPool pool,
                                 CUstream handle)
{
    CURRENT();
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (!pool_valid(pool))
        return CUDA_ERROR_INVALID_VALUE;
    result = pool_allocate(pool, pointer, bytes, context);
    if (result == CUDA_SUCCESS && stream->state.capture != NULL)
        result = capture_record(
            stream, &(struct op){.kind = OP_ALLOC, .as.pointer = *pointer});
    return result;
}

CUresult cuMemAllocAsync(CUdeviceptr *pointer, size_t bytes, CUstream handle)
{
    ENTER();
    driver_lock();
    struct CUstream_st *stream;
    CUmemoryPool pool = NULL;
    CUresult result = stream_find(handle, &stream);
    if (result == CUDA_SUCCESS) {
        struct device *device = stream->state.context->device;
        if (pool_default(device) != NULL)
            pool = device->current_pool;
    }
    driver_unlock();
    return result == CUDA_SUCCESS ? cuMemAllocFromPoolAsync(pointer, bytes, pool, handle) : result;
}

CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream handle)
{
    CURRENT();
    struct CUstream_st *stream;
    CUresult result = stream_find(handle, &stream);
    if (result != CUDA_SUCCESS)
        return result;
    if (stream->state.capture != NULL)
        return capture_record(stream, &(struct op){.kind = OP_FREE, .as.pointer = pointer});
    return memory_free(pointer);
}

CUresult cuMemPoolCreate(CUmemoryPool *result, const CUmemPoolProps *properties)
{
    ENTER();
    if (result == NULL || properties == NULL ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    struct device *device = device_at(properties->location.id);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
        return CUDA_ERROR_NOT_SUPPORTED;
    LOCKED();
    CUmemoryPool pool = pool_make(device);
    if (pool == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    pool->max_bytes = properties->maxSize;
    *result = pool;
    return CUDA_SUCCESS;
}

CUresult cuMemPoolDestroy(CUmemoryPool pool)
{
    ENTER();
    LOCKED();
    if (!pool_valid(pool) || pool->is_default)
        return CUDA_ERROR_INVALID_VALUE;
    pool->destroyed = true;
    if (pool->device->current_pool == pool)
        pool->device->current_pool = pool->device->default_pool;
    pool_discard_if_done(pool);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    ENTER();
    LOCKED();
    if (!pool_valid(pool))
        return CUDA_ERROR_INVALID_VALUE;
    pool_trim(pool, keep);
    return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    ENTER();
    LOCKED();
    if (!pool_valid(pool) || value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        pool->reuse[attribute - 1] = *(const int *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
        pool->threshold = *(const cuuint64_t *)value;
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
        if (*(const cuuint64_t *)value != 0)
            return CUDA_ERROR_INVALID_VALUE;
        if (attribute == CU_MEMPOOL_ATTR_USED_MEM_HIGH)
            pool->used_high = pool->used;
        else
            pool->reserved_high = pool->reserved;
        return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolGetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value)
{
    ENTER();
    LOCKED();
    if (!pool_valid(pool) || value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    cuuint64_t *bytes = value;
    switch (attribute) {
    case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
    case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
        *(int *)value = pool->reuse[attribute - 1];
        return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD: *bytes = pool->threshold; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT: *bytes = pool->reserved; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH: *bytes = pool->reserved_high; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_CURRENT: *bytes = pool->used; return CUDA_SUCCESS;
    case CU_MEMPOOL_ATTR_USED_MEM_HIGH: *bytes = pool->used_high; return CUDA_SUCCESS;
    default: return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc *access, size_t count)
{
    ENTER();
    LOCKED();
    if (!pool_valid(pool) || (access == NULL && count > 0))
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++)
        if (access[i].location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
            device_at(access[i].location.id) == NULL)
            return CUDA_ERROR_INVALID_DEVICE;
    return CUDA_SUCCESS; /* all memory of a process is one address space here */
}

CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool pool, CUmemLocation *location)
{
    ENTER();
    LOCKED();
    if (!pool_valid(pool) || flags == NULL || location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    ENTER();
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    if (pool == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    *pool = pool_default(device);
    return *pool != NULL ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice ordinal)
{
    CUresult result = cuDeviceGetDefaultMemPool(pool, ordinal);
    if (result == CUDA_SUCCESS) {
        LOCKED();
        *pool = device_at(ordinal)->current_pool;
    }
    return result;
}

CUresult cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool)
{
    ENTER();
    struct device *device = device_at(ordinal);
    if (device == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED();
    if (!pool_valid(pool) || pool->device != device || pool_default(device) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    device->current_pool = pool;
    return CUDA_SUCCESS;
}

CUresult cuMemGetDefaultMemPool(CUmemoryPool *pool, CUmemLocation *location,
                                CUmemAllocationType type)
{
    ENTER();
    if (location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuDeviceGetDefaultMemPool(pool, location->id);
}

CUresult cuMemGetMemPool(CUmemoryPool *pool, CUmemLocation *location, CUmemAllocationType type)
{
    ENTER();
    if (location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuDeviceGetMemPool(pool, location->id);
}

CUresult cuMemSetMemPool(CUmemLocation *location, CUmemAllocationType type, CUmemoryPool pool)
{
    ENTER();
    if (location == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (location->type != CU_MEM_LOCATION_TYPE_DEVICE || type != CU_MEM_ALLOCATION_TYPE_PINNED)
        return CUDA_ERROR_NOT_SUPPORTED;
    return cuDeviceSetMemPool(location->id, pool);
}
