/* A tenant that keeps the card busy with kernels of one length, for tests of the throttle.
 *
 *     tenant KERNEL_US PATTERN STREAMS [THREADS [PAUSE_US]]
 *                                                     PATTERN: deep sync graph fill ex coop idle
 *
 * Says "ready" once its context and kernels are there, begins at a line on standard input,
 * and at the next line (or its end) prints {"launches": N, "errno_kept": true, "p50_us": …,
 * "p99_us": …} and ends. The last two are of `sync` in one thread: from a launch to the end of
 * its synchronisation. PAUSE_US: it rests so long (below a second) after each. */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

int cuInit(unsigned int);
int cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *);
int cuCtxSynchronize(void);
int cuModuleLoadData(void **, const void *);
int cuModuleGetFunction(void **, void *, const char *);
int cuStreamCreate(void **, unsigned int);
int cuStreamSynchronize(void *);
int cuStreamBeginCapture_v2(void *, int);
int cuStreamEndCapture(void *, void **);
int cuGraphInstantiateWithFlags(void **, void *, unsigned long long);
int cuGraphLaunch(void *, void *);
int cuMemAlloc_v2(unsigned long long *, size_t);
int cuMemsetD32Async(unsigned long long, unsigned int, size_t, void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void *, void **, void **);
int cuLaunchKernel_ptsz(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        unsigned, void *, void **, void **);
int cuLaunchCooperativeKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                              unsigned, void *, void **);
struct config {
    unsigned grid[3], block[3], shared;
    void *stream, *attributes;
    unsigned count;
};
int cuLaunchKernelEx(const struct config *, void *, void **, void **);

static void *context, *function, *graph, *streams[16];
static unsigned long long memory;
static uint64_t length_ns;
static const char *pattern;
static int stream_count, thread_count;
static volatile int stopping;
static _Atomic long launches;
static _Atomic int errno_changed, failed;

#define MOST_LATENCIES (1 << 20)
static uint64_t pause_ns, latencies[MOST_LATENCIES];
static size_t latency_count;

static uint64_t clock_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static int compare(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double latency_us(double part) {
    if (latency_count == 0) return 0;
    qsort(latencies, latency_count, sizeof *latencies, compare);
    return (double)latencies[(size_t)(part * (double)(latency_count - 1))] / 1e3;
}

static void check(int code, const char *what) {
    if (code == 0) return;
    fprintf(stderr, "%s: %d\n", what, code);
    exit(3);
}

static int launch(void *stream) {
    void *parameters[] = {&length_ns};
    if (graph != NULL) return cuGraphLaunch(graph, stream);
    if (strcmp(pattern, "fill") == 0) return cuMemsetD32Async(memory, 0, 1 << 26, stream);
    if (strcmp(pattern, "thread") == 0)
        return cuLaunchKernel_ptsz(function, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
    if (strcmp(pattern, "coop") == 0)
        return cuLaunchCooperativeKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters);
    if (strcmp(pattern, "ex") == 0) {
        struct config config = {{1, 1, 1}, {32, 1, 1}, 0, stream, NULL, 0};
        return cuLaunchKernelEx(&config, function, parameters, NULL);
    }
    return cuLaunchKernel(function, 1, 1, 1, 32, 1, 1, 0, stream, parameters, NULL);
}

static void *work(void *data) {
    (void)data;
    cuCtxSetCurrent(context);
    for (long i = 0; !stopping; i++) {
        void *stream = streams[i % stream_count];
        uint64_t began = clock_ns();
        errno = 4711;
        int code = launch(stream);
        if (errno != 4711) errno_changed = 1;
        if (code != 0) {
            failed = code;
            break;
        }
        launches++;
        if (strcmp(pattern, "sync") != 0) continue;
        cuStreamSynchronize(stream);
        if (thread_count == 1 && latency_count < MOST_LATENCIES)
            latencies[latency_count++] = clock_ns() - began;
        if (pause_ns > 0) nanosleep(&(struct timespec){.tv_nsec = (long)pause_ns}, NULL);
    }
    return NULL;
}

int main(int argc, char **argv) {
    if (argc < 4) return 2;
    length_ns = (uint64_t)(atof(argv[1]) * 1000);
    pattern = argv[2];
    stream_count = atoi(argv[3]);
    int threads = thread_count = argc > 4 ? atoi(argv[4]) : 1;
    pause_ns = argc > 5 ? (uint64_t)(atof(argv[5]) * 1000) : 0;
    void *module;
    check(cuInit(0), "cuInit");
    check(cuDevicePrimaryCtxRetain(&context, 0), "context");
    check(cuCtxSetCurrent(context), "current");
    check(cuModuleLoadData(&module, "VGPU-EMULATED-KERNELS 1\nlast spin\n"), "module");
    check(cuModuleGetFunction(&function, module, "last"), "function");
    for (int i = 0; i < stream_count && stream_count > 1; i++)
        check(cuStreamCreate(&streams[i], 1), "stream");
    if (strcmp(pattern, "fill") == 0) check(cuMemAlloc_v2(&memory, 1 << 28), "memory");
    if (strcmp(pattern, "graph") == 0) {
        void *stream, *made;
        check(cuStreamCreate(&stream, 1), "stream");
        check(cuStreamBeginCapture_v2(stream, 0), "capture");
        for (int i = 0; i < 4; i++) check(launch(stream), "captured launch");
        check(cuStreamEndCapture(stream, &made), "end of capture");
        check(cuGraphInstantiateWithFlags(&graph, made, 0), "graph");
    }
    puts("ready");
    fflush(stdout);
    char line[16];
    if (fgets(line, sizeof line, stdin) == NULL) return 0;
    pthread_t ids[16];
    for (int i = 0; i < threads && strcmp(pattern, "idle") != 0; i++)
        pthread_create(&ids[i], NULL, work, NULL);
    if (fgets(line, sizeof line, stdin) == NULL) line[0] = '\0';
    stopping = 1;
    for (int i = 0; i < threads && strcmp(pattern, "idle") != 0; i++) pthread_join(ids[i], NULL);
    int code = cuCtxSynchronize();
    printf("{\"launches\": %ld, \"errno_kept\": %s, \"failed\": %d, \"end\": %d, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f}\n", launches,
           errno_changed ? "false" : "true", failed, code, latency_us(.5), latency_us(.99));
    return 0;
}
