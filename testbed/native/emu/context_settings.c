/* What a context says of itself: device, flags, limits, configurations, peers. */
#include "driver.h"

CUresult cuCtxGetDevice_v2(CUdevice *ordinal, CUcontext context)
{
    ENTER();
    LOCKED();
    if (context == NULL) {
        CUresult need = context_need(&context);
        if (need != CUDA_SUCCESS)
            return need;
    }
    if (context->magic != CONTEXT_MAGIC)
        return CUDA_ERROR_INVALID_CONTEXT;
    if (ordinal == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *ordinal = context->device->ordinal;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *ordinal)
{
    return cuCtxGetDevice_v2(ordinal, NULL);
}

CUresult cuCtxGetFlags(unsigned int *flags)
{
    CURRENT();
    if (flags == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *flags = context->flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetFlags(unsigned int flags)
{
    CURRENT();
    context->flags = flags;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetId(CUcontext asked, unsigned long long *id)
{
    ENTER();
    LOCKED();
    if (asked == NULL)
        asked = context_current();
    if (!context_alive(asked))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (id == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *id = asked->id;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetApiVersion(CUcontext asked, unsigned int *version)
{
    ENTER();
    LOCKED();
    if (asked == NULL)
        asked = context_current();
    if (!context_alive(asked))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *version = asked->api_version;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
    CURRENT();
    if ((int)limit < 0 || limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    context->limits[limit] = value;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
    CURRENT();
    if ((int)limit < 0 || limit >= CU_LIMIT_MAX)
        return CUDA_ERROR_UNSUPPORTED_LIMIT;
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *value = context->limits[limit];
    return CUDA_SUCCESS;
}

CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
    CURRENT();
    if (config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *config = (CUfunc_cache)context->cache_config;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
    CURRENT();
    context->cache_config = (int)config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
    CURRENT();
    if (config == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *config = (CUsharedconfig)context->shared_config;
    return CUDA_SUCCESS;
}

CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
    CURRENT();
    context->shared_config = (int)config;
    return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    CURRENT();
    if (least != NULL)
        *least = 0;
    if (greatest != NULL)
        *greatest = -5;
    return CUDA_SUCCESS;
}

CUresult cuCtxResetPersistingL2Cache(void)
{
    CURRENT();
    return CUDA_SUCCESS;
}

CUresult cuCtxGetExecAffinity(CUexecAffinityParam *affinity, CUexecAffinityType type)
{
    CURRENT();
    (void)affinity, (void)type;
    return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
    CURRENT();
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (!context_alive(peer))
        return CUDA_ERROR_INVALID_CONTEXT;
    if (peer->device == context->device)
        return CUDA_ERROR_INVALID_DEVICE;
    uint64_t bit = 1ull << peer->device->ordinal;
    if ((context->peers & bit) != 0)
        return CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    context->peers |= bit;
    return CUDA_SUCCESS;
}

CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
    CURRENT();
    if (!context_alive(peer))
        return CUDA_ERROR_INVALID_CONTEXT;
    uint64_t bit = 1ull << peer->device->ordinal;
    if ((context->peers & bit) == 0)
        return CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    context->peers &= ~bit;
    return CUDA_SUCCESS;
}
