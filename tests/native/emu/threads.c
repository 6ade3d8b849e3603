/* Threads of one process that allocate, write, ask and free at the same time; run under the
 * thread sanitizer, which tells where two of them meet without a lock. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 4

typedef int (*any)();

static void *library, *context;
static long rounds;

static any find(const char *name)
{
    any function;
    *(void **)&function = dlsym(library, name);
    if (function == NULL)
        exit(3);
    return function;
}

static void must(int result)
{
    if (result != 0) {
        fprintf(stderr, "CUDA error %d\n", result);
        exit(6);
    }
}

static void *work(void *argument)
{
    unsigned long seed = (unsigned long)argument;
    any allocate = find("cuMemAlloc_v2"), release = find("cuMemFree_v2");
    any allocate_async = find("cuMemAllocAsync"), free_async = find("cuMemFreeAsync");
    any allocate_managed = find("cuMemAllocManaged"), info = find("cuMemGetInfo_v2");
    any set = find("cuMemsetD8_v2"), range = find("cuMemGetAddressRange_v2");
    must(find("cuCtxSetCurrent")(context));
    for (long i = 0; i < rounds; i++) {
        unsigned long long p, q, m, base;
        size_t available, total, bytes, size = (1 + (i * seed) % 7) << 20;
        must(allocate(&p, size));
        must(allocate_async(&q, (size_t)(1 + i * (long)seed * 1000), (void *)0));
        must(allocate_managed(&m, (size_t)4096, 1));
        must(set(p, (unsigned char)seed, (size_t)8192));
        must(range(&base, &bytes, p));
        if (base != p || bytes != size)
            exit(7);
        if (i % 16 == 0)
            must(info(&available, &total));
        must(release(p));
        must(free_async(q, (void *)0));
        must(release(m));
    }
    return NULL;
}

int main(int count, char **arguments)
{
    if (count != 2)
        return 4;
    rounds = atol(arguments[1]);
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return 5;
    must(find("cuInit")(0));
    must(find("cuDevicePrimaryCtxRetain")(&context, 0));
    pthread_t threads[THREADS];
    for (unsigned long i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, work, (void *)(i + 1)) != 0)
            return 8;
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    return 0;
}
