/* Devices: attributes and properties, no context made. */
#include "runtime.h"

#include <string.h>

/* Number of the driver's device attribute, and the property that shows it. */
/* clang-format off */
#define PROPERTIES(X) \
    X(1, maxThreadsPerBlock) X(2, maxThreadsDim[0]) X(3, maxThreadsDim[1]) \
    X(4, maxThreadsDim[2]) X(5, maxGridSize[0]) X(6, maxGridSize[1]) X(7, maxGridSize[2]) \
    X(8, sharedMemPerBlock) X(9, totalConstMem) X(10, warpSize) X(11, memPitch) \
    X(12, regsPerBlock) X(14, textureAlignment) X(16, multiProcessorCount) X(18, integrated) \
    X(19, canMapHostMemory) X(21, maxTexture1D) X(22, maxTexture2D[0]) X(23, maxTexture2D[1]) \
    X(24, maxTexture3D[0]) X(25, maxTexture3D[1]) X(26, maxTexture3D[2]) \
    X(27, maxTexture2DLayered[0]) X(28, maxTexture2DLayered[1]) X(29, maxTexture2DLayered[2]) \
    X(30, surfaceAlignment) X(31, concurrentKernels) X(32, ECCEnabled) X(33, pciBusID) \
    X(34, pciDeviceID) X(35, tccDriver) X(37, memoryBusWidth) X(38, l2CacheSize) \
    X(39, maxThreadsPerMultiProcessor) X(40, asyncEngineCount) X(41, unifiedAddressing) \
    X(42, maxTexture1DLayered[0]) X(43, maxTexture1DLayered[1]) X(45, maxTexture2DGather[0]) \
    X(46, maxTexture2DGather[1]) X(47, maxTexture3DAlt[0]) X(48, maxTexture3DAlt[1]) \
    X(49, maxTexture3DAlt[2]) X(50, pciDomainID) X(51, texturePitchAlignment) \
    X(52, maxTextureCubemap) X(53, maxTextureCubemapLayered[0]) \
    X(54, maxTextureCubemapLayered[1]) X(55, maxSurface1D) X(56, maxSurface2D[0]) \
    X(57, maxSurface2D[1]) X(58, maxSurface3D[0]) X(59, maxSurface3D[1]) \
    X(60, maxSurface3D[2]) X(61, maxSurface1DLayered[0]) X(62, maxSurface1DLayered[1]) \
    X(63, maxSurface2DLayered[0]) X(64, maxSurface2DLayered[1]) X(65, maxSurface2DLayered[2]) \
    X(66, maxSurfaceCubemap) X(67, maxSurfaceCubemapLayered[0]) \
    X(68, maxSurfaceCubemapLayered[1]) X(70, maxTexture2DLinear[0]) \
    X(71, maxTexture2DLinear[1]) X(72, maxTexture2DLinear[2]) X(73, maxTexture2DMipmap[0]) \
    X(74, maxTexture2DMipmap[1]) X(75, major) X(76, minor) X(77, maxTexture1DMipmap) \
    X(78, streamPrioritiesSupported) X(79, globalL1CacheSupported) \
    X(80, localL1CacheSupported) X(81, sharedMemPerMultiprocessor) X(82, regsPerMultiprocessor) \
    X(83, managedMemory) X(84, isMultiGpuBoard) X(85, multiGpuBoardGroupID) \
    X(86, hostNativeAtomicSupported) X(88, pageableMemoryAccess) \
    X(89, concurrentManagedAccess) X(90, computePreemptionSupported) \
    X(91, canUseHostPointerForRegisteredMem) X(95, cooperativeLaunch) \
    X(97, sharedMemPerBlockOptin) X(99, hostRegisterSupported) \
    X(100, pageableMemoryAccessUsesHostPageTables) X(101, directManagedMemAccessFromHost) \
    X(106, maxBlocksPerMultiProcessor) X(108, persistingL2CacheMaxSize) \
    X(109, accessPolicyMaxWindowSize) X(111, reservedSharedMemPerBlock) \
    X(112, sparseCudaArraySupported) X(113, hostRegisterReadOnlySupported) \
    X(114, timelineSemaphoreInteropSupported) X(115, memoryPoolsSupported) \
    X(116, gpuDirectRDMASupported) X(117, gpuDirectRDMAFlushWritesOptions) \
    X(118, gpuDirectRDMAWritesOrdering) X(119, memoryPoolSupportedHandleTypes) \
    X(120, clusterLaunch) X(121, deferredMappingCudaArraySupported) \
    X(125, ipcEventSupported) X(129, unifiedFunctionPointers) X(130, deviceNumaConfig) \
    X(131, deviceNumaId) X(133, mpsEnabled) X(134, hostNumaId) X(139, gpuPciDeviceID) \
    X(140, gpuPciSubsystemID) X(143, hostNumaMultinodeIpcSupported)
/* clang-format on */

/* An attribute that this driver does not know is shown as 0, not as an error. */
static int attribute(int number, CUdevice device)
{
    int value = 0;
    return driver.cuDeviceGetAttribute(&value, number, device) == CUDA_SUCCESS ? value : 0;
}

API cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *properties, int ordinal)
{
    CUdevice device = 0;
    REQUIRE_DRIVER();
    if (!properties)
        return fail(cudaErrorInvalidValue);
    RETURN_IF(device_handle(ordinal, &device));
    memset(properties, 0, sizeof(*properties));
    RETURN_IF(done(driver.cuDeviceGetName(properties->name, sizeof(properties->name), device)));
    RETURN_IF(done(driver.cuDeviceGetUuid(&properties->uuid, device)));
    RETURN_IF(done(driver.cuDeviceTotalMem(&properties->totalGlobalMem, device)));
#define X(number, field)                                                                           \
    properties->field = (__typeof__(properties->field))attribute(number, device);
    PROPERTIES(X)
#undef X
    return cudaSuccess;
}

API cudaError_t cudaDeviceGetAttribute(int *value, int number, int ordinal)
{
    CUdevice device = 0;
    REQUIRE_DRIVER();
    RETURN_IF(device_handle(ordinal, &device));
    return done(driver.cuDeviceGetAttribute(value, number, device));
}

API cudaError_t cudaDeviceGetPCIBusId(char *text, int length, int ordinal)
{
    CUdevice device = 0;
    REQUIRE_DRIVER();
    RETURN_IF(device_handle(ordinal, &device));
    return done(driver.cuDeviceGetPCIBusId(text, length, device));
}

API cudaError_t cudaDeviceCanAccessPeer(int *can, int ordinal, int peer)
{
    CUdevice device = 0, other = 0;
    REQUIRE_DRIVER();
    RETURN_IF(device_handle(ordinal, &device));
    RETURN_IF(device_handle(peer, &other));
    return done(driver.cuDeviceCanAccessPeer(can, device, other));
}

API cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags)
{
    CUcontext context = NULL;
    REQUIRE_CONTEXT();
    RETURN_IF(primary_context(peer, &context));
    return done(driver.cuCtxEnablePeerAccess(context, flags));
}

API cudaError_t cudaDeviceGetDefaultMemPool(CUmemoryPool *pool, int ordinal)
{
    CUdevice device = 0;
    REQUIRE_DRIVER();
    RETURN_IF(device_handle(ordinal, &device));
    return done(driver.cuDeviceGetDefaultMemPool(pool, device));
}

API cudaError_t cudaDeviceGetGraphMemAttribute(int ordinal, int number, void *value)
{
    CUdevice device = 0;
    REQUIRE_DRIVER();
    RETURN_IF(device_handle(ordinal, &device));
    return done(driver.cuDeviceGetGraphMemAttribute(device, number, value));
}

API cudaError_t cudaDeviceSetGraphMemAttribute(int ordinal, int number, void *value)
{
    CUdevice device = 0;
    REQUIRE_DRIVER();
    RETURN_IF(device_handle(ordinal, &device));
    return done(driver.cuDeviceSetGraphMemAttribute(device, number, value));
}

API cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    REQUIRE_CONTEXT();
    return done(driver.cuCtxGetStreamPriorityRange(least, greatest));
}

API cudaError_t cudaDeviceSynchronize(void)
{
    REQUIRE_CONTEXT();
    return done(driver.cuCtxSynchronize());
}

API cudaError_t cudaProfilerStart(void)
{
    REQUIRE_CONTEXT();
    return done(driver.cuProfilerStart());
}

API cudaError_t cudaProfilerStop(void)
{
    REQUIRE_CONTEXT();
    return done(driver.cuProfilerStop());
}
