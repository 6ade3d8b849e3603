#include "charge.h"

#include "graphs.h"
#include "growth.h"
#include "pools.h"

/* Far from the limit: nothing has to be asked of NVML either. */
static bool charge_far(int entry, struct vgpu_cost cost) {
    if (!vgpu_enter()) return true;
    bool fits = vgpu_charge_far(entry, cost, VGPU_NEAR);
    vgpu_leave();
    return fits;
}

static bool charge(int entry, struct vgpu_cost cost) {
    if (!vgpu_enter()) return true;
    bool fits = vgpu_charge(entry, cost);
    vgpu_leave();
    return fits;
}

void vgpu_refuse(int entry, const char *what, uint64_t bytes) {
    if (!vgpu_enter()) return;
    vgpu_refused(entry, what, bytes);
    vgpu_leave();
}

bool vgpu_passed_limit(int entry) {
    if (!vgpu_enter()) return false;
    bool over = vgpu_over(entry);
    vgpu_leave();
    return over;
}

bool vgpu_take(int entry, struct vgpu_cost cost, const char *what, uint64_t bytes) {
    if (charge_far(entry, cost)) return true;
    vgpu_growth_look(entry, bytes);
    if (charge(entry, cost)) return true;
    if (vgpu_pools_give_back(entry, vgpu_granules(bytes)) && charge(entry, cost)) return true;
    if (vgpu_graphs_give_back(entry) && charge(entry, cost)) return true;
    vgpu_refuse(entry, what, bytes);
    return false;
}

static bool exchange(int entry, struct vgpu_cost charged, struct vgpu_cost actual) {
    if (!vgpu_enter()) return true;
    bool fits = vgpu_exchange(entry, charged, actual);
    vgpu_leave();
    return fits;
}

bool vgpu_retake(int entry, struct vgpu_cost charged, struct vgpu_cost actual, const char *what,
                 uint64_t bytes) {
    if (exchange(entry, charged, actual)) return true;
    if (vgpu_pools_give_back(entry, vgpu_granules(bytes)) && exchange(entry, charged, actual))
        return true;
    if (vgpu_graphs_give_back(entry) && exchange(entry, charged, actual)) return true;
    vgpu_refuse(entry, what, bytes);
    return false;
}

void vgpu_give(int entry, struct vgpu_cost cost) {
    if (!vgpu_enter()) return;
    vgpu_uncharge(entry, cost);
    vgpu_leave();
}

bool vgpu_keep(enum vgpu_kind kind, uint64_t key, int entry, struct vgpu_cost cost,
               CUcontext ctx) {
    if (!vgpu_enter()) return true;
    struct vgpu_item *stale = vgpu_tracked(kind, key); /* its context went, and it with it */
    if (stale != NULL) vgpu_uncharge(stale->entry, stale->cost);
    bool kept = vgpu_track(kind, (struct vgpu_item){.key = key,
                                                    .entry = entry,
                                                    .cost = cost,
                                                    .context = (uint64_t)(uintptr_t)ctx});
    vgpu_leave();
    return kept;
}

bool vgpu_lift(enum vgpu_kind kind, uint64_t key, struct vgpu_item *item) {
    if (!vgpu_enter()) return false;
    bool found = vgpu_untrack(kind, key, item);
    vgpu_leave();
    return found;
}

void vgpu_settle(enum vgpu_kind kind, const struct vgpu_item *item, CUresult result) {
    if (!vgpu_enter()) return;
    if (result == CUDA_SUCCESS) vgpu_uncharge(item->entry, item->cost);
    else vgpu_track(kind, *item);
    vgpu_leave();
}
