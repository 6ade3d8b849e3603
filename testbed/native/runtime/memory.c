/* Memory: allocation, pools, pointers, copies, sharing between processes. */
#include "runtime.h"

#include <string.h>

static CUdeviceptr address(const void *pointer)
{
    return (CUdeviceptr)(uintptr_t)pointer;
}

/* --- allocation ----------------------------------------------------------- */

API cudaError_t cudaMalloc(void **pointer, size_t bytes)
{
    REQUIRE_CONTEXT();
    if (!pointer)
        return fail(cudaErrorInvalidValue);
    *pointer = NULL;
    /* The runtime accepts an empty allocation, the driver does not. */
    return bytes ? done(driver.cuMemAlloc((CUdeviceptr *)pointer, bytes)) : cudaSuccess;
}

API cudaError_t cudaFree(void *pointer)
{
    REQUIRE_CONTEXT(); /* cudaFree(NULL) is the customary way to make the context */
    return pointer ? done(driver.cuMemFree(address(pointer))) : cudaSuccess;
}

API cudaError_t cudaMallocAsync(void **pointer, size_t bytes, CUstream stream)
{
    REQUIRE_CONTEXT();
    if (!pointer)
        return fail(cudaErrorInvalidValue);
    *pointer = NULL;
    return done(driver.cuMemAllocAsync((CUdeviceptr *)pointer, bytes, stream));
}

API cudaError_t cudaFreeAsync(void *pointer, CUstream stream)
{
    REQUIRE_CONTEXT();
    return done(driver.cuMemFreeAsync(address(pointer), stream));
}

API cudaError_t cudaMallocManaged(void **pointer, size_t bytes, unsigned int flags)
{
    REQUIRE_CONTEXT();
    if (!pointer || !bytes)
        return fail(cudaErrorInvalidValue);
    *pointer = NULL;
    return done(driver.cuMemAllocManaged((CUdeviceptr *)pointer, bytes, flags));
}

API cudaError_t cudaHostAlloc(void **pointer, size_t bytes, unsigned int flags)
{
    REQUIRE_CONTEXT();
    if (!pointer)
        return fail(cudaErrorInvalidValue);
    *pointer = NULL;
    return bytes ? done(driver.cuMemHostAlloc(pointer, bytes, flags)) : cudaSuccess;
}

API cudaError_t cudaMallocHost(void **pointer, size_t bytes)
{
    return cudaHostAlloc(pointer, bytes, 0);
}

API cudaError_t cudaFreeHost(void *pointer)
{
    REQUIRE_CONTEXT();
    return pointer ? done(driver.cuMemFreeHost(pointer)) : cudaSuccess;
}

API cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags)
{
    REQUIRE_CONTEXT();
    return done(driver.cuMemHostRegister(pointer, bytes, flags));
}

API cudaError_t cudaHostUnregister(void *pointer)
{
    REQUIRE_CONTEXT();
    return done(driver.cuMemHostUnregister(pointer));
}

API cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes)
{
    REQUIRE_CONTEXT();
    return done(driver.cuMemGetInfo(free_bytes, total_bytes));
}

/* --- pools ---------------------------------------------------------------- */

API cudaError_t cudaMemPoolGetAttribute(CUmemoryPool pool, int number, void *value)
{
    REQUIRE_DRIVER();
    return done(driver.cuMemPoolGetAttribute(pool, number, value));
}

API cudaError_t cudaMemPoolSetAttribute(CUmemoryPool pool, int number, void *value)
{
    REQUIRE_DRIVER();
    return done(driver.cuMemPoolSetAttribute(pool, number, value));
}

API cudaError_t cudaMemPoolSetAccess(CUmemoryPool pool, const void *descriptions, size_t count)
{
    REQUIRE_DRIVER();
    return done(driver.cuMemPoolSetAccess(pool, descriptions, count));
}

API cudaError_t cudaMemPoolTrimTo(CUmemoryPool pool, size_t keep)
{
    REQUIRE_DRIVER();
    return done(driver.cuMemPoolTrimTo(pool, keep));
}

/* --- pointers ------------------------------------------------------------- */

API cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *attributes,
                                         const void *pointer)
{
    int type = 0, managed = 0, device = cudaInvalidDeviceId;
    CUdeviceptr on_device = 0;
    void *on_host = NULL;
    int wanted[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED,
                    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
                    CU_POINTER_ATTRIBUTE_HOST_POINTER};
    void *values[] = {&type, &managed, &device, &on_device, &on_host};

    REQUIRE_CONTEXT();
    if (!attributes)
        return fail(cudaErrorInvalidValue);
    memset(attributes, 0, sizeof(*attributes));
    RETURN_IF(done(driver.cuPointerGetAttributes(5, wanted, values, address(pointer))));
    if (managed & 1) /* the driver may write a byte, a bool or an int */
        attributes->type = cudaMemoryTypeManaged;
    else if (type == CU_MEMORYTYPE_HOST)
        attributes->type = cudaMemoryTypeHost;
    else if (type == CU_MEMORYTYPE_DEVICE)
        attributes->type = cudaMemoryTypeDevice;
    if (attributes->type == cudaMemoryTypeUnregistered) {
        attributes->device = cudaInvalidDeviceId;
        attributes->hostPointer = (void *)(uintptr_t)pointer;
    } else {
        attributes->device = device;
        attributes->devicePointer = (void *)(uintptr_t)on_device;
        attributes->hostPointer = on_host;
    }
    return cudaSuccess;
}

/* --- copies --------------------------------------------------------------- */

API cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, int kind)
{
    REQUIRE_CONTEXT();
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return fail(cudaErrorInvalidMemcpyDirection);
    if (!bytes)
        return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return done(driver.cuMemcpyHtoD(address(to), from, bytes));
    case cudaMemcpyDeviceToHost:
        return done(driver.cuMemcpyDtoH(to, address(from), bytes));
    case cudaMemcpyDeviceToDevice:
        return done(driver.cuMemcpyDtoD(address(to), address(from), bytes));
    default:
        return done(driver.cuMemcpy(address(to), address(from), bytes));
    }
}

API cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind,
                                CUstream stream)
{
    REQUIRE_CONTEXT();
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return fail(cudaErrorInvalidMemcpyDirection);
    if (!bytes)
        return cudaSuccess;
    switch (kind) {
    case cudaMemcpyHostToDevice:
        return done(driver.cuMemcpyHtoDAsync(address(to), from, bytes, stream));
    case cudaMemcpyDeviceToHost:
        return done(driver.cuMemcpyDtoHAsync(to, address(from), bytes, stream));
    case cudaMemcpyDeviceToDevice:
        return done(driver.cuMemcpyDtoDAsync(address(to), address(from), bytes, stream));
    default:
        return done(driver.cuMemcpyAsync(address(to), address(from), bytes, stream));
    }
}

API cudaError_t cudaMemcpyPeerAsync(void *to, int to_device, const void *from, int from_device,
                                    size_t bytes, CUstream stream)
{
    CUcontext target = NULL, source = NULL;
    REQUIRE_CONTEXT();
    RETURN_IF(primary_context(to_device, &target));
    RETURN_IF(primary_context(from_device, &source));
    return done(
        driver.cuMemcpyPeerAsync(address(to), target, address(from), source, bytes, stream));
}

API cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                                  size_t width, size_t height, int kind, CUstream stream)
{
    REQUIRE_CONTEXT();
    if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
        return fail(cudaErrorInvalidMemcpyDirection);
    if (!width || !height)
        return cudaSuccess;
    /* Unified addresses: the driver tells host and device by the pointer, so that one
     * description serves all kinds. */
    CUDA_MEMCPY2D copy = {
        .srcMemoryType = CU_MEMORYTYPE_UNIFIED,
        .srcDevice = address(from),
        .srcPitch = from_pitch,
        .dstMemoryType = CU_MEMORYTYPE_UNIFIED,
        .dstDevice = address(to),
        .dstPitch = to_pitch,
        .WidthInBytes = width,
        .Height = height,
    };
    return done(driver.cuMemcpy2DAsync(&copy, stream));
}

API cudaError_t cudaMemset(void *to, int value, size_t bytes)
{
    REQUIRE_CONTEXT();
    return bytes ? done(driver.cuMemsetD8(address(to), (unsigned char)value, bytes))
                 : cudaSuccess;
}

API cudaError_t cudaMemsetAsync(void *to, int value, size_t bytes, CUstream stream)
{
    REQUIRE_CONTEXT();
    return bytes ? done(driver.cuMemsetD8Async(address(to), (unsigned char)value, bytes, stream))
                 : cudaSuccess;
}

/* --- sharing between processes -------------------------------------------- */

API cudaError_t cudaIpcGetMemHandle(CUipcHandle *handle, void *pointer)
{
    REQUIRE_CONTEXT();
    return done(driver.cuIpcGetMemHandle(handle, address(pointer)));
}

API cudaError_t cudaIpcOpenMemHandle(void **pointer, CUipcHandle handle, unsigned int flags)
{
    REQUIRE_CONTEXT();
    return done(driver.cuIpcOpenMemHandle((CUdeviceptr *)pointer, handle, flags));
}

API cudaError_t cudaIpcCloseMemHandle(void *pointer)
{
    REQUIRE_CONTEXT();
    return done(driver.cuIpcCloseMemHandle(address(pointer)));
}

API cudaError_t cudaIpcGetEventHandle(CUipcHandle *handle, CUevent event)
{
    REQUIRE_CONTEXT();
    return done(driver.cuIpcGetEventHandle(handle, event));
}

API cudaError_t cudaIpcOpenEventHandle(CUevent *event, CUipcHandle handle)
{
    REQUIRE_CONTEXT();
    return done(driver.cuIpcOpenEventHandle(event, handle));
}
