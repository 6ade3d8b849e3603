/* Symbols of the real libraries. */
#ifndef VGPU_SHIM_LOOKUP_H
#define VGPU_SHIM_LOOKUP_H

#include <stdatomic.h>

#include "hooks.h"
#include "state.h"

/* As found so far; NULL: not yet, or the driver has none. */
extern VGPU_HIDDEN _Atomic(void *) vgpu_reals[VGPU_SYM_COUNT];

VGPU_HIDDEN void *vgpu_find_real(enum vgpu_symbol symbol);

/* The real function behind a symbol, NULL where the driver has none. */
static inline void *vgpu_real(enum vgpu_symbol symbol) {
    void *found = atomic_load_explicit(&vgpu_reals[symbol], memory_order_acquire);
    return VGPU_LIKELY(found != NULL) ? found : vgpu_find_real(symbol);
}

#define VGPU_REAL(symbol) ((symbol##_fn *)vgpu_real(VGPU_SYM_##symbol))
#define VGPU_CALL(symbol, ...)                                                                     \
    __extension__({                                                                                \
        symbol##_fn *real_##symbol = VGPU_REAL(symbol);                                            \
        real_##symbol == NULL ? CUDA_ERROR_NOT_FOUND : real_##symbol(__VA_ARGS__);                 \
    })

#endif
