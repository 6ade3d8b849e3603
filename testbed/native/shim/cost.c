#include "cost.h"

#define PROBES 16
#define LONGER 1.25     /* a longer measurement beside a neighbour is an outlier */
#define OUTLIERS 6      /* so many in a row are a change of the kernel */
#define FALSE_ALARM 16  /* a lone pair that is far longer counts for so many others */
#define TRUST (3 * VGPU_SEC) /* so long a clean measurement is believed beside a neighbour */
#define STEADY (10 * VGPU_SEC)
#define EXPLAINED 1.2   /* kappa up to which a neighbour may explain longer measurements */
#define FAR 20.0        /* so many times as long is the parameters' doing, and more than kappa makes good */
#define FAR_OUTLIERS 3  /* in a row */

struct vgpu_cost_entry *vgpu_cost_find(struct vgpu_costs *costs, uint64_t key) {
    uint64_t start = key * 0x9e3779b97f4a7c15ull >> 52;
    struct vgpu_cost_entry *oldest = NULL;
    for (uint64_t i = 0; i < PROBES; i++) {
        struct vgpu_cost_entry *entry = &costs->entries[(start + i) % VGPU_COSTS];
        if (entry->key == key) {
            entry->used = ++costs->serial;
            return entry;
        }
        if (oldest == NULL || (oldest->key != 0 && (entry->key == 0 || entry->used < oldest->used)))
            oldest = entry;
        if (entry->key == 0) break;
    }
    *oldest = (struct vgpu_cost_entry){
        .key = key, .used = ++costs->serial, .estimate = VGPU_COST_UNKNOWN};
    return oldest;
}

static double larger(double a, double b) { return a > b ? a : b; }

static double beside_fix(const struct vgpu_measure *m) {
    return m->elapsed <= LONGER * m->predicted && !m->crowded ? m->elapsed - m->predicted : 0;
}

/* NVML's verdicts on the outliers so far: alone, so the kernel really takes that long. */
static void judge_outliers(struct vgpu_cost_entry *k, const struct vgpu_budget *budget, bool lone) {
    uint64_t alone, beside;
    vgpu_ledger_verdicts(budget, &alone, &beside);
    if (k->outliers == 0 ||
        (beside == k->outlier_beside && alone < k->outlier_alone + 3))
        return;
    if (beside == k->outlier_beside) k->high = larger(k->high, k->most_outlier);
    if (lone) k->outliers = 0;
}

static void note_outlier(struct vgpu_cost_entry *k, double x, const struct vgpu_budget *budget) {
    if (k->outliers++ == 0) {
        k->least_outlier = k->most_outlier = x;
        vgpu_ledger_verdicts(budget, &k->outlier_alone, &k->outlier_beside);
    }
    if (x < k->least_outlier) k->least_outlier = x;
    if (x > k->most_outlier) k->most_outlier = x;
}

/* Outliers may all be a neighbour's doing (a card that shares its processors lengthens every
 * kernel): the kernel takes longer only where NVML too says that we use more than we book. What
 * lasts longer than a slice is lengthened as a rule, and kappa makes that good, but for what is far
 * beyond: a kernel whose parameters made it a hundred times as long. */
static bool grew(const struct vgpu_cost_entry *k, double x, const struct vgpu_budget *budget,
                 const struct vgpu_regime *regime) {
    if (!vgpu_is_long(x)) return k->outliers >= OUTLIERS && regime->kappa[0] > EXPLAINED;
    return k->outliers >= FAR_OUTLIERS && k->least_outlier > FAR * k->estimate &&
           (regime->kappa[vgpu_is_long(k->estimate)] > EXPLAINED || vgpu_ledger_behind(budget));
}

/* Without NVML what events say is charged in full, unless the kernel's cost is known from
 * moments at which its neighbours had nothing on the card: then that is charged, as long as
 * it is always about the same (short runs find such moments more often than long ones). */
static void note_clean(struct vgpu_cost_entry *k, const struct vgpu_measure *m, double x) {
    if (m->crowded || (m->pair && x < VGPU_COST_WEAK)) return; /* too rough to be a cost */
    bool shorter = x * LONGER < k->clean_cost, longer = x > LONGER * k->clean_cost;
    if (k->clean_samples > 0 && (shorter || (longer && m->clean))) k->unsteady = m->now;
    if (!m->clean) return;
    k->clean_cost = k->clean_samples == 0 || shorter || longer
                        ? x
                        : k->clean_cost + 0.2 * (x - k->clean_cost);
    k->clean_samples++;
    k->clean = m->now;
}

static bool trusted(const struct vgpu_cost_entry *k, const struct vgpu_measure *m) {
    return !m->crowded && k->known && k->clean_samples >= 3 && m->now - k->clean < TRUST &&
           (k->unsteady == 0 || m->now - k->unsteady > STEADY);
}

double vgpu_cost_learn(struct vgpu_cost_entry *k, const struct vgpu_measure *m,
                       const struct vgpu_budget *budget, const struct vgpu_regime *regime) {
    double x = (m->crowded ? m->own : m->elapsed) / m->launches;
    if (regime->contended && (regime->raw || regime->turns.taking) && k != NULL) {
        note_clean(k, m, x);
        if (trusted(k, m)) { /* also what was booked of it with too long a cost is put right */
            k->estimate = k->clean_cost;
            return k->clean_cost * m->launches - m->predicted;
        }
    }
    bool raw = regime->raw;
    bool lone = !regime->contended || raw;
    double fix = lone ? m->own - m->predicted : beside_fix(m);
    if (k == NULL) return fix;
    k->samples++;
    if (!k->known || (k->stale && (lone || x < k->estimate))) {
        bool first = !k->known;
        k->estimate = larger(x, 1.0 * VGPU_US);
        k->known = true;
        k->stale = false;
        return lone || !first ? fix : x * m->launches - m->predicted;
    }
    if (m->crowded) { /* the union splits the time among streams: right in the mean only */
        k->estimate += 0.05 * (x - k->estimate);
        return fix;
    }
    /* The host may have been interrupted between event and launch. */
    bool weak = m->pair && k->estimate < VGPU_COST_WEAK && k->solid > 0;
    if (weak) k->solid -= x < VGPU_COST_WEAK ? 1 : FALSE_ALARM;
    if (weak && x < VGPU_COST_WEAK) return 0;
    if (m->previous) k->solid = VGPU_COST_SOLID;
    judge_outliers(k, budget, lone);
    if (x <= LONGER * k->estimate || raw || (lone && !weak && x <= 1.1 * k->high)) {
        double weight = lone ? 0.2 : x < k->estimate ? 0.5 : 0.1, before = k->estimate;
        k->estimate += weight * (x - k->estimate);
        if (!lone && k->estimate < 0.9 * before)
            vgpu_ledger_cheaper(budget, vgpu_is_long(before), k->estimate / before);
        if (!lone) k->outliers = 0;
        k->high *= 0.999;
        return fix;
    }
    note_outlier(k, x, budget);
    if (!lone && grew(k, x, budget, regime)) {
        vgpu_ledger_dearer(budget, vgpu_is_long(k->estimate), k->least_outlier / k->estimate);
        k->estimate = k->least_outlier;
        k->outliers = 0;
    } else if (!lone && k->outliers >= OUTLIERS && !vgpu_is_long(x)) {
        k->outliers = 0;
    }
    if (!lone || raw || fix <= 0) return fix;
    vgpu_ledger_suspend(budget, fix);
    return 0;
}
