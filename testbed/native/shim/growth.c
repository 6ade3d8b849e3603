#include "growth.h"

#include "account.h"
#include "device.h"
#include "log.h"

#include <stdatomic.h>

#define MOST (256ull << 20) /* a neighbour's allocation may fall into the card's figure */

bool vgpu_growth_begin(struct vgpu_growth *growth, int entry, CUdevice device) {
    *growth = (struct vgpu_growth){.entry = entry, .device = device};
    if (!vgpu_enter()) return true;
    growth->watched = vgpu_limit(entry) != 0 && !vgpu_ordered_yet(entry);
    bool fits = !growth->watched || vgpu_charge_hidden(entry, VGPU_MOST_GROWTH);
    if (fits) growth->charged = VGPU_MOST_GROWTH;
    growth->watched &= fits;
    vgpu_leave();
    if (!growth->watched) return fits;
    char uuid[64] = "";
    vgpu_device_uuid(device, uuid);
    growth->before = vgpu_nvml_sample(uuid);
    if (vgpu_enter()) {
        growth->held = vgpu_held(entry);
        vgpu_leave();
    }
    return true;
}

void vgpu_growth_cancel(struct vgpu_growth *growth) {
    if (growth->watched && vgpu_enter()) {
        vgpu_correct_hidden(growth->entry, growth->charged, 0);
        vgpu_leave();
    }
    growth->watched = false;
}

/* What came beside `asked`, which is what this process counted itself meanwhile. */
static uint64_t measured(const struct vgpu_sample *before, const struct vgpu_sample *after,
                         int64_t asked) {
    if (before->own_known && after->own_known && before->own_bytes != 0) {
        int64_t grown = (int64_t)(after->own_bytes - before->own_bytes) - asked;
        return grown > 0 ? vgpu_granules((uint64_t)grown) : 0;
    }
    if (before->used_known && after->used_known) {
        int64_t grown = (int64_t)(after->used_bytes - before->used_bytes) - asked;
        if (grown >= 0 && grown <= (int64_t)MOST) return vgpu_granules((uint64_t)grown);
    }
    return VGPU_MOST_GROWTH; /* not known */
}

void vgpu_growth_end(struct vgpu_growth *growth, CUresult result) {
    if (!growth->watched) return;
    char uuid[64] = "";
    vgpu_device_uuid(growth->device, uuid);
    struct vgpu_sample after = vgpu_nvml_sample(uuid);
    if (!vgpu_enter()) return;
    int64_t asked = (int64_t)(vgpu_held(growth->entry) - growth->held);
    uint64_t actual = measured(&growth->before, &after, asked);
    vgpu_correct_hidden(growth->entry, growth->charged, actual);
    if (result == CUDA_SUCCESS) vgpu_set_ordered(growth->entry);
    vgpu_leave();
    VGPU_LOG(VGPU_LOG_INFO, "device %d: the driver took %llu bytes for stream-ordered memory",
             growth->entry, (unsigned long long)actual);
}

/* Of another PID namespace, or of a driver that tells no process: not asked for ever. */
#define ENOUGH 3
static _Atomic unsigned blind; /* times in vain, of the epoch in the upper bits */

static bool in_vain(bool one_more) {
    unsigned own = vgpu_epoch() << 2, seen = atomic_load(&blind);
    unsigned times = (seen & ~3u) == own ? seen & 3u : 0;
    if (one_more && times < ENOUGH) atomic_store(&blind, own | (times + 1));
    return times >= ENOUGH;
}

static bool worth_it(int entry, uint64_t bytes, uint64_t *held) {
    if (in_vain(false) || !vgpu_enter()) return false;
    bool near = vgpu_near(entry, bytes, VGPU_NEAR);
    *held = vgpu_held(entry);
    vgpu_leave();
    return near && *held != 0;
}

bool vgpu_growth_look(int entry, uint64_t bytes) {
    uint64_t before;
    char uuid[64] = "";
    if (!worth_it(entry, bytes, &before) || !vgpu_entry_uuid(entry, uuid)) return false;
    struct vgpu_sample sample = vgpu_nvml_sample(uuid);
    if (!sample.own_known || sample.own_bytes == 0) {
        in_vain(true);
        return false;
    }
    if (!vgpu_enter()) return false;
    uint64_t after = vgpu_held(entry);
    bool more = vgpu_compare_hidden(entry, sample.own_bytes, before > after ? before : after);
    vgpu_leave();
    return more;
}
