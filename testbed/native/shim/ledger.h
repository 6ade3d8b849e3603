/* One container's compute budget on one device: arithmetic on shared words, no driver call,
 * no clock, no lock. The same code runs in the library and in the tests' model of a card.
 *
 * The budget is one time, "paid until": a launch of cost c moves it on by c / limit, and may
 * go while it lies at most a quantum in the future (a generic cell rate algorithm, ITU-T
 * I.371). What a launch really took is booked when it is known, and where a neighbour makes
 * that unknowable, NVML's figure of the whole container corrects the sum. */
#ifndef VGPU_SHIM_LEDGER_H
#define VGPU_SHIM_LEDGER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "region.h"
#include "turns.h"

#define VGPU_US 1000ll
#define VGPU_MS 1000000ll
#define VGPU_SEC 1000000000ll

/* Times in nanoseconds. The values are those of a study with a model of the card; only
 * slice, credit and the presence of NVML mattered for the result. */
struct vgpu_tuning {
    int64_t quantum;     /* how far a launch may be ahead of its budget */
    int64_t credit;      /* how much unused budget is kept */
    int64_t queue;       /* device time in flight, beside a neighbour */
    int64_t queue_lone;  /* alone and not limited */
    int64_t batch;       /* device time between two events, beside a neighbour */
    int64_t batch_lone;
    int64_t poll;        /* between two looks at events in flight */
    int64_t sample_gap;  /* between two start events on an idle stream */
    int64_t event_cost;  /* device time of an event; 2.07 us were measured on an H200 */
    int64_t slice;       /* of the card's time slicing */
    int64_t kappa_half;  /* half-life of what NVML said beside a neighbour */
    int64_t gain_half;   /* and alone */
    int64_t hold;        /* a neighbour that paused less long is still one */
    int64_t stale;       /* no NVML sample for so long: events alone decide */
    int64_t longest_debt; /* nobody waits longer for one launch */
    double settle;       /* part of the residual that one sample settles */
};
extern struct vgpu_tuning vgpu_tuning;

/* How things stand for one process on one device; renewed every few milliseconds. */
struct vgpu_regime {
    double limit;     /* 0 < limit <= 1 */
    double per_ns[2]; /* budget that one nanosecond of a short, of a long kernel costs */
    double kappa[2];
    bool off;         /* not limited at present: only measure */
    bool contended;   /* others' work may lie in what we measure */
    bool raw;         /* no NVML: charge what events say (too much rather than too little) */
    int64_t others;   /* newest time at which another container may have had work in flight */
    bool blocked;     /* a higher priority has work, and no floor is left to us */
    int64_t queue;    /* bound of the device time in flight */
    struct vgpu_turns turns;
};

struct vgpu_budget {
    struct vgpu_ledger *ledger;
    uint64_t *paid_until;
};

/* What NVML told of an interval, as parts of the device's time. */
struct vgpu_usage {
    int64_t from, until;
    double own, other;
};

/* Reads kappa into the regime (bounded: the words can be anything) and derives the price.
 * Debts are converted when the limit has changed since they were made. */
void vgpu_ledger_price(const struct vgpu_budget *budget, struct vgpu_regime *regime, int64_t now);

static inline int64_t vgpu_ledger_paid_until(const struct vgpu_budget *budget) {
    return (int64_t)atomic_load_explicit((const _Atomic uint64_t *)budget->paid_until,
                                         memory_order_relaxed);
}
/* Keeps paid_until within [now - credit, now + longest debt], or at most now when off; returns
 * it. `credit`: vgpu_tuning.credit, or more where it is no choice of ours to wait. */
int64_t vgpu_ledger_bound(const struct vgpu_budget *budget, bool off, int64_t credit, int64_t now);
/* `device_ns` may be negative: a refund. */
static inline void vgpu_ledger_charge(const struct vgpu_budget *budget,
                                      const struct vgpu_regime *regime, double device_ns,
                                      bool is_long) {
    atomic_fetch_add_explicit((_Atomic uint64_t *)budget->paid_until,
                              (uint64_t)(int64_t)(device_ns * regime->per_ns[is_long]),
                              memory_order_relaxed);
}

/* Books device time that was used in [now - span, now]. */
struct vgpu_booking {
    double booked, charged; /* ns, before and after kappa */
    bool is_long, weak;
    int64_t span;
};
void vgpu_ledger_book(const struct vgpu_budget *budget, const struct vgpu_booking *booking,
                      int64_t now);

/* Measured longer than predicted, alone: whether that was so, the next sample tells. */
void vgpu_ledger_suspend(const struct vgpu_budget *budget, double device_ns);

/* Costs of a class turned out to be smaller than believed, by `ratio`, which explains as much
 * of a kappa below 1 (larger, and above 1): else both would count, until the next samples. */
void vgpu_ledger_cheaper(const struct vgpu_budget *budget, bool is_long, double ratio);
void vgpu_ledger_dearer(const struct vgpu_budget *budget, bool is_long, double ratio);

/* Whether NVML saw much more of us beside a neighbour than we charged. */
bool vgpu_ledger_behind(const struct vgpu_budget *budget);

/* Work runs at `now` that was launched before its process began to measure: NVML's samples of
 * until now are left out of all calibration. */
void vgpu_ledger_unmeasured(const struct vgpu_budget *budget, int64_t now);

/* Takes a new NVML sample; false where another process has it. `beside`: others may have been
 * at work for another reason than NVML's say (the card page, processes of the container). */
bool vgpu_ledger_sample(const struct vgpu_budget *budget, const struct vgpu_usage *usage,
                        bool beside, double limit, int64_t now);

/* Whether NVML showed another container lately; whether its newest sample is too old. */
bool vgpu_ledger_neighbour(const struct vgpu_budget *budget, int64_t now);
bool vgpu_ledger_stale(const struct vgpu_budget *budget, int64_t now);
void vgpu_ledger_verdicts(const struct vgpu_budget *budget, uint64_t *alone, uint64_t *beside);

static inline bool vgpu_is_long(double ns) { return ns > (double)vgpu_tuning.slice / 2; }

#endif
