/* A regime is renewed at every step of a copy, none to three times: prints how many copies there
 * were and how many of them were mixed or were not of the number that they said. With WITHOUT_NUMBER
 * a copy does not look whether it was overtaken, which is the control. */
#include <stdatomic.h>
#include <stdio.h>

static void step(void);
#undef atomic_load_explicit
#define atomic_load_explicit(object, order) (step(), __atomic_load_n(object, order))
#include "regime.h"

static struct vgpu_regime_box box;
static uint64_t newest;
static int left, renewals; /* steps until it is renewed, so many times */

static void renew(void) {
    union {
        struct vgpu_regime regime;
        uint64_t words[VGPU_REGIME_WORDS];
    } next;
    newest++;
    for (unsigned i = 0; i < VGPU_REGIME_WORDS; i++) next.words[i] = newest;
    left = -1; /* what a renewal reads is no step of the copy */
    vgpu_regime_put(&box, &next.regime);
}

static void step(void) {
    if (left < 0 || left-- > 0) return;
    for (int i = 0; i < renewals; i++) renew();
}

static void copy(struct vgpu_regime *regime, uint64_t *have) {
#ifdef WITHOUT_NUMBER
    uint64_t words[VGPU_REGIME_WORDS];
    *have = atomic_load_explicit(&box.number, memory_order_acquire);
    for (unsigned i = 0; i < VGPU_REGIME_WORDS; i++)
        words[i] = atomic_load_explicit(&box.halves[*have & 1][i], memory_order_acquire);
    memcpy(regime, words, sizeof words);
#else
    vgpu_regime_get(&box, regime, have);
#endif
}

int main(void) {
    int copies = 0, wrong = 0;
    for (renewals = 0; renewals <= 3; renewals++)
        for (int at = 0; at < (int)VGPU_REGIME_WORDS + 4; at++) {
            struct vgpu_regime regime;
            uint64_t have = 0, words[VGPU_REGIME_WORDS];
            renew();
            left = at;
            copy(&regime, &have);
            left = -1;
            memcpy(words, &regime, sizeof words);
            bool good = have > 0;
            for (unsigned i = 0; i < VGPU_REGIME_WORDS; i++) good &= words[i] == have;
            copies++;
            wrong += !good;
        }
    printf("{\"copies\": %d, \"wrong\": %d}\n", copies, wrong);
    return 0;
}
