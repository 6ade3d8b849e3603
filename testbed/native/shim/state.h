/* The library's state in this process: set up on first use, and anew in a forked child. */
#ifndef VGPU_SHIM_STATE_H
#define VGPU_SHIM_STATE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

#define VGPU_HIDDEN __attribute__((visibility("hidden")))
#define VGPU_LIKELY(condition) __builtin_expect(!!(condition), 1)

struct vgpu_place;

enum vgpu_standing {
    VGPU_UNSET = 0,
    VGPU_SETTING = 1,
    VGPU_IDLE = 2,  /* nothing is counted or limited here */
    VGPU_ACTIVE = 3,
};

/* On a page that the kernel wipes in a forked child: that tells a child from its parent where
 * pids cannot (both may be pid 1 of their namespaces) and leaves a vfork child alone. */
struct vgpu_state {
    atomic_int standing; /* enum vgpu_standing */
    /* Set where the process sees one device only: the place of every launch, whatever context
     * is current. */
    _Atomic(struct vgpu_place *) only_place;
};
extern VGPU_HIDDEN _Atomic(struct vgpu_state *) vgpu_state;

/* NULL until the state has been set up in this process. */
static inline struct vgpu_state *vgpu_state_if_set(void) {
    struct vgpu_state *state = atomic_load_explicit(&vgpu_state, memory_order_acquire);
    return state != NULL &&
                   atomic_load_explicit(&state->standing, memory_order_acquire) >= VGPU_IDLE
               ? state
               : NULL;
}

VGPU_HIDDEN bool vgpu_set_up(void);

/* Whether vgpu_enter would enter; takes nothing. */
static inline bool vgpu_active(void) {
    struct vgpu_state *state = vgpu_state_if_set();
    if (!VGPU_LIKELY(state != NULL)) return vgpu_set_up();
    return atomic_load_explicit(&state->standing, memory_order_relaxed) == VGPU_ACTIVE;
}

/* Enters the state. Returns false, and has taken nothing, where this container counts nothing.
 * Driver calls are made outside of it. */
bool vgpu_enter(void);
void vgpu_leave(void);

/* Grows by every (re)start of the state: what a caller remembered before is void. */
unsigned vgpu_epoch(void);

#endif
