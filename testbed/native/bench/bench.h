/* What the programs of `testbed bench` share: the driver's functions, found at run time, and a
 * kernel of the emulated driver's own.
 */
#ifndef VGPU_BENCH_H
#define VGPU_BENCH_H

#include <dlfcn.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Text of the emulated driver's own; a real one refuses it. */
static const char image[] = "VGPU-EMULATED-KERNELS 1\nvgpu_bench_spin spin\n";
static const char kernel_name[] = "vgpu_bench_spin";

static int (*cu_launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, void *, void **, void **);
static int (*cu_synchronize)(void);
static int (*cu_set)(void *);
static void *context;

static inline void fail(const char *what, int code)
{
    fprintf(stderr, "%s: error %d\n", what, code);
    exit(2);
}

#define MUST(call)                                                                         \
    do {                                                                                   \
        int code_ = (call);                                                                \
        if (code_ != 0)                                                                    \
            fail(#call, code_);                                                            \
    } while (0)

static inline void *open_library(const char *name, int flags)
{
    void *library = dlopen(name, RTLD_NOW | flags);
    if (library == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    return library;
}

/* Stores the address of `name` in a typed function pointer. */
static inline void find(void *library, const char *name, void *function)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        exit(2);
    }
    memcpy(function, &symbol, sizeof symbol);
}

static inline double now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* Makes the device's context current and returns the kernel. The functions are looked up in
 * `library`: the driver's own, or RTLD_DEFAULT, where what was preloaded comes before it. */
static inline void *driver_kernel(void *library)
{
    int (*init)(unsigned), (*retain)(void **, int);
    int (*load)(void **, const void *), (*get)(void **, void *, const char *);
    find(library, "cuInit", &init);
    find(library, "cuDevicePrimaryCtxRetain", &retain);
    find(library, "cuCtxSetCurrent", &cu_set);
    find(library, "cuModuleLoadData", &load);
    find(library, "cuModuleGetFunction", &get);
    find(library, "cuLaunchKernel", &cu_launch);
    find(library, "cuCtxSynchronize", &cu_synchronize);
    void *module = NULL, *kernel = NULL;
    MUST(init(0));
    MUST(retain(&context, 0));
    MUST(cu_set(context));
    MUST(load(&module, image));
    MUST(get(&kernel, module, kernel_name));
    return kernel;
}

#endif
