/* Holds launches to the container's share of device time: the driver's side of meter.h.
 *
 * A hook of a launch calls vgpu_throttle_enter, the driver, vgpu_throttle_leave. Nothing is
 * held while a launch waits or while the driver is in it, and no lock is shared with other
 * processes. */
#ifndef VGPU_SHIM_THROTTLE_H
#define VGPU_SHIM_THROTTLE_H

#include <stdbool.h>
#include <stdint.h>

#include "clock.h"
#include "hooks.h"
#include "meter.h"
#include "place.h"
#include "state.h"

struct vgpu_engine;

struct vgpu_throttle {
    struct vgpu_engine *engine; /* NULL: nothing to leave */
    struct vgpu_admission admission;
    int64_t before;
};

/* What makes two launches cost the same. */
struct vgpu_work {
    const void *what; /* function, executable graph, or a kind of copy */
    uint32_t grid[3], block[3], shared;
};
uint64_t vgpu_work_key(const struct vgpu_work *work);

/* Captures under way in this process: what is launched into one is no launch. */
extern VGPU_HIDDEN atomic_int vgpu_captures;

/* Whether a launch has nothing to do here but to be counted, which has been done then: nothing is
 * limited in this process, or nothing is measured on the one device that it sees and nothing is
 * due. Which context is current need not be known for that. */
static inline bool vgpu_throttle_passes(void) {
    struct vgpu_state *state = vgpu_state_if_set();
    if (!VGPU_LIKELY(state != NULL)) return false;
    struct vgpu_place *place = atomic_load_explicit(&state->only_place, memory_order_acquire);
    if (place == NULL)
        return atomic_load_explicit(&state->standing, memory_order_relaxed) == VGPU_IDLE;
    if (atomic_load_explicit(&place->measured, memory_order_acquire) ||
        atomic_load_explicit(&vgpu_captures, memory_order_relaxed) != 0 ||
        vgpu_clock_coarse() >= atomic_load_explicit(&place->next_tick, memory_order_relaxed))
        return false;
    atomic_fetch_add_explicit(&place->launches, 1, memory_order_relaxed);
    return true;
}

void vgpu_throttle_enter(struct vgpu_throttle *throttle, uint64_t key, CUstream stream,
                         bool per_thread);
void vgpu_throttle_finish(struct vgpu_throttle *throttle, CUresult result);

/* Most launches need nothing afterwards. */
static inline void vgpu_throttle_leave(struct vgpu_throttle *throttle, CUresult result) {
    if (throttle->engine != NULL && (throttle->admission.finish || result != CUDA_SUCCESS))
        vgpu_throttle_finish(throttle, result);
}

/* Synchronisations: before the driver's call, and after it (only where it succeeded).
 * `whole`: the whole context, else the stream. */
struct vgpu_synchronization {
    struct vgpu_engine *engine;
    struct vgpu_sync sync;
    struct vgpu_stream_id stream;
    bool whole;
};
void vgpu_throttle_syncing(struct vgpu_synchronization *s, CUcontext ctx, CUstream stream,
                           bool per_thread, bool whole);
void vgpu_throttle_synced(struct vgpu_synchronization *s, CUresult result);

void vgpu_throttle_stream_gone(CUstream stream);
void vgpu_throttle_context_gone(CUcontext ctx);
void vgpu_throttle_changed(const void *exec); /* an executable graph */
void vgpu_throttle_capture(int change);       /* captures that began (+1) and ended (-1) */
void vgpu_throttle_forget(void);              /* in a forked child */

bool vgpu_throttle_watches(void); /* whether launches of this process can be made to wait */

/* Marks the thread as being inside of a host callback of the driver: it must never wait. */
void vgpu_throttle_callback(bool inside);

#endif
