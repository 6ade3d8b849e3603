#define _GNU_SOURCE
#include "throttle.h"

#include <stdatomic.h>
#include <string.h>

#include "account.h"
#include "clock.h"
#include "device.h"
#include "lookup.h"
#include "place.h"
#include "sys.h"

#define ENGINES 64
#define CALLBACKS 64
#define ERAS 64                 /* reference events: elapsed times are floats of few digits, */
#define ERA VGPU_SEC            /* so each is used for a second only */
#define UNPUBLISHED (100.0 * VGPU_US) /* so much device time in flight others need not know of */
#define CAPTURE_RELAXED 2
#define STREAM_LEGACY 1
#define STREAM_PER_THREAD 2

struct event {
    CUevent handle;
    uint32_t era;
};

struct vgpu_engine { /* of one context */
    _Atomic(CUcontext) ctx; /* NULL: its context is gone */
    struct vgpu_place *place;
    struct vgpu_lock lock;
    struct vgpu_meter *meter;
    double counted; /* of meter->outstanding, in place->outstanding_ns */
    struct vgpu_regime regime; /* a copy of the place's, of this number */
    uint64_t regime_number;
    struct event events[VGPU_EVENTS];
    uint32_t event_count;
    uint32_t era, eras_placed; /* newest reference; up to which one offsets are known */
    int64_t era_began;
    CUevent references[ERAS];
    double offsets[ERAS];
};

static struct vgpu_engine *_Atomic engines[ENGINES];
atomic_int vgpu_captures;
static struct vgpu_lock making; /* an engine */
static _Atomic uint64_t callbacks[CALLBACKS]; /* threads that are inside of one */
static atomic_int callback_count;

/* Threads are told apart by their thread pointer: a preloaded library that brought thread
 * storage of its own would take the little that there is for libraries loaded late. */
static uint64_t this_thread(void) { return (uint64_t)(uintptr_t)__builtin_thread_pointer(); }

/* --- the driver, as the meter sees it ------------------------------------------------------ */

/* Polling an event, of whichever thread, can spoil another thread's capture. */
static int relax(void) {
    int mode = CAPTURE_RELAXED;
    if (atomic_load_explicit(&vgpu_captures, memory_order_relaxed) == 0 ||
        VGPU_CALL(cuThreadExchangeStreamCaptureMode, &mode) != CUDA_SUCCESS)
        return -1;
    return mode;
}
static void unrelax(int mode) {
    if (mode >= 0) VGPU_CALL(cuThreadExchangeStreamCaptureMode, &mode);
}

static void *event_new(void *env) {
    struct vgpu_engine *engine = env;
    if (engine->event_count >= VGPU_EVENTS) return NULL;
    struct event *event = &engine->events[engine->event_count];
    int mode = relax();
    CUresult result = VGPU_CALL(cuEventCreate, &event->handle, 0);
    unrelax(mode);
    if (result != CUDA_SUCCESS) return NULL;
    engine->event_count++;
    return event;
}

static CUresult record_on(CUevent event, struct vgpu_stream_id stream) {
    return VGPU_CALL(cuEventRecord, event, (CUstream)(uintptr_t)stream.handle);
}

/* A new reference once a second, on whichever stream records then. Called unlocked. */
static bool record_reference(CUevent *reference, struct vgpu_stream_id stream) {
    if (*reference == NULL && VGPU_CALL(cuEventCreate, reference, 0) != CUDA_SUCCESS) {
        *reference = NULL;
        return false;
    }
    return record_on(*reference, stream) == CUDA_SUCCESS;
}

static bool record(void *env, void *given, struct vgpu_stream_id stream) {
    struct vgpu_engine *engine = env;
    struct event *event = given;
    int64_t now = vgpu_clock();
    bool due = engine->era_began == 0 || now - engine->era_began >= ERA;
    uint32_t era = engine->era_began == 0 ? 0 : engine->era + 1;
    if (due) engine->era_began = now; /* no other thread does it */
    uint32_t newest = engine->era;
    /* The driver blocks here while the stream's queue is full, and what would empty it may
     * have to come from a thread that waits for us. */
    vgpu_unlock(&engine->lock);
    bool renewed = due && record_reference(&engine->references[era % ERAS], stream);
    event->era = renewed ? era : newest;
    CUresult result = record_on(event->handle, stream);
    vgpu_lock(&engine->lock);
    if (renewed) engine->era = era;
    return result == CUDA_SUCCESS;
}

static enum vgpu_progress progress(void *env, void *given) {
    (void)env;
    struct event *event = given;
    int mode = relax();
    CUresult result = VGPU_CALL(cuEventQuery, event->handle);
    unrelax(mode);
    return result == CUDA_ERROR_NOT_READY ? VGPU_PENDING
           : result == CUDA_SUCCESS       ? VGPU_DONE
                                          : VGPU_LOST;
}

static bool elapsed(CUevent start, CUevent end, double *ns) {
    float ms = 0;
    int mode = relax();
    CUresult result = VGPU_REAL(cuEventElapsedTime_v2) != NULL
                          ? VGPU_CALL(cuEventElapsedTime_v2, &ms, start, end)
                          : VGPU_CALL(cuEventElapsedTime, &ms, start, end);
    unrelax(mode);
    *ns = (double)ms * 1e6;
    return result == CUDA_SUCCESS;
}

static bool when(void *env, void *given, double *ns) {
    struct vgpu_engine *engine = env;
    struct event *event = given;
    if (engine->era - event->era >= ERAS - 1) return false; /* its reference is another's */
    if (event->era - engine->eras_placed >= ERAS - 1 && event->era > engine->eras_placed) {
        engine->offsets[event->era % ERAS] = engine->offsets[engine->eras_placed % ERAS];
        engine->eras_placed = event->era; /* the way there is lost: begin anew */
    }
    for (; engine->eras_placed < event->era; engine->eras_placed++) {
        double step;
        uint32_t at = engine->eras_placed;
        if (!elapsed(engine->references[at % ERAS], engine->references[(at + 1) % ERAS], &step))
            return false;
        engine->offsets[(at + 1) % ERAS] = engine->offsets[at % ERAS] + step;
    }
    double step;
    if (!elapsed(engine->references[event->era % ERAS], event->handle, &step)) return false;
    *ns = engine->offsets[event->era % ERAS] + step;
    return true;
}

static const struct vgpu_meter_ops ops = {event_new, record, progress, when};

/* --- engines -------------------------------------------------------------------------------- */

void vgpu_throttle_forget(void) {
    for (int i = 0; i < ENGINES; i++) atomic_store(&engines[i], NULL); /* lost to the child */
    for (int i = 0; i < CALLBACKS; i++) atomic_store(&callbacks[i], 0);
    atomic_store(&callback_count, 0);
    atomic_store(&vgpu_captures, 0);
    atomic_store(&making.state, 0);
    vgpu_places_forget();
}

/* Where the process sees one device, launches need not ask for their context to find its place. */
static void remember_only(struct vgpu_place *place) {
    int devices = 0;
    struct vgpu_state *state = vgpu_state_if_set();
    if (state == NULL || place == NULL ||
        VGPU_CALL(cuDeviceGetCount, &devices) != CUDA_SUCCESS || devices != 1)
        return;
    atomic_store_explicit(&state->only_place, place, memory_order_release);
}

/* Of a context that is current. A context's engine outlives it and serves a later one. */
static struct vgpu_engine *make_engine(CUcontext ctx) {
    CUdevice dev;
    if (VGPU_CALL(cuCtxGetDevice, &dev) != CUDA_SUCCESS) return NULL;
    struct vgpu_place *place = vgpu_place_of(vgpu_device_entry(dev), dev);
    struct vgpu_engine *made = NULL;
    remember_only(place);
    vgpu_lock(&making);
    for (int i = 0; i < ENGINES && made == NULL; i++) {
        struct vgpu_engine *engine = atomic_load(&engines[i]);
        if (engine == NULL) {
            engine = vgpu_map(sizeof *engine, PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
            if (engine == NULL) break;
        } else if (atomic_load(&engine->ctx) != NULL && atomic_load(&engine->ctx) != ctx) {
            continue;
        }
        engine->place = place; /* NULL: nothing to do in this context, and that is remembered */
        atomic_store(&engine->ctx, ctx);
        atomic_store(&engines[i], engine);
        made = engine;
    }
    vgpu_unlock(&making);
    return made;
}

static struct vgpu_engine *find_engine(CUcontext ctx, bool may_make) {
    for (int i = 0; i < ENGINES; i++) {
        struct vgpu_engine *engine = atomic_load(&engines[i]);
        if (engine != NULL && atomic_load(&engine->ctx) == ctx) return engine;
    }
    return may_make ? make_engine(ctx) : NULL;
}

static struct vgpu_engine *current_engine(bool may_make) {
    CUcontext ctx;
    if (VGPU_CALL(cuCtxGetCurrent, &ctx) != CUDA_SUCCESS || ctx == NULL) return NULL;
    struct vgpu_engine *engine = find_engine(ctx, may_make);
    return engine != NULL && engine->place != NULL ? engine : NULL;
}

/* How things stand, as of now; for whoever has the engine's lock, and as long as he has it. */
static const struct vgpu_regime *regime_of(struct vgpu_engine *engine) {
    vgpu_regime_get(&engine->place->regime, &engine->regime, &engine->regime_number);
    return &engine->regime;
}

/* The meter is large: it is there only where something is measured. */
static bool has_meter(struct vgpu_engine *engine) {
    if (engine->meter == NULL) {
        struct vgpu_meter *meter = vgpu_map(sizeof *meter, PROT_READ | PROT_WRITE,
                                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
        if (meter == NULL) return false;
        vgpu_meter_init(meter, &ops, engine, engine->place->budget);
        engine->meter = meter;
    }
    engine->meter->budget = engine->place->budget;
    return true;
}

/* After every turn at the meter: what it knows, to where others look. */
static void publish(struct vgpu_engine *engine) {
    struct vgpu_meter *meter = engine->meter;
    atomic_fetch_add_explicit(&engine->place->outstanding_ns,
                              (int64_t)meter->outstanding - (int64_t)engine->counted,
                              memory_order_relaxed);
    engine->counted = (double)(int64_t)meter->outstanding;
    if (atomic_load_explicit(&engine->place->late_ns, memory_order_relaxed) != meter->late)
        atomic_store_explicit(&engine->place->late_ns, meter->late, memory_order_relaxed);
    if (meter->settled && meter->began != 0) {
        int64_t began = meter->began;
        atomic_compare_exchange_strong(&engine->place->unsettled_since, &began, 0);
        meter->began = 0;
    }
    if (meter->granted >= 1) {
        uint64_t granted = (uint64_t)meter->granted;
        atomic_fetch_add_explicit(&engine->place->granted_ns, granted, memory_order_relaxed);
        meter->granted -= (double)granted;
    }
}

static bool in_callback(void) {
    if (atomic_load_explicit(&callback_count, memory_order_relaxed) == 0) return false;
    for (int i = 0; i < CALLBACKS; i++)
        if (atomic_load(&callbacks[i]) == this_thread()) return true;
    return false;
}

/* --- launches ---------------------------------------------------------------------------------- */

/* Products that do not wait for each other (multilinear hashing, Lemire and Kaser 2014), and one
 * step that spreads their sum. */
uint64_t vgpu_work_key(const struct vgpu_work *w) {
    uint64_t hash = (uint64_t)(uintptr_t)w->what * 0x51ed270b35ae6f2dull +
                    (w->grid[0] | (uint64_t)w->grid[1] << 32) * 0xbf58476d1ce4e5b9ull +
                    (w->grid[2] | (uint64_t)w->shared << 32) * 0x94d049bb133111ebull +
                    (w->block[0] | (uint64_t)w->block[1] << 21 | (uint64_t)w->block[2] << 42) *
                        0xd6e8feb86659fd93ull;
    hash = (hash ^ hash >> 29) * 0x9e3779b97f4a7c15ull;
    hash ^= hash >> 32;
    return hash != 0 ? hash : 1;
}

static struct vgpu_stream_id stream_id(CUstream stream, bool per_thread) {
    uint64_t handle = (uint64_t)(uintptr_t)stream;
    if (handle == 0) handle = per_thread ? STREAM_PER_THREAD : STREAM_LEGACY;
    return (struct vgpu_stream_id){handle, handle == STREAM_PER_THREAD ? this_thread() : 0};
}

static bool is_capturing(struct vgpu_stream_id stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return VGPU_CALL(cuStreamIsCapturing, (CUstream)(uintptr_t)stream.handle, &status) ==
               CUDA_SUCCESS &&
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Returns the time: a tick may ask NVML, which takes a while. */
static int64_t tick_if_due(struct vgpu_place *place, int64_t now) {
    if (VGPU_LIKELY(now < atomic_load_explicit(&place->next_tick, memory_order_relaxed))) return now;
    vgpu_place_tick(place, now);
    return vgpu_clock();
}

/* Waits until the launch may go, from `now` on; returns when it may. The engine is locked before
 * and after, never in between. */
static int64_t wait_for_turn(struct vgpu_engine *engine, uint64_t key, int64_t now) {
    struct vgpu_place *place = engine->place;
    struct vgpu_waiting waiting = {.paying = false};
    for (;; now = vgpu_clock()) {
        int64_t sleep = 0;
        enum vgpu_reason reason = vgpu_gate(engine->meter, key, this_thread(),
                                            regime_of(engine), &waiting, now, &sleep);
        atomic_store_explicit(&place->yielding, reason == VGPU_WAIT_PRIORITY,
                              memory_order_relaxed);
        if (VGPU_LIKELY(reason == VGPU_GO)) return now; /* admitted and published at once */
        publish(engine);
        const struct vgpu_turns turns = engine->regime.turns;
        bool turning = turns.taking && (reason != VGPU_WAIT_BUDGET || turns.until > now);
        int64_t busy = vgpu_meter_busy(engine->meter, now);
        vgpu_unlock(&engine->lock);
        if (reason == VGPU_TAKE_TURN) {
            vgpu_place_turn(place, VGPU_WISH_TAKE, (int64_t)waiting.need, now);
            vgpu_lock(&engine->lock);
            continue;
        }
        if (turning) vgpu_place_turn(place, vgpu_turns_wish(&turns, reason == VGPU_WAIT_TURN,
                                                            reason == VGPU_WAIT_BUDGET, now),
                                     busy, now);
        vgpu_clock_sleep(sleep);
        int64_t after = vgpu_clock();
        if (reason == VGPU_WAIT_TURN) reason = VGPU_WAIT_QUEUE; /* for the card, both */
        atomic_fetch_add_explicit(&place->waited_ns[reason], (uint64_t)(after - now),
                                  memory_order_relaxed);
        tick_if_due(place, after);
        bool measured = atomic_load_explicit(&place->measured, memory_order_relaxed);
        vgpu_lock(&engine->lock);
        if (!measured) return vgpu_clock(); /* the limit was taken away */
    }
}

/* Few launches change what others see of it; a batch is published whole at its end at the latest. */
static void publish_some(struct vgpu_engine *engine) {
    if (engine->meter->outstanding - engine->counted > UNPUBLISHED) publish(engine);
}

/* `now`: a moment ago. */
static void measured_enter(struct vgpu_throttle *t, struct vgpu_engine *engine, uint64_t key,
                           struct vgpu_stream_id stream, int64_t now) {
    struct vgpu_place *place = engine->place;
    if (!VGPU_LIKELY(vgpu_try_lock(&engine->lock))) {
        vgpu_lock(&engine->lock);
        now = vgpu_clock(); /* those who were in here meanwhile had later times */
    }
    if (!has_meter(engine)) {
        vgpu_unlock(&engine->lock);
        return;
    }
    int64_t since = atomic_load_explicit(&place->unsettled_since, memory_order_relaxed);
    if (since != 0) vgpu_meter_begins(engine->meter, since);
    if (VGPU_LIKELY(vgpu_gate_repeats(engine->meter, key, stream, regime_of(engine), now,
                                      &t->admission))) {
        publish_some(engine);
        vgpu_unlock(&engine->lock);
        t->engine = engine;
        t->before = 0;
        return;
    }
    if (!in_callback()) now = wait_for_turn(engine, key, now);
    const struct vgpu_regime *regime = regime_of(engine);
    vgpu_meter_admit(engine->meter, key, stream, regime, now, &t->admission);
    publish(engine);
    enum vgpu_wish wish;
    bool tells = vgpu_gate_tells(engine->meter, regime, t->admission.cost, now, &wish);
    if (tells) now = vgpu_clock(); /* the driver may have kept us meanwhile */
    int64_t busy = tells ? vgpu_meter_busy(engine->meter, now) : 0;
    vgpu_unlock(&engine->lock);
    if (tells) vgpu_place_turn(place, wish, busy, now);
    t->engine = engine;
    t->before = t->admission.timed ? vgpu_clock() : 0;
}

void vgpu_throttle_enter(struct vgpu_throttle *t, uint64_t key, CUstream stream, bool per_thread) {
    t->engine = NULL;
    if (!vgpu_active()) return;
    struct vgpu_engine *engine = current_engine(true);
    if (engine == NULL) return;
    struct vgpu_place *place = engine->place;
    struct vgpu_stream_id id = stream_id(stream, per_thread);
    if (atomic_load_explicit(&vgpu_captures, memory_order_relaxed) != 0 && is_capturing(id)) return;
    atomic_fetch_add_explicit(&place->launches, 1, memory_order_relaxed);
    int64_t now;
    if (!atomic_load_explicit(&place->measured, memory_order_acquire)) {
        now = vgpu_clock_coarse();
        if (now < atomic_load_explicit(&place->next_tick, memory_order_relaxed)) return;
        now = tick_if_due(place, vgpu_clock());
        if (!atomic_load_explicit(&place->measured, memory_order_acquire)) return;
    } else {
        now = tick_if_due(place, vgpu_clock());
    }
    measured_enter(t, engine, key, id, now);
}

void vgpu_throttle_finish(struct vgpu_throttle *t, CUresult result) {
    struct vgpu_engine *engine = t->engine;
    int64_t now = vgpu_clock(), host = t->before != 0 ? now - t->before : 0;
    if (result != CUDA_SUCCESS) atomic_store(&engine->place->last_error, result);
    vgpu_lock(&engine->lock);
    vgpu_meter_launched(engine->meter, regime_of(engine), &t->admission,
                        result == CUDA_SUCCESS, host, now);
    publish(engine);
    vgpu_unlock(&engine->lock);
}

bool vgpu_throttle_watches(void) {
    for (int i = 0; i < ENGINES; i++) {
        struct vgpu_engine *engine = atomic_load(&engines[i]);
        if (engine != NULL && engine->meter != NULL) return true;
    }
    return false;
}

/* More at once than there are marks run unmarked. */
void vgpu_throttle_callback(bool inside) {
    uint64_t mark = inside ? 0 : this_thread();
    for (int i = 0; i < CALLBACKS; i++) {
        uint64_t seen = mark;
        if (!atomic_compare_exchange_strong(&callbacks[i], &seen, inside ? this_thread() : 0))
            continue;
        atomic_fetch_add(&callback_count, inside ? 1 : -1);
        return;
    }
}

/* --- what else tells something ---------------------------------------------------------------- */

void vgpu_throttle_syncing(struct vgpu_synchronization *s, CUcontext ctx, CUstream stream,
                           bool per_thread, bool whole) {
    s->engine = NULL;
    if (!vgpu_active()) return;
    struct vgpu_engine *engine = ctx != NULL ? find_engine(ctx, false) : current_engine(false);
    if (engine == NULL || engine->place == NULL) return;
    s->engine = engine;
    s->stream = stream_id(stream, per_thread);
    s->whole = whole;
    vgpu_lock(&engine->lock);
    if (engine->meter != NULL)
        vgpu_meter_syncing(engine->meter, whole ? NULL : &s->stream,
                           regime_of(engine), vgpu_clock(), &s->sync);
    vgpu_unlock(&engine->lock);
}

void vgpu_throttle_synced(struct vgpu_synchronization *s, CUresult result) {
    struct vgpu_engine *engine = s->engine;
    if (result != CUDA_SUCCESS) return;
    if (engine == NULL) { /* its launches passed without one */
        struct vgpu_state *state = vgpu_state_if_set();
        struct vgpu_place *place = state != NULL ? atomic_load(&state->only_place) : NULL;
        if (place != NULL) vgpu_place_flush(place);
        return;
    }
    vgpu_lock(&engine->lock);
    if (engine->meter != NULL) {
        vgpu_meter_synced(engine->meter, s->whole ? NULL : &s->stream,
                          regime_of(engine), &s->sync, vgpu_clock());
        publish(engine);
    }
    vgpu_unlock(&engine->lock);
    vgpu_place_flush(engine->place);
}

static void each_engine(void (*visit)(struct vgpu_engine *engine, const void *what),
                        const void *what) {
    for (int i = 0; i < ENGINES; i++) {
        struct vgpu_engine *engine = atomic_load(&engines[i]);
        if (engine == NULL || engine->meter == NULL) continue;
        vgpu_lock(&engine->lock);
        visit(engine, what);
        vgpu_unlock(&engine->lock);
    }
}

static void drop_stream(struct vgpu_engine *engine, const void *stream) {
    vgpu_meter_stream_gone(engine->meter, (uint64_t)(uintptr_t)stream,
                           regime_of(engine), vgpu_clock());
    publish(engine);
}

static void graph_changed(struct vgpu_engine *engine, const void *exec) {
    vgpu_meter_changed(engine->meter, vgpu_work_key(&(struct vgpu_work){.what = exec}));
}

void vgpu_throttle_stream_gone(CUstream stream) {
    if (vgpu_active()) each_engine(drop_stream, stream);
}

void vgpu_throttle_changed(const void *exec) {
    if (vgpu_active()) each_engine(graph_changed, exec);
}

/* The context took its events with it. Its memory is not given back: another thread may be
 * on its way through, and contexts that come and go are few. */
void vgpu_throttle_context_gone(CUcontext ctx) {
    if (!vgpu_active()) return;
    for (int i = 0; i < ENGINES; i++) {
        struct vgpu_engine *engine = atomic_load(&engines[i]);
        if (engine == NULL || atomic_load(&engine->ctx) != ctx) continue;
        vgpu_lock(&engine->lock);
        if (engine->meter != NULL) {
            atomic_fetch_sub(&engine->place->outstanding_ns, (int64_t)engine->counted);
            vgpu_sys(SYS_madvise, (long)engine->meter, sizeof *engine->meter, MADV_DONTNEED, 0, 0,
                     0);
            vgpu_meter_init(engine->meter, &ops, engine, engine->place->budget);
        }
        engine->counted = 0;
        engine->regime_number = 0; /* a later context may be on another device */
        engine->event_count = engine->era = engine->eras_placed = 0;
        engine->era_began = 0;
        memset(engine->references, 0, sizeof engine->references);
        memset(engine->offsets, 0, sizeof engine->offsets);
        atomic_store(&engine->ctx, NULL);
        vgpu_unlock(&engine->lock);
    }
}

void vgpu_throttle_capture(int change) {
    if (change > 0) {
        atomic_fetch_add(&vgpu_captures, 1);
        return;
    }
    int seen = atomic_load(&vgpu_captures);
    while (seen > 0 && !atomic_compare_exchange_weak(&vgpu_captures, &seen, seen - 1)) {
    }
}
