#define _GNU_SOURCE
#include "state.h"

#include <errno.h>

#include "account.h"
#include "clib.h"
#include "contexts.h"
#include "graphs.h"
#include "log.h"
#include "pools.h"
#include "sys.h"
#include "throttle.h"
#include "track.h"

_Atomic(struct vgpu_state *) vgpu_state;

static struct vgpu_lock lock;
static unsigned epoch;
static bool opened;

static struct vgpu_state *state_page(void) {
    struct vgpu_state *page = atomic_load_explicit(&vgpu_state, memory_order_acquire);
    if (page != NULL) return page;
    page = vgpu_map(4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (page == NULL) return NULL;
    /* Linux 4.14; without it a forked child would count as its parent, so rather nothing. */
    if (vgpu_sys(SYS_madvise, (long)page, 4096, MADV_WIPEONFORK, 0, 0, 0) != 0) {
        vgpu_unmap(page, 4096);
        return NULL;
    }
    struct vgpu_state *none = NULL;
    if (atomic_compare_exchange_strong(&vgpu_state, &none, page)) return page;
    vgpu_unmap(page, 4096);
    return none;
}

/* First use in this process. In a forked child nothing of the parent's is ours: its
 * contexts do not work here, its lock may be held by a thread that is not here. */
static void begin(void) {
    atomic_store(&lock.state, 0);
    vgpu_account_forget();
    vgpu_track_forget();
    vgpu_pools_forget();
    vgpu_graphs_forget();
    vgpu_contexts_forget();
    vgpu_throttle_forget();
    epoch++;
    if (!opened) {
        vgpu_log_open();
        if (vgpu_clib_is_musl()) /* the one line that nobody asked for */
            vgpu_log_write("the C library is musl, for which NVIDIA's driver is not made: "
                           "limits may not hold here");
    }
    vgpu_account_open(!opened);
    opened = true;
}

bool vgpu_set_up(void) {
    struct vgpu_state *state = state_page();
    if (state == NULL) return false;
    int seen;
    while ((seen = atomic_load_explicit(&state->standing, memory_order_acquire)) < VGPU_IDLE) {
        seen = VGPU_UNSET;
        if (atomic_compare_exchange_strong(&state->standing, &seen, VGPU_SETTING)) {
            int kept = errno;
            begin();
            errno = kept;
            atomic_store_explicit(&state->standing,
                                  vgpu_limits()->enforced ? VGPU_ACTIVE : VGPU_IDLE,
                                  memory_order_release);
        } else {
            vgpu_yield();
        }
    }
    return seen == VGPU_ACTIVE;
}

bool vgpu_enter(void) {
    if (!vgpu_active()) return false;
    vgpu_lock(&lock);
    return true;
}

void vgpu_leave(void) { vgpu_unlock(&lock); }

unsigned vgpu_epoch(void) { return epoch; }
