/* Kernels' attributes and occupancy, and libraries loaded at run time. */
#include "runtime.h"

#include <string.h>

static cudaError_t here(const void *function, CUkernel *kernel, CUdevice *device)
{
    int ordinal = 0;
    RETURN_IF(kernel_of(function, kernel));
    RETURN_IF(current_device(&ordinal));
    return device_handle(ordinal, device);
}

API cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *function)
{
    CUkernel kernel = NULL;
    CUdevice device = 0;
    int value = 0;
    REQUIRE_CONTEXT();
    if (!attributes)
        return fail(cudaErrorInvalidValue);
    RETURN_IF(here(function, &kernel, &device));
    memset(attributes, 0, sizeof(*attributes));
#define GET(number, field)                                                                         \
    RETURN_IF(done(driver.cuKernelGetAttribute(&value, number, kernel, device)));                  \
    attributes->field = (__typeof__(attributes->field))value;
    GET(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, maxThreadsPerBlock)
    GET(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, sharedSizeBytes)
    GET(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES, constSizeBytes)
    GET(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, localSizeBytes)
    GET(CU_FUNC_ATTRIBUTE_NUM_REGS, numRegs)
    GET(CU_FUNC_ATTRIBUTE_PTX_VERSION, ptxVersion)
    GET(CU_FUNC_ATTRIBUTE_BINARY_VERSION, binaryVersion)
    GET(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA, cacheModeCA)
    GET(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, maxDynamicSharedSizeBytes)
    GET(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, preferredShmemCarveout)
#undef GET
    return cudaSuccess;
}

API cudaError_t cudaFuncSetAttribute(const void *function, int number, int value)
{
    CUkernel kernel = NULL;
    CUdevice device = 0;
    REQUIRE_CONTEXT();
    RETURN_IF(here(function, &kernel, &device));
    return done(driver.cuKernelSetAttribute(number, value, kernel, device));
}

API cudaError_t cudaKernelSetAttributeForDevice(CUkernel kernel, int number, int value,
                                                int ordinal)
{
    CUdevice device = 0;
    REQUIRE_CONTEXT();
    RETURN_IF(device_handle(ordinal, &device));
    return done(driver.cuKernelSetAttribute(number, value, kernel, device));
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks,
                                                                       const void *function,
                                                                       int block_size,
                                                                       size_t shared,
                                                                       unsigned int flags)
{
    CUkernel kernel = NULL;
    REQUIRE_CONTEXT();
    RETURN_IF(kernel_of(function, &kernel));
    return done(driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
        blocks, (CUfunction)kernel, block_size, shared, flags));
}

API cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, const void *function,
                                                              int block_size, size_t shared)
{
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, block_size,
                                                                  shared, 0);
}

/* --- libraries ------------------------------------------------------------ */

API cudaError_t cudaLibraryLoadData(CUlibrary *library, const void *code, void *jit_options,
                                    void **jit_values, unsigned int jit_count, void *options,
                                    void **values, unsigned int count)
{
    REQUIRE_CONTEXT();
    return done(driver.cuLibraryLoadData(library, code, jit_options, jit_values, jit_count, options,
                                         values, count));
}

API cudaError_t cudaLibraryLoadFromFile(CUlibrary *library, const char *file, void *jit_options,
                                        void **jit_values, unsigned int jit_count, void *options,
                                        void **values, unsigned int count)
{
    REQUIRE_CONTEXT();
    return done(driver.cuLibraryLoadFromFile(library, file, jit_options, jit_values, jit_count,
                                             options, values, count));
}

API cudaError_t cudaLibraryUnload(CUlibrary library)
{
    REQUIRE_CONTEXT();
    return done(driver.cuLibraryUnload(library));
}

API cudaError_t cudaLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    REQUIRE_CONTEXT();
    return done(driver.cuLibraryGetKernel(kernel, library, name));
}

API cudaError_t cudaLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
    REQUIRE_CONTEXT();
    return done(driver.cuLibraryGetKernelCount(count, library));
}

API cudaError_t cudaLibraryGetGlobal(void **pointer, size_t *bytes, CUlibrary library,
                                     const char *name)
{
    REQUIRE_CONTEXT();
    return done(driver.cuLibraryGetGlobal((CUdeviceptr *)pointer, bytes, library, name));
}

API cudaError_t cudaLibraryGetManaged(void **pointer, size_t *bytes, CUlibrary library,
                                      const char *name)
{
    REQUIRE_CONTEXT();
    return done(driver.cuLibraryGetManaged((CUdeviceptr *)pointer, bytes, library, name));
}

API cudaError_t cudaLibraryGetUnifiedFunction(void **pointer, CUlibrary library,
                                              const char *symbol)
{
    REQUIRE_CONTEXT();
    return done(driver.cuLibraryGetUnifiedFunction(pointer, library, symbol));
}
