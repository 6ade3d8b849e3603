#include "presence.h"

#define AHEAD VGPU_SEC              /* a time so far in the future is no time */
#define BELIEF (2 * VGPU_SEC)       /* so long after its last launch "in flight" is believed */
#define PRIORITY_HOLD (30 * VGPU_MS) /* a high one that pauses for less still has work */

/* A time of the page, 0 where it cannot be one. */
static int64_t sane(uint64_t time, int64_t now) {
    return time > INT64_MAX || (int64_t)time > now + AHEAD ? 0 : (int64_t)time;
}

static int64_t newest(int64_t a, int64_t b) { return a > b ? a : b; }

/* Until when it had work. */
static int64_t last_work(const struct vgpu_page_tenant *tenant, int64_t now) {
    int64_t active = sane(tenant->active_ns, now);
    if (active == 0) return 0;
    int64_t busy = tenant->busy_until_ns > INT64_MAX ? 0 : (int64_t)tenant->busy_until_ns;
    if (busy > active + BELIEF) busy = active + BELIEF;
    return newest(active, busy);
}

static int64_t last_sign(const struct vgpu_page_tenant *tenant, int64_t now) {
    return newest(sane(tenant->active_ns, now), sane(tenant->wanting_ns, now));
}

/* Until when it had work on the card; of one that does not measure, for long after a launch. */
static int64_t last_flight(const struct vgpu_page_tenant *tenant, int64_t now) {
    int64_t active = sane(tenant->active_ns, now), flight = sane(tenant->flight_ns, now);
    return active == 0 ? 0 : flight == 0 ? active + vgpu_tuning.hold : flight;
}

static uint32_t bounded(uint32_t count) {
    return count > VGPU_PAGE_TENANTS ? VGPU_PAGE_TENANTS : count;
}

struct vgpu_presence vgpu_presence_of(const struct vgpu_page_tenant *tenants, uint32_t count,
                                      uint64_t own_id, uint32_t priority, int64_t now) {
    struct vgpu_presence found = {.others = false};
    for (uint32_t i = 0; i < bounded(count); i++) {
        const struct vgpu_page_tenant *tenant = &tenants[i];
        if (tenant->id == 0 || tenant->id == own_id) continue;
        int64_t work = last_work(tenant, now), sign = last_sign(tenant, now);
        if (work != 0 && now - work < vgpu_tuning.hold) found.others = true;
        found.flight = newest(found.flight, last_flight(tenant, now));
        if (tenant->priority == priority) continue;
        bool there = sign != 0 && now - sign < (int64_t)VGPU_PAGE_STALE_NS;
        found.ranked |= there;
        if (tenant->priority > priority) continue;
        found.outranked |= there;
        found.higher |= work != 0 && now - work < PRIORITY_HOLD;
    }
    return found;
}

int vgpu_presence_claim(const struct vgpu_page_tenant *tenants, uint32_t count, uint64_t own_id,
                        int64_t now) {
    int place = -1;
    for (uint32_t i = 0; i < VGPU_PAGE_TENANTS; i++) {
        const struct vgpu_page_tenant *tenant = &tenants[i];
        if (i < bounded(count) && tenant->id == own_id) return (int)i;
        if (place >= 0) continue;
        int64_t sign = last_sign(tenant, now);
        if (tenant->id == 0 || i >= bounded(count) || sign == 0 ||
            now - sign > (int64_t)VGPU_PAGE_STALE_NS)
            place = (int)i;
    }
    return place;
}

void vgpu_regime_of(struct vgpu_regime *regime, const struct vgpu_rules *rules,
                    const struct vgpu_presence *presence, bool siblings,
                    const struct vgpu_budget *budget, int64_t now) {
    bool limited = vgpu_limited(rules);
    bool neighbour = presence->others || vgpu_ledger_neighbour(budget, now);
    regime->limit = limited ? rules->limit_pct / 100.0 : 1.0;
    regime->off = !limited || (rules->policy == VGPU_POLICY_DEFAULT && !neighbour);
    regime->contended = neighbour || siblings;
    regime->others = presence->flight;
    regime->raw = vgpu_ledger_stale(budget, now);
    regime->blocked = presence->higher && rules->floor_pct == 0;
    if (presence->higher && rules->floor_pct > 0) {
        double floor = rules->floor_pct < 100 ? rules->floor_pct / 100.0 : 1.0;
        if (floor < regime->limit) regime->limit = floor;
        regime->off = false;
    }
    /* What is in flight runs on at half speed beside a newcomer: short where a higher
     * priority may come at any moment. */
    regime->queue =
        regime->off && !presence->outranked ? vgpu_tuning.queue_lone : vgpu_tuning.queue;
    vgpu_ledger_price(budget, regime, now);
}
