/* A regime that one thread renews while others copy it: none of them waits, and no copy is of two
 * regimes. One of two halves holds; the other is written, and then is the one that holds. Whoever
 * copied while both changed copies again (a sequence lock whose readers hardly ever meet a writer). */
#ifndef VGPU_SHIM_REGIME_H
#define VGPU_SHIM_REGIME_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ledger.h"

#define VGPU_REGIME_WORDS (sizeof(struct vgpu_regime) / sizeof(uint64_t))
_Static_assert(sizeof(struct vgpu_regime) % sizeof(uint64_t) == 0, "it is copied by words");

struct vgpu_regime_box {
    _Atomic uint64_t number; /* of the newest; its last bit names the half. 0: none yet */
    _Atomic uint64_t halves[2][VGPU_REGIME_WORDS];
};

/* One thread at a time. */
static inline void vgpu_regime_put(struct vgpu_regime_box *box, const struct vgpu_regime *regime) {
    uint64_t words[VGPU_REGIME_WORDS];
    uint64_t next = atomic_load_explicit(&box->number, memory_order_relaxed) + 1;
    memcpy(words, regime, sizeof words);
    /* Released: who reads one of these words also finds the number that sent readers away. */
    for (unsigned i = 0; i < VGPU_REGIME_WORDS; i++)
        atomic_store_explicit(&box->halves[next & 1][i], words[i], memory_order_release);
    atomic_store_explicit(&box->number, next, memory_order_release);
}

/* Brings a copy up to date, which is of regime number `*have` (0: of none). */
static inline void vgpu_regime_get(struct vgpu_regime_box *box, struct vgpu_regime *copy,
                                   uint64_t *have) {
    uint64_t words[VGPU_REGIME_WORDS];
    uint64_t now = atomic_load_explicit(&box->number, memory_order_acquire), found;
    if (now == *have) return;
    do {
        found = now;
        for (unsigned i = 0; i < VGPU_REGIME_WORDS; i++)
            words[i] = atomic_load_explicit(&box->halves[found & 1][i], memory_order_acquire);
        now = atomic_load_explicit(&box->number, memory_order_acquire);
    } while (now != found);
    memcpy(copy, words, sizeof words);
    *have = found;
}

#endif
