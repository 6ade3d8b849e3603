/* Launches, waits and looks at events until it is killed. What it sees of its own time must
 * be right at every moment, whoever else dies meanwhile; exit status 1 and a line if not.
 *
 * churn <seed> <rounds, 0: for ever> */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef int (*any)();

static any find(void *library, const char *name)
{
    any function;
    *(void **)&function = dlsym(library, name);
    if (function == NULL)
        exit(3);
    return function;
}

static double now_ms(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec / 1e6;
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 4;
    unsigned int seed = (unsigned int)atoi(arguments[1]);
    long rounds = atol(arguments[2]);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return 3;
    any launch = find(library, "cuLaunchKernel"), record = find(library, "cuEventRecord");
    any elapsed = find(library, "cuEventElapsedTime"), create = find(library, "cuEventCreate");
    any sync = find(library, "cuStreamSynchronize"), query = find(library, "cuStreamQuery");
    void *context, *module, *kernel, *begin, *end, *stream;
    if (find(library, "cuInit")(0) != 0 ||
        find(library, "cuDevicePrimaryCtxRetain")(&context, 0) != 0 ||
        find(library, "cuCtxSetCurrent")(context) != 0 ||
        find(library, "cuModuleLoadData")(&module, "VGPU-EMULATED-KERNELS 1\nk spin\n") != 0 ||
        find(library, "cuModuleGetFunction")(&kernel, module, "k") != 0 ||
        find(library, "cuStreamCreate")(&stream, 1) != 0 || create(&begin, 0) != 0 ||
        create(&end, 0) != 0)
        return 5;
    for (long round = 0; rounds == 0 || round < rounds; round++) {
        uint64_t total = 0;
        double started = now_ms();
        if (record(begin, stream) != 0)
            return 6;
        for (int i = rand_r(&seed) % 20; i >= 0; i--) {
            uint64_t ns = (uint64_t)(rand_r(&seed) % 4 == 0 ? 300000 : 3000);
            void *parameters[] = {&ns};
            if (launch(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL) != 0)
                return 7;
            total += ns;
            if (rand_r(&seed) % 4 == 0)
                query(stream);
        }
        if (record(end, stream) != 0 || sync(stream) != 0)
            return 8;
        double waited = now_ms() - started;
        float took;
        if (elapsed(&took, begin, end) != 0)
            return 9;
        /* Never faster than the device, never longer than the wait for it. */
        if (took < (double)total / 1e6 - 0.001 || took > waited + 0.001) {
            printf("round %ld: %f ms for %f ms of work, waited %f ms\n", round, took,
                   (double)total / 1e6, waited);
            return 1;
        }
        if (rand_r(&seed) % 8 == 0)
            nanosleep(&(struct timespec){.tv_nsec = rand_r(&seed) % 3000000}, NULL);
    }
    return 0;
}
