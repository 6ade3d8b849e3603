/* Who else is on a card, from its page; and what that and the limits mean for launches.
 * Pure: works on a copy of the page. */
#ifndef VGPU_SHIM_PRESENCE_H
#define VGPU_SHIM_PRESENCE_H

#include <stdbool.h>
#include <stdint.h>

#include "ledger.h"
#include "page.h"

struct vgpu_presence {
    bool others;  /* another container had work within the last second */
    bool higher;  /* one of higher priority has work now */
    bool ranked;  /* one of another priority is on the card, with work or without */
    bool outranked; /* one of higher priority is */
    int64_t flight;  /* newest time at which another may have had work on the card */
};

/* `count` entries of a page, as the page says; bounded and disbelieved here. */
struct vgpu_presence vgpu_presence_of(const struct vgpu_page_tenant *tenants, uint32_t count,
                                      uint64_t own_id, uint32_t priority, int64_t now);

/* The entry to write to: our own, else a free or abandoned one; -1 where all are taken. */
int vgpu_presence_claim(const struct vgpu_page_tenant *tenants, uint32_t count, uint64_t own_id,
                        int64_t now);

/* What a container's limits are at present. */
struct vgpu_rules {
    uint32_t limit_pct; /* 0 or >= 100 = none */
    uint32_t policy;    /* enum vgpu_policy */
    uint32_t priority;  /* 0 = high */
    uint32_t floor_pct; /* of one that yields */
};

static inline bool vgpu_limited(const struct vgpu_rules *rules) {
    return rules->policy != VGPU_POLICY_DISABLE && rules->limit_pct > 0 && rules->limit_pct < 100;
}

/* Whether launches must be measured at all. */
static inline bool vgpu_at_work(const struct vgpu_rules *rules,
                                const struct vgpu_presence *presence) {
    return vgpu_limited(rules) || presence->ranked;
}

/* `siblings`: other processes of this container are at work on the device. */
void vgpu_regime_of(struct vgpu_regime *regime, const struct vgpu_rules *rules,
                    const struct vgpu_presence *presence, bool siblings,
                    const struct vgpu_budget *budget, int64_t now);

#endif
