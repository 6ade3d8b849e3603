#define _GNU_SOURCE
#include "account.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "log.h"
#include "shared.h"
#include "sys.h"

#define TRIES 16 /* against others who charge without the lock at the same instant */

static struct vgpu_limits limits;
static struct holding {
    uint64_t context;
    uint64_t hidden; /* taken by the driver for itself */
    uint64_t seen;   /* the same as the last comparison with NVML had it */
    uint64_t large;
    uint64_t small;
    bool ordered; /* had stream-ordered memory since its first context */
} held[VGPU_MAX_DEVICES];
static uint64_t seen; /* checksum of the constant part that the memory limits are of */

uint64_t vgpu_granules(uint64_t bytes) {
    return bytes > UINT64_MAX - VGPU_GRANULE ? UINT64_MAX & ~(VGPU_GRANULE - 1)
                                             : (bytes + VGPU_GRANULE - 1) & ~(VGPU_GRANULE - 1);
}

struct vgpu_cost vgpu_cost_of(uint64_t bytes) {
    if (bytes > VGPU_PACKED) return (struct vgpu_cost){.large = vgpu_granules(bytes)};
    return (struct vgpu_cost){.small = (bytes + 511) & ~511ull};
}

void vgpu_account_open(bool first) {
    if (first) vgpu_shared_open(&limits);
    else vgpu_shared_forked();
}

void vgpu_account_forget(void) { memset(held, 0, sizeof held); }

/* --- devices ------------------------------------------------------------------- */

int vgpu_entry(const char *uuid, int number) {
    if (!limits.from_region)
        return number >= 0 && number < VGPU_MAX_DEVICES ? number : VGPU_NO_DEVICE;
    for (uint32_t i = 0; i < limits.count; i++)
        if (limits.uuids[i][0] != '\0' && strcmp(limits.uuids[i], uuid) == 0) return (int)i;
    if (number >= 0 && (uint32_t)number < limits.count && limits.uuids[number][0] == '\0')
        return number;
    return VGPU_NO_DEVICE;
}

static void renew(void) {
    if (vgpu_shared_memory(&limits, &seen))
        VGPU_LOG(VGPU_LOG_INFO, "memory limits taken anew, device 0: %llu bytes",
                 (unsigned long long)limits.memory[0]);
}

uint64_t vgpu_limit(int entry) {
    renew();
    return entry < 0 ? 0 : limits.memory[entry];
}

const struct vgpu_limits *vgpu_limits(void) { return &limits; }

bool vgpu_oversubscribed(void) { return limits.oversubscribe; }

/* --- counting -------------------------------------------------------------------- */

static uint64_t total(const struct holding *holding) {
    return holding->context + holding->hidden + holding->large + vgpu_granules(holding->small);
}

static struct vgpu_device_use as_use(const struct holding *holding) {
    return (struct vgpu_device_use){
        .context_bytes = holding->context,
        .module_bytes = holding->hidden,
        .buffer_bytes = holding->large + vgpu_granules(holding->small),
    };
}

static bool join(void) {
    struct vgpu_device_use uses[VGPU_MAX_DEVICES];
    for (int d = 0; d < VGPU_MAX_DEVICES; d++) uses[d] = as_use(&held[d]);
    return vgpu_shared_join(uses);
}

/* The same without a record lock's system call most of the time. */
static bool present(void) { return vgpu_shared_present() || join(); }

static uint64_t sum(uint64_t a, uint64_t b) {
    uint64_t out;
    return __builtin_add_overflow(a, b, &out) ? UINT64_MAX : out;
}

/* Whether the monitor's readings are held against what processes count. */
static bool is_read(int entry) {
    return limits.from_region && limits.memory[entry] != 0 && vgpu_shared_extension() != NULL;
}

static void publish(int entry, const struct holding *holding) {
    struct vgpu_device_use use = as_use(holding);
    vgpu_shared_publish(entry, &use);
}

static void hold(int entry, struct holding next) {
    held[entry] = next;
    publish(entry, &next);
    if (is_read(entry))
        vgpu_shared_summed(entry, sum(vgpu_shared_others(entry, false), total(&next)));
}

static uint64_t less(uint64_t a, uint64_t b) { return a > b ? a - b : 0; }

/* Whether the container may grow by `growth`; the second look counts the living only. */
static bool within(int entry, uint64_t own, uint64_t growth) {
    uint64_t limit = limits.memory[entry];
    for (int sweep = 0; sweep <= 1; sweep++) {
        uint64_t used = sum(vgpu_shared_others(entry, sweep != 0), own);
        if (limits.from_region) used = sum(used, vgpu_shared_unexplained(entry, used));
        if (used <= limit && growth <= limit - used) return true;
    }
    return false;
}

/* Publishes `next` and looks at the others afterwards, who do the same: whoever is later sees
 * the earlier one's figure, so two of them cannot both pass the limit, lock or not. Where it
 * does not fit, what was held is published again. */
static bool claim(int entry, struct holding next) {
    publish(entry, &next);
    vgpu_fence();
    uint64_t used = sum(vgpu_shared_others(entry, false), total(&next));
    uint64_t beyond = limits.from_region ? vgpu_shared_unexplained_known(entry) : 0;
    if (sum(used, beyond) > limits.memory[entry]) {
        publish(entry, &held[entry]);
        return false;
    }
    held[entry] = next;
    if (is_read(entry)) vgpu_shared_summed(entry, used);
    return true;
}

/* Moves this process's holding to `next` if the limit allows. Without a limit only the
 * figures are kept, and nobody waits for anybody. */
static bool grow(int entry, struct holding next, bool first_may_pass) {
    if (limits.broken || entry < 0 || !join()) return false;
    renew();
    uint64_t before = total(&held[entry]), after = total(&next);
    if (limits.memory[entry] == 0 || after <= before) {
        hold(entry, next);
        return true;
    }
    if (!vgpu_shared_lock(entry)) return false;
    bool allowed = false;
    /* Not held up by the lock: who is far from the limit (vgpu_charge_far). */
    for (int i = 0; i < TRIES && !allowed && within(entry, before, after - before); i++)
        allowed = claim(entry, next);
    if (!allowed && first_may_pass && before == 0 && vgpu_shared_others(entry, true) == 0) {
        hold(entry, next);
        allowed = true;
    }
    vgpu_shared_unlock(entry);
    return allowed;
}

static bool plus(uint64_t *to, uint64_t bytes) {
    return !__builtin_add_overflow(*to, bytes, to) && *to < UINT64_MAX / 4;
}

bool vgpu_charge(int entry, struct vgpu_cost cost) {
    if (entry < 0) return false;
    struct holding next = held[entry];
    if (!plus(&next.large, cost.large) || !plus(&next.small, cost.small)) return false;
    bool allowed = grow(entry, next, false);
    VGPU_LOG(VGPU_LOG_DEBUG, "device %d: %llu + %llu bytes %s", entry,
             (unsigned long long)cost.large, (unsigned long long)cost.small,
             allowed ? "charged" : "do not fit");
    return allowed;
}

bool vgpu_charge_far(int entry, struct vgpu_cost cost, uint64_t margin) {
    if (entry < 0 || limits.broken || !present()) return false;
    struct holding next = held[entry];
    if (!plus(&next.large, cost.large) || !plus(&next.small, cost.small)) return false;
    renew();
    uint64_t limit = limits.memory[entry];
    if (limit == 0) {
        hold(entry, next);
        return true;
    }
    if (limits.from_region && vgpu_shared_new_reading(entry)) return false; /* under the lock */
    uint64_t used = sum(vgpu_shared_others(entry, false), total(&next));
    if (limits.from_region) used = sum(used, vgpu_shared_unexplained_known(entry));
    if (sum(used, margin) > limit || !claim(entry, next)) return false;
    VGPU_LOG(VGPU_LOG_DEBUG, "device %d: %llu + %llu bytes charged", entry,
             (unsigned long long)cost.large, (unsigned long long)cost.small);
    return true;
}

bool vgpu_exchange(int entry, struct vgpu_cost charged, struct vgpu_cost actual) {
    if (entry < 0) return false;
    struct holding next = held[entry];
    next.large = less(next.large, charged.large);
    next.small = less(next.small, charged.small);
    return plus(&next.large, actual.large) && plus(&next.small, actual.small) &&
           grow(entry, next, false);
}

void vgpu_charge_unchecked(int entry, struct vgpu_cost cost) {
    if (entry < 0) return;
    struct holding next = held[entry];
    if (!plus(&next.large, cost.large) || !plus(&next.small, cost.small)) return;
    join();
    hold(entry, next);
}

/* Needs no lock between processes: only we write our figures, and they shrink. */
void vgpu_uncharge(int entry, struct vgpu_cost cost) {
    if (entry < 0) return;
    struct holding next = held[entry];
    next.large = less(next.large, cost.large);
    next.small = less(next.small, cost.small);
    present();
    hold(entry, next);
}

bool vgpu_charge_context(int entry, uint64_t bytes) {
    if (entry < 0) return false;
    struct holding next = held[entry];
    if (!plus(&next.context, bytes)) return false;
    return grow(entry, next, true);
}

void vgpu_correct_context(int entry, uint64_t charged, uint64_t actual) {
    if (entry < 0) return;
    struct holding next = held[entry];
    next.context = less(next.context, charged) + actual;
    if (next.context == 0) { /* the driver's own goes with the last context */
        next.hidden = next.seen = 0;
        next.ordered = false;
    }
    join();
    hold(entry, next);
}

bool vgpu_charge_hidden(int entry, uint64_t bytes) {
    if (entry < 0) return false;
    struct holding next = held[entry];
    if (!plus(&next.hidden, bytes)) return false;
    return grow(entry, next, false);
}

void vgpu_correct_hidden(int entry, uint64_t charged, uint64_t actual) {
    if (entry < 0) return;
    struct holding next = held[entry];
    next.hidden = less(next.hidden, charged) + actual;
    join();
    hold(entry, next);
}

bool vgpu_compare_hidden(int entry, uint64_t on_card, uint64_t counted) {
    if (entry < 0 || held[entry].context == 0) return false;
    struct holding next = held[entry], before = next;
    uint64_t seen = vgpu_granules(less(on_card, counted));
    uint64_t most = seen > next.seen ? seen : next.seen;
    if (seen > next.hidden || most < next.hidden) next.hidden = most;
    next.seen = seen;
    if (next.hidden != before.hidden)
        VGPU_LOG(VGPU_LOG_INFO, "device %d: the driver has taken %llu bytes for itself", entry,
                 (unsigned long long)next.hidden);
    join();
    hold(entry, next);
    return next.hidden > before.hidden;
}

bool vgpu_near(int entry, uint64_t bytes, uint64_t near) {
    if (entry < 0 || vgpu_limit(entry) == 0 || !present()) return false;
    uint64_t used = sum(vgpu_shared_others(entry, false), total(&held[entry]));
    return sum(sum(used, bytes), near) > limits.memory[entry];
}

uint64_t vgpu_held(int entry) {
    return entry < 0 ? 0 : total(&held[entry]) - held[entry].hidden;
}

bool vgpu_ordered_yet(int entry) { return entry >= 0 && held[entry].ordered; }

void vgpu_set_ordered(int entry) {
    if (entry >= 0) held[entry].ordered = true;
}

uint64_t vgpu_expected_context(int entry) {
    return entry < 0 || !join() ? 0 : vgpu_shared_context_bytes(entry);
}

uint64_t vgpu_used(int entry) {
    /* Without a record of its own it is told what the others use all the same. */
    if (entry < 0 || (!join() && vgpu_shared_extension() == NULL)) return 0;
    uint64_t used = sum(total(&held[entry]), vgpu_shared_others(entry, true));
    if (!limits.from_region) return used;
    if (vgpu_shared_new_reading(entry) && vgpu_shared_lock(entry)) {
        vgpu_shared_unexplained(entry, used);
        vgpu_shared_unlock(entry);
    }
    return sum(used, vgpu_shared_extension()->ledgers[entry].unexplained_bytes);
}

bool vgpu_over(int entry) {
    return entry >= 0 && limits.memory[entry] != 0 && vgpu_used(entry) > limits.memory[entry];
}

void vgpu_refused(int entry, const char *what, uint64_t bytes) {
    uint64_t limit = entry < 0 ? 0 : limits.memory[entry], used = entry < 0 ? 0 : vgpu_used(entry);
    if (entry >= 0) vgpu_shared_denied(entry);
    VGPU_LOG(VGPU_LOG_ERROR, "%s of %llu bytes refused: device %d has a limit of %llu, %llu used",
             what, (unsigned long long)bytes, entry, (unsigned long long)limit,
             (unsigned long long)used);
    if (!limits.oom_killer || limit == 0 || used <= limit) return;
    VGPU_LOG(VGPU_LOG_ERROR, "ACTIVE_OOM_KILLER: the container is over its limit, process %d ends",
             vgpu_getpid());
    vgpu_sys(SYS_kill, vgpu_getpid(), SIGKILL, 0, 0, 0, 0);
}

int vgpu_members(int entry, struct vgpu_member *members) {
    return entry < 0 || !join() ? 0 : vgpu_shared_members(entry, members);
}

void vgpu_announce(void) { join(); }
