/* Launches and occupancy. Kernels compute nothing; launches are checked and take their
 * time. */
#include "driver.h"

#include <string.h>

struct geometry {
    uint64_t blocks, threads;
    unsigned int shared_bytes;
};

/* --- parameters, of the kernels whose meaning we know ------------------------------------ */

#define PARAM_END ((void *)0)
#define PARAM_POINTER ((void *)1)
#define PARAM_SIZE ((void *)2)

/* Parameter `index` at `offset` of the kernel's parameters, in either of the two ways in
 * which a launch may pass them; 0 where it does not. */
static uint64_t parameter(void **parameters, void **extra, int index, size_t offset, size_t bytes)
{
    uint64_t value = 0;
    if (parameters != NULL) {
        if (parameters[index] != NULL)
            memcpy(&value, parameters[index], bytes);
        return value;
    }
    const char *buffer = NULL;
    size_t room = 0;
    for (int i = 0; extra != NULL && i < 4 && extra[i] != PARAM_END; i += 2) {
        if (extra[i] == PARAM_POINTER)
            buffer = extra[i + 1];
        else if (extra[i] == PARAM_SIZE && extra[i + 1] != NULL)
            memcpy(&room, extra[i + 1], sizeof room);
    }
    if (buffer != NULL && offset + bytes <= room)
        memcpy(&value, buffer + offset, bytes);
    return value;
}

struct cost launch_cost(const struct function *function, uint64_t blocks, uint64_t threads,
                        unsigned int shared_bytes, void **parameters, void **extra)
{
    struct cost cost = {.model = function->model,
                        .blocks = blocks,
                        .threads = (uint32_t)threads,
                        .shared_bytes = shared_bytes};
    if (cost.model == MODEL_GEOMETRY)
        return cost;
    cost.amount = parameter(parameters, extra, 0, 0, 8);
    if (cost.model == MODEL_CYCLES && (int64_t)cost.amount < 0)
        cost.amount = 0;
    if (cost.model == MODEL_WORK) {
        cost.bytes = parameter(parameters, extra, 1, 8, 8);
        cost.precision = (uint32_t)parameter(parameters, extra, 2, 16, 4);
    }
    return cost;
}

static CUresult launch(CUfunction handle, struct geometry geometry, CUstream stream,
                       void **parameters, void **extra)
{
    const struct function *function = function_of(handle);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (geometry.blocks == 0 || geometry.threads == 0 || geometry.threads > 1024 ||
        geometry.shared_bytes > (unsigned int)function->max_dynamic_shared)
        return CUDA_ERROR_INVALID_VALUE;
    struct op op;
    op.kind = OP_KERNEL;
    op.synchronous = false;
    op.as.kernel.function = handle;
    op.as.kernel.cost = launch_cost(function, geometry.blocks, geometry.threads,
                                    geometry.shared_bytes, parameters, extra);
    return stream_submit(stream, &op);
}

CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                        unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                        unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                        void **parameters, void **extra)
{
    ENTER();
    return launch(function,
                  (struct geometry){(uint64_t)grid_x * grid_y * grid_z,
                                    (uint64_t)block_x * block_y * block_z, shared_bytes},
                  stream, parameters, extra);
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

/* All blocks of a cooperative launch are on the device at a time, or it is refused. */
static CUresult check_cooperative(uint64_t blocks, uint64_t threads, unsigned int shared_bytes)
{
    CUcontext context;
    driver_lock();
    CUresult result = context_need(&context);
    driver_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    const struct card_description *card = device_description(context->device);
    return threads <= 1024 && blocks > (uint64_t)card->sm_count *
                                           blocks_per_sm(card, (uint32_t)threads, shared_bytes)
               ? CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE
               : CUDA_SUCCESS;
}

CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x,
                                   unsigned int block_y, unsigned int block_z,
                                   unsigned int shared_bytes, CUstream stream, void **parameters)
{
    ENTER();
    CUresult result = check_cooperative((uint64_t)grid_x * grid_y * grid_z,
                                        (uint64_t)block_x * block_y * block_z, shared_bytes);
    return result != CUDA_SUCCESS
               ? result
               : launch(function,
                        (struct geometry){(uint64_t)grid_x * grid_y * grid_z,
                                          (uint64_t)block_x * block_y * block_z, shared_bytes},
                        stream, parameters, NULL);
}

/* --- occupancy: by threads, blocks and shared memory; registers are not known -------- */

static CUresult occupancy(int *blocks, CUfunction function, int threads, size_t shared_bytes,
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
    *blocks = (int)blocks_per_sm(card, (uint32_t)threads, shared_bytes);
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
    return occupancy(blocks, function, threads, shared_bytes, &card);
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
        CUresult result = occupancy(&blocks, function, threads, shared, &card);
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
    CUresult result = occupancy(&fit, function, threads, 0, &card);
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
    CUresult result = occupancy(
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
