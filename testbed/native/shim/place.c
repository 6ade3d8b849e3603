#define _GNU_SOURCE
#include "place.h"

#include <stdlib.h>
#include <string.h>

#include "account.h"
#include "clock.h"
#include "device.h"
#include "feedback.h"
#include "hooks.h"
#include "log.h"
#include "lookup.h"
#include "shared.h"

#define FAST VGPU_MS          /* presence on the card: a newcomer is seen within it */
#define IDLE (4 * VGPU_MS)    /* of launches that are not measured */
#define SLOW (10 * VGPU_MS)   /* limits, siblings, NVML */
#define SETTLING (60 * VGPU_SEC) /* longer is believed of no queue */

static struct vgpu_place places[VGPU_MAX_DEVICES];
static atomic_int made[VGPU_MAX_DEVICES]; /* 0 no, 1 in the making, 2 yes */

void vgpu_places_forget(void) {
    for (int i = 0; i < VGPU_MAX_DEVICES; i++) atomic_store(&made[i], 0);
}

/* Turns are of no use where the card works for several processes at a time. */
#define MPS_ENABLED 133 /* CU_DEVICE_ATTRIBUTE_MPS_ENABLED, CUDA 12.2 */

static bool is_sliced(int device) {
    const char *text = secure_getenv("VGPU_TURNS");
    int together = 0;
    if (text != NULL && strcmp(text, "0") == 0) return false;
    return VGPU_REAL(cuDeviceGetAttribute) == NULL ||
           VGPU_CALL(cuDeviceGetAttribute, &together, MPS_ENABLED, device) != CUDA_SUCCESS ||
           together == 0;
}

static void make(struct vgpu_place *place, int entry, int device) {
    if (place->page.mapped != NULL) vgpu_unmap(place->page.mapped, sizeof(struct vgpu_page));
    memset(place, 0, sizeof *place);
    place->entry = entry;
    place->limits = *vgpu_limits();
    place->began = vgpu_clock();
    memcpy(place->uuid, place->limits.uuids[entry], sizeof place->uuid);
    if (place->uuid[0] == '\0') vgpu_device_uuid(device, place->uuid);
    place->sliced = place->turning = is_sliced(device);
    vgpu_card_page_open(&place->page, place->limits.tenant != 0 ? place->limits.uuids[entry] : "");
}

struct vgpu_place *vgpu_place_of(int entry, int device) {
    if (entry < 0 || entry >= VGPU_MAX_DEVICES) return NULL;
    int state = 0;
    if (atomic_load_explicit(&made[entry], memory_order_acquire) != 2) {
        if (atomic_compare_exchange_strong(&made[entry], &state, 1)) {
            make(&places[entry], entry, device);
            if (vgpu_enter()) { /* a record of our own, to count in */
                vgpu_announce();
                vgpu_leave();
            }
            atomic_store_explicit(&made[entry], 2, memory_order_release);
        } else {
            while (atomic_load_explicit(&made[entry], memory_order_acquire) == 1) vgpu_yield();
        }
    }
    return vgpu_shared_extension() == NULL ? NULL : &places[entry];
}

/* --- counters ------------------------------------------------------------------------- */

static void add(uint64_t *word, uint64_t value) {
    if (value != 0) atomic_fetch_add_explicit((_Atomic uint64_t *)word, value, memory_order_relaxed);
}
static void put(uint64_t *word, uint64_t value) {
    atomic_store_explicit((_Atomic uint64_t *)word, value, memory_order_relaxed);
}

static void write_out(struct vgpu_place *place, int64_t now) {
    struct vgpu_extension *extension = vgpu_shared_extension();
    int d = place->entry;
    if (extension == NULL) return;
    struct written next = {
        .launches = atomic_load_explicit(&place->launches, memory_order_relaxed),
        .granted_ns = atomic_load_explicit(&place->granted_ns, memory_order_relaxed),
    };
    uint64_t waited = 0;
    for (int i = VGPU_WAIT_BUDGET; i <= VGPU_WAIT_PRIORITY; i++) {
        next.waited_ns[i] = atomic_load_explicit(&place->waited_ns[i], memory_order_relaxed);
        waited += next.waited_ns[i] - place->written.waited_ns[i];
    }
    const struct written *last = &place->written;
    add(&extension->launches[d], next.launches - last->launches);
    add(&extension->granted_ns[d], next.granted_ns - last->granted_ns);
    add(&extension->waited_ns[d], waited);
    add(&extension->waited_queue_ns[d],
        next.waited_ns[VGPU_WAIT_QUEUE] - last->waited_ns[VGPU_WAIT_QUEUE]);
    add(&extension->waited_priority_ns[d],
        next.waited_ns[VGPU_WAIT_PRIORITY] - last->waited_ns[VGPU_WAIT_PRIORITY]);
    if (next.launches != last->launches) place->launched_at = now;
    place->written = next;
    struct vgpu_process_record *record = vgpu_shared_record();
    if (record == NULL) return;
    struct vgpu_device_use *use = &record->use[d];
    put(&use->launches, next.launches);
    put(&use->granted_ns, next.granted_ns);
    put(&use->waited_budget_ns, next.waited_ns[VGPU_WAIT_BUDGET]);
    put(&use->waited_queue_ns, next.waited_ns[VGPU_WAIT_QUEUE]);
    put(&use->waited_priority_ns, next.waited_ns[VGPU_WAIT_PRIORITY]);
    put(&record->active_ns, (uint64_t)now);
    atomic_fetch_or((_Atomic uint32_t *)&record->active_devices, 1u << d);
    int error = atomic_load_explicit(&place->last_error, memory_order_relaxed);
    if (error != 0) atomic_store((_Atomic int32_t *)&record->last_error, error);
}

void vgpu_place_flush(struct vgpu_place *place) {
    if (atomic_load_explicit(&place->launches, memory_order_relaxed) ==
        atomic_load_explicit(&place->launches_seen, memory_order_relaxed))
        return;
    int free = 0;
    if (!atomic_compare_exchange_strong(&place->ticking.state, &free, 1)) return;
    place->launches_seen = atomic_load_explicit(&place->launches, memory_order_relaxed);
    write_out(place, vgpu_clock());
    vgpu_unlock(&place->ticking);
}

/* --- what is looked at ------------------------------------------------------------------ */

/* Whether other processes of the container launch on this device: they take its time too. */
static bool siblings_at_work(const struct vgpu_place *place, int64_t now) {
    struct vgpu_extension *extension = vgpu_shared_extension();
    struct vgpu_process_record *own = vgpu_shared_record();
    uint32_t count = atomic_load((_Atomic uint32_t *)&extension->record_count);
    if (count > VGPU_MAX_PROCESSES) count = VGPU_MAX_PROCESSES;
    for (uint32_t i = 0; i < count; i++) {
        struct vgpu_process_record *record = &extension->records[i];
        if (record == own || !(atomic_load((_Atomic uint64_t *)&record->generation) & 1)) continue;
        int64_t active = (int64_t)atomic_load((_Atomic uint64_t *)&record->active_ns);
        uint32_t devices = atomic_load((_Atomic uint32_t *)&record->active_devices);
        if (active != 0 && now - active < vgpu_tuning.hold && (devices >> place->entry & 1))
            return true;
    }
    return false;
}

static void renew_rules(struct vgpu_place *place) {
    const struct vgpu_limits *limits = &place->limits;
    vgpu_shared_compute(&place->limits, &place->checksum);
    struct vgpu_rules rules = {
        .limit_pct = limits->compute[place->entry],
        .policy = limits->policy,
        .priority = limits->priority,
        .floor_pct = limits->floor,
    };
    if (memcmp(&rules, &place->rules, sizeof rules) != 0)
        VGPU_LOG(VGPU_LOG_INFO, "device %d: compute limit %u %%, policy %u, priority %u",
                 place->entry, rules.limit_pct, rules.policy, rules.priority);
    place->rules = rules;
}

static struct vgpu_turns turns_of(struct vgpu_place *place, bool ranked, int64_t now) {
    if (!place->turning) return (struct vgpu_turns){.taking = false};
    return vgpu_turns_of(place->page.tenants, place->page.count, place->limits.tenant,
                         place->rules.limit_pct, ranked, now);
}

static void announce(struct vgpu_place *place, int64_t now) {
    uint64_t id = place->limits.tenant;
    int at = vgpu_presence_claim(place->page.tenants, place->page.count, id, now);
    if (at < 0) return; /* all entries taken: NVML alone tells of us */
    struct vgpu_page_tenant *copy = &place->page.tenants[at];
    struct vgpu_page_tenant tenant = {.id = id};
    if (copy->id == id && (uint32_t)at < place->page.count) tenant = *copy;
    tenant.priority = place->rules.priority;
    tenant.limit_pct = vgpu_limited(&place->rules) ? place->rules.limit_pct : 0;
    tenant.granted_ns = atomic_load_explicit(&place->granted_ns, memory_order_relaxed);
    if (place->arriving || atomic_load_explicit(&place->yielding, memory_order_relaxed))
        tenant.wanting_ns = (uint64_t)now;
    else tenant.active_ns = (uint64_t)now;
    int64_t flight = atomic_load_explicit(&place->outstanding_ns, memory_order_relaxed);
    uint64_t until = (uint64_t)(now + (flight > 0 ? flight : 0));
    if (!atomic_load(&place->measured)) tenant.flight_ns = 0;
    else if (flight > 0 || tenant.flight_ns == 0) tenant.flight_ns = (uint64_t)now;
    if (atomic_load(&place->measured) &&
        (until > tenant.busy_until_ns || tenant.busy_until_ns > (uint64_t)(now + VGPU_SEC)))
        tenant.busy_until_ns = until;
    struct vgpu_turns turns = turns_of(place, false, now);
    tenant.turn = !place->turning || !atomic_load(&place->measured)
                      ? 0
                      : vgpu_turns_word(tenant.turn, &turns, place->wish, place->busy, now);
    vgpu_card_page_write(&place->page, at, &tenant);
    if ((uint32_t)at < place->page.count) *copy = tenant;
}

static void flag(uint32_t bit, bool on) {
    _Atomic uint32_t *flags = (_Atomic uint32_t *)&vgpu_shared_extension()->state_flags;
    if (((atomic_load(flags) & bit) != 0) == on) return;
    if (on) atomic_fetch_or(flags, bit);
    else atomic_fetch_and(flags, ~bit);
}

/* A program that was free until now may have a thousand kernels queued that nobody measured. */
static void note_unmeasured(struct vgpu_place *place, bool measured, int64_t now) {
    if (measured && place->unmeasured) atomic_store(&place->unsettled_since, now);
    place->unmeasured = !measured;
    int64_t since = measured ? atomic_load(&place->unsettled_since) : 0;
    if (since == 0) return;
    if (now - since < SETTLING) vgpu_ledger_unmeasured(&place->budget, now);
    else atomic_store(&place->unsettled_since, 0);
}

static void tick(struct vgpu_place *place, int64_t now) {
    struct vgpu_extension *extension = vgpu_shared_extension();
    if (extension == NULL) return;
    struct vgpu_ledger *ledger = &extension->ledgers[place->entry];
    if (place->budget.ledger != ledger) /* launches read it meanwhile */
        place->budget = (struct vgpu_budget){
            .ledger = ledger, .paid_until = &extension->paid_until_ns[place->entry]};
    write_out(place, now);
    bool slow = now >= place->next_slow;
    if (slow) {
        place->next_slow = now + SLOW;
        renew_rules(place);
    }
    int64_t late = atomic_load_explicit(&place->late_ns, memory_order_relaxed);
    place->turning = place->sliced && vgpu_turns_able(
        place->turning, vgpu_ledger_stale(&place->budget, now), late);
    struct vgpu_presence presence = {.others = false};
    place->paged = vgpu_card_page_read(&place->page);
    if (place->paged) {
        announce(place, now);
        presence = vgpu_presence_of(place->page.tenants, place->page.count, place->limits.tenant,
                                    place->rules.priority, now);
    }
    bool measured = vgpu_at_work(&place->rules, &presence);
    note_unmeasured(place, measured, now);
    if (measured && slow) {
        place->siblings = siblings_at_work(place, now);
        struct vgpu_usage usage;
        double limit = vgpu_limited(&place->rules) ? place->rules.limit_pct / 100.0 : 1.0;
        if (vgpu_feedback(place, presence.others, &usage, now))
            vgpu_ledger_sample(&place->budget, &usage, presence.others || place->siblings, limit,
                               now);
    }
    if (measured) {
        struct vgpu_regime next = {.off = false};
        vgpu_regime_of(&next, &place->rules, &presence, place->siblings, &place->budget, now);
        next.turns = turns_of(place, presence.ranked, now);
        next.turns.taking &= place->paged;
        vgpu_regime_put(&place->regime, &next);
        /* Right alone, and known to be alone: that is no degradation. */
        if (slow && now - place->began > vgpu_tuning.stale)
            flag(VGPU_STATE_DEGRADED,
                 next.raw && !next.off && (next.contended || !place->paged));
    }
    atomic_store_explicit(&place->measured, measured, memory_order_release);
    atomic_store_explicit(&place->next_tick, now + (measured ? FAST : IDLE), memory_order_release);
}

void vgpu_place_tick(struct vgpu_place *place, int64_t now) {
    int free = 0;
    if (!atomic_compare_exchange_strong(&place->ticking.state, &free, 1)) return;
    tick(place, now);
    vgpu_unlock(&place->ticking);
}

void vgpu_place_turn(struct vgpu_place *place, enum vgpu_wish wish, int64_t busy, int64_t now) {
    int free = 0;
    if (!atomic_compare_exchange_strong(&place->ticking.state, &free, 1)) return;
    place->wish = wish;
    place->busy = busy;
    tick(place, now);
    place->wish = VGPU_WISH_NONE;
    place->busy = 0;
    vgpu_unlock(&place->ticking);
}

void vgpu_place_arrive(int entry, int device) {
    struct vgpu_place *place = vgpu_place_of(entry, device);
    if (place == NULL) return;
    vgpu_lock(&place->ticking);
    place->arriving = true;
    tick(place, vgpu_clock());
    place->arriving = false;
    atomic_store(&place->next_tick, 0); /* the first launch tells more */
    vgpu_unlock(&place->ticking);
}
