#include "feedback.h"

#include <stdatomic.h>

#include "clock.h"
#include "nvml_probe.h"
#include "place.h"
#include "shared.h"

#define PATIENCE (1500 * VGPU_MS) /* with the monitor, before NVML is asked here */
#define BETWEEN (160 * VGPU_MS)   /* its samples come about six times a second */

static uint64_t word(const uint64_t *at) {
    return atomic_load_explicit((const _Atomic uint64_t *)at, memory_order_acquire);
}

static uint32_t half(const uint32_t *at) {
    return atomic_load_explicit((const _Atomic uint32_t *)at, memory_order_acquire);
}

/* The monitor's entry, if it is whole and not the one that we have. */
static bool by_monitor(struct vgpu_place *place, struct vgpu_usage *usage, int64_t now) {
    const struct vgpu_feedback *entry = &vgpu_shared_extension()->feedback[place->entry];
    uint64_t stamp = word(&entry->stamp_ns);
    if (stamp == 0 || stamp == place->stamp) return false;
    /* Acquired, all three: the stamp is not looked at again before. */
    uint32_t own = half(&entry->own_util_pm), other = half(&entry->other_util_pm);
    uint64_t interval = word(&entry->interval_ns);
    if (word(&entry->stamp_ns) != stamp) return false;
    place->stamp = stamp;
    if (stamp > (uint64_t)now || interval == 0 || interval > stamp || own > 1000 || other > 1000)
        return false;
    *usage = (struct vgpu_usage){
        .from = (int64_t)(stamp - interval),
        .until = (int64_t)stamp,
        .own = own / 1000.0,
        .other = other / 1000.0,
    };
    place->fed_at = now;
    return true;
}

/* Which pids are this container's, as its own namespace has them. */
static bool is_ours(unsigned int pid, void *data) {
    struct vgpu_extension *extension = data;
    uint32_t count = atomic_load((_Atomic uint32_t *)&extension->record_count);
    for (uint32_t i = 0; i < count && i < VGPU_MAX_PROCESSES; i++)
        if ((extension->records[i].generation & 1) && extension->records[i].pid == (int32_t)pid)
            return true;
    return false;
}

static bool by_nvml(struct vgpu_place *place, bool beside, struct vgpu_usage *usage, int64_t now) {
    static _Atomic int64_t asked[VGPU_MAX_DEVICES];
    int64_t last = atomic_load(&asked[place->entry]);
    if (now - last < BETWEEN && last <= now) return false;
    atomic_store(&asked[place->entry], now);
    return vgpu_nvml_usage(place->entry, place->uuid, is_ours,
                           vgpu_shared_extension(), beside, usage, now);
}

bool vgpu_feedback(struct vgpu_place *place, bool beside, struct vgpu_usage *usage,
                   int64_t now) {
    if (by_monitor(place, usage, now)) return true;
    int64_t since = place->fed_at != 0 ? place->fed_at : place->began;
    return now - since > PATIENCE && by_nvml(place, beside, usage, now);
}
