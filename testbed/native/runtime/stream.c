/* Streams and events. Handles 0, 1 and 2 (default, legacy, per thread) are the
 * driver's own special handles and pass through. */
#include "runtime.h"

API cudaError_t cudaStreamCreate(CUstream *stream)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamCreate(stream, 0));
}

API cudaError_t cudaStreamCreateWithFlags(CUstream *stream, unsigned int flags)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamCreate(stream, flags));
}

API cudaError_t cudaStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamCreateWithPriority(stream, flags, priority));
}

API cudaError_t cudaStreamDestroy(CUstream stream)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamDestroy(stream));
}

API cudaError_t cudaStreamGetPriority(CUstream stream, int *priority)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamGetPriority(stream, priority));
}

API cudaError_t cudaStreamQuery(CUstream stream)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamQuery(stream));
}

API cudaError_t cudaStreamSynchronize(CUstream stream)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamSynchronize(stream));
}

API cudaError_t cudaStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamWaitEvent(stream, event, flags));
}

API cudaError_t cudaStreamAddCallback(CUstream stream, CUstreamCallback callback, void *data,
                                      unsigned int flags)
{
    REQUIRE_CONTEXT();
    return done(driver.cuStreamAddCallback(stream, callback, data, flags));
}

API cudaError_t cudaLaunchHostFunc(CUstream stream, CUhostFn function, void *data)
{
    REQUIRE_CONTEXT();
    return done(driver.cuLaunchHostFunc(stream, function, data));
}

API cudaError_t cudaEventCreateWithFlags(CUevent *event, unsigned int flags)
{
    REQUIRE_CONTEXT();
    return done(driver.cuEventCreate(event, flags));
}

API cudaError_t cudaEventCreate(CUevent *event)
{
    return cudaEventCreateWithFlags(event, 0);
}

API cudaError_t cudaEventDestroy(CUevent event)
{
    REQUIRE_CONTEXT();
    return done(driver.cuEventDestroy(event));
}

API cudaError_t cudaEventQuery(CUevent event)
{
    REQUIRE_CONTEXT();
    return done(driver.cuEventQuery(event));
}

API cudaError_t cudaEventRecord(CUevent event, CUstream stream)
{
    REQUIRE_CONTEXT();
    return done(driver.cuEventRecord(event, stream));
}

API cudaError_t cudaEventRecordWithFlags(CUevent event, CUstream stream, unsigned int flags)
{
    REQUIRE_CONTEXT();
    return done(driver.cuEventRecordWithFlags(event, stream, flags));
}

API cudaError_t cudaEventSynchronize(CUevent event)
{
    REQUIRE_CONTEXT();
    return done(driver.cuEventSynchronize(event));
}

API cudaError_t cudaEventElapsedTime(float *milliseconds, CUevent start, CUevent end)
{
    REQUIRE_CONTEXT();
    return done(driver.cuEventElapsedTime(milliseconds, start, end));
}
