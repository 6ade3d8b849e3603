/* What single calls cost, and whether kernels take the time that they should.
 *
 *   vgpu-bench-card driver  BATCHES CALLS   µs a launch through libcuda, a line a batch
 *   vgpu-bench-card runtime BATCHES CALLS   the same through libcudart
 *   vgpu-bench-card alloc   BATCHES CALLS BYTES   µs an allocation and its release
 *   vgpu-bench-card time    SECONDS NS      ns modelled, by events, by the wall clock
 *
 * Libraries are found as any program finds them (LD_LIBRARY_PATH). Launches are of a kernel
 * that takes no time; a batch must fit the queue of a stream, and is waited for outside of
 * what is measured.
 */
#include "bench.h"

static void *library;

static void *driver(void)
{
    library = open_library("libcuda.so.1", 0);
    return driver_kernel(library);
}

static void bench_driver(long batches, long calls)
{
    void *kernel = driver();
    uint64_t duration = 0;
    void *parameters[] = {&duration};
    for (long batch = -1; batch < batches; batch++) { /* the first warms up */
        double start = now_ns();
        for (long i = 0; i < calls; i++)
            MUST(cu_launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
        double took = now_ns() - start;
        MUST(cu_synchronize());
        if (batch >= 0)
            printf("%.4f\n", took / 1e3 / (double)calls);
    }
}

struct dim3 {
    unsigned x, y, z;
};

static void bench_runtime(long batches, long calls)
{
    void **(*register_image)(const void *);
    void (*register_kernel)(void **, const void *, char *, const char *, int, void *, void *,
                            void *, void *, int *);
    int (*launch)(const void *, struct dim3, struct dim3, void **, size_t, void *);
    int (*synchronize)(void);
    library = open_library("libcudart.so.13", 0);
    find(library, "__cudaRegisterFatBinary", &register_image);
    find(library, "__cudaRegisterFunction", &register_kernel);
    find(library, "cudaLaunchKernel", &launch);
    find(library, "cudaDeviceSynchronize", &synchronize);
    register_kernel(register_image(image), kernel_name, NULL, kernel_name, -1, NULL, NULL, NULL,
                    NULL, NULL);
    struct dim3 grid = {1, 1, 1}, block = {32, 1, 1};
    uint64_t duration = 0;
    void *parameters[] = {&duration};
    for (long batch = -1; batch < batches; batch++) {
        double start = now_ns();
        for (long i = 0; i < calls; i++)
            MUST(launch(kernel_name, grid, block, parameters, 0, NULL));
        double took = now_ns() - start;
        MUST(synchronize());
        if (batch >= 0)
            printf("%.4f\n", took / 1e3 / (double)calls);
    }
}

static void bench_alloc(long batches, long calls, size_t bytes)
{
    int (*allocate)(unsigned long long *, size_t), (*release)(unsigned long long);
    driver();
    find(library, "cuMemAlloc_v2", &allocate);
    find(library, "cuMemFree_v2", &release);
    for (long batch = -1; batch < batches; batch++) {
        double start = now_ns();
        for (long i = 0; i < calls; i++) {
            unsigned long long pointer;
            MUST(allocate(&pointer, bytes));
            MUST(release(pointer));
        }
        double took = now_ns() - start;
        if (batch >= 0)
            printf("%.4f\n", took / 1e3 / (double)calls);
    }
}

static void bench_time(double seconds, uint64_t duration_ns)
{
    void *kernel = driver();
    int (*create)(void **, unsigned), (*record)(void *, void *), (*elapsed)(float *, void *, void *);
    find(library, "cuEventCreate", &create);
    find(library, "cuEventRecord", &record);
    find(library, "cuEventElapsedTime_v2", &elapsed);
    long kernels = (long)(seconds * 1e9 / (double)duration_ns);
    void *first, *last;
    void *parameters[] = {&duration_ns};
    MUST(create(&first, 0));
    MUST(create(&last, 0));
    MUST(cu_launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    MUST(cu_synchronize());
    double start = now_ns();
    MUST(record(first, NULL));
    for (long i = 0; i < kernels; i++)
        MUST(cu_launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL));
    MUST(record(last, NULL));
    MUST(cu_synchronize());
    double wall = now_ns() - start;
    float milliseconds = 0;
    MUST(elapsed(&milliseconds, first, last));
    printf("%.0f %.0f %.0f\n", (double)kernels * (double)duration_ns, milliseconds * 1e6, wall);
}

int main(int count, char **arguments)
{
    const char *what = count > 3 ? arguments[1] : "";
    if (strcmp(what, "driver") == 0)
        bench_driver(atol(arguments[2]), atol(arguments[3]));
    else if (strcmp(what, "runtime") == 0)
        bench_runtime(atol(arguments[2]), atol(arguments[3]));
    else if (strcmp(what, "alloc") == 0 && count > 4)
        bench_alloc(atol(arguments[2]), atol(arguments[3]), strtoull(arguments[4], NULL, 10));
    else if (strcmp(what, "time") == 0)
        bench_time(atof(arguments[2]), strtoull(arguments[3], NULL, 10));
    else {
        fprintf(stderr, "usage: vgpu-bench-card driver|runtime BATCHES CALLS | "
                        "alloc BATCHES CALLS BYTES | time SECONDS NS\n");
        return 2;
    }
    return 0;
}
