/* What a launch costs: device time, learned per function and geometry. Pure arithmetic.
 *
 * Work of a neighbour, or of another stream, can make a measurement longer than the truth,
 * never shorter; so shorter ones are believed at once and longer ones when they persist. */
#ifndef VGPU_SHIM_COST_H
#define VGPU_SHIM_COST_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger.h"

#define VGPU_COSTS 4096
#define VGPU_COST_UNKNOWN (100.0 * VGPU_US) /* until it was measured */
#define VGPU_COST_WEAK (20.0 * VGPU_US)     /* below it an event pair says little */
#define VGPU_COST_SOLID 64 /* event pairs that do not count after a measurement without gaps */

struct vgpu_cost_entry {
    uint64_t key;
    uint64_t used;   /* serial number of its newest use */
    double estimate; /* ns */
    double high;     /* longest that was confirmed: not an outlier when it comes again */
    double least_outlier, most_outlier;
    uint64_t outlier_alone, outlier_beside; /* NVML's verdicts when the first one came */
    uint32_t outliers;
    uint32_t samples;
    int32_t solid;  /* > 0: measured without gaps lately, which a lone event pair does not undo */
    int64_t clean;    /* when it was last measured while nobody else had work, 0 = never */
    int64_t unsteady; /* when it last took quite another time than `clean_cost` */
    double clean_cost;
    uint32_t clean_samples;
    bool known;
    bool probing;   /* its first launch is out */
    bool stale;     /* a graph that was changed: the next measurement replaces */
};

/* One measurement of `launches` launches of one key. */
struct vgpu_measure {
    double elapsed;  /* ns between the ends */
    double own;      /* the part of it that no other stream of the process was counted for */
    double predicted;
    uint32_t launches;
    bool pair;       /* by a start event of its own, on an idle stream */
    bool previous;   /* by the end of the work before it: no gap in between */
    bool clean;      /* no other container had work meanwhile, as the card page tells */
    int64_t now;
    bool crowded;    /* other streams of the process were at work */
};

struct vgpu_costs {
    uint64_t serial;
    struct vgpu_cost_entry entries[VGPU_COSTS];
};

/* Never NULL: where the table is full the least recently used neighbour gives way. */
struct vgpu_cost_entry *vgpu_cost_find(struct vgpu_costs *costs, uint64_t key);

/* Learns, and returns how much the ledger is to be corrected by (ns). `entry` is NULL for a
 * batch of different keys: it corrects the ledger and teaches nothing. */
double vgpu_cost_learn(struct vgpu_cost_entry *entry, const struct vgpu_measure *measure,
                       const struct vgpu_budget *budget, const struct vgpu_regime *regime);

#endif
