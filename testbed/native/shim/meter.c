#include "meter.h"

#include <string.h>

#define NONE UINT16_MAX
#define PROBES 16
#define CROWD_MEMORY 64
#define PAIRS_OF 8         /* one start event in so many while the stream is not idle */
#define FIRST_PAIRS 16
#define COLD (50 * VGPU_US) /* who paused for so long */
#define COLD_GAPS 2        /* sample gaps that he has time for another launch before */
#define MOST_GAP (25 * VGPU_US) /* longer ones: the host was interrupted, nothing is learned */
#define UNUSUAL 3 / 2      /* times the usual gap, and a microsecond: likewise, but shortly */
#define SLOP (1 * VGPU_MS) /* how late the page tells */
#define TOUCH (1.0 / 32)  /* a neighbour may have had so much of it at the beginning */
#define OVERDUE (VGPU_TURN_LEAD_NS + 300 * VGPU_US) /* longer in flight than predicted: until the next look */
#define ABANDONED (200 * VGPU_MS) /* an open batch of a thread that launches no more */

void vgpu_meter_init(struct vgpu_meter *m, const struct vgpu_meter_ops *ops, void *env,
                     struct vgpu_budget budget) {
    m->ops = ops;
    m->env = env;
    m->budget = budget;
    for (int i = 0; i < VGPU_BATCHES; i++)
        m->batches[i].next = (uint16_t)(i + 1 < VGPU_BATCHES ? i + 1 : NONE);
    for (int i = 0; i < VGPU_LANES; i++) {
        m->lanes[i].head = m->lanes[i].tail = NONE;
        m->lanes[i].busy = -1;
    }
}

/* --- events ------------------------------------------------------------------------ */

static void *take_event(struct vgpu_meter *m) {
    if (m->free_count > 0) return m->free_events[--m->free_count];
    if (m->event_count >= VGPU_EVENTS) return NULL;
    void *event = m->ops->event_new(m->env);
    if (event != NULL) m->event_count++;
    return event;
}

static void give_event(struct vgpu_meter *m, void *event) {
    if (event != NULL) m->free_events[m->free_count++] = event;
}

/* --- lanes -------------------------------------------------------------------------- */

static bool same_stream(struct vgpu_stream_id a, struct vgpu_stream_id b) {
    return a.handle == b.handle && a.thread == b.thread;
}

static void set_busy(struct vgpu_meter *m, struct vgpu_lane *lane) {
    bool busy = lane->open.launches > 0 || lane->pending > 0;
    if (busy == (lane->busy >= 0)) return;
    if (busy) {
        lane->busy = (int16_t)m->busy_count;
        m->busy[m->busy_count++] = (uint16_t)(lane - m->lanes);
        return;
    }
    uint16_t last = m->busy[--m->busy_count];
    m->busy[lane->busy] = last;
    m->lanes[last].busy = lane->busy;
    lane->busy = -1;
    if (lane->gone) lane->used = false;
}

static uint64_t place_of(struct vgpu_stream_id stream) {
    return (stream.handle ^ stream.thread << 1) * 0x9e3779b97f4a7c15ull >> 40;
}

static struct vgpu_lane *find_lane(struct vgpu_meter *m, struct vgpu_stream_id stream) {
    uint64_t start = place_of(stream);
    for (uint64_t i = 0; i < PROBES; i++) {
        struct vgpu_lane *lane = &m->lanes[(start + i) % VGPU_LANES];
        if (lane->used && !lane->gone && same_stream(lane->stream, stream)) return lane;
    }
    return NULL;
}

/* A lane for the stream. Idle ones give way to new ones; where none is free a busy one is
 * shared, which makes its batches end a little later than they did. */
static struct vgpu_lane *lane_of(struct vgpu_meter *m, struct vgpu_stream_id stream) {
    struct vgpu_lane *lane = find_lane(m, stream);
    if (lane != NULL) return lane;
    uint64_t start = place_of(stream);
    for (uint64_t i = 0; i < PROBES; i++) {
        lane = &m->lanes[(start + i) % VGPU_LANES];
        if (!lane->used || lane->busy < 0) {
            *lane = (struct vgpu_lane){
                .stream = stream, .used = true, .head = NONE, .tail = NONE, .busy = -1};
            return lane;
        }
    }
    return &m->lanes[start % VGPU_LANES];
}

static bool alone(const struct vgpu_meter *m, const struct vgpu_lane *lane) {
    return m->busy_count == (lane->busy >= 0 ? 1 : 0);
}

/* The newest batch that may still run, of the whole process or of one lane. */
static struct vgpu_batch *newest_pending(struct vgpu_meter *m, const struct vgpu_lane *of) {
    if (of != NULL) return of->pending > 0 ? &m->batches[of->tail] : NULL;
    struct vgpu_batch *newest = NULL;
    for (uint16_t i = 0; i < m->busy_count; i++) {
        const struct vgpu_lane *lane = &m->lanes[m->busy[i]];
        if (lane->pending == 0) continue;
        struct vgpu_batch *batch = &m->batches[lane->tail];
        if (newest == NULL || batch->serial > newest->serial) newest = batch;
    }
    return newest;
}

static bool running(struct vgpu_meter *m, const struct vgpu_batch *batch) {
    return batch != NULL && batch->recorded && batch->end != NULL &&
           m->ops->progress(m->env, batch->end) == VGPU_PENDING;
}

/* --- the end of a batch --------------------------------------------------------------- */

static double larger(double a, double b) { return a > b ? a : b; }
static int64_t later(int64_t a, int64_t b) { return a > b ? a : b; }

/* When the work behind a start event on an idle stream began: the event fires before the
 * work is even submitted. */
static double began(double event_time, int64_t gap) {
    gap = (gap < MOST_GAP ? gap : MOST_GAP) - vgpu_tuning.event_cost;
    return event_time + (double)(gap > 0 ? gap : 0);
}

/* The start of a chain, at the first completion after it: whichever stream's that is. */
static void place_anchor(struct vgpu_meter *m) {
    double time;
    if (m->anchor == NULL) return;
    if (m->ops->when(m->env, m->anchor, &time))
        m->horizon = larger(m->horizon, began(time, m->anchor_gap));
    else m->chain = VGPU_NO_CHAIN;
    give_event(m, m->anchor);
    m->anchor = NULL;
}

/* What the events say of a completed batch, into the ledger's correction. */
static double measure(struct vgpu_meter *m, struct vgpu_lane *lane, struct vgpu_batch *batch,
                      const struct vgpu_regime *regime, int64_t now, int64_t *span) {
    double end, start = 0;
    place_anchor(m);
    if (batch->end == NULL || !m->ops->when(m->env, batch->end, &end)) return 0;
    enum vgpu_from from = batch->from;
    if (batch->start != NULL && (batch->gap > MOST_GAP || batch->gap < 0 ||
                                 !m->ops->when(m->env, batch->start, &start)))
        from = VGPU_UNTIMED;
    start = from == VGPU_OWN_START ? began(start, batch->gap)
            : batch->chained       ? m->horizon
                                   : lane->last_end;
    double fix = 0;
    if (from != VGPU_UNTIMED) {
        double cost = (double)vgpu_tuning.event_cost, own = end - larger(start, m->horizon) - cost;
        struct vgpu_measure found = {
            .elapsed = larger(100, end - start - cost),
            .own = larger(0, own),
            .predicted = batch->predicted,
            .launches = batch->launches,
            .pair = from == VGPU_OWN_START,
            .previous = from == VGPU_PREVIOUS_END,
            .now = now,
            .crowded = batch->chained || batch->crowded,
        };
        int64_t start = now - (int64_t)(found.elapsed * (1 - TOUCH));
        found.clean = regime->contended && start - SLOP > regime->others;
        struct vgpu_cost_entry *entry = batch->cost;
        if (entry != NULL && entry->key != batch->key) entry = NULL; /* gave way to another */
        fix = vgpu_cost_learn(entry, &found, &m->budget, regime);
        *span = (int64_t)found.elapsed;
    }
    lane->last_end = end;
    m->horizon = larger(m->horizon, end);
    return fix;
}

static void retire(struct vgpu_meter *m, struct vgpu_lane *lane, struct vgpu_batch *batch,
                   const struct vgpu_regime *regime, int64_t now) {
    bool is_long = batch->predicted_long > batch->predicted / 2;
    int64_t span = (int64_t)batch->predicted;
    double fix = measure(m, lane, batch, regime, now, &span);
    m->outstanding = larger(0, m->outstanding - batch->predicted);
    struct vgpu_cost_entry *entry = batch->cost;
    if (entry != NULL && entry->key != batch->key) entry = NULL;
    if (fix != 0) vgpu_ledger_charge(&m->budget, regime, fix, is_long);
    double booked = batch->predicted + fix;
    m->granted += booked;
    m->used += booked;
    vgpu_ledger_book(
        &m->budget,
        &(struct vgpu_booking){
            .booked = booked,
            .charged = batch->charged + fix * regime->kappa[is_long],
            .is_long = is_long,
            .weak = entry != NULL && entry->estimate < VGPU_COST_WEAK && entry->solid <= 0,
            .span = span,
        },
        now);
    if (entry != NULL && entry->probing) {
        entry->probing = false;
        if (m->unknown > 0) m->unknown--;
    }
    give_event(m, batch->start);
    give_event(m, batch->end);
    m->progressed = now;
}

void vgpu_meter_begins(struct vgpu_meter *m, int64_t since) {
    if (since == m->began) return;
    m->began = since;
    m->settled = false;
    for (int i = 0; i < VGPU_LANES; i++) m->lanes[i].settled = false;
}

/* A batch that began at `opened` has ended on the device, and all before it on its stream. */
static void settle(struct vgpu_meter *m, struct vgpu_lane *lane, int64_t opened) {
    if (m->settled || opened < m->began) return;
    lane->settled = true;
    for (uint16_t i = 0; i < m->busy_count; i++)
        if (!m->lanes[m->busy[i]].settled) return;
    m->settled = true;
}

void vgpu_meter_poll(struct vgpu_meter *m, const struct vgpu_regime *regime, int64_t now) {
    m->next_poll = now + vgpu_tuning.poll;
    for (uint16_t i = 0; i < m->busy_count;) {
        struct vgpu_lane *lane = &m->lanes[m->busy[i]];
        while (lane->pending > 0) {
            struct vgpu_batch *batch = &m->batches[lane->head];
            if (!batch->recorded ||
                (batch->end != NULL && m->ops->progress(m->env, batch->end) == VGPU_PENDING))
                break;
            uint16_t done = lane->head;
            lane->head = batch->next;
            if (--lane->pending == 0) lane->head = lane->tail = NONE;
            retire(m, lane, batch, regime, now);
            settle(m, lane, batch->opened);
            batch->next = m->free_batch;
            m->free_batch = done;
        }
        /* A batch that nobody will close: its thread is gone, or launches no more. */
        struct vgpu_batch *open = &lane->open;
        if (open->launches > 0 && lane->pending == 0 && open->from == VGPU_UNTIMED &&
            now - open->opened > ABANDONED + 4 * (int64_t)open->predicted) {
            retire(m, lane, open, regime, now);
            open->launches = 0;
        }
        set_busy(m, lane);
        if (lane->busy == (int16_t)i) i++;
    }
}

/* Whether a batch may be closed by whoever comes: a per-thread default stream is another
 * stream in another thread. */
static bool reachable(const struct vgpu_lane *lane, uint64_t thread) {
    return lane->stream.thread == 0 || lane->stream.thread == thread;
}

static void close_lane(struct vgpu_meter *m, struct vgpu_lane *lane,
                       const struct vgpu_regime *regime, int64_t now) {
    struct vgpu_batch *open = &lane->open;
    if (open->launches == 0) return;
    if (m->free_batch == NONE) vgpu_meter_poll(m, regime, now);
    if (open->launches == 0) return;
    if (m->free_batch == NONE) { /* nothing ended for long: count it as it was predicted */
        struct vgpu_batch batch = *open;
        open->launches = 0;
        retire(m, lane, &batch, regime, now);
        set_busy(m, lane);
        return;
    }
    if (m->busy_count > 1) {
        open->crowded = true;
        m->crowd_memory = CROWD_MEMORY;
    }
    if (m->chain == VGPU_ANCHORED && open->from == VGPU_UNTIMED) {
        /* the first to be closed since the process was idle */
        open->from = VGPU_PREVIOUS_END;
        m->chain = VGPU_CHAINED;
    } else if (open->from == VGPU_UNTIMED) {
        struct vgpu_batch *before = m->chain != VGPU_NO_CHAIN ? newest_pending(m, NULL)
                                    : open->crowded           ? NULL
                                                              : newest_pending(m, lane);
        if (before != NULL || m->chain != VGPU_NO_CHAIN) {
            if (running(m, before)) open->from = VGPU_PREVIOUS_END;
            else if (m->chain == VGPU_CHAINED) m->chain = VGPU_NO_CHAIN;
        }
    }
    open->chained = m->chain == VGPU_CHAINED && open->from == VGPU_PREVIOUS_END;
    uint16_t place = m->free_batch;
    struct vgpu_batch *batch = &m->batches[place];
    m->free_batch = batch->next;
    *batch = *open;
    batch->lane = (uint16_t)(lane - m->lanes);
    batch->next = NONE;
    batch->recorded = false;
    open->launches = 0;
    open->start = NULL;
    if (lane->pending++ == 0) lane->head = place;
    else m->batches[lane->tail].next = place;
    lane->tail = place;
    set_busy(m, lane);
    batch->end = take_event(m);
    if (batch->end != NULL && !m->ops->record(m->env, batch->end, batch->stream)) {
        give_event(m, batch->end);
        batch->end = NULL;
    }
    batch->recorded = true;
}

void vgpu_meter_close_all(struct vgpu_meter *m, uint64_t thread, const struct vgpu_regime *regime,
                          int64_t now) {
    uint16_t lanes[VGPU_LANES], count = m->busy_count;
    memcpy(lanes, m->busy, count * sizeof *lanes); /* closing lets others in */
    for (uint16_t i = 0; i < count; i++)
        if (reachable(&m->lanes[lanes[i]], thread)) close_lane(m, &m->lanes[lanes[i]], regime, now);
}

int64_t vgpu_meter_busy(const struct vgpu_meter *m, int64_t now) {
    if (m->outstanding < VGPU_NOTHING_NS) return 0;
    int64_t since = m->progressed > m->begun ? m->progressed : m->begun;
    int64_t left = since + (int64_t)m->outstanding - now;
    return left > OVERDUE ? left : OVERDUE;
}

/* --- a launch -------------------------------------------------------------------------------- */

/* Whether the first launch of a batch gets a start event, or a chain an anchor. Behind a pause the host
 * is slow (its caches are another's by then), and more of its time passes unseen between event and
 * launch, now more, now less: of a kernel that its budget lets go every few milliseconds that would be
 * each. The one after it tells better; where every launch follows a pause, one in a while has to do.
 * (Where bursts are measured without gaps it teaches nothing, and counts when to do that again.) */
static void begin(struct vgpu_meter *m, struct vgpu_lane *lane, struct vgpu_cost_entry *k, bool big,
                  bool was_alone, bool cold, struct vgpu_admission *a, int64_t now) {
    struct vgpu_batch *open = &lane->open;
    struct vgpu_batch *before = newest_pending(m, lane);
    bool pair = false, anchor = false;
    if (big && running(m, before)) open->from = VGPU_PREVIOUS_END;
    else if (big) pair = true;
    else if (was_alone && m->crowd_memory == 0 &&
             now >= m->next_sample + (cold ? COLD_GAPS * vgpu_tuning.sample_gap : 0) &&
             (before == NULL || m->pairs_skipped++ % PAIRS_OF == 0))
        pair = true;
    else if (was_alone && before == NULL && m->crowd_memory > 0)
        anchor = true;
    if (!pair && !anchor) return;
    uint64_t serial = open->serial;
    bool idle = before == NULL;
    void *event = take_event(m);
    if (event == NULL || !m->ops->record(m->env, event, open->stream)) {
        give_event(m, event);
        return;
    }
    if (anchor) {
        m->crowd_memory--;
        give_event(m, m->anchor);
        m->anchor = event;
        m->anchor_gap = 0;
        m->anchor_serial = serial;
        m->chain = VGPU_ANCHORED;
        a->anchored = a->timed = a->finish = true;
        return;
    }
    if (open->serial != serial || open->launches == 0) { /* closed while the lock was off */
        give_event(m, event);
        return;
    }
    m->next_sample =
        now + (k->samples < FIRST_PAIRS ? vgpu_tuning.sample_gap / 4 : vgpu_tuning.sample_gap);
    open->single = true;
    open->from = VGPU_OWN_START;
    open->start = event;
    open->gap = 0;
    a->finish = true;
    a->timed = idle;
}

static bool full(const struct vgpu_batch *open, const struct vgpu_regime *regime) {
    double most = regime->contended ? (double)vgpu_tuning.batch : open->most;
    return open->single || open->predicted >= most || open->launches >= VGPU_MOST_LAUNCHES;
}

/* How long a batch may become. Of tiny kernels that are launched in bursts, each within its budget,
 * a burst would be one batch, of which nothing is known but by a start event, whose own time is as
 * long as the kernel. Halved, its second half ends behind the first without a gap. */
static double length_of(struct vgpu_meter *m, const struct vgpu_lane *lane,
                        const struct vgpu_cost_entry *k, const struct vgpu_regime *regime) {
    double most = (double)vgpu_tuning.batch_lone;
    if (regime->contended || regime->off || !k->known || k->estimate >= VGPU_COST_WEAK ||
        k->solid > VGPU_COST_SOLID / 2 || !alone(m, lane))
        return most;
    const struct vgpu_batch *before = newest_pending(m, lane);
    double half = (double)vgpu_tuning.quantum * regime->limit / 2;
    return (before == NULL || before->single) && half < most ? half : most;
}

void vgpu_meter_admit(struct vgpu_meter *m, uint64_t key, struct vgpu_stream_id stream,
                      const struct vgpu_regime *regime, int64_t now,
                      struct vgpu_admission *admission) {
    struct vgpu_cost_entry *k = vgpu_cost_find(&m->costs, key);
    struct vgpu_lane *lane = lane_of(m, stream);
    struct vgpu_batch *open = &lane->open;
    double batch = (double)(regime->contended ? vgpu_tuning.batch : vgpu_tuning.batch_lone);
    bool big = !k->known || k->estimate > (double)vgpu_tuning.batch / 2;
    if (open->launches > 0 && (big || open->predicted + k->estimate > 2 * batch ||
                               !same_stream(open->stream, stream)))
        close_lane(m, lane, regime, now);
    bool fresh = open->launches == 0, was_alone = alone(m, lane);
    bool cold = !regime->contended && k->solid <= 0 &&
                now - later(m->launched_at, m->progressed) > COLD;
    bool is_long = vgpu_is_long(k->estimate), probe = !k->known && !k->probing;
    if (m->busy_count == 0) m->chain = VGPU_NO_CHAIN; /* a gap: what ended before is no start */
    if (fresh) {
        *open = (struct vgpu_batch){
            .serial = ++m->serial, .stream = stream, .cost = k, .key = key, .opened = now};
        open->single = big;
        open->most = length_of(m, lane, k, regime);
    }
    if (open->cost != k) open->cost = NULL;
    if (probe) {
        k->probing = true;
        m->unknown++;
    }
    *admission = (struct vgpu_admission){
        .serial = open->serial,
        .lane = (uint16_t)(lane - m->lanes),
        .cost = k->estimate,
        .is_long = is_long,
        .probe = probe,
    };
    vgpu_ledger_charge(&m->budget, regime, k->estimate, is_long);
    open->predicted += k->estimate;
    if (is_long) open->predicted_long += k->estimate;
    open->charged += k->estimate * regime->kappa[is_long];
    open->launches++;
    m->outstanding += k->estimate;
    m->launched_at = now;
    m->unsynced++;
    if (m->outstanding - k->estimate < VGPU_NOTHING_NS) m->begun = now;
    lane->newest_launch = ++m->launched;
    m->newest = (uint16_t)(lane - m->lanes);
    set_busy(m, lane);
    if (fresh) begin(m, lane, k, big, was_alone, cold, admission, now);
    admission->finish |= full(open, regime);
}

static void refund(struct vgpu_meter *m, struct vgpu_lane *lane, const struct vgpu_regime *regime,
                   const struct vgpu_admission *a) {
    struct vgpu_batch *open = &lane->open;
    if (open->serial != a->serial || open->launches == 0) return; /* corrected by its events */
    vgpu_ledger_charge(&m->budget, regime, -a->cost, a->is_long);
    m->outstanding = larger(0, m->outstanding - a->cost);
    open->predicted = larger(0, open->predicted - a->cost);
    if (a->is_long) open->predicted_long = larger(0, open->predicted_long - a->cost);
    open->charged = larger(0, open->charged - a->cost * regime->kappa[a->is_long]);
    if (a->probe && open->cost != NULL && open->cost->key == open->key && open->cost->probing) {
        open->cost->probing = false;
        if (m->unknown > 0) m->unknown--;
    }
    if (--open->launches == 0) {
        give_event(m, open->start);
        open->start = NULL;
        set_busy(m, lane);
    }
}

/* Whether the host was not interrupted while it launched, after the driver had the launch: the kernel
 * would seem to have begun as much later, and to be as much shorter. */
static bool usual(struct vgpu_meter *m, int64_t gap) {
    int64_t most = m->usual_gap * UNUSUAL + VGPU_US;
    bool first = m->usual_gap == 0;
    if (first) m->usual_gap = gap < MOST_GAP ? gap : MOST_GAP;
    else m->usual_gap += ((gap < most ? gap : most) - m->usual_gap) / 8;
    return first || gap <= most;
}

void vgpu_meter_launched(struct vgpu_meter *m, const struct vgpu_regime *regime,
                         const struct vgpu_admission *a, bool succeeded, int64_t host,
                         int64_t now) {
    struct vgpu_lane *lane = &m->lanes[a->lane];
    struct vgpu_batch *open = &lane->open;
    if (a->anchored && m->anchor != NULL && m->anchor_serial == a->serial) m->anchor_gap = host;
    if (!succeeded) {
        refund(m, lane, regime, a);
        return;
    }
    if (open->serial != a->serial || open->launches == 0) return;
    if (a->timed && !a->anchored)
        open->gap = a->cost >= VGPU_COST_WEAK || usual(m, host) ? host : INT64_MAX;
    if (full(open, regime)) close_lane(m, lane, regime, now);
}

/* --- what synchronisations tell ----------------------------------------------------------- */

void vgpu_meter_syncing(struct vgpu_meter *m, const struct vgpu_stream_id *stream,
                        const struct vgpu_regime *regime, int64_t now, struct vgpu_sync *sync) {
    if (stream != NULL) { /* a start event is of use only with an end */
        struct vgpu_lane *lane = find_lane(m, *stream);
        if (lane != NULL && lane->open.launches > 0 && lane->open.from != VGPU_UNTIMED)
            close_lane(m, lane, regime, now);
    }
    sync->launched = m->launched;
    m->unsynced = 0;
}

static void complete(struct vgpu_meter *m, struct vgpu_lane *lane, const struct vgpu_regime *regime,
                     const struct vgpu_sync *sync, int64_t now) {
    if (lane->open.launches == 0 || lane->newest_launch > sync->launched) return;
    struct vgpu_batch batch = lane->open;
    lane->open.launches = 0;
    lane->open.start = NULL;
    retire(m, lane, &batch, regime, now);
    settle(m, lane, batch.opened);
    set_busy(m, lane);
}

void vgpu_meter_synced(struct vgpu_meter *m, const struct vgpu_stream_id *stream,
                       const struct vgpu_regime *regime, const struct vgpu_sync *sync,
                       int64_t now) {
    if (m->busy_count == 0) return;
    vgpu_meter_poll(m, regime, now);
    if (stream != NULL) {
        struct vgpu_lane *lane = find_lane(m, *stream);
        if (lane != NULL) complete(m, lane, regime, sync, now);
        return;
    }
    uint16_t lanes[VGPU_LANES], count = m->busy_count;
    memcpy(lanes, m->busy, count * sizeof *lanes);
    for (uint16_t i = 0; i < count; i++) complete(m, &m->lanes[lanes[i]], regime, sync, now);
}

void vgpu_meter_stream_gone(struct vgpu_meter *m, uint64_t handle,
                            const struct vgpu_regime *regime, int64_t now) {
    for (int i = 0; i < VGPU_LANES; i++) {
        struct vgpu_lane *lane = &m->lanes[i];
        if (!lane->used || lane->gone || lane->stream.handle != handle) continue;
        lane->gone = true;
        complete(m, lane, regime, &(struct vgpu_sync){.launched = UINT64_MAX}, now);
        if (lane->busy < 0) lane->used = false;
    }
}

void vgpu_meter_changed(struct vgpu_meter *m, uint64_t key) {
    vgpu_cost_find(&m->costs, key)->stale = true;
}
