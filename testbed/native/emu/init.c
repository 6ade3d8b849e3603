/* cuInit, versions, and what every call does first. */
#define _GNU_SOURCE
#include "driver.h"

#include "callback.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

/* Read by whoever wonders what this library is: `strings`, a debugger, a person. */
EXPORT const char vgpu_emulation_mark[] =
    "vgpu-testbed: emulation of the CUDA driver API, not NVIDIA software";

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static bool handlers;

/* 0 not initialised, 1 initialised, 2 child of an initialised process: as on hardware,
 * a context does not survive fork, and the child cannot have one of its own. */
static int initialised;

void driver_lock(void)
{
    pthread_mutex_lock(&lock);
}

void driver_unlock(void)
{
    pthread_mutex_unlock(&lock);
}

void driver_await(pthread_cond_t *condition, uint64_t ns)
{
    if (ns == UINT64_MAX) {
        pthread_cond_wait(condition, &lock);
        return;
    }
    uint64_t until = emu_now_ns() + ns;
    struct timespec deadline = {.tv_sec = (time_t)(until / 1000000000ull),
                                .tv_nsec = (long)(until % 1000000000ull)};
    pthread_cond_timedwait(condition, &lock, &deadline);
}

void driver_unlock_scope(const int *unused)
{
    (void)unused;
    driver_unlock();
}

void errno_restore(const int *saved)
{
    errno = *saved;
}

static void child(void)
{
    pthread_mutex_init(&lock, NULL); /* ours since `prepare`, but another thread's now */
    callback_forget();
    if (__atomic_load_n(&initialised, __ATOMIC_RELAXED) == 1)
        __atomic_store_n(&initialised, 2, __ATOMIC_RELEASE);
}

/* Set by the per-thread twin of a function, for the call that it becomes. */
__thread int driver_per_thread __attribute__((tls_model("initial-exec")));
static __thread int own_default;

bool driver_own_default(void)
{
    return own_default != 0;
}

CUresult driver_enter(void)
{
    own_default = driver_per_thread;
    driver_per_thread = 0;
    if (__atomic_load_n(&initialised, __ATOMIC_ACQUIRE) != 1)
        return CUDA_ERROR_NOT_INITIALIZED;
    /* Functions that a stream runs must not call the driver, as on hardware. */
    return callback_running() ? CUDA_ERROR_NOT_PERMITTED : CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuInit(unsigned int flags)
{
    const int saved_errno __attribute__((cleanup(errno_restore), unused)) = errno;
    if (flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    int state = __atomic_load_n(&initialised, __ATOMIC_RELAXED);
    if (state == 2)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (state == 0) {
        devices_open();
        if (device_count == 0)
            return CUDA_ERROR_NO_DEVICE;
        if (!handlers) {
            pthread_atfork(driver_lock, driver_unlock, child);
            handlers = true;
        }
        __atomic_store_n(&initialised, 1, __ATOMIC_RELEASE);
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuDriverGetVersion(int *version)
{
    /* Works before cuInit, as on hardware. */
    const int saved_errno __attribute__((cleanup(errno_restore), unused)) = errno;
    if (version == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    devices_open();
    *version = device_count > 0 ? (int)device_description(&devices[0])->driver_version : 13020;
    return CUDA_SUCCESS;
}

/* For libnvidia-ml in this process (cards.h). */
EXPORT int vgpuEmuOwnSlot(const char *uuid);
EXPORT int vgpuEmuOwnSlot(const char *uuid)
{
    const int saved_errno __attribute__((cleanup(errno_restore), unused)) = errno;
    if (driver_enter() != CUDA_SUCCESS)
        return -1;
    LOCKED();
    for (int i = 0; i < device_count; i++) {
        const char *own = device_description(&devices[i])->uuid;
        const char *at = uuid;
        while (*own != '\0' && *own == *at)
            own++, at++;
        if (*own == '\0' && *at == '\0')
            return account_own_slot(&devices[i]);
    }
    return -1;
}

/* The undocumented tables behind this entry are never answered (docs: terms). */
EXPORT CUresult CUDAAPI cuGetExportTable(const void **table, const CUuuid *id)
{
    (void)id;
    if (table == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *table = NULL;
    return CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult CUDAAPI cuProfilerInitialize(const char *config, const char *output, int mode)
{
    (void)config, (void)output, (void)mode;
    return CUDA_ERROR_NOT_SUPPORTED;
}

EXPORT CUresult CUDAAPI cuProfilerStart(void)
{
    return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuProfilerStop(void)
{
    return CUDA_SUCCESS;
}

EXPORT CUresult CUDAAPI cuFlushGPUDirectRDMAWrites(CUflushGPUDirectRDMAWritesTarget target,
                                                   CUflushGPUDirectRDMAWritesScope scope)
{
    ENTER();
    (void)target, (void)scope;
    return CUDA_SUCCESS;
}
