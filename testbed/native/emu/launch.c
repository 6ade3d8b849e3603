/* Launches and occupancy. Kernels compute nothing yet; launches are checked, ordered
 * and counted. */
#include "driver.h"

struct geometry {
    uint64_t blocks, threads;
    unsigned int shared_bytes;
};

static CUresult launch(CUfunction handle, struct geometry geometry, CUstream stream)
{
    const struct function *function = function_of(handle);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (geometry.blocks == 0 || geometry.threads == 0 || geometry.threads > 1024 ||
        geometry.shared_bytes > (unsigned int)function->max_dynamic_shared)
        return CUDA_ERROR_INVALID_VALUE;
    return stream_submit(stream, &(struct op){.kind = OP_KERNEL, .as.function = handle});
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                        void **parameters, void **extra)
{
    ENTER();
    (void)parameters, (void)extra;
    return launch(function,
                  (struct geometry){(uint64_t)grid_x * grid_y * grid_z,
                                    (uint64_t)block_x * block_y * block_z, shared_bytes},
                  stream);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction function, void **parameters,
                          void **extra)
{
    if (config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return cuLaunchKernel(function, config->gridDimX, config->gridDimY, config->gridDimZ,
                          config->blockDimX, config->blockDimY, config->blockDimZ,
                          config->sharedMemBytes, config->hStream, parameters, extra);
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x,
                                   unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, CUstream stream, void **parameters)
{
    return cuLaunchKernel(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                          shared_bytes, stream, parameters, NULL);
}

/* --- occupancy: by threads, blocks and shared memory; registers are not known -------- */

static CUresult blocks_per_sm(int *blocks, CUfunction function, int threads, size_t shared_bytes,
                              const struct card_description **description)
{
    CUcontext context;
    CUresult result = context_need(&context);
    if (result != CUDA_SUCCESS)
        return result;
    if (blocks == NULL || threads <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (function_of(function) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    const struct card_description *card = device_description(context->device);
    uint32_t warps = ((uint32_t)threads + 31) / 32;
    uint32_t fit = threads > 1024 ? 0 : card->max_threads_per_sm / (warps * 32);
    if (fit > card->max_blocks_per_sm)
        fit = card->max_blocks_per_sm;
    if (shared_bytes > 0 && fit > card->shared_per_sm_bytes / shared_bytes)
        fit = (uint32_t)(card->shared_per_sm_bytes / shared_bytes);
    *blocks = (int)fit;
    *description = card;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *blocks, CUfunction function,
                                                              int threads, size_t shared_bytes,
                                                              unsigned int flags)
{
    ENTER();
    (void)flags;
    LOCKED();
    const struct card_description *card;
    return blocks_per_sm(blocks, function, threads, shared_bytes, &card);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads,
                                                     size_t shared_bytes)
{
    return cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads,
                                                                shared_bytes, 0);
}

CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction function,
                                                   CUoccupancyB2DSize shared_of,
                                                   size_t shared_bytes, int limit,
                                                   unsigned int flags)
{
    ENTER();
    (void)flags;
    if (grid == NULL || block == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    int most = 0;
    *block = *grid = 0;
    for (int threads = limit > 0 && limit < 1024 ? limit : 1024; threads > 0;
         threads = (threads - 1) / 32 * 32) {
        size_t shared = shared_of != NULL ? shared_of(threads) : shared_bytes;
        const struct card_description *card;
        int blocks;
        driver_lock();
        CUresult result = blocks_per_sm(&blocks, function, threads, shared, &card);
        driver_unlock();
        if (result != CUDA_SUCCESS)
            return result;
        if (blocks * threads > most) {
            most = blocks * threads;
            *block = threads;
            *grid = blocks * (int)card->sm_count;
        }
    }
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction function,
                                          CUoccupancyB2DSize shared_of, size_t shared_bytes,
                                          int limit)
{
    return cuOccupancyMaxPotentialBlockSizeWithFlags(grid, block, function, shared_of,
                                                     shared_bytes, limit, 0);
}

CUresult cuOccupancyAvailableDynamicSMemPerBlock(size_t *bytes, CUfunction function, int blocks,
                                                 int threads)
{
    ENTER();
    LOCKED();
    const struct card_description *card;
    int fit;
    CUresult result = blocks_per_sm(&fit, function, threads, 0, &card);
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes == NULL || blocks <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    size_t share = card->shared_per_sm_bytes / (size_t)blocks;
    *bytes = share < card->shared_per_block_optin_bytes ? share
                                                        : card->shared_per_block_optin_bytes;
    return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveClusters(int *clusters, CUfunction function,
                                      const CUlaunchConfig *config)
{
    ENTER();
    LOCKED();
    if (clusters == NULL || config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct card_description *card;
    int blocks;
    CUresult result = blocks_per_sm(
        &blocks, function, (int)(config->blockDimX * config->blockDimY * config->blockDimZ),
        config->sharedMemBytes, &card);
    if (result == CUDA_SUCCESS)
        *clusters = blocks * (int)card->sm_count;
    return result;
}

CUresult cuOccupancyMaxPotentialClusterSize(int *size, CUfunction function,
                                            const CUlaunchConfig *config)
{
    ENTER();
    if (size == NULL || config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (function_of(function) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *size = device_description(&devices[0])->compute_major >= 9 ? 8 : 1;
    return CUDA_SUCCESS;
}
