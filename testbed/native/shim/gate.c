#include "gate.h"

#define MOST_UNKNOWN 4     /* launches of unknown cost in flight */
#define STEP (2 * VGPU_MS)      /* the longest sleep */
#define NO_PROGRESS (1 * VGPU_SEC)
#define IDLE (50 * VGPU_US)     /* a longer pause between launches is rest */
#define MOST_ASIDE (4.0 * VGPU_MS)
#define MOST_SAVED (300.0 * VGPU_MS)
#define RAGGED VGPU_MS          /* a turn may end so much too late */
#define PATIENCE (60 * VGPU_MS) /* beyond one launch's length and the end that a turn was told to have */
#define ROUND (30 * VGPU_MS)    /* no turn of short kernels is told to last longer */
#define SULK 20                 /* so many times as long no turns are taken afterwards */
#define GRACE (1500 * VGPU_US)  /* for one that waited longer to take its turn */
#define LOOK (500 * VGPU_US)    /* at the page, while waiting */
#define UNDERUSED 0.9           /* of a turn, though there was always something to launch */
#define IN_A_ROW 3              /* so many underused turns are no accident */
#define LACKING (30 * VGPU_MS)  /* budget that was not used, for want of the card */
#define MAKE_UP (1.0 * VGPU_MS) /* so much longer are the turns of one that lacks it */
#define BOUND (500 * VGPU_MS)   /* so long that is believed */
#define LAGGING (20 * VGPU_MS)  /* budget that was not used */
#define ASYNC 32                /* so many launches without a synchronisation: nothing waits for them */
#define OUTLIER (2 * VGPU_MS)   /* a sleep later by more than usual counts as this: it was interrupted */
#define FORGET (500 * VGPU_MS)  /* without a sleep, half of what earlier ones told is forgotten */

static double larger(double a, double b) { return a > b ? a : b; }

static enum vgpu_reason wait_for(enum vgpu_reason reason, int64_t time, int64_t *sleep) {
    *sleep = time < 50 * VGPU_US ? 50 * VGPU_US : time > STEP ? STEP : time;
    return reason;
}

static bool must_queue(const struct vgpu_meter *m, const struct vgpu_cost_entry *k, double most) {
    return m->outstanding >= most || (!k->known && (k->probing || m->unknown >= MOST_UNKNOWN));
}

/* Who was idle has deserved its part of that time, and need not wait for a turn to use it: a
 * program that has little to do is not slowed down by turns. */
static void earn(struct vgpu_meter *m, const struct vgpu_regime *regime, int64_t now) {
    int64_t since = m->progressed > m->launched_at ? m->progressed : m->launched_at;
    if (m->outstanding > VGPU_NOTHING_NS || now - since < IDLE) return;
    m->aside += (double)(now - since) * regime->limit;
    if (m->aside > MOST_ASIDE) m->aside = MOST_ASIDE;
}

/* What is asked for the longest turn that there is; a launch that lasts longer gets no other. */
static double bounded(double need) {
    return need < (double)(VGPU_TURN_MOST_NS - RAGGED) ? need : (double)(VGPU_TURN_MOST_NS - RAGGED);
}

/* What ends after a turn but mostly lies in it is of that turn, and prolongs it; not for ever. */
static bool fits(const struct vgpu_meter *m, const struct vgpu_turns *turns, double cost,
                 int64_t now) {
    double all = bounded((double)vgpu_meter_busy(m, now) + cost);
    if (now >= m->turn_end) return (double)(turns->until - now) >= all;
    int64_t end = turns->until < m->turn_end ? turns->until : m->turn_end;
    return (double)(end - now) >= all - cost / 2;
}

/* A turn holds whole launches: what it is shorter or longer than it is due, the next one is
 * longer or shorter (deficit round robin, Shreedhar and Varghese 1995), by a launch at most. Who
 * left more of it than a launch had no use for it. */
static void owe(struct vgpu_meter *m, const struct vgpu_turns *turns, double cost, int64_t now) {
    int64_t end = m->outstanding < VGPU_NOTHING_NS ? m->progressed : now + vgpu_meter_busy(m, now);
    double most = larger(cost, (double)turns->slot);
    double owed = m->turn_given - (double)(end - m->turn_began);
    m->turn_owed = owed > cost ? 0 : owed < -most ? -most : owed;
}

/* A program whose host is slower than the card fills no turn: what it could have queued while
 * others have the card is lost to it. It may launch beside them, as long as it lags behind. */
static void judge_turn(struct vgpu_meter *m, const struct vgpu_turns *turns, double cost,
                       int64_t now) {
    if (m->turn_began == 0) return;
    int64_t end = m->turn_end < now ? m->turn_end : now, span = end - m->turn_began;
    owe(m, turns, cost, now);
    bool full = m->outstanding > (double)turns->slot / 8 ||
                m->used - m->turn_used + m->outstanding > UNDERUSED * (double)span;
    m->turn_began = 0;
    m->underused = full ? 0 : m->underused + 1; /* one may have been an interruption's doing */
    m->host_bound = m->underused < IN_A_ROW ? 0 : now + BOUND;
}

static bool lags(const struct vgpu_meter *m, int64_t now) {
    return now < m->host_bound && m->unsynced > ASYNC &&
           vgpu_ledger_paid_until(&m->budget) < now - LAGGING;
}

static enum vgpu_reason take(struct vgpu_meter *m, const struct vgpu_turns *turns,
                             struct vgpu_waiting *waiting, int64_t now, int64_t *sleep) {
    if (waiting->took) { /* another was faster, or the page has no room for us */
        *sleep = LOOK / 4;
        return VGPU_WAIT_TURN;
    }
    /* What changes of turns and synchronisations take is so made up for by the same time to
     * each, and a small share holds before a large one does. */
    bool lacking = vgpu_ledger_paid_until(&m->budget) < now - LACKING;
    m->turn_given = (double)turns->slot + m->turn_owed + (lacking ? MAKE_UP : 0);
    waiting->need = larger(m->turn_given, waiting->need);
    m->turn_end = now + (int64_t)waiting->need;
    m->turn_owed = 0;
    m->turn_began = now;
    m->turn_used = m->used;
    return VGPU_TAKE_TURN;
}

static enum vgpu_reason turn_gate(struct vgpu_meter *m, const struct vgpu_regime *regime,
                                  struct vgpu_waiting *waiting, double cost,
                                  uint64_t thread, int64_t now, int64_t *sleep) {
    const struct vgpu_turns *turns = &regime->turns;
    if (!turns->taking || now < m->impatient) return VGPU_GO;
    bool ours = turns->until > now;
    if (ours && fits(m, turns, cost, now)) return VGPU_GO;
    judge_turn(m, turns, cost, now);
    if (lags(m, now)) return VGPU_GO;
    if (m->aside >= m->outstanding + cost) {
        m->aside -= cost;
        return VGPU_GO;
    }
    if (waiting->turn_since == 0) {
        waiting->turn_since = now;
        int64_t told = turns->free_at - now, own = ours ? vgpu_meter_busy(m, now) : 0;
        /* A turn's loss is soon made good, that of a long kernel's is not: whoever waits for one
         * with shorter ones of his own has what the card's switching gives him. (Without NVML
         * only turns tell what one used.) */
        int64_t most = cost > (double)ROUND ? (int64_t)cost : ROUND;
        if (!regime->raw && told > most) told = most;
        waiting->patience = PATIENCE + (int64_t)cost + (told > own ? told : own);
        vgpu_meter_close_all(m, thread, regime, now);
    }
    if (now - waiting->turn_since > waiting->patience) {
        m->impatient = now + SULK * (now - waiting->turn_since);
        return VGPU_GO;
    }
    waiting->need = bounded((double)vgpu_meter_busy(m, now) + cost) + (double)RAGGED;
    int64_t rest = turns->free_at - VGPU_TURN_LEAD_NS - now;
    /* One turn after the other where nobody else wants any; two whose turns coincide would both
     * find that so for ever, did they not wait for each other's end. */
    if (ours && !turns->wanted && turns->free_at <= now)
        return take(m, turns, waiting, now, sleep);
    if (ours && m->outstanding > VGPU_NOTHING_NS) { /* nothing more fits */
        rest = turns->until - VGPU_TURN_LEAD_NS - now;
        if (rest < 0) rest = 0;
    } else if (rest <= 0) {
        if (waiting->free_since == 0) waiting->free_since = now;
        if (!turns->behind || now - waiting->free_since > GRACE)
            return take(m, turns, waiting, now, sleep);
        rest = 0;
    }
    rest -= m->late; /* on a node whose processors are short a sleep is late by milliseconds */
    *sleep = rest < LOOK / 4 ? LOOK / 4 : rest > LOOK ? LOOK : rest;
    return VGPU_WAIT_TURN;
}

static enum vgpu_reason decide(struct vgpu_meter *m, uint64_t key, uint64_t thread,
                               const struct vgpu_regime *regime, struct vgpu_waiting *waiting,
                               int64_t now, int64_t *sleep) {
    struct vgpu_cost_entry *k = vgpu_cost_find(&m->costs, key);
    /* What passes while a turn of kernels as long as ours is waited for is kept; without turns
     * a kernel takes twice as long beside another's, and is paid for before it has ended. */
    double saved = 0;
    if (regime->turns.taking) saved = k->estimate;
    else if (regime->contended && regime->limit > 0.5)
        saved = k->estimate * (2 - 1 / regime->limit);
    if (saved > MOST_SAVED) saved = MOST_SAVED;
    int64_t paid =
        vgpu_ledger_bound(&m->budget, regime->off, vgpu_tuning.credit + (int64_t)saved, now);
    if (!waiting->entered) earn(m, regime, now);
    waiting->entered = true;
    if (now > m->next_poll && m->busy_count > 0) vgpu_meter_poll(m, regime, now);
    if (regime->blocked) {
        vgpu_meter_close_all(m, thread, regime, now);
        return wait_for(VGPU_WAIT_PRIORITY, VGPU_MS, sleep);
    }
    if (!waiting->paying && paid > now + vgpu_tuning.quantum) {
        waiting->paying = true;
        vgpu_meter_close_all(m, thread, regime, now);
    }
    if (waiting->paying) {
        paid = vgpu_ledger_paid_until(&m->budget);
        if (paid > now) return wait_for(VGPU_WAIT_BUDGET, paid - now, sleep);
        waiting->paying = false;
    }
    double most = larger((double)regime->queue, 1.5 * k->estimate);
    if (must_queue(m, k, most)) {
        bool pending = false;
        for (uint16_t i = 0; i < m->busy_count && !pending; i++)
            pending = m->lanes[m->busy[i]].pending > 0;
        if (!pending) vgpu_meter_close_all(m, thread, regime, now);
        vgpu_meter_poll(m, regime, now);
        if (must_queue(m, k, most)) {
            if (waiting->since == 0) waiting->since = now;
            int64_t from = waiting->since > m->progressed ? waiting->since : m->progressed;
            /* A kernel that waits for this very launch (a peer's, a persistent one) would
             * wait for ever: nothing has ended for long, so let it go. */
            if (now - from < NO_PROGRESS + 8 * (int64_t)m->outstanding)
                return wait_for(VGPU_WAIT_QUEUE,
                                (int64_t)(m->outstanding - most / 2) / 2 < VGPU_MS
                                    ? (int64_t)(m->outstanding - most / 2) / 2
                                    : VGPU_MS,
                                sleep);
        }
    }
    return turn_gate(m, regime, waiting, k->estimate, thread, now, sleep);
}

/* How late sleeps usually end. One that was interrupted for long tells little of that, and what
 * is long ago nothing: who takes no turns for it may not sleep again, and would take none ever. */
static void judge_sleep(struct vgpu_meter *m, const struct vgpu_waiting *waiting, int64_t now) {
    if (waiting->due == 0) {
        if (now - m->late_told < FORGET) return;
        m->late /= 2;
    } else {
        int64_t more = now - waiting->due - m->late;
        m->late += (more > OUTLIER ? OUTLIER : more) / 8;
    }
    m->late_told = now;
}

enum vgpu_reason vgpu_gate(struct vgpu_meter *m, uint64_t key, uint64_t thread,
                           const struct vgpu_regime *regime, struct vgpu_waiting *waiting,
                           int64_t now, int64_t *sleep) {
    judge_sleep(m, waiting, now);
    enum vgpu_reason reason = decide(m, key, thread, regime, waiting, now, sleep);
    if (reason != VGPU_GO && reason != VGPU_TAKE_TURN)
        m->turn_began = 0; /* not its host, but something else lets it wait */
    if (reason != VGPU_WAIT_TURN && reason != VGPU_TAKE_TURN)
        waiting->turn_since = 0; /* what it waits for otherwise tries nobody's patience */
    waiting->took = reason == VGPU_TAKE_TURN;
    waiting->due = reason == VGPU_GO || reason == VGPU_TAKE_TURN ? 0 : now + *sleep;
    return reason;
}

bool vgpu_gate_tells(struct vgpu_meter *m, const struct vgpu_regime *regime, double cost,
                     int64_t now, enum vgpu_wish *wish) {
    if (!regime->turns.taking) return false;
    int64_t done = now + vgpu_meter_busy(m, now);
    bool last = regime->turns.until > now && !fits(m, &regime->turns, cost, now);
    if (!last && done <= m->told + RAGGED) return false;
    m->told = done;
    *wish = last ? VGPU_WISH_DRAIN : now < m->turn_end ? VGPU_WISH_MORE : VGPU_WISH_NONE;
    return true;
}
