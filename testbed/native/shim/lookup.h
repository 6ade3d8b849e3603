/* Symbols of the real libraries. */
#ifndef VGPU_SHIM_LOOKUP_H
#define VGPU_SHIM_LOOKUP_H

#include "hooks.h"

/* The real function behind a symbol, NULL where the driver has none. */
void *vgpu_real(enum vgpu_symbol symbol);

#define VGPU_REAL(symbol) ((symbol##_fn *)vgpu_real(VGPU_SYM_##symbol))
#define VGPU_CALL(symbol, ...)                                                                     \
    (VGPU_REAL(symbol) == NULL ? CUDA_ERROR_NOT_FOUND : VGPU_REAL(symbol)(__VA_ARGS__))

#endif
