#define _GNU_SOURCE
#include "ledger.h"

struct vgpu_tuning vgpu_tuning = {
    .quantum = 4 * VGPU_MS,
    .credit = 60 * VGPU_MS,
    .queue = 20 * VGPU_MS,
    .queue_lone = 50 * VGPU_MS,
    .batch = 500 * VGPU_US,
    .batch_lone = 2 * VGPU_MS,
    .poll = 200 * VGPU_US,
    .sample_gap = 4 * VGPU_MS,
    .event_cost = 2000,
    .slice = 2 * VGPU_MS,
    .kappa_half = 4 * VGPU_SEC,
    .gain_half = 10 * VGPU_SEC,
    .hold = 1 * VGPU_SEC,
    .stale = 2 * VGPU_SEC,
    .longest_debt = 60 * VGPU_SEC,
    .settle = 0.2,
};

#define PPM 1e6
#define LEAST_KAPPA 0.2
#define MOST_KAPPA 3.0
#define LEAST_GAIN 0.8
#define MOST_GAIN 1.25
#define BEHIND (200 * VGPU_MS) /* more than a long kernel that lies across two samples */

static uint64_t get(const uint64_t *word) {
    return atomic_load_explicit((const _Atomic uint64_t *)word, memory_order_relaxed);
}
static void put(uint64_t *word, uint64_t value) {
    atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_relaxed);
}
static bool swap(uint64_t *word, uint64_t seen, uint64_t value) {
    return atomic_compare_exchange_strong((_Atomic uint64_t *)word, &seen, value);
}
static int64_t get_signed(const int64_t *word) {
    return atomic_load_explicit((const _Atomic int64_t *)word, memory_order_relaxed);
}
static void put_signed(int64_t *word, double value) {
    atomic_store_explicit((_Atomic int64_t *)word, (int64_t)value, memory_order_relaxed);
}
static void add(int64_t *word, double value) {
    atomic_fetch_add_explicit((_Atomic int64_t *)word, (int64_t)value, memory_order_relaxed);
}
static double clamp(double value, double least, double most) {
    return value < least ? least : value > most ? most : value;
}

/* 2^(-span / half), well enough for spans of about a half-life or less; without the
 * mathematics library, which a preloaded library must not bring in. */
static double fading(double span, double half) {
    double power = 1.0 - 0.693147 * span / half / 64;
    for (int i = 0; i < 6; i++) power *= power;
    return power;
}

/* A factor of the region, 1 where it was never set or was scribbled on. */
static double factor(const uint64_t *ppm, double least, double most) {
    uint64_t value = get(ppm);
    return value == 0 ? 1.0 : clamp((double)value / PPM, least, most);
}

/* --- the budget ------------------------------------------------------------------ */

static void rescale(const struct vgpu_budget *budget, double limit, int64_t now) {
    uint64_t wanted = (uint64_t)(limit * PPM), before = get(&budget->ledger->limit_ppm);
    if (before == wanted || !swap(&budget->ledger->limit_ppm, before, wanted) || before == 0)
        return;
    uint64_t paid = get(budget->paid_until);
    double debt = (double)((int64_t)paid - now);
    if (debt > 0)
        swap(budget->paid_until, paid,
             (uint64_t)(now + (int64_t)(debt * (double)before / (double)wanted)));
}

void vgpu_ledger_price(const struct vgpu_budget *budget, struct vgpu_regime *regime, int64_t now) {
    rescale(budget, regime->limit, now);
    for (int i = 0; i < 2; i++) {
        regime->kappa[i] = factor(&budget->ledger->kappa_ppm[i], LEAST_KAPPA, MOST_KAPPA);
        regime->per_ns[i] = regime->kappa[i] / regime->limit;
    }
}

int64_t vgpu_ledger_bound(const struct vgpu_budget *budget, bool off, int64_t credit,
                          int64_t now) {
    uint64_t seen = get(budget->paid_until);
    int64_t paid = (int64_t)seen, least = now - credit;
    int64_t most = off ? now : now + vgpu_tuning.longest_debt;
    int64_t bounded = paid < least ? least : paid > most ? most : paid;
    if (bounded != paid) swap(budget->paid_until, seen, (uint64_t)bounded);
    return bounded;
}

/* --- history --------------------------------------------------------------------- */

static struct vgpu_history *entry_of(struct vgpu_ledger *ledger, uint64_t tick) {
    return &ledger->history[tick % VGPU_HISTORY];
}

/* Fills the entries of ticks that began since the last booking: nothing was booked in
 * between, so the totals are those of now. */
static uint64_t roll(struct vgpu_ledger *ledger, int64_t now) {
    uint64_t tick = (uint64_t)now / VGPU_HISTORY_TICK_NS, last = get(&ledger->tick);
    if (last >= tick || !swap(&ledger->tick, last, tick)) return tick;
    uint64_t first = last == 0 || tick - last >= VGPU_HISTORY ? tick : last + 1;
    if (last != 0 && tick - last >= VGPU_HISTORY) first = tick - VGPU_HISTORY + 1;
    for (uint64_t i = first; i <= tick; i++) {
        struct vgpu_history *entry = entry_of(ledger, i);
        put(&entry->tick, 0); /* until it is whole */
        for (int j = 0; j < 2; j++)
            put_signed(&entry->booked_ns[j], (double)get_signed(&ledger->booked_ns[j]));
        put_signed(&entry->charged_ns, (double)get_signed(&ledger->charged_ns));
        put_signed(&entry->weak_ns, (double)get_signed(&ledger->weak_ns));
        put(&entry->tick, i);
    }
    return tick;
}

void vgpu_ledger_book(const struct vgpu_budget *budget, const struct vgpu_booking *booking,
                      int64_t now) {
    struct vgpu_ledger *ledger = budget->ledger;
    uint64_t last = roll(ledger, now);
    add(&ledger->booked_ns[booking->is_long], booking->booked);
    add(&ledger->charged_ns, booking->charged);
    if (booking->weak) add(&ledger->weak_ns, booking->booked);
    /* A long kernel was at work before it is booked: its share of earlier ticks too, so that
     * NVML's interval and ours hold the same work; but nothing before the newest sample,
     * which has been taken and would miss it. */
    int64_t from = now - booking->span, taken = (int64_t)get(&ledger->sample_ns);
    if (from < taken && taken <= now) from = taken;
    double span = (double)(now - from);
    uint64_t first = (uint64_t)(from > 0 ? from : 0) / VGPU_HISTORY_TICK_NS + 1;
    if (last - first >= VGPU_HISTORY && first <= last) first = last - VGPU_HISTORY + 1;
    for (uint64_t i = first; i <= last; i++) {
        struct vgpu_history *entry = entry_of(ledger, i);
        if (get(&entry->tick) != i) continue;
        double part = (double)((int64_t)(i * VGPU_HISTORY_TICK_NS) - from) / span;
        add(&entry->booked_ns[booking->is_long], part * booking->booked);
        add(&entry->charged_ns, part * booking->charged);
        if (booking->weak) add(&entry->weak_ns, part * booking->booked);
    }
}

struct totals {
    double booked[2], charged, weak;
};

static bool totals_of(struct vgpu_ledger *ledger, uint64_t tick, struct totals *totals) {
    const struct vgpu_history *entry = entry_of(ledger, tick);
    if (get(&entry->tick) != tick) return false;
    for (int j = 0; j < 2; j++) totals->booked[j] = (double)get_signed(&entry->booked_ns[j]);
    totals->charged = (double)get_signed(&entry->charged_ns);
    totals->weak = (double)get_signed(&entry->weak_ns);
    return true;
}

static bool totals_at(struct vgpu_ledger *ledger, int64_t time, struct totals *totals) {
    uint64_t tick = (uint64_t)time / VGPU_HISTORY_TICK_NS;
    struct totals next;
    if (time <= 0 || !totals_of(ledger, tick, totals)) return false;
    if (!totals_of(ledger, tick + 1, &next)) return true;
    double part = (double)((uint64_t)time % VGPU_HISTORY_TICK_NS) / VGPU_HISTORY_TICK_NS;
    for (int j = 0; j < 2; j++) totals->booked[j] += part * (next.booked[j] - totals->booked[j]);
    totals->charged += part * (next.charged - totals->charged);
    totals->weak += part * (next.weak - totals->weak);
    return true;
}

/* --- NVML's say --------------------------------------------------------------------- */

void vgpu_ledger_suspend(const struct vgpu_budget *budget, double device_ns) {
    add(&budget->ledger->suspense_ns, device_ns);
}

bool vgpu_ledger_neighbour(const struct vgpu_budget *budget, int64_t now) {
    int64_t other = (int64_t)get(&budget->ledger->other_ns);
    int64_t newest = (int64_t)get(&budget->ledger->sample_ns);
    return other != 0 && !vgpu_ledger_stale(budget, now) && newest - other < vgpu_tuning.hold;
}

bool vgpu_ledger_stale(const struct vgpu_budget *budget, int64_t now) {
    return now - (int64_t)get(&budget->ledger->sample_ns) > vgpu_tuning.stale;
}

void vgpu_ledger_verdicts(const struct vgpu_budget *budget, uint64_t *alone, uint64_t *beside) {
    *alone = get(&budget->ledger->samples_alone);
    *beside = get(&budget->ledger->samples_beside);
}

/* Suspended time is charged where NVML saw nobody else, dropped where it did. */
static void resolve_suspense(const struct vgpu_budget *budget, bool contended, double limit) {
    struct vgpu_ledger *ledger = budget->ledger;
    double owed = (double)atomic_exchange((_Atomic int64_t *)&ledger->suspense_ns, 0);
    if (contended || owed <= 0) return;
    double charged = owed * factor(&ledger->kappa_ppm[1], LEAST_KAPPA, MOST_KAPPA);
    atomic_fetch_add((_Atomic uint64_t *)budget->paid_until, (uint64_t)(charged / limit));
    add(&ledger->booked_ns[1], owed);
    add(&ledger->charged_ns, charged);
}

/* Alone events are exact, so they calibrate NVML. */
static void calibrate_gain(struct vgpu_ledger *ledger, double used, double booked, double span) {
    double fade = fading(span, (double)vgpu_tuning.gain_half);
    double all_used = (double)get_signed(&ledger->gain_used_ns) * fade + used;
    double all_booked = (double)get_signed(&ledger->gain_booked_ns) * fade + booked;
    put_signed(&ledger->gain_used_ns, all_used);
    put_signed(&ledger->gain_booked_ns, all_booked);
    if (all_booked > 100.0 * VGPU_MS)
        put(&ledger->gain_ppm,
            (uint64_t)(clamp(all_used / all_booked, LEAST_GAIN, MOST_GAIN) * PPM));
    for (int j = 0; j < 2; j++) {
        put(&ledger->kappa_ppm[j], (uint64_t)PPM);
        put_signed(&ledger->kappa_booked_ns[j], 0);
    }
    put_signed(&ledger->kappa_used_ns, 0);
    put_signed(&ledger->residual_ns, 0);
}

/* Beside a neighbour NVML calibrates the events. */
static void calibrate_kappa(const struct vgpu_budget *budget, double used,
                            const double booked[2], double charged, double span, double limit) {
    struct vgpu_ledger *ledger = budget->ledger;
    double fade = fading(span, (double)vgpu_tuning.kappa_half), sum[2];
    double all = (double)get_signed(&ledger->kappa_used_ns) * fade + used;
    put_signed(&ledger->kappa_used_ns, all);
    for (int j = 0; j < 2; j++) {
        sum[j] = (double)get_signed(&ledger->kappa_booked_ns[j]) * fade + booked[j];
        put_signed(&ledger->kappa_booked_ns[j], sum[j]);
    }
    /* The rest is settled slowly: a sample is noisy, and a long kernel lies across two. */
    double residual = (double)get_signed(&ledger->residual_ns) + used - charged;
    double pay = clamp(residual * vgpu_tuning.settle, -0.1 * span, 0.1 * span);
    put_signed(&ledger->residual_ns, residual - pay);
    atomic_fetch_add((_Atomic uint64_t *)budget->paid_until, (uint64_t)(int64_t)(pay / limit));
    /* Blame the long kernels where there are enough of them: their events say least. */
    int j = sum[1] > 0.2 * (sum[0] + sum[1]);
    double other = factor(&ledger->kappa_ppm[!j], LEAST_KAPPA, MOST_KAPPA);
    if (sum[j] > 20.0 * VGPU_MS)
        put(&ledger->kappa_ppm[j],
            (uint64_t)(clamp((all - other * sum[!j]) / sum[j], LEAST_KAPPA, MOST_KAPPA) * PPM));
}

bool vgpu_ledger_behind(const struct vgpu_budget *budget) {
    return get_signed(&budget->ledger->residual_ns) > BEHIND;
}

static void set_kappa(struct vgpu_ledger *ledger, bool is_long, double before, double after) {
    put(&ledger->kappa_ppm[is_long], (uint64_t)(after * PPM));
    put_signed(&ledger->kappa_booked_ns[is_long],
               (double)get_signed(&ledger->kappa_booked_ns[is_long]) * before / after);
}

void vgpu_ledger_cheaper(const struct vgpu_budget *budget, bool is_long, double ratio) {
    double kappa = factor(&budget->ledger->kappa_ppm[is_long], LEAST_KAPPA, MOST_KAPPA);
    if (kappa >= 1 || ratio >= 1 || ratio <= 0) return;
    set_kappa(budget->ledger, is_long, kappa, kappa / ratio < 1 ? kappa / ratio : 1);
}

void vgpu_ledger_dearer(const struct vgpu_budget *budget, bool is_long, double ratio) {
    double kappa = factor(&budget->ledger->kappa_ppm[is_long], LEAST_KAPPA, MOST_KAPPA);
    if (kappa <= 1 || ratio <= 1) return;
    set_kappa(budget->ledger, is_long, kappa, kappa / ratio > 1 ? kappa / ratio : 1);
}

void vgpu_ledger_unmeasured(const struct vgpu_budget *budget, int64_t now) {
    put(&budget->ledger->all_measured_ns, (uint64_t)now);
}

/* NVML's interval holds work that nobody booked: to believe that this was ours beyond our
 * reckoning (kappa, and a debt) would hold a container below its share for many seconds. */
static bool all_measured(struct vgpu_ledger *ledger, int64_t from, int64_t now) {
    uint64_t since = get(&ledger->all_measured_ns);
    return since <= (uint64_t)from || since > (uint64_t)now;
}

bool vgpu_ledger_sample(const struct vgpu_budget *budget, const struct vgpu_usage *usage,
                        bool beside, double limit, int64_t now) {
    struct vgpu_ledger *ledger = budget->ledger;
    uint64_t seen = get(&ledger->sample_ns);
    double span = (double)(usage->until - usage->from);
    if (usage->until <= (int64_t)seen && (int64_t)seen <= now) return false;
    if (!(span >= 1.0 * VGPU_MS) || span > 5.0 * VGPU_SEC || usage->until > now ||
        !swap(&ledger->sample_ns, seen, (uint64_t)usage->until))
        return false;
    if (usage->other > 0.02) put(&ledger->other_ns, (uint64_t)usage->until);
    bool contended = beside || vgpu_ledger_neighbour(budget, now);
    put(&ledger->contended, contended);
    resolve_suspense(budget, contended, limit);
    uint64_t *verdicts = contended ? &ledger->samples_beside : &ledger->samples_alone;
    put(verdicts, get(verdicts) + 1);
    roll(ledger, now);
    struct totals start, end;
    if (!all_measured(ledger, usage->from, now)) return true;
    if (!totals_at(ledger, usage->from, &start) || !totals_at(ledger, usage->until, &end))
        return true;
    double used = usage->own * span, charged = end.charged - start.charged;
    double booked[2] = {end.booked[0] - start.booked[0], end.booked[1] - start.booked[1]};
    /* Tiny kernels, each synchronised: events are rougher than NVML. */
    bool weak = end.weak - start.weak > 0.5 * (booked[0] + booked[1]);
    if (!contended && !weak) {
        calibrate_gain(ledger, used, booked[0] + booked[1], span);
        return true;
    }
    used /= factor(&ledger->gain_ppm, LEAST_GAIN, MOST_GAIN);
    calibrate_kappa(budget, used, booked, charged, span, limit);
    return true;
}
