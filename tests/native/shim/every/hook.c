/* Calls every hook of the table with nothing (all arguments 0), each in a thread of its own with
 * a small stack, and the most usual ones with something; says of each how much of the stack was
 * used and what errno became. JSON lines: {"name", "code", "errno", "stack"}.
 *
 *   hook STACK_KIB    (libcuda.so.1 and libnvidia-ml.so.1 by the loader's search path) */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "hooks.h"

#define ERRNO 77
#define PAINT 0xa5

typedef int call_fn(uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t,
                    uintptr_t, uintptr_t, uintptr_t, uintptr_t, uintptr_t);

static void *cuda, *nvml, *ctx;
static int (*set)(void *);
static size_t stack_bytes;

struct job {
    const char *name;
    call_fn *call;
    uintptr_t given[4];
    int code, error;
};

static void *work(void *data) {
    struct job *job = data;
    if (ctx != NULL) set(ctx);
    errno = ERRNO;
    job->code = job->call(job->given[0], job->given[1], job->given[2], job->given[3], 0, 0, 0, 0, 0,
                          0, 0, 0);
    job->error = errno;
    return NULL;
}

static void die(const char *what) {
    fprintf(stderr, "%s\n", what);
    exit(2);
}

/* In a thread whose stack is painted; a page below it cannot be touched. */
static struct job run(const char *name, uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d) {
    struct job job = {.name = name, .given = {a, b, c, d}};
    job.call = (call_fn *)dlsym(name[0] == 'n' ? nvml : cuda, name);
    if (job.call == NULL) return job;
    char *low = mmap(NULL, stack_bytes + 4096, PROT_READ | PROT_WRITE,
                     MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (low == MAP_FAILED || mprotect(low, 4096, PROT_NONE) != 0) die("no stack");
    unsigned char *stack = (unsigned char *)low + 4096;
    memset(stack, PAINT, stack_bytes);
    pthread_attr_t how;
    pthread_t thread;
    if (pthread_attr_init(&how) != 0 || pthread_attr_setstack(&how, stack, stack_bytes) != 0 ||
        pthread_create(&thread, &how, work, &job) != 0 || pthread_join(thread, NULL) != 0)
        die("no thread");
    pthread_attr_destroy(&how);
    size_t untouched = 0;
    while (untouched < stack_bytes && stack[untouched] == PAINT) untouched++;
    printf("{\"name\": \"%s\", \"code\": %d, \"errno\": %d, \"stack\": %zu}\n", name, job.code,
           job.error, stack_bytes - untouched);
    fflush(stdout);
    munmap(low, stack_bytes + 4096);
    return job;
}

#define MUST(...)                                                                                  \
    do {                                                                                           \
        struct job done = run(__VA_ARGS__);                                                        \
        if (done.call == NULL || done.code != 0) die(done.name);                                   \
    } while (0)

#define NAME(symbol, ...) #symbol,
static const char *const hooks[] = {VGPU_CUDA_HOOKS(NAME) VGPU_NVML_HOOKS(NAME)};

static char *room(size_t bytes) {
    char *at = calloc(1, bytes);
    if (at == NULL) die("no memory");
    return at;
}

int main(int count, char **arguments) {
    stack_bytes = count == 2 ? (size_t)atol(arguments[1]) << 10 : 0;
    cuda = dlopen("libcuda.so.1", RTLD_NOW);
    nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (stack_bytes == 0 || cuda == NULL || nvml == NULL) die("usage: hook STACK_KIB");

    /* With something, as programs do. */
    void *device = NULL, *info = room(1 << 20), *primary = NULL;
    uint64_t at = 0, sizes[2];
    unsigned int many = 512;
    set = (int (*)(void *))dlsym(cuda, "cuCtxSetCurrent");
    if (set == NULL) die("cuCtxSetCurrent");
    MUST("cuInit", 0, 0, 0, 0);
    MUST("cuDevicePrimaryCtxRetain", (uintptr_t)&primary, 0, 0, 0);
    ctx = primary;
    MUST("cuDeviceTotalMem_v2", (uintptr_t)sizes, 0, 0, 0);
    MUST("cuMemGetInfo_v2", (uintptr_t)&sizes[0], (uintptr_t)&sizes[1], 0, 0);
    MUST("cuMemAlloc_v2", (uintptr_t)&at, 4 << 20, 0, 0);
    MUST("cuMemsetD8_v2", (uintptr_t)at, 0, 4 << 20, 0);
    MUST("cuMemFree_v2", (uintptr_t)at, 0, 0, 0);
    MUST("cuMemAllocAsync", (uintptr_t)&at, 4 << 20, 0, 0);
    MUST("cuMemFreeAsync", (uintptr_t)at, 0, 0, 0);
    run("cuMemAlloc_v2", (uintptr_t)&at, (uintptr_t)1 << 45, 0, 0); /* is refused */
    run("cuMemAllocAsync", (uintptr_t)&at, (uintptr_t)1 << 45, 0, 0);
    MUST("nvmlInit_v2", 0, 0, 0, 0);
    MUST("nvmlDeviceGetHandleByIndex_v2", 0, (uintptr_t)&device, 0, 0);
    MUST("nvmlDeviceGetMemoryInfo", (uintptr_t)device, (uintptr_t)info, 0, 0);
    static const char *const lists[] = {
        "nvmlDeviceGetComputeRunningProcesses",     "nvmlDeviceGetComputeRunningProcesses_v2",
        "nvmlDeviceGetComputeRunningProcesses_v3",  "nvmlDeviceGetGraphicsRunningProcesses",
        "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3",
    };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++, many = 512)
        run(lists[i], (uintptr_t)device, (uintptr_t)&many, (uintptr_t)info, 0);
    run("nvmlDeviceGetUtilizationRates", (uintptr_t)device, (uintptr_t)info, 0, 0);
    run("nvmlDeviceGetProcessUtilization", (uintptr_t)device, (uintptr_t)info, (uintptr_t)&many, 0);

    /* With nothing. The contexts that some of these end are nobody's any more. */
    for (size_t i = 0; i < sizeof hooks / sizeof hooks[0]; i++) {
        fprintf(stderr, "%s\n", hooks[i]); /* the last one said is the one that crashed */
        run(hooks[i], 0, 0, 0, 0);
    }
    return 0;
}
