/* Launches of known cost: see work.h. */
#define _GNU_SOURCE
#include "work.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>

#define CUDA_ERROR_NOT_INITIALIZED 3
#define CUDA_ERROR_NOT_FOUND 500
#define DEPTHS 24 /* 2^23 products for one output, and more, are one kernel */
#define THREADS 256
#define MOST_BLOCKS 0x7fffffffu

typedef CUresult (*get_proc_address)(const char *, void **, int, uint64_t, int *);

static struct {
    CUresult (*init)(unsigned int);
    CUresult (*load)(void **, const void *, void *, void **, unsigned int, void *, void **,
                     unsigned int);
    CUresult (*get_kernel)(void **, void *, const char *);
    CUresult (*launch)(void *, unsigned int, unsigned int, unsigned int, unsigned int,
                       unsigned int, unsigned int, unsigned int, CUstream, void **, void **);
} driver;

static pthread_once_t once = PTHREAD_ONCE_INIT;
static CUresult ready = CUDA_ERROR_NOT_INITIALIZED;
static void *library;
static _Atomic(void *) kernels[WORK_KINDS][PRECISIONS][DEPTHS];

/* Real libraries have one kernel for each of many shapes. Whoever learns what a kernel
 * costs by its name and geometry must find the same here, so the depth, which geometry
 * does not show, is in the name. */
static void name_of(char *text, size_t size, enum work_kind kind, enum precision precision,
                    unsigned int depth)
{
    static const char *const kinds[] = {"matmul", "convolution", "memory"};
    static const char *const precisions[] = {"fp32", "tf32", "fp16", "fp64", "int8"};
    snprintf(text, size, "vgpu_emulated_%s_%s_2e%u", kinds[kind], precisions[precision], depth);
}

static const char *image(void)
{
    static char text[WORK_KINDS * PRECISIONS * DEPTHS * 48];
    size_t used = (size_t)snprintf(text, sizeof text, "VGPU-EMULATED-KERNELS 1\n");
    for (int kind = 0; kind < WORK_KINDS; kind++)
        for (int precision = 0; precision < PRECISIONS; precision++)
            for (unsigned int depth = 0; depth < DEPTHS; depth++) {
                char name[64];
                name_of(name, sizeof name, kind, precision, depth);
                used += (size_t)snprintf(text + used, sizeof text - used, "%s work\n", name);
            }
    return text;
}

static void start(void)
{
    void *handle = dlopen("libcuda.so.1", RTLD_NOW);
    if (!handle)
        return;
    get_proc_address get = (get_proc_address)dlsym(handle, "cuGetProcAddress_v2");
    if (!get)
        return;
    const struct {
        const char *name;
        int version; /* at which the variant with these parameters appeared */
        void **function;
    } needed[] = {
        {"cuInit", 2000, (void **)&driver.init},
        {"cuLibraryLoadData", 12000, (void **)&driver.load},
        {"cuLibraryGetKernel", 12000, (void **)&driver.get_kernel},
        {"cuLaunchKernel", 4000, (void **)&driver.launch},
    };
    for (size_t i = 0; i < sizeof needed / sizeof needed[0]; i++)
        if (get(needed[i].name, needed[i].function, needed[i].version, 0, NULL) != 0 ||
            !*needed[i].function) {
            ready = CUDA_ERROR_NOT_FOUND;
            return;
        }
    ready = driver.init(0);
    if (ready == 0)
        ready = driver.load(&library, image(), NULL, NULL, 0, NULL, NULL, 0);
}

CUresult work_ready(void)
{
    pthread_once(&once, start);
    return ready;
}

static CUresult kernel_of(const struct work *work, void **kernel)
{
    unsigned int depth = work->depth ? 63 - (unsigned int)__builtin_clzll(work->depth) : 0;
    if (depth >= DEPTHS)
        depth = DEPTHS - 1;
    _Atomic(void *) *slot = &kernels[work->kind][work->precision][depth];
    *kernel = atomic_load_explicit(slot, memory_order_acquire);
    if (*kernel)
        return 0;
    char name[64];
    name_of(name, sizeof name, work->kind, work->precision, depth);
    CUresult result = driver.get_kernel(kernel, library, name);
    if (result == 0) /* two threads that look at once get the same handle */
        atomic_store_explicit(slot, *kernel, memory_order_release);
    return result;
}

CUresult work_launch(const struct work *work, CUstream stream)
{
    void *kernel = NULL;
    CUresult result = work_ready();
    if (result != 0 || (work->flops == 0 && work->bytes == 0))
        return result;
    result = kernel_of(work, &kernel);
    if (result != 0)
        return result;
    uint64_t flops = work->flops, bytes = work->bytes;
    uint32_t precision = work->precision;
    void *parameters[] = {&flops, &bytes, &precision};
    uint64_t blocks = work->blocks ? work->blocks : 1;
    return driver.launch(kernel, blocks < MOST_BLOCKS ? (unsigned int)blocks : MOST_BLOCKS, 1, 1,
                         THREADS, 1, 1, 0, stream, parameters, NULL);
}
