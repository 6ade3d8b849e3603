/* One device as this process uses it: its rules, its neighbours, its counters, and what
 * follows from them for launches. Renewed by whichever thread launches when it is due. */
#ifndef VGPU_SHIM_PLACE_H
#define VGPU_SHIM_PLACE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "card_page.h"
#include "gate.h"
#include "limits.h"
#include "presence.h"
#include "regime.h"
#include "sys.h"

struct vgpu_place {
    int entry;
    char uuid[VGPU_UUID_BYTES];
    atomic_bool measured;      /* launches pass the meter */
    _Atomic int64_t next_tick; /* CLOCK_MONOTONIC; due then */
    struct vgpu_regime_box regime; /* what holds at present */
    struct vgpu_budget budget;

    /* counted by the threads that launch, written out at ticks */
    _Atomic uint64_t launches, granted_ns, waited_ns[VGPU_WAIT_PRIORITY + 1];
    _Atomic int64_t outstanding_ns; /* in flight, of all contexts on the device */
    atomic_bool yielding;
    /* when measuring began, while work from before that may be in flight; 0: none is */
    _Atomic int64_t unsettled_since;
    _Atomic int64_t late_ns; /* how much too late its sleeps end, about */
    bool sliced;      /* the card gives its time in slices, so that turns are of use */
    _Atomic int last_error;

    /* of the thread that ticks */
    struct vgpu_lock ticking;
    struct vgpu_limits limits;
    uint64_t checksum;
    struct vgpu_rules rules;
    struct vgpu_card_page page;
    bool paged, siblings, arriving;
    bool unmeasured; /* launches may have passed since measuring ended */
    bool turning; /* it takes turns */
    enum vgpu_wish wish; /* of whoever ticks, and what it has or will have in flight, ns */
    int64_t busy;
    int64_t next_slow, launched_at, began, fed_at;
    _Atomic uint64_t launches_seen;
    uint64_t stamp;
    struct written { /* what of the counters the region has */
        uint64_t launches, granted_ns, waited_ns[VGPU_WAIT_PRIORITY + 1];
    } written;
};

/* The place of a device of the container (`device`: as CUDA numbers it); NULL where there is nothing to do on it. */
struct vgpu_place *vgpu_place_of(int entry, int device);
void vgpu_places_forget(void); /* in a forked child */

/* Does what is due; never waits for another thread that does. */
void vgpu_place_tick(struct vgpu_place *place, int64_t now);

/* The same at once, for a launch that wishes something of the turns on the card; `busy` is the
 * device time that it has in flight or will have, ns. */
void vgpu_place_turn(struct vgpu_place *place, enum vgpu_wish wish, int64_t busy, int64_t now);

/* A context was made on the device: its neighbours hear that it is there, before its first
 * launch, so that those of a lower priority have a short queue by then. */
void vgpu_place_arrive(int entry, int device);

/* Writes the counters out, so that who looks after a synchronisation sees all. */
void vgpu_place_flush(struct vgpu_place *place);

#endif
