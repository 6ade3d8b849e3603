/* Start, and the calling thread's device and context.
 *
 * The driver is found as the vendor's runtime finds it: dlopen("libcuda.so.1"), then
 * dlsym("cuGetProcAddress_v2"), then everything else through that. A preloaded library
 * that overrides dlsym and cuGetProcAddress therefore sees every call.
 */
#include "runtime.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>

/* Found by anybody who looks at the file: strings libcudart.so.13 */
API const char vgpu_emulation_mark[] = "vgpu-testbed: CUDA runtime for emulated cards, "
                                       "emulation, not NVIDIA";

struct driver driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static cudaError_t start_error;
static int devices;
static CUdevice handles[MAX_DEVICES];

/* Guards the first retain of each device's primary context only. */
static pthread_mutex_t retain_lock = PTHREAD_MUTEX_INITIALIZER;
static _Atomic(CUcontext) primaries[MAX_DEVICES];

static _Thread_local int chosen_device;

/* Stands where the driver has no such function. Its parameters are ignored: the
 * caller cleans the stack in the System V ABI. */
static CUresult missing(void)
{
    return CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER;
}

static void fork_prepare(void)
{
    pthread_mutex_lock(&retain_lock);
}

static void fork_done(void)
{
    pthread_mutex_unlock(&retain_lock);
}

static void *find(const char *name, int version)
{
    void *function = NULL;
    int status = 0;
    if (driver.get_proc(name, &function, version, 0, &status) != CUDA_SUCCESS || !function)
        return (void *)missing;
    return function;
}

static cudaError_t connect(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return cudaErrorInsufficientDriver;
    driver.get_proc = (get_proc_address)dlsym(library, "cuGetProcAddress_v2");
    if (!driver.get_proc)
        return cudaErrorInsufficientDriver;
#define X(name, version, parameters) driver.name = (CUresult(*) parameters)find(#name, version);
    DRIVER_CALLS(X)
#undef X

    CUresult result = driver.cuInit(0);
    if (result != CUDA_SUCCESS)
        return translate(result);
    int version = 0;
    result = driver.cuDriverGetVersion(&version);
    if (result != CUDA_SUCCESS || version < LEAST_DRIVER_VERSION)
        return cudaErrorInsufficientDriver;
    result = driver.cuDeviceGetCount(&devices);
    if (result != CUDA_SUCCESS)
        return translate(result);
    if (devices > MAX_DEVICES)
        devices = MAX_DEVICES;
    for (int i = 0; i < devices; i++) {
        result = driver.cuDeviceGet(&handles[i], i);
        if (result != CUDA_SUCCESS)
            return translate(result);
    }
    return devices ? cudaSuccess : cudaErrorNoDevice;
}

static void start(void)
{
    pthread_atfork(fork_prepare, fork_done, fork_done);
    start_error = connect();
}

cudaError_t require_driver(void)
{
    pthread_once(&once, start);
    return start_error == cudaSuccess ? cudaSuccess : fail(start_error);
}

int device_count(void)
{
    return devices;
}

cudaError_t device_handle(int ordinal, CUdevice *device)
{
    if (ordinal < 0 || ordinal >= devices)
        return fail(cudaErrorInvalidDevice);
    *device = handles[ordinal];
    return cudaSuccess;
}

cudaError_t primary_context(int ordinal, CUcontext *context)
{
    CUdevice device = 0;
    RETURN_IF(device_handle(ordinal, &device));
    *context = atomic_load(&primaries[ordinal]);
    if (*context)
        return cudaSuccess;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&retain_lock);
    *context = atomic_load(&primaries[ordinal]);
    if (!*context) {
        result = driver.cuDevicePrimaryCtxRetain(context, device);
        if (result == CUDA_SUCCESS)
            atomic_store(&primaries[ordinal], *context);
    }
    pthread_mutex_unlock(&retain_lock);
    return done(result);
}

cudaError_t require_context(void)
{
    REQUIRE_DRIVER();
    CUcontext context = NULL;
    RETURN_IF(done(driver.cuCtxGetCurrent(&context)));
    if (context)
        return cudaSuccess;
    RETURN_IF(primary_context(chosen_device, &context));
    return done(driver.cuCtxSetCurrent(context));
}

cudaError_t current_device(int *ordinal)
{
    CUcontext context = NULL;
    CUdevice device = 0;
    /* A context that the program made current itself decides. */
    if (driver.cuCtxGetCurrent(&context) == CUDA_SUCCESS && context &&
        driver.cuCtxGetDevice(&device) == CUDA_SUCCESS) {
        for (int i = 0; i < devices; i++) {
            if (handles[i] == device) {
                *ordinal = i;
                return cudaSuccess;
            }
        }
    }
    *ordinal = chosen_device;
    return cudaSuccess;
}

API cudaError_t cudaSetDevice(int device)
{
    CUcontext context = NULL;
    REQUIRE_DRIVER();
    RETURN_IF(primary_context(device, &context));
    chosen_device = device;
    return done(driver.cuCtxSetCurrent(context));
}

API cudaError_t cudaGetDevice(int *device)
{
    REQUIRE_DRIVER();
    if (!device)
        return fail(cudaErrorInvalidValue);
    return current_device(device);
}

API cudaError_t cudaGetDeviceCount(int *count)
{
    if (!count)
        return fail(cudaErrorInvalidValue);
    *count = 0;
    REQUIRE_DRIVER();
    *count = devices;
    return cudaSuccess;
}

API cudaError_t cudaRuntimeGetVersion(int *version)
{
    if (!version)
        return fail(cudaErrorInvalidValue);
    *version = RUNTIME_VERSION;
    return cudaSuccess;
}

API cudaError_t cudaDriverGetVersion(int *version)
{
    if (!version)
        return fail(cudaErrorInvalidValue);
    *version = 0;
    /* Without a driver this is a success with version 0, as documented. */
    pthread_once(&once, start);
    return driver.cuDriverGetVersion ? done(driver.cuDriverGetVersion(version)) : cudaSuccess;
}

API cudaError_t cudaGetDriverEntryPointByVersion(const char *symbol, void **function,
                                                 unsigned int version, unsigned long long flags,
                                                 int *status)
{
    if (!symbol || !function)
        return fail(cudaErrorInvalidValue);
    *function = NULL;
    REQUIRE_DRIVER();
    return done(driver.get_proc(symbol, function, (int)version, flags, status));
}
