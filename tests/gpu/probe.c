/* Measures what the emulated card's time model and the library's throttle assume of a real
 * card: costs of calls, time slices, queue depth, memory granules, NVML's samples.
 *
 * Loads the driver and NVML of the machine at run time, through public functions only.
 * `probe MODE …` prints one JSON object; probe.py runs the modes, some of them in pairs.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <inttypes.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext, *CUmodule, *CUfunction, *CUstream, *CUevent, *CUgraph, *CUgraphExec;
typedef void *nvmlDevice_t;
struct utilization { unsigned pid; unsigned long long stamp; unsigned sm, memory, encoder, decoder; };
struct sample { unsigned long long stamp; union { double d; unsigned u; unsigned long long ull; } v; };
struct utilization_info { unsigned long long stamp; unsigned pid, sm, memory, encoder, decoder, jpg, ofa; };
struct utilization_infos { unsigned version, count; unsigned long long seen; struct utilization_info *infos; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, free, used; };
struct process { unsigned pid; unsigned long long bytes; unsigned gi, ci; };

#define CUDA(F)                                                                               \
    F(cuInit, (unsigned))                                                                     \
    F(cuDriverGetVersion, (int *))                                                            \
    F(cuDeviceGet, (CUdevice *, int))                                                         \
    F(cuDeviceGetName, (char *, int, CUdevice))                                               \
    F(cuDeviceGetAttribute, (int *, int, CUdevice))                                           \
    F(cuDeviceTotalMem_v2, (size_t *, CUdevice))                                              \
    F(cuDevicePrimaryCtxRetain, (CUcontext *, CUdevice))                                      \
    F(cuCtxSetCurrent, (CUcontext))                                                           \
    F(cuCtxSynchronize, (void))                                                               \
    F(cuModuleLoadData, (CUmodule *, const void *))                                           \
    F(cuModuleGetFunction, (CUfunction *, CUmodule, const char *))                            \
    F(cuMemAlloc_v2, (CUdeviceptr *, size_t))                                                 \
    F(cuMemFree_v2, (CUdeviceptr))                                                            \
    F(cuMemGetInfo_v2, (size_t *, size_t *))                                                  \
    F(cuMemHostAlloc, (void **, size_t, unsigned))                                            \
    F(cuMemAllocAsync, (CUdeviceptr *, size_t, CUstream))                                     \
    F(cuMemFreeAsync, (CUdeviceptr, CUstream))                                                \
    F(cuDeviceGetDefaultMemPool, (void **, CUdevice))                                         \
    F(cuMemPoolGetAttribute, (void *, int, void *))                                           \
    F(cuMemPoolSetAttribute, (void *, int, void *))                                           \
    F(cuMemPoolTrimTo, (void *, size_t))                                                      \
    F(cuMemcpyDtoH_v2, (void *, CUdeviceptr, size_t))                                         \
    F(cuMemcpyHtoDAsync_v2, (CUdeviceptr, const void *, size_t, CUstream))                    \
    F(cuMemcpyDtoHAsync_v2, (void *, CUdeviceptr, size_t, CUstream))                          \
    F(cuMemcpyDtoDAsync_v2, (CUdeviceptr, CUdeviceptr, size_t, CUstream))                     \
    F(cuMemsetD8Async, (CUdeviceptr, unsigned char, size_t, CUstream))                        \
    F(cuLaunchKernel, (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
                       unsigned, CUstream, void **, void **))                                 \
    F(cuStreamCreate, (CUstream *, unsigned))                                                 \
    F(cuStreamSynchronize, (CUstream))                                                        \
    F(cuStreamQuery, (CUstream))                                                              \
    F(cuEventCreate, (CUevent *, unsigned))                                                   \
    F(cuEventRecord, (CUevent, CUstream))                                                     \
    F(cuEventQuery, (CUevent))                                                                \
    F(cuEventSynchronize, (CUevent))                                                          \
    F(cuEventElapsedTime, (float *, CUevent, CUevent))                                        \
    F(cuStreamBeginCapture_v2, (CUstream, int))                                               \
    F(cuStreamEndCapture, (CUstream, CUgraph *))                                              \
    F(cuThreadExchangeStreamCaptureMode, (int *))                                             \
    F(cuGraphInstantiateWithFlags, (CUgraphExec *, CUgraph, unsigned long long))              \
    F(cuGraphLaunch, (CUgraphExec, CUstream))
#define NVML(F)                                                                               \
    F(nvmlInit_v2, (void))                                                                    \
    F(nvmlDeviceGetHandleByIndex_v2, (unsigned, nvmlDevice_t *))                              \
    F(nvmlDeviceGetUtilizationRates, (nvmlDevice_t, unsigned *))                              \
    F(nvmlDeviceGetProcessUtilization,                                                        \
      (nvmlDevice_t, struct utilization *, unsigned *, unsigned long long))                   \
    F(nvmlDeviceGetProcessesUtilizationInfo, (nvmlDevice_t, struct utilization_infos *))      \
    F(nvmlDeviceGetSamples,                                                                   \
      (nvmlDevice_t, int, unsigned long long, int *, unsigned *, struct sample *))            \
    F(nvmlDeviceGetMemoryInfo_v2, (nvmlDevice_t, struct memory_v2 *))                         \
    F(nvmlDeviceGetComputeRunningProcesses_v3, (nvmlDevice_t, unsigned *, struct process *))  \
    F(nvmlDeviceGetMaxClockInfo, (nvmlDevice_t, int, unsigned *))                             \
    F(nvmlSystemGetDriverVersion, (char *, unsigned))

#define DECLARE(name, parameters) static int(*name) parameters;
CUDA(DECLARE)
NVML(DECLARE)

static void die(const char *what, int code)
{
    printf("{\"error\": \"%s\", \"code\": %d}\n", what, code);
    exit(2);
}
#define OK(call)                                                                              \
    do {                                                                                      \
        int code_ = (call);                                                                   \
        if (code_ != 0)                                                                       \
            die(#call, code_);                                                                \
    } while (0)

static void load(void)
{
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
    if (cuda == NULL || nvml == NULL)
        die("libcuda.so.1 and libnvidia-ml.so.1 are needed", 0);
#define FIND(name, parameters) *(void **)&name = dlsym(cuda, #name);
    CUDA(FIND)
#undef FIND
#define FIND(name, parameters) *(void **)&name = dlsym(nvml, #name);
    NVML(FIND)
}

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static double unix_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void rest_us(double us)
{
    if (us > 0)
        usleep((useconds_t)us);
}

/* spin: a chain of dependent multiplications, so that its device time does not run on while
 * another context has the card. gaps: watches the global timer and notes when it was away. */
static const char *const code =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 count, .param .u64 out)\n"
    "{ .reg .pred %p; .reg .f32 %f; .reg .u64 %i, %n, %o;\n"
    "  ld.param.u64 %n, [count]; ld.param.u64 %o, [out]; mov.u64 %i, 0; mov.f32 %f, 0f3F800001;\n"
    "L: fma.rn.f32 %f, %f, 0f3F7FFFFF, 0f00000001; fma.rn.f32 %f, %f, 0f3F7FFFFF, 0f00000001;\n"
    "  fma.rn.f32 %f, %f, 0f3F7FFFFF, 0f00000001; fma.rn.f32 %f, %f, 0f3F7FFFFF, 0f00000001;\n"
    "  add.u64 %i, %i, 1; setp.lt.u64 %p, %i, %n; @%p bra L;\n"
    "  setp.eq.u64 %p, %o, 0; @%p bra E; st.global.f32 [%o], %f;\nE: ret; }\n"
    ".visible .entry gaps(.param .u64 until, .param .u64 over, .param .u64 out, .param .u64 room)\n"
    "{ .reg .pred %p; .reg .u64 %t, %l, %d, %u, %v, %o, %n, %r, %s, %a;\n"
    "  ld.param.u64 %u, [until]; ld.param.u64 %v, [over]; ld.param.u64 %o, [out];\n"
    "  ld.param.u64 %r, [room]; mov.u64 %n, 0; mov.u64 %l, %globaltimer; add.u64 %s, %l, %u;\n"
    "L: mov.u64 %t, %globaltimer; sub.u64 %d, %t, %l; setp.lt.u64 %p, %d, %v; @%p bra N;\n"
    "  setp.ge.u64 %p, %n, %r; @%p bra N;\n"
    "  mul.lo.u64 %a, %n, 16; add.u64 %a, %a, %o; st.global.u64 [%a+16], %l; st.global.u64 [%a+24], %t;\n"
    "  add.u64 %n, %n, 1;\n"
    "N: mov.u64 %l, %t; setp.lt.u64 %p, %t, %s; @%p bra L;\n"
    "  st.global.u64 [%o], %n; ret; }\n";

/* On an emulated card (PROBE_EMULATED set) a kernel of known length: a turn is a nanosecond. */
static const char *const emulated = "VGPU-EMULATED-KERNELS 1\nspin spin\n";

static CUfunction spin, gaps;
static CUstream stream;
static CUdevice device;
static double turns_per_us;

static void launch_spin(uint64_t count, CUstream on, unsigned blocks)
{
    CUdeviceptr none = 0;
    void *parameters[] = {&count, &none};
    OK(cuLaunchKernel(spin, blocks, 1, 1, 32, 1, 1, 0, on, parameters, NULL));
}

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, by_value);
    return count > 0 ? values[count / 2] : 0;
}

static void start(void)
{
    CUcontext context;
    CUmodule module;
    OK(cuInit(0));
    OK(cuDeviceGet(&device, 0));
    OK(cuDevicePrimaryCtxRetain(&context, device));
    OK(cuCtxSetCurrent(context));
    int hardware = getenv("PROBE_EMULATED") == NULL;
    OK(cuModuleLoadData(&module, hardware ? code : emulated));
    OK(cuModuleGetFunction(&spin, module, "spin"));
    if (hardware)
        OK(cuModuleGetFunction(&gaps, module, "gaps"));
    OK(cuStreamCreate(&stream, 1));
}

/* Warm the clocks, then learn how many turns of spin take a microsecond. Alone only. */
static double calibrate(void)
{
    CUevent a, b;
    float ms = 0;
    double rates[9];
    OK(cuEventCreate(&a, 0));
    OK(cuEventCreate(&b, 0));
    for (double end = now_us() + 6e5; now_us() < end;) {
        launch_spin(200000, stream, 1);
        OK(cuStreamSynchronize(stream));
    }
    for (int i = 0; i < 9; i++) {
        OK(cuEventRecord(a, stream));
        launch_spin(1000000, stream, 1);
        OK(cuEventRecord(b, stream));
        OK(cuEventSynchronize(b));
        OK(cuEventElapsedTime(&ms, a, b));
        rates[i] = 1000000 / (double)(ms * 1000);
    }
    return median(rates, 9);
}

static uint64_t turns(double us)
{
    return (uint64_t)(us * turns_per_us);
}

static float between(CUevent a, CUevent b)
{
    float ms = 0;
    OK(cuEventElapsedTime(&ms, a, b));
    return ms * 1000;
}

/* --- one process ----------------------------------------------------------------- */

static void facts(void)
{
    double began = now_us();
    start();
    printf("{\"context_ms\": %.1f", (now_us() - began) / 1e3);
    char text[96];
    int version = 0;
    size_t total = 0, free = 0;
    nvmlDevice_t card;
    OK(cuDeviceGetName(text, sizeof text, device));
    OK(cuDriverGetVersion(&version));
    OK(cuDeviceTotalMem_v2(&total, device));
    OK(cuMemGetInfo_v2(&free, &total));
    printf(", \"name\": \"%s\", \"cuda\": %d, \"total_mem\": %zu, \"free_after_context\": %zu", text,
           version, total, free);
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetHandleByIndex_v2(0, &card));
    OK(nvmlSystemGetDriverVersion(text, sizeof text));
    printf(", \"driver\": \"%s\"", text);
    struct memory_v2 memory = {.version = sizeof memory | 2u << 24};
    OK(nvmlDeviceGetMemoryInfo_v2(card, &memory));
    printf(", \"nvml_total\": %llu, \"nvml_reserved\": %llu, \"nvml_used\": %llu", memory.total,
           memory.reserved, memory.used);
    struct process processes[64];
    unsigned count = 64;
    OK(nvmlDeviceGetComputeRunningProcesses_v3(card, &count, processes));
    printf(", \"processes\": [");
    for (unsigned i = 0; i < count; i++)
        printf("%s{\"pid\": %u, \"bytes\": %llu, \"own\": %s}", i ? ", " : "", processes[i].pid,
               processes[i].bytes, processes[i].pid == (unsigned)getpid() ? "true" : "false");
    printf("]");
    static const struct { const char *name; int number; } attributes[] = {
        {"sm_count", 16}, {"clock_khz", 13}, {"memory_clock_khz", 36}, {"bus_bits", 37},
        {"l2_bytes", 38}, {"threads_per_sm", 39}, {"copy_engines", 40}, {"major", 75},
        {"minor", 76}, {"shared_per_sm", 81}, {"registers_per_sm", 82},
        {"shared_optin", 97}, {"blocks_per_sm", 106}, {"reserved_shared", 111}};
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++) {
        int value = 0;
        if (cuDeviceGetAttribute(&value, attributes[i].number, device) == 0)
            printf(", \"%s\": %d", attributes[i].name, value);
    }
    turns_per_us = calibrate();
    printf(", \"turns_per_us\": %.3f", turns_per_us);

    /* allocation: time, and what the driver rounds to */
    static const size_t sizes[] = {1,       512,     4096,    65536,   1 << 20, (1 << 20) + 1,
                                   2 << 20, 3 << 20, 20 << 20, 1 << 30};
    printf(", \"allocations\": [");
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        CUdeviceptr pointers[64];
        size_t before, after, whole;
        int many = sizes[i] < (1 << 20) ? 64 : 8;
        OK(cuMemGetInfo_v2(&before, &whole));
        double t0 = now_us();
        for (int k = 0; k < many; k++)
            OK(cuMemAlloc_v2(&pointers[k], sizes[i]));
        double t1 = now_us();
        OK(cuMemGetInfo_v2(&after, &whole));
        double t2 = now_us();
        for (int k = 0; k < many; k++)
            OK(cuMemFree_v2(pointers[k]));
        printf("%s{\"bytes\": %zu, \"count\": %d, \"taken\": %lld, \"step\": %lld, \"alloc_us\": "
               "%.2f, \"free_us\": %.2f}",
               i ? ", " : "", sizes[i], many, (long long)(before - after),
               (long long)(pointers[1] - pointers[0]), (t1 - t0) / many, (now_us() - t2) / many);
    }
    printf("]");

    /* launches and events */
    CUevent with, without, other;
    OK(cuEventCreate(&with, 0));
    OK(cuEventCreate(&other, 0));
    OK(cuEventCreate(&without, 2));
    enum { N = 400 };
    double t0 = now_us();
    for (int i = 0; i < N; i++)
        launch_spin(1, stream, 1);
    double launched = (now_us() - t0) / N;
    OK(cuStreamSynchronize(stream));
    printf(", \"launch_us\": %.3f, \"empty_kernel_gapless_us\": %.3f", launched, (now_us() - t0) / N);
    const struct { const char *name; CUevent event; } kinds[] = {{"timing", with},
                                                                {"no_timing", without}};
    for (int k = 0; k < 2; k++) {
        t0 = now_us();
        for (int i = 0; i < N; i++)
            OK(cuEventRecord(kinds[k].event, stream));
        double recorded = (now_us() - t0) / N;
        OK(cuStreamSynchronize(stream));
        double whole = (now_us() - t0) / N;
        t0 = now_us();
        for (int i = 0; i < N; i++)
            OK(cuEventQuery(kinds[k].event));
        printf(", \"event_%s\": {\"record_us\": %.3f, \"drained_us\": %.3f, \"query_us\": %.3f}",
               kinds[k].name, recorded, whole, (now_us() - t0) / N);
    }
    /* device cost of an event between kernels of 20 us */
    double plain, marked;
    t0 = now_us();
    for (int i = 0; i < N; i++)
        launch_spin(turns(20), stream, 1);
    OK(cuStreamSynchronize(stream));
    plain = (now_us() - t0) / N;
    t0 = now_us();
    for (int i = 0; i < N; i++) {
        launch_spin(turns(20), stream, 1);
        OK(cuEventRecord(with, stream));
    }
    OK(cuStreamSynchronize(stream));
    marked = (now_us() - t0) / N;
    printf(", \"event_on_device_us\": %.3f, \"spin_20us_gapless_us\": %.3f", marked - plain, plain);
    /* what events say of one kernel, idle stream, and of gapless ones */
    printf(", \"event_pairs\": [");
    static const double lengths[] = {2, 5, 20, 100, 1000};
    for (size_t l = 0; l < 5; l++) {
        double idle[101], host[101];
        for (int i = 0; i < 101; i++) {
            OK(cuStreamSynchronize(stream));
            OK(cuEventRecord(with, stream));
            double h = now_us();
            launch_spin(turns(lengths[l]), stream, 1);
            host[i] = now_us() - h;
            OK(cuEventRecord(other, stream));
            OK(cuEventSynchronize(other));
            idle[i] = (double)between(with, other);
        }
        CUevent chain[65];
        double steps[64];
        for (int i = 0; i < 65; i++)
            OK(cuEventCreate(&chain[i], 0));
        launch_spin(turns(400), stream, 1);
        for (int i = 0; i < 65; i++) {
            if (i > 0)
                launch_spin(turns(lengths[l]), stream, 1);
            OK(cuEventRecord(chain[i], stream));
        }
        OK(cuStreamSynchronize(stream));
        for (int i = 0; i < 64; i++)
            steps[i] = (double)between(chain[i], chain[i + 1]);
        printf("%s{\"kernel_us\": %.0f, \"idle_us\": %.2f, \"host_launch_us\": %.2f, "
               "\"gapless_us\": %.2f}",
               l ? ", " : "", lengths[l], median(idle, 101), median(host, 101),
               median(steps, 64));
    }
    printf("]");
    /* how many launches until one blocks, behind a kernel of 300 ms */
    CUstream streams[2];
    OK(cuStreamCreate(&streams[0], 1));
    OK(cuStreamCreate(&streams[1], 1));
    printf(", \"queue_depth\": [");
    for (int s = 0; s < 2; s++) {
        int depth = 0;
        double worst = 0;
        launch_spin(turns(300e3), streams[s], 1);
        double begin = now_us();
        for (; depth < 20000 && now_us() - begin < 250e3; depth++) {
            double t = now_us();
            launch_spin(1, streams[s], 1);
            double took = now_us() - t;
            worst = took > worst ? took : worst;
            if (took > 5000)
                break;
        }
        printf("%s{\"launches\": %d, \"longest_us\": %.0f}", s ? ", " : "", depth, worst);
        OK(cuStreamSynchronize(streams[s]));
    }
    printf("]");
    /* copies */
    void *pinned;
    CUdeviceptr from, to;
    size_t bytes = 256u << 20;
    OK(cuMemHostAlloc(&pinned, bytes, 0));
    memset(pinned, 1, bytes);
    OK(cuMemAlloc_v2(&from, bytes));
    OK(cuMemAlloc_v2(&to, bytes));
    for (int way = 0; way < 4; way++) {
        static const char *const names[] = {"h2d", "d2h", "d2d", "memset"};
        double best = 0;
        for (int i = 0; i < 5; i++) {
            OK(cuEventRecord(with, stream));
            switch (way) {
            case 0: OK(cuMemcpyHtoDAsync_v2(to, pinned, bytes, stream)); break;
            case 1: OK(cuMemcpyDtoHAsync_v2(pinned, from, bytes, stream)); break;
            case 2: OK(cuMemcpyDtoDAsync_v2(to, from, bytes, stream)); break;
            default: OK(cuMemsetD8Async(to, 3, bytes, stream)); break;
            }
            OK(cuEventRecord(other, stream));
            OK(cuEventSynchronize(other));
            double rate = (double)bytes / ((double)between(with, other) * 1e3);
            best = rate > best ? rate : best;
        }
        printf(", \"%s_gb_s\": %.1f", names[way], best);
    }
    /* polling events while this thread's capture goes on, in relaxed mode */
    CUgraph graph;
    CUgraphExec exec;
    int mode = 2, polled, ended;
    OK(cuStreamBeginCapture_v2(stream, 0));
    launch_spin(10, stream, 1);
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    polled = cuEventQuery(other);
    OK(cuThreadExchangeStreamCaptureMode(&mode));
    ended = cuStreamEndCapture(stream, &graph);
    printf(", \"relaxed_poll_in_capture\": {\"query\": %d, \"end_capture\": %d}", polled, ended);
    OK(cuStreamBeginCapture_v2(stream, 0));
    for (int i = 0; i < 100; i++)
        launch_spin(turns(10), stream, 1);
    OK(cuStreamEndCapture(stream, &graph));
    OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
    OK(cuGraphLaunch(exec, stream));
    OK(cuStreamSynchronize(stream));
    t0 = now_us();
    OK(cuGraphLaunch(exec, stream));
    double call = now_us() - t0;
    OK(cuStreamSynchronize(stream));
    printf(", \"graph_of_100x10us\": {\"launch_us\": %.1f, \"whole_us\": %.1f}}\n", call,
           now_us() - t0);
}

/* --- modes that run beside each other -------------------------------------------- */

/* Kernels of one length for some seconds: deep (bounded to 64 out) or synchronised. */
static void hog(double kernel_us, double seconds, int sync)
{
    start();
    enum { OUT = 64, WINDOWS = 200 };
    CUevent events[OUT];
    for (int i = 0; i < OUT; i++)
        OK(cuEventCreate(&events[i], 2));
    uint64_t windows[WINDOWS] = {0}; /* of half a second */
    uint64_t launched = 0, batch = kernel_us < 50 ? 16 : 1;
    double begin = now_us();
    while (now_us() < begin + seconds * 1e6) {
        int i = (int)(launched % OUT);
        if (!sync && launched >= OUT)
            OK(cuEventSynchronize(events[i]));
        for (uint64_t k = 0; k < batch; k++)
            launch_spin(turns(kernel_us), stream, 1);
        if (sync)
            OK(cuStreamSynchronize(stream));
        else
            OK(cuEventRecord(events[i], stream));
        launched++;
        int window = (int)((now_us() - begin) / 5e5);
        windows[window < WINDOWS ? window : WINDOWS - 1] += batch;
    }
    OK(cuStreamSynchronize(stream));
    double took = now_us() - begin;
    printf("{\"pid\": %d, \"kernel_us\": %.1f, \"kernels\": %" PRIu64
           ", \"seconds\": %.3f, \"share_pct\": %.2f, \"half_seconds_pct\": [",
           getpid(), kernel_us, launched * batch, took / 1e6,
           (double)(launched * batch) * kernel_us / took * 100);
    for (int i = 0; i < WINDOWS && i < (int)(seconds * 2); i++)
        printf("%s%.1f", i ? ", " : "", (double)windows[i] * kernel_us / 5e5 * 100);
    puts("]}");
}

static unsigned long long own_bytes(void)
{
    unsigned count = 64;
    struct process processes[64];
    nvmlDevice_t card;
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetHandleByIndex_v2(0, &card));
    OK(nvmlDeviceGetComputeRunningProcesses_v3(card, &count, processes));
    for (unsigned i = 0; i < count; i++)
        if (processes[i].pid == (unsigned)getpid())
            return processes[i].bytes;
    return 0;
}

static void told(const char *step)
{
    size_t available, total;
    OK(cuMemGetInfo_v2(&available, &total));
    printf("%s{\"step\": \"%s\", \"own\": %llu, \"free\": %zu}", step[0] == 'c' ? "" : ", ", step,
           own_bytes(), available);
}

/* What the driver takes on the card around stream-ordered memory, call by call. */
static void ordered(void)
{
    start();
    void *pool;
    unsigned long long value = 0;
    CUdeviceptr ptr[4];
    fputs("{\"steps\": [", stdout);
    told("context");
    OK(cuDeviceGetDefaultMemPool(&pool, 0));
    told("default pool");
    OK(cuMemPoolGetAttribute(pool, 5, &value));
    told("attribute read");
    value = ~0ull;
    OK(cuMemPoolSetAttribute(pool, 4, &value));
    told("attribute set");
    static const size_t sizes[] = {2u << 20, 32u << 20, 1u << 30, 600};
    for (int i = 0; i < 4; i++) {
        OK(cuMemAllocAsync(&ptr[i], sizes[i], stream));
        told("allocated");
        OK(cuStreamSynchronize(stream));
        told("waited");
        OK(cuMemPoolGetAttribute(pool, 5, &value));
        printf(", {\"reserved\": %llu}", value);
    }
    launch_spin(10, stream, 1);
    OK(cuStreamSynchronize(stream));
    told("ran a kernel");
    for (int i = 0; i < 4; i++)
        OK(cuMemFreeAsync(ptr[i], stream));
    OK(cuStreamSynchronize(stream));
    told("freed");
    OK(cuMemPoolTrimTo(pool, 0));
    told("trimmed");
    puts("]}");
}

/* Host time of one launch on a stream that is not full, ns: median of batches. */
static void cost(void)
{
    start();
    enum { BATCHES = 101, LAUNCHES = 200 };
    double ns[BATCHES];
    for (int b = 0; b < BATCHES; b++) {
        double begin = now_us();
        for (int i = 0; i < LAUNCHES; i++)
            launch_spin(1, stream, 1);
        ns[b] = (now_us() - begin) * 1000 / LAUNCHES;
        OK(cuStreamSynchronize(stream));
    }
    double middle = median(ns, BATCHES);
    printf("{\"launch_ns\": %.0f, \"p10\": %.0f, \"p90\": %.0f}\n", middle, ns[BATCHES / 10],
           ns[BATCHES * 9 / 10]);
}

/* Busy for a part of each period, as events count it. */
static void duty(double percent, double period_ms, double seconds)
{
    start();
    double begin = now_us(), busy = 0;
    while (now_us() < begin + seconds * 1e6) {
        double t = now_us();
        launch_spin(turns(period_ms * 10 * percent), stream, 1);
        OK(cuStreamSynchronize(stream));
        busy += period_ms * 10 * percent;
        rest_us(t + period_ms * 1000 - now_us());
    }
    printf("{\"pid\": %d, \"asked_pct\": %.1f, \"busy_pct\": %.2f}\n", getpid(), percent,
           busy / (now_us() - begin) * 100);
}

/* Runs for some seconds in kernels of 200 ms and notes when it was off the card. */
static void slices(double seconds)
{
    start();
    enum { ROOM = 4000 };
    CUdeviceptr out;
    static uint64_t host[2 + 2 * ROOM];
    OK(cuMemAlloc_v2(&out, sizeof host));
    double gap_us[20000], run_us[20000];
    int n = 0, r = 0;
    for (double end = now_us() + seconds * 1e6; now_us() < end && n < 15000;) {
        uint64_t until = 200000000, over = 20000, room = ROOM;
        void *parameters[] = {&until, &over, &out, &room};
        OK(cuLaunchKernel(gaps, 1, 1, 1, 1, 1, 1, 0, stream, parameters, NULL));
        OK(cuStreamSynchronize(stream));
        OK(cuMemcpyDtoH_v2(host, out, sizeof host));
        for (uint64_t i = 0; i < host[0] && i < ROOM; i++) {
            gap_us[n++] = (double)(host[3 + 2 * i] - host[2 + 2 * i]) / 1e3;
            if (i > 0)
                run_us[r++] = (double)(host[2 + 2 * i] - host[1 + 2 * i]) / 1e3;
        }
    }
    printf("{\"gaps\": %d", n);
    for (int pass = 0; pass < 2; pass++) {
        double *values = pass ? run_us : gap_us;
        int count = pass ? r : n;
        double middle = median(values, count); /* sorted now */
        if (count > 0)
            printf(", \"%s_us\": {\"p1\": %.1f, \"p10\": %.1f, \"p50\": %.1f, \"p90\": %.1f, "
                   "\"p99\": %.1f}",
                   pass ? "runs" : "gaps", values[count / 100], values[count / 10], middle,
                   values[count * 9 / 10], values[count * 99 / 100]);
    }
    printf("}\n");
}

/* Asks NVML every 10 ms and prints what is new, with the age of each sample. */
static void watch(double seconds)
{
    nvmlDevice_t card;
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetHandleByIndex_v2(0, &card));
    unsigned long long seen = 0;
    double asked = 0;
    int calls = 0;
    printf("{\"samples\": [");
    const char *comma = "";
    for (double end = now_us() + seconds * 1e6; now_us() < end;) {
        /* The driver wants room for all that it ever keeps, however few are new. */
        static struct utilization found[4096];
        unsigned count = 4096;
        double t = now_us();
        int result = nvmlDeviceGetProcessUtilization(card, found, &count, seen);
        asked += now_us() - t;
        calls++;
        if (result == 0)
            for (unsigned i = 0; i < count; i++) {
                if (found[i].stamp <= seen && seen != 0)
                    continue;
                printf("%s\n{\"at\": %.0f, \"pid\": %u, \"stamp\": %llu, \"sm\": %u, \"memory\": %u}",
                       comma, unix_us(), found[i].pid, found[i].stamp, found[i].sm,
                       found[i].memory);
                comma = ",";
            }
        else if (result != 6) {
            printf("%s\n{\"at\": %.0f, \"code\": %d}", comma, unix_us(), result);
            comma = ",";
        }
        for (unsigned i = 0; result == 0 && i < count; i++)
            seen = found[i].stamp > seen ? found[i].stamp : seen;
        rest_us(10000);
    }
    printf("], \"call_us\": %.1f", asked / calls);
    static struct utilization_info infos[4096];
    struct utilization_infos all = {
        .version = sizeof all | 1u << 24, .count = 4096, .infos = infos};
    int code = nvmlDeviceGetProcessesUtilizationInfo == NULL
                   ? -1
                   : nvmlDeviceGetProcessesUtilizationInfo(card, &all);
    printf(", \"infos\": {\"code\": %d, \"list\": [", code);
    for (unsigned i = 0; code == 0 && i < all.count; i++)
        printf("%s[%u, %llu, %u]", i ? ", " : "", infos[i].pid, infos[i].stamp, infos[i].sm);
    unsigned rates[2] = {0, 0};
    code = nvmlDeviceGetUtilizationRates(card, rates);
    printf("]}, \"rates\": {\"code\": %d, \"gpu\": %u, \"memory\": %u}", code, rates[0], rates[1]);
    static struct sample samples[4096];
    unsigned count = 4096;
    int type;
    code = nvmlDeviceGetSamples(card, 1, 0, &type, &count, samples);
    printf(", \"device\": {\"code\": %d, \"now\": %.0f, \"samples\": [", code, unix_us());
    unsigned first = count > 60 ? count - 60 : 0;
    for (unsigned i = first; code == 0 && i < count; i++)
        printf("%s[%llu, %u]", i > first ? ", " : "", samples[i].stamp, samples[i].v.u);
    printf("]}}\n");
}

/* Waits for the device's utilisation to show a burst of work, and its end: the lag. */
static void lag(void)
{
    nvmlDevice_t card;
    unsigned rates[2];
    start();
    OK(nvmlInit_v2());
    OK(nvmlDeviceGetHandleByIndex_v2(0, &card));
    printf("{\"rounds\": [");
    for (int round = 0; round < 5; round++) {
        double rise = -1, fall = -1;
        rest_us(1500e3);
        double begin = now_us();
        for (double t = begin; t < begin + 1e6; t = now_us()) {
            if (cuStreamQuery(stream) == 0)
                launch_spin(turns(20e3), stream, 1);
            if (rise < 0 && nvmlDeviceGetUtilizationRates(card, rates) == 0 && rates[0] >= 50)
                rise = now_us() - begin;
            rest_us(2000);
        }
        OK(cuStreamSynchronize(stream));
        double end = now_us();
        while (fall < 0 && now_us() < end + 2e6) {
            if (nvmlDeviceGetUtilizationRates(card, rates) == 0 && rates[0] < 50)
                fall = now_us() - end;
            rest_us(2000);
        }
        printf("%s{\"rise_us\": %.0f, \"fall_us\": %.0f}", round ? ", " : "", rise, fall);
    }
    printf("]}\n");
}

int main(int argc, char **argv)
{
    load();
    const char *mode = argc > 1 ? argv[1] : "";
    if (getenv("PROBE_TURNS_PER_US") != NULL)
        turns_per_us = atof(getenv("PROBE_TURNS_PER_US"));
    if (strcmp(mode, "facts") == 0)
        facts();
    else if (strcmp(mode, "hog") == 0 && argc == 5)
        hog(atof(argv[2]), atof(argv[3]), strcmp(argv[4], "sync") == 0);
    else if (strcmp(mode, "duty") == 0 && argc == 5)
        duty(atof(argv[2]), atof(argv[3]), atof(argv[4]));
    else if (strcmp(mode, "slices") == 0 && argc == 3)
        slices(atof(argv[2]));
    else if (strcmp(mode, "cost") == 0)
        cost();
    else if (strcmp(mode, "ordered") == 0)
        ordered();
    else if (strcmp(mode, "lag") == 0)
        lag();
    else if (strcmp(mode, "watch") == 0 && argc == 3)
        watch(atof(argv[2]));
    else {
        fputs("probe facts | hog US SECONDS deep|sync | duty PERCENT PERIOD_MS SECONDS | "
              "slices SECONDS | cost | ordered | lag | watch SECONDS\n", stderr);
        return 2;
    }
    return 0;
}
