#include "turns.h"

#include "ledger.h"

#define CYCLE (30 * VGPU_MS)     /* in which everybody has a turn */
#define LEAST_SLOT (1 * VGPU_MS)
#define AHEAD VGPU_SEC           /* a time so far in the future is no time */
#define FRESH (4 * VGPU_MS)      /* who waits says so every millisecond */
#define RAGGED VGPU_MS           /* less in flight at a turn's end is no reason to prolong it */
#define PAUSE (2 * VGPU_MS)      /* a holder that launches nothing for so long has paused */

static int64_t time_of(uint64_t word, int64_t now) {
    uint64_t time = word & ~1ull;
    return time > (uint64_t)(now + VGPU_TURN_MOST_NS) ? 0 : (int64_t)time;
}

static int64_t sane(uint64_t time, int64_t now) {
    return time > (uint64_t)(now + AHEAD) ? 0 : (int64_t)time;
}

static uint32_t percent(uint32_t limit) { return limit < 1 ? 1 : limit > 100 ? 100 : limit; }

struct vgpu_turns vgpu_turns_of(const struct vgpu_page_tenant *tenants, uint32_t count,
                                uint64_t own_id, uint32_t limit_pct, bool ranked, int64_t now) {
    struct vgpu_turns turns = {.taking = false};
    uint32_t sum = percent(limit_pct), own = VGPU_PAGE_TENANTS;
    if (count > VGPU_PAGE_TENANTS) count = VGPU_PAGE_TENANTS;
    for (uint32_t i = 0; i < count && own == VGPU_PAGE_TENANTS; i++)
        if (tenants[i].id == own_id) own = i;
    int64_t last = own < count ? time_of(tenants[own].turn, now) : 0;
    bool all = !ranked, any = false;
    for (uint32_t i = 0; i < count; i++) {
        const struct vgpu_page_tenant *tenant = &tenants[i];
        int64_t active = sane(tenant->active_ns, now);
        if (tenant->id == 0 || tenant->id == own_id || now - active >= vgpu_tuning.hold) continue;
        int64_t end = time_of(tenant->turn, now), busy = sane(tenant->busy_until_ns, now);
        any = true;
        all &= end != 0;
        sum += percent(tenant->limit_pct);
        if (end > now) {
            /* One that waits for what it has in flight says nothing meanwhile. */
            int64_t sign = busy > active ? busy : active;
            if (now - sign <= PAUSE && end > turns.free_at) turns.free_at = end;
        } else if ((tenant->turn & 1) != 0 && now - active <= FRESH) {
            turns.wanted = true;
            turns.behind |= end < last || (end == last && i < own);
        }
    }
    turns.taking = any && all;
    turns.until = last;
    turns.slot = CYCLE * percent(limit_pct) / sum;
    if (turns.slot < LEAST_SLOT) turns.slot = LEAST_SLOT;
    return turns;
}

uint64_t vgpu_turns_word(uint64_t word, const struct vgpu_turns *turns, enum vgpu_wish wish,
                         int64_t busy, int64_t now) {
    int64_t end = time_of(word, now);
    if (busy < 0) busy = 0;
    if (busy > VGPU_TURN_MOST_NS) busy = VGPU_TURN_MOST_NS;
    bool free = turns->free_at - VGPU_TURN_LEAD_NS <= now;
    if (wish == VGPU_WISH_TAKE && !free) wish = VGPU_WISH_TURN; /* another was faster */
    if (wish == VGPU_WISH_TAKE) end = now + busy;
    else if (wish == VGPU_WISH_END && end > now + busy) end = now + busy;
    else if (wish == VGPU_WISH_DRAIN && end > now && (end > now + busy || busy > RAGGED))
        end = now + busy;
    else if (wish == VGPU_WISH_MORE && end > now && end < now + busy) end = now + busy;
    if (end == 0) end = now;
    return ((uint64_t)end & ~1ull) | (wish == VGPU_WISH_TURN);
}
