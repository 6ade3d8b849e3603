/* Captures, streams that end, and host callbacks: what the throttle must know of them. */
#define _GNU_SOURCE
#include "charge.h"
#include "device.h"
#include "growth.h"
#include "lookup.h"
#include "sys.h"
#include "throttle.h"

/* --- captures ------------------------------------------------------------------------------ */

static CUresult began(CUresult result) {
    if (result == CUDA_SUCCESS) vgpu_throttle_capture(1);
    return result;
}

/* A capture that was spoiled ends too, with an error. */
static CUresult ended(CUresult result) {
    if (result == CUDA_SUCCESS || result == CUDA_ERROR_STREAM_CAPTURE_INVALIDATED ||
        result == CUDA_ERROR_STREAM_CAPTURE_UNJOINED)
        vgpu_throttle_capture(-1);
    return result;
}

CUresult cuStreamBeginCapture(CUstream stream) {
    return began(VGPU_CALL(cuStreamBeginCapture, stream));
}
CUresult cuStreamBeginCapture_ptsz(CUstream stream) {
    return began(VGPU_CALL(cuStreamBeginCapture_ptsz, stream));
}
CUresult cuStreamBeginCapture_v2(CUstream stream, int mode) {
    return began(VGPU_CALL(cuStreamBeginCapture_v2, stream, mode));
}
CUresult cuStreamBeginCapture_v2_ptsz(CUstream stream, int mode) {
    return began(VGPU_CALL(cuStreamBeginCapture_v2_ptsz, stream, mode));
}
CUresult cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph, const CUgraphNode *deps,
                                     const void *edges, size_t count, int mode) {
    return began(
        VGPU_CALL(cuStreamBeginCaptureToGraph, stream, graph, deps, edges, count, mode));
}
CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph, const CUgraphNode *deps,
                                          const void *edges, size_t count, int mode) {
    return began(
        VGPU_CALL(cuStreamBeginCaptureToGraph_ptsz, stream, graph, deps, edges, count, mode));
}
CUresult cuStreamEndCapture(CUstream stream, CUgraph *graph) {
    return ended(VGPU_CALL(cuStreamEndCapture, stream, graph));
}
CUresult cuStreamEndCapture_ptsz(CUstream stream, CUgraph *graph) {
    return ended(VGPU_CALL(cuStreamEndCapture_ptsz, stream, graph));
}

/* --- streams --------------------------------------------------------------------------------- */

/* Streams may take memory of the card (70 MiB with PyTorch's first ones on an H200), which no
 * call tells: near the limit it is looked at, and one that passes it is not given out. */
static CUresult made(CUresult result, CUstream *stream) {
    int entry;
    CUcontext ctx;
    if (result != CUDA_SUCCESS || !vgpu_active() || !vgpu_current(&entry, &ctx)) return result;
    if (!vgpu_growth_look(entry, 0) || !vgpu_passed_limit(entry)) return result;
    VGPU_CALL(cuStreamDestroy_v2, *stream);
    *stream = NULL;
    vgpu_refuse(entry, "stream", 0);
    return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuStreamCreate(CUstream *stream, unsigned int flags) {
    return made(VGPU_CALL(cuStreamCreate, stream, flags), stream);
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned int flags, int priority) {
    return made(VGPU_CALL(cuStreamCreateWithPriority, stream, flags, priority), stream);
}

/* Before the driver's call: after it another stream may have the handle. */
CUresult cuStreamDestroy(CUstream stream) {
    vgpu_throttle_stream_gone(stream);
    return VGPU_CALL(cuStreamDestroy, stream);
}

CUresult cuStreamDestroy_v2(CUstream stream) {
    vgpu_throttle_stream_gone(stream);
    return VGPU_CALL(cuStreamDestroy_v2, stream);
}

/* Which work an event is behind is not known here; what is complete shows at the next look. */
CUresult cuEventSynchronize(CUevent event) {
    CUresult result = VGPU_CALL(cuEventSynchronize, event);
    struct vgpu_synchronization s;
    vgpu_throttle_syncing(&s, NULL, NULL, false, true);
    s.sync.launched = 0; /* nothing but a look */
    vgpu_throttle_synced(&s, result);
    return result;
}

/* --- host callbacks ----------------------------------------------------------------------------- */

/* A launch out of a callback is refused by the driver; waiting there for work behind the
 * callback would never end. So callbacks run inside of a mark. Ones that are captured run as
 * often as their graph: they are left as they are. */
struct call {
    CUhostFn *function;
    CUstreamCallback *callback;
    void *data;
    struct call *next;
};

static struct vgpu_lock lock;
static struct call *unused;

static struct call *take(void) {
    vgpu_lock(&lock);
    if (unused == NULL) {
        struct call *page =
            vgpu_map(4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
        for (size_t i = 0; page != NULL && i < 4096 / sizeof *page; i++) {
            page[i].next = unused;
            unused = &page[i];
        }
    }
    struct call *call = unused;
    if (call != NULL) unused = call->next;
    vgpu_unlock(&lock);
    return call;
}

static void give(struct call *call) {
    vgpu_lock(&lock);
    call->next = unused;
    unused = call;
    vgpu_unlock(&lock);
}

static void run_function(void *data) {
    struct call call = *(struct call *)data;
    give(data);
    vgpu_throttle_callback(true);
    call.function(call.data);
    vgpu_throttle_callback(false);
}

static void run_callback(CUstream stream, CUresult status, void *data) {
    struct call call = *(struct call *)data;
    give(data);
    vgpu_throttle_callback(true);
    call.callback(stream, status, call.data);
    vgpu_throttle_callback(false);
}

static bool left_alone(CUstream stream, bool per_thread) {
    if (!vgpu_throttle_watches()) return true;
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = per_thread ? VGPU_CALL(cuStreamIsCapturing_ptsz, stream, &status)
                                 : VGPU_CALL(cuStreamIsCapturing, stream, &status);
    return result != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

#define HOST(symbol, per_thread, function_parameter, runner, member, ...)                          \
    struct call *call = member == NULL || left_alone(stream, per_thread) ? NULL : take();          \
    if (call == NULL) return VGPU_CALL(symbol, stream, member, data __VA_ARGS__);                  \
    *call = (struct call){.function_parameter = member, .data = data};                             \
    CUresult result = VGPU_CALL(symbol, stream, runner, call __VA_ARGS__);                         \
    if (result != CUDA_SUCCESS) give(call);                                                        \
    return result

#define COMMA_FLAGS , flags
#define COMMA_MODE , mode

CUresult cuLaunchHostFunc(CUstream stream, CUhostFn *fn, void *data) {
    HOST(cuLaunchHostFunc, false, function, run_function, fn, );
}
CUresult cuLaunchHostFunc_ptsz(CUstream stream, CUhostFn *fn, void *data) {
    HOST(cuLaunchHostFunc_ptsz, true, function, run_function, fn, );
}
CUresult cuLaunchHostFunc_v2(CUstream stream, CUhostFn *fn, void *data, unsigned int mode) {
    HOST(cuLaunchHostFunc_v2, false, function, run_function, fn, COMMA_MODE);
}
CUresult cuLaunchHostFunc_v2_ptsz(CUstream stream, CUhostFn *fn, void *data, unsigned int mode) {
    HOST(cuLaunchHostFunc_v2_ptsz, true, function, run_function, fn, COMMA_MODE);
}
CUresult cuStreamAddCallback(CUstream stream, CUstreamCallback *fn, void *data,
                             unsigned int flags) {
    HOST(cuStreamAddCallback, false, callback, run_callback, fn, COMMA_FLAGS);
}
CUresult cuStreamAddCallback_ptsz(CUstream stream, CUstreamCallback *fn, void *data,
                                  unsigned int flags) {
    HOST(cuStreamAddCallback_ptsz, true, callback, run_callback, fn, COMMA_FLAGS);
}
