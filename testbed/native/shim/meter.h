/* Measures the launches of one context and holds them to a budget.
 *
 * Launches of a stream are gathered into batches; an event ends each. Where the end of the
 * work before it was still pending when a batch was closed, the device never paused in
 * between, and the distance of the two ends is the batch's device time: no start event is
 * needed. With several streams at work the union of the intervals is shared out.
 *
 * No clock, no lock and no driver call here but through `ops`, so that the tests run this
 * code in virtual time. The caller holds a lock around every function; `ops->record` may
 * release it meanwhile (a driver blocks in it when the stream's queue is full). */
#ifndef VGPU_SHIM_METER_H
#define VGPU_SHIM_METER_H

#include <stdbool.h>
#include <stdint.h>

#include "cost.h"
#include "ledger.h"

#define VGPU_LANES 256
#define VGPU_BATCHES 1024
#define VGPU_EVENTS 2048
#define VGPU_MOST_LAUNCHES 256 /* of a batch */
#define VGPU_NOTHING_NS 1000.0 /* of device time in flight: what rounding leaves */

struct vgpu_stream_id {
    uint64_t handle; /* the two default streams by their own handles, 1 and 2 */
    uint64_t thread; /* of a per-thread default stream, else 0 */
};

enum vgpu_progress { VGPU_PENDING, VGPU_DONE, VGPU_LOST };

struct vgpu_meter_ops {
    void *(*event_new)(void *env); /* NULL where there is none to be had */
    bool (*record)(void *env, void *event, struct vgpu_stream_id stream);
    enum vgpu_progress (*progress)(void *env, void *event);
    bool (*when)(void *env, void *event, double *ns); /* on the device's clock; completed ones */
};

enum vgpu_from { VGPU_UNTIMED, VGPU_OWN_START, VGPU_PREVIOUS_END };

struct vgpu_batch {
    uint64_t serial;
    struct vgpu_stream_id stream;
    uint16_t lane, next;
    uint32_t launches;
    uint8_t from; /* enum vgpu_from */
    bool single, recorded, crowded, chained;
    struct vgpu_cost_entry *cost; /* NULL: of different keys */
    uint64_t key;
    double predicted, predicted_long, charged; /* ns */
    double most; /* predicted time at which it ends, ns */
    int64_t gap; /* host time between start event and launch */
    int64_t opened;
    void *start, *end;
};

struct vgpu_lane {
    struct vgpu_stream_id stream;
    bool used, gone; /* gone: the stream was destroyed, what is pending still ends */
    bool settled;    /* what was launched on it before measuring began has ended */
    uint16_t head, tail, pending;
    int16_t busy; /* place in the list of busy lanes, -1 = idle */
    uint64_t newest_launch;
    double last_end; /* ns on the device's clock */
    struct vgpu_batch open; /* launches == 0: none */
};

struct vgpu_meter {
    const struct vgpu_meter_ops *ops;
    void *env;
    struct vgpu_budget budget;
    /* device time known or believed to be in flight, and what of it has no known cost */
    double outstanding;
    uint32_t unknown;
    uint32_t crowd_memory; /* > 0: several streams were at work lately */
    enum { VGPU_NO_CHAIN, VGPU_CHAINED, VGPU_ANCHORED } chain;
    void *anchor; /* start of a chain, recorded when the process was idle */
    int64_t anchor_gap;
    uint64_t anchor_serial;
    int64_t usual_gap; /* host time between a start event and its launch, about */
    double horizon; /* up to which the union of intervals was counted */
    int64_t next_sample, next_poll, progressed;
    uint64_t serial, launched, pairs_skipped;
    double granted; /* completed device time since the caller took it */
    int64_t launched_at, begun; /* newest launch; the newest that found nothing in flight */
    double used;       /* completed device time, ever */
    uint64_t unsynced;  /* launches since something was synchronised */
    int64_t began;     /* when measuring began, after launches that were not measured */
    bool settled;      /* none of those is in flight any more, as far as streams tell */
    uint16_t free_batch, busy_count;
    uint16_t newest; /* lane of the newest launch */
    /* of gate.h */
    double aside;   /* device time that may be used without a turn */
    int64_t impatient; /* until then no turns are taken */
    int64_t turn_end;  /* of the newest turn that was taken here, without what prolonged it */
    double turn_given, turn_owed; /* its length as it is due; what earlier ones were too short by */
    int64_t late;      /* how much later than asked for a sleep ends, about */
    int64_t late_told; /* when it was last brought up to date */
    int64_t told;      /* when work in flight will be done, as the page has it */
    int64_t turn_began; /* of a turn whose use is to be judged; 0: none */
    double turn_used;   /* `used` when it began */
    uint32_t underused; /* turns in a row */
    int64_t host_bound; /* until then it is one whose host is slower than the card */
    uint16_t busy[VGPU_LANES];
    uint32_t event_count, free_count;
    void *free_events[VGPU_EVENTS];
    struct vgpu_lane lanes[VGPU_LANES];
    struct vgpu_batch batches[VGPU_BATCHES];
    struct vgpu_costs costs;
};

/* What the launch that was admitted needs afterwards. */
struct vgpu_admission {
    uint64_t serial;
    uint16_t lane;
    double cost;
    bool is_long, probe;
    bool timed;     /* measure the host time of the launch: an idle stream's start event */
    bool anchored;
    bool finish;    /* call vgpu_meter_launched whatever happened */
};

/* `meter` is zeroed memory. */
void vgpu_meter_init(struct vgpu_meter *meter, const struct vgpu_meter_ops *ops, void *env,
                     struct vgpu_budget budget);

void vgpu_meter_admit(struct vgpu_meter *meter, uint64_t key, struct vgpu_stream_id stream,
                      const struct vgpu_regime *regime, int64_t now,
                      struct vgpu_admission *admission);

/* A launch like the one before it, into the same batch, with nothing to look at and far from filling
 * it: what vgpu_meter_admit does, in few steps. False, and nothing is done, where it is another. */
static inline bool vgpu_meter_repeats(struct vgpu_meter *m, uint64_t key,
                                      struct vgpu_stream_id stream,
                                      const struct vgpu_regime *regime, int64_t now,
                                      struct vgpu_admission *a) {
    struct vgpu_lane *lane = &m->lanes[m->newest];
    struct vgpu_batch *open = &lane->open;
    struct vgpu_cost_entry *k = open->cost;
    if (open->launches == 0 || k == NULL || open->key != key || k->key != key ||
        open->stream.handle != stream.handle || open->stream.thread != stream.thread)
        return false;
    double cost = k->estimate, batch = (double)vgpu_tuning.batch;
    double most = regime->contended ? batch : open->most;
    if (!k->known || open->single || lane->gone || open->launches + 1 >= VGPU_MOST_LAUNCHES ||
        cost > batch / 2 || open->predicted + cost >= most || m->outstanding < VGPU_NOTHING_NS)
        return false;
    *a = (struct vgpu_admission){.serial = open->serial, .lane = m->newest, .cost = cost};
    vgpu_ledger_charge(&m->budget, regime, cost, false);
    open->predicted += cost;
    open->charged += cost * regime->kappa[0];
    open->launches++;
    m->outstanding += cost;
    m->launched_at = now;
    m->unsynced++;
    lane->newest_launch = ++m->launched;
    return true;
}

/* Measuring began at `since`, and there were launches before: what of them is in flight has ended
 * (`settled`) once each stream at work ended a batch that was launched later. The same `since`
 * again does nothing. */
void vgpu_meter_begins(struct vgpu_meter *meter, int64_t since);

/* After the driver's call: `host` is how long it took (where `timed`). */
void vgpu_meter_launched(struct vgpu_meter *meter, const struct vgpu_regime *regime,
                         const struct vgpu_admission *admission, bool succeeded, int64_t host,
                         int64_t now);

/* Ends the batches that the caller's thread can end, so that events tell of them. */
void vgpu_meter_close_all(struct vgpu_meter *meter, uint64_t thread,
                          const struct vgpu_regime *regime, int64_t now);

/* For how long what is in flight will keep the card, if nobody else has it, ns. */
int64_t vgpu_meter_busy(const struct vgpu_meter *meter, int64_t now);

/* A synchronisation: what was launched before it is complete after it, without an event.
 * `stream` NULL = the whole context. */
struct vgpu_sync {
    uint64_t launched;
};
void vgpu_meter_syncing(struct vgpu_meter *meter, const struct vgpu_stream_id *stream,
                        const struct vgpu_regime *regime, int64_t now, struct vgpu_sync *sync);
void vgpu_meter_synced(struct vgpu_meter *meter, const struct vgpu_stream_id *stream,
                       const struct vgpu_regime *regime, const struct vgpu_sync *sync,
                       int64_t now);

void vgpu_meter_poll(struct vgpu_meter *meter, const struct vgpu_regime *regime, int64_t now);
void vgpu_meter_stream_gone(struct vgpu_meter *meter, uint64_t handle,
                            const struct vgpu_regime *regime, int64_t now);
/* A graph was changed: what was learned of it is a guess. */
void vgpu_meter_changed(struct vgpu_meter *meter, uint64_t key);

#endif
