/* Code: registration by the compiler's start-up functions, kernels, launches.
 *
 * A registered image is only remembered: it is given to the driver when the first
 * kernel or variable in it is used (the vendor calls this lazy loading). Nothing in
 * it is parsed, here or there. A kernel handle is the driver's CUkernel; a launch
 * takes the kernel behind a registered host function, or a handle as it is.
 */
#include "counts.h"
#include "runtime.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>

struct image {
    const void *data;
    CUlibrary library; /* NULL until it is needed */
};

/* A host function or host variable that stands for one on the device. */
struct symbol {
    const void *host; /* key; NULL = free */
    struct image *image;
    const char *name; /* lives in the registering library */
    CUkernel kernel;  /* NULL until it is needed */
};

/* Open addressing, a power of two, at most half full. torch registers 24,000. */
struct table {
    struct symbol *entries;
    size_t size, used;
};

#define FIRST_SIZE 1024
#define CALL_DEPTH 16

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* both tables and all images */
static struct table functions, variables;

static _Thread_local struct {
    dim3 grid, block;
    size_t shared;
    CUstream stream;
} calls[CALL_DEPTH];
static _Thread_local int depth;

static void fork_prepare(void)
{
    pthread_mutex_lock(&lock);
}

static void fork_done(void)
{
    pthread_mutex_unlock(&lock);
}

__attribute__((constructor)) static void survive_fork(void)
{
    pthread_atfork(fork_prepare, fork_done, fork_done);
}

static size_t slot_of(const struct table *table, const void *host)
{
    uint64_t mixed = (uint64_t)(uintptr_t)host * 0x9e3779b97f4a7c15u;
    size_t i = (size_t)(mixed >> 20) & (table->size - 1);
    while (table->entries[i].host && table->entries[i].host != host)
        i = (i + 1) & (table->size - 1);
    return i;
}

static struct symbol *look_up(const struct table *table, const void *host)
{
    if (!table->size || !host)
        return NULL;
    struct symbol *symbol = &table->entries[slot_of(table, host)];
    return symbol->host ? symbol : NULL;
}

static bool grow(struct table *table)
{
    struct table bigger = {.size = table->size ? table->size * 2 : FIRST_SIZE,
                           .used = table->used};
    bigger.entries = calloc(bigger.size, sizeof(*bigger.entries));
    if (!bigger.entries)
        return false;
    for (size_t i = 0; i < table->size; i++)
        if (table->entries[i].host)
            bigger.entries[slot_of(&bigger, table->entries[i].host)] = table->entries[i];
    free(table->entries);
    *table = bigger;
    return true;
}

/* Out of memory leaves the symbol unregistered: using it is an error then. */
static void add(struct table *table, struct symbol symbol)
{
    pthread_mutex_lock(&lock);
    if (table->used * 2 < table->size || grow(table)) {
        struct symbol *entry = &table->entries[slot_of(table, symbol.host)];
        table->used += entry->host == NULL;
        *entry = symbol; /* an address used again belongs to the newer library */
    }
    pthread_mutex_unlock(&lock);
}

/* --- registration --------------------------------------------------------- */

API void **__cudaRegisterFatBinary(void *wrapper)
{
    struct image *image = calloc(1, sizeof(*image));
    if (image)
        image->data = wrapper;
    return (void **)image;
}

API void __cudaRegisterFatBinaryEnd(void **image)
{
    (void)image;
}

/* Called while the process ends or a library is closed. The driver may be gone by
 * then, and host functions may still name the image: it is kept. */
API void __cudaUnregisterFatBinary(void **image)
{
    (void)image;
}

API void __cudaRegisterFunction(void **image, const char *host, char *device, const char *name,
                                int thread_limit, void *thread_id, void *block_id,
                                void *block_size, void *grid_size, int *warp_size)
{
    (void)device, (void)thread_limit, (void)thread_id, (void)block_id;
    (void)block_size, (void)grid_size, (void)warp_size;
    if (image)
        add(&functions, (struct symbol){.host = host, .image = (struct image *)image, .name = name});
}

API void __cudaRegisterVar(void **image, char *host, char *device, const char *name, int external,
                           size_t bytes, int constant, int global)
{
    (void)device, (void)external, (void)bytes, (void)constant, (void)global;
    if (image)
        add(&variables, (struct symbol){.host = host, .image = (struct image *)image, .name = name});
}

/* --- from host addresses to the driver's handles -------------------------- */

static CUresult library_of(struct image *image, CUlibrary *library)
{
    if (!image->library) {
        CUresult result =
            driver.cuLibraryLoadData(&image->library, image->data, NULL, NULL, 0, NULL, NULL, 0);
        if (result != CUDA_SUCCESS)
            return result;
    }
    *library = image->library;
    return CUDA_SUCCESS;
}

/* `*kernel` stays NULL where `function` is not registered. */
static CUresult registered_kernel(const void *function, CUkernel *kernel)
{
    CUlibrary library = NULL;
    CUresult result = CUDA_SUCCESS;
    *kernel = NULL;
    pthread_mutex_lock(&lock);
    struct symbol *symbol = look_up(&functions, function);
    if (symbol) {
        if (!symbol->kernel)
            result = library_of(symbol->image, &library);
        if (!symbol->kernel && result == CUDA_SUCCESS) {
            result = driver.cuLibraryGetKernel(&symbol->kernel, library, symbol->name);
            if (result == CUDA_SUCCESS)
                count_remember(symbol->kernel, symbol->name);
        }
        *kernel = symbol->kernel;
    }
    pthread_mutex_unlock(&lock);
    return result;
}

cudaError_t kernel_of(const void *function, CUkernel *kernel)
{
    if (!function)
        return fail(cudaErrorInvalidDeviceFunction);
    RETURN_IF(done(registered_kernel(function, kernel)));
    if (!*kernel) /* not a host function: a handle from cudaLibraryGetKernel */
        *kernel = (CUkernel)(uintptr_t)function;
    return cudaSuccess;
}

API cudaError_t __cudaGetKernel(CUkernel *kernel, const void *function)
{
    REQUIRE_DRIVER();
    RETURN_IF(done(registered_kernel(function, kernel)));
    return *kernel ? cudaSuccess : fail(cudaErrorInvalidDeviceFunction);
}

static cudaError_t variable_address(const void *host, CUdeviceptr *address, size_t *bytes)
{
    CUlibrary library = NULL;
    CUresult result = CUDA_SUCCESS;
    pthread_mutex_lock(&lock);
    struct symbol *symbol = look_up(&variables, host);
    if (symbol) {
        result = library_of(symbol->image, &library);
        if (result == CUDA_SUCCESS)
            result = driver.cuLibraryGetGlobal(address, bytes, library, symbol->name);
    }
    pthread_mutex_unlock(&lock);
    return symbol ? done(result) : fail(cudaErrorInvalidSymbol);
}

API cudaError_t cudaGetSymbolAddress(void **pointer, const void *symbol)
{
    REQUIRE_CONTEXT();
    return variable_address(symbol, (CUdeviceptr *)pointer, NULL);
}

API cudaError_t cudaMemcpyToSymbol(const void *symbol, const void *from, size_t bytes,
                                   size_t offset, int kind)
{
    CUdeviceptr to = 0;
    size_t size = 0;
    REQUIRE_CONTEXT();
    RETURN_IF(variable_address(symbol, &to, &size));
    if (offset > size || bytes > size - offset)
        return fail(cudaErrorInvalidValue);
    switch (kind) {
    case cudaMemcpyHostToDevice:
    case cudaMemcpyDefault:
        return done(driver.cuMemcpyHtoD(to + offset, from, bytes));
    case cudaMemcpyDeviceToDevice:
        return done(
            driver.cuMemcpyDtoD(to + offset, (CUdeviceptr)(uintptr_t)from, bytes));
    default:
        return fail(cudaErrorInvalidMemcpyDirection);
    }
}

/* --- launches ------------------------------------------------------------- */

API unsigned int __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream)
{
    if (depth == CALL_DEPTH)
        return (unsigned int)fail(cudaErrorInvalidConfiguration);
    calls[depth].grid = grid;
    calls[depth].block = block;
    calls[depth].shared = shared;
    calls[depth].stream = stream;
    depth++;
    return 0;
}

API cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream)
{
    if (!depth)
        return fail(cudaErrorInvalidConfiguration);
    depth--;
    *grid = calls[depth].grid;
    *block = calls[depth].block;
    *shared = calls[depth].shared;
    *(CUstream *)stream = calls[depth].stream;
    return cudaSuccess;
}

/* The driver accepts a kernel where it takes a function, and picks the context by
 * the stream: one handle serves all devices. */
static cudaError_t launch(CUkernel kernel, dim3 grid, dim3 block, void **arguments, size_t shared,
                          CUstream stream)
{
    RETURN_IF(done(driver.cuLaunchKernel((CUfunction)kernel, grid.x, grid.y, grid.z, block.x,
                                         block.y, block.z, (unsigned int)shared, stream,
                                         arguments, NULL)));
    count_nothing(kernel, arguments, stream);
    return cudaSuccess;
}

API cudaError_t cudaLaunchKernel(const void *function, dim3 grid, dim3 block, void **arguments,
                                 size_t shared, CUstream stream)
{
    CUkernel kernel = NULL;
    REQUIRE_CONTEXT();
    RETURN_IF(kernel_of(function, &kernel));
    return launch(kernel, grid, block, arguments, shared, stream);
}

API cudaError_t __cudaLaunchKernel(CUkernel kernel, dim3 grid, dim3 block, void **arguments,
                                   size_t shared, CUstream stream)
{
    REQUIRE_CONTEXT();
    if (!kernel)
        return fail(cudaErrorInvalidDeviceFunction);
    return launch(kernel, grid, block, arguments, shared, stream);
}

API cudaError_t cudaLaunchCooperativeKernel(const void *function, dim3 grid, dim3 block,
                                            void **arguments, size_t shared, CUstream stream)
{
    CUkernel kernel = NULL;
    REQUIRE_CONTEXT();
    RETURN_IF(kernel_of(function, &kernel));
    return done(driver.cuLaunchCooperativeKernel((CUfunction)kernel, grid.x, grid.y, grid.z,
                                                 block.x, block.y, block.z, (unsigned int)shared,
                                                 stream, arguments));
}

API cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *function,
                                    void **arguments)
{
    CUkernel kernel = NULL;
    REQUIRE_CONTEXT();
    if (!config)
        return fail(cudaErrorInvalidValue);
    RETURN_IF(kernel_of(function, &kernel));
    CUlaunchConfig own = {
        .gridDimX = config->gridDim.x,
        .gridDimY = config->gridDim.y,
        .gridDimZ = config->gridDim.z,
        .blockDimX = config->blockDim.x,
        .blockDimY = config->blockDim.y,
        .blockDimZ = config->blockDim.z,
        .sharedMemBytes = (unsigned int)config->dynamicSmemBytes,
        .hStream = config->stream,
        .attrs = config->attrs,
        .numAttrs = config->numAttrs,
    };
    RETURN_IF(done(driver.cuLaunchKernelEx(&own, (CUfunction)kernel, arguments, NULL)));
    count_nothing(kernel, arguments, config->stream);
    return cudaSuccess;
}
