/* Threads of one process that make every kind of call that the library hooks, at the same time
 * and on the same contexts; run under the thread sanitizer, which tells where two of them meet
 * without a lock.
 *
 *     all_calls ROUNDS
 *
 * Each thread has work of its own besides what all do: contexts, pools and graphs come and go
 * while others launch, allocate, ask and synchronise. Ends with 0 where every call answered as it
 * must; memory calls may be refused, since the cap is meant to be met. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define THREADS 6
#define OUT_OF_MEMORY 2
#define MIB ((size_t)1 << 20)

typedef int (*any)();

struct location {
    int type, id;
};
struct physical {
    int type, handles;
    struct location location;
    void *none;
    unsigned char flags[8];
};
struct pool_props {
    int type, handles;
    struct location location;
    void *none;
    size_t most;
    unsigned char rest[56];
};
struct node {
    struct pool_props props;
    const void *access;
    size_t accesses, bytes;
    unsigned long long ptr;
};
struct array {
    size_t width, height;
    int format;
    unsigned channels;
};

/* Who waits for a whole context spoils captures in it, as the driver's documentation says. */
static pthread_rwlock_t capturing = PTHREAD_RWLOCK_INITIALIZER;
static void *context, *function;
static long rounds;

static any in(const char *name)
{
    any found;
    *(void **)&found = dlsym(RTLD_DEFAULT, name);
    if (found == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(3);
    }
    return found;
}

static void must(int result, const char *what)
{
    if (result != 0) {
        fprintf(stderr, "%s: error %d\n", what, result);
        exit(6);
    }
}

/* Whether it was granted; a refusal is an answer too. */
static int granted(int result, const char *what)
{
    if (result != OUT_OF_MEMORY)
        must(result, what);
    return result == 0;
}

#define CALL(name, ...) in(#name)(__VA_ARGS__)
#define MUST(name, ...) must(CALL(name, __VA_ARGS__), #name)
#define GRANTED(name, ...) granted(CALL(name, __VA_ARGS__), #name)

static void memory(unsigned long seed, long i)
{
    unsigned long long p, m;
    size_t pitch, size = (1 + (i * seed) % 7) * MIB;
    if (GRANTED(cuMemAlloc_v2, &p, size))
        MUST(cuMemFree_v2, p);
    if (GRANTED(cuMemAllocManaged, &m, (size_t)4096, 1))
        MUST(cuMemFree_v2, m);
    if (GRANTED(cuMemAllocPitch_v2, &p, &pitch, (size_t)1000, (size_t)100 * seed, 4))
        MUST(cuMemFree_v2, p);
    struct array description = {64 * seed, 64, 0x20, 1};
    void *array;
    if (GRANTED(cuArrayCreate_v2, &array, &description))
        MUST(cuArrayDestroy, array);
    if (CALL(cuMemFree_v2, 0x1234500000ull * seed) == 0)
        exit(8);
}

static void ordered(unsigned long seed, long i, void *stream)
{
    unsigned long long p;
    if (GRANTED(cuMemAllocAsync, &p, (size_t)(1 + i % 5) * seed * MIB, stream))
        MUST(cuMemFreeAsync, p, stream);
    MUST(cuStreamSynchronize, stream);
}

static void launches(unsigned long seed, long i, void *stream)
{
    uint64_t length_ns = 2000 * seed;
    void *parameters[] = {&length_ns};
    for (int n = 0; n < 4; n++)
        MUST(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, (void *)0);
    if (i % 4 == 0) {
        pthread_rwlock_wrlock(&capturing);
        MUST(cuCtxSynchronize);
        pthread_rwlock_unlock(&capturing);
    }
}

static void called_back(void *data)
{
    __atomic_fetch_add((int *)data, 1, __ATOMIC_RELAXED);
}

/* Large enough to be the device's work. */
static void transfers(unsigned long seed, void *stream)
{
    int calls = 0;
    unsigned long long a, b;
    size_t size = 2 * MIB;
    if (!GRANTED(cuMemAlloc_v2, &a, size))
        return;
    if (GRANTED(cuMemAlloc_v2, &b, size)) {
        MUST(cuMemsetD8Async, a, (unsigned char)seed, size, stream);
        MUST(cuMemcpyDtoDAsync_v2, b, a, size, stream);
        MUST(cuLaunchHostFunc, stream, called_back, &calls);
        MUST(cuStreamSynchronize, stream);
        if (__atomic_load_n(&calls, __ATOMIC_RELAXED) != 1)
            exit(10);
        MUST(cuMemFree_v2, b);
    }
    MUST(cuMemFree_v2, a);
}

static void questions(void)
{
    size_t available, total;
    MUST(cuMemGetInfo_v2, &available, &total);
    MUST(cuDeviceTotalMem_v2, &total, 0);
    struct {
        unsigned long long total, free, used;
    } info;
    void *device;
    must(in("nvmlDeviceGetHandleByIndex_v2")(0, &device), "handle");
    must(in("nvmlDeviceGetMemoryInfo")(device, &info), "memory info");
    void *found;
    int status;
    MUST(cuGetProcAddress_v2, "cuMemAlloc", &found, 12000, (uint64_t)0, &status);
    if (found != (void *)in("cuMemAlloc_v2"))
        exit(7);
    unsigned rates[2], processes = 0;
    must(in("nvmlDeviceGetUtilizationRates")(device, rates), "rates");
    in("nvmlDeviceGetComputeRunningProcesses_v3")(device, &processes, (void *)0);
}

static void pools(unsigned long seed, void *stream)
{
    void *pool;
    unsigned long long p;
    struct pool_props props = {.type = 1, .location = {1, 0}};
    MUST(cuMemPoolCreate, &pool, &props);
    if (GRANTED(cuMemAllocFromPoolAsync, &p, seed * 3 * MIB, pool, stream))
        MUST(cuMemFreeAsync, p, stream);
    MUST(cuStreamSynchronize, stream);
    MUST(cuMemPoolTrimTo, pool, (size_t)0);
    MUST(cuMemPoolDestroy, pool);
}

static void mappings(unsigned long seed)
{
    unsigned long long handle, again, at;
    size_t size = 2 * seed * MIB;
    struct physical props = {.type = 1, .location = {1, 0}};
    if (!GRANTED(cuMemCreate, &handle, size, &props, 0ull))
        return;
    MUST(cuMemAddressReserve, &at, size, (size_t)0, 0ull, 0ull);
    MUST(cuMemMap, at, size, (size_t)0, handle, 0ull);
    MUST(cuMemRetainAllocationHandle, &again, (void *)(uintptr_t)at);
    MUST(cuMemRelease, handle);
    MUST(cuMemUnmap, at, size);
    MUST(cuMemRelease, again);
    MUST(cuMemAddressFree, at, size);
}

static void graphs(unsigned long seed, void *stream)
{
    void *graph, *node, *exec;
    struct node params = {.props = {.type = 1, .location = {1, 0}}, .bytes = seed * MIB};
    MUST(cuGraphCreate, &graph, 0);
    if (GRANTED(cuGraphAddMemAllocNode, &node, graph, (void *)0, (size_t)0, &params)) {
        void *freeing;
        MUST(cuGraphAddMemFreeNode, &freeing, graph, &node, (size_t)1, params.ptr);
        MUST(cuGraphInstantiateWithFlags, &exec, graph, 0ull);
        GRANTED(cuGraphLaunch, exec, stream);
        MUST(cuStreamSynchronize, stream);
        MUST(cuGraphExecDestroy, exec);
    }
    MUST(cuGraphDestroy, graph);
    MUST(cuDeviceGraphMemTrim, 0);
}

static void captures(void *stream)
{
    void *graph, *exec;
    uint64_t length_ns = 2000;
    void *parameters[] = {&length_ns};
    pthread_rwlock_rdlock(&capturing);
    MUST(cuStreamBeginCapture_v2, stream, 2);
    MUST(cuLaunchKernel, function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, (void *)0);
    MUST(cuStreamEndCapture, stream, &graph);
    pthread_rwlock_unlock(&capturing);
    MUST(cuGraphInstantiateWithFlags, &exec, graph, 0ull);
    MUST(cuGraphLaunch, exec, stream);
    MUST(cuStreamSynchronize, stream);
    MUST(cuGraphExecDestroy, exec);
    MUST(cuGraphDestroy, graph);
}

static void contexts(void)
{
    void *made;
    unsigned long long p;
    if (!GRANTED(cuCtxCreate_v2, &made, 0, 0))
        return;
    if (GRANTED(cuMemAlloc_v2, &p, 3 * MIB))
        MUST(cuMemFree_v2, p);
    MUST(cuCtxDestroy_v2, made);
    MUST(cuCtxSetCurrent, context);
    void *again;
    MUST(cuDevicePrimaryCtxRetain, &again, 0);
    MUST(cuDevicePrimaryCtxRelease_v2, 0);
}

static void *work(void *argument)
{
    unsigned long seed = (unsigned long)argument;
    void *stream;
    MUST(cuCtxSetCurrent, context);
    MUST(cuStreamCreate, &stream, 1);
    for (long i = 0; i < rounds; i++) {
        memory(seed, i);
        ordered(seed, i, stream);
        launches(seed, i, stream);
        questions();
        switch ((seed + (unsigned long)i) % 6) {
        case 0: contexts(); break;
        case 1: pools(seed, stream); break;
        case 2: mappings(seed); break;
        case 3: graphs(seed, stream); break;
        case 4: transfers(seed, stream); break;
        default: captures(stream); break;
        }
        if (i % 8 == 7) {
            MUST(cuStreamDestroy_v2, stream);
            MUST(cuStreamCreate, &stream, 1);
        }
    }
    MUST(cuStreamDestroy_v2, stream);
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 4;
    rounds = atol(arguments[1]);
    /* Into the global scope, as if it were linked to them: what is preloaded is found first. */
    if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL) == NULL ||
        dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_GLOBAL) == NULL) {
        fprintf(stderr, "%s\n", dlerror());
        return 5;
    }
    void *module;
    MUST(cuInit, 0);
    must(in("nvmlInit_v2")(), "nvmlInit_v2");
    MUST(cuDevicePrimaryCtxRetain, &context, 0);
    MUST(cuCtxSetCurrent, context);
    MUST(cuModuleLoadData, &module, "VGPU-EMULATED-KERNELS 1\nlast spin\n");
    MUST(cuModuleGetFunction, &function, module, "last");
    pthread_t threads[THREADS];
    for (unsigned long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(i + 1)) != 0)
            return 9;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    MUST(cuCtxSynchronize);
    return 0;
}
