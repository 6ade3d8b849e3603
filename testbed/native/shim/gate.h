/* Whether a launch may go: its budget, what is in flight, priorities and turns on the card.
 *
 * As pure as the meter, whose state it reads and shares; who waits sleeps in the caller. */
#ifndef VGPU_SHIM_GATE_H
#define VGPU_SHIM_GATE_H

#include "meter.h"

enum vgpu_reason {
    VGPU_GO,
    VGPU_WAIT_BUDGET,
    VGPU_WAIT_QUEUE,
    VGPU_WAIT_PRIORITY,
    VGPU_WAIT_TURN,
    VGPU_TAKE_TURN, /* no wait: the card is free, and the caller is to say that it is ours */
};

/* One launch's wait. Zero it before the first step. */
struct vgpu_waiting {
    int64_t due;   /* when it was to wake up */
    bool paying;   /* it found the budget spent: it waits until all is paid */
    int64_t since; /* when it began to wait for the queue */
    bool entered;
    bool took;          /* it has just been told to take a turn */
    int64_t turn_since; /* when it began to wait for a turn */
    int64_t patience;   /* for how long it does */
    int64_t free_since; /* when it first could have taken one, but for others that wait */
    double need;        /* device time that it will have in flight */
};

/* VGPU_GO, or why the launch may not go now and for how long to sleep (ns). `thread` is the
 * caller's (not 0): per-thread default streams are closed by their own only. */
enum vgpu_reason vgpu_gate(struct vgpu_meter *meter, uint64_t key, uint64_t thread,
                           const struct vgpu_regime *regime, struct vgpu_waiting *waiting,
                           int64_t now, int64_t *sleep);

/* The most frequent launch of all: like the one before it, and so far within its budget that neither
 * vgpu_gate nor vgpu_meter_admit would do more than to add it up. Adds it up, and tells so. */
static inline bool vgpu_gate_repeats(struct vgpu_meter *m, uint64_t key,
                                     struct vgpu_stream_id stream,
                                     const struct vgpu_regime *regime, int64_t now,
                                     struct vgpu_admission *admission) {
    int64_t ahead = vgpu_ledger_paid_until(&m->budget) - now;
    if (regime->off || regime->blocked || regime->turns.taking || ahead > vgpu_tuning.quantum ||
        ahead < -vgpu_tuning.credit || now > m->next_poll ||
        m->outstanding >= (double)regime->queue)
        return false;
    return vgpu_meter_repeats(m, key, stream, regime, now, admission);
}

/* Whether the card page should hear at once of a launch of `cost` that was just admitted, and
 * what: it lasts, or it is the last that fits into the turn. */
bool vgpu_gate_tells(struct vgpu_meter *meter, const struct vgpu_regime *regime, double cost,
                     int64_t now, enum vgpu_wish *wish);

#endif
