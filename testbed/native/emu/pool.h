/* Memory pools: shared between pool.c and pool_calls.c; the lock is held. */
#ifndef VGPU_EMU_POOL_H
#define VGPU_EMU_POOL_H

#include "driver.h"

struct arena; /* a piece of address space */

struct CUmemPoolHandle_st {
    struct device *device;
    bool is_default, destroyed;
    struct arena *arenas;
    uint64_t threshold, max_bytes;
    uint64_t reserved, reserved_high, used, used_high;
    int reuse[3];
    struct CUmemPoolHandle_st *next;
};

CUmemoryPool pool_make(struct device *device);
bool pool_valid(const CUmemoryPool pool);
CUresult pool_allocate(CUmemoryPool pool, CUdeviceptr *pointer, size_t bytes, CUcontext context);
/* Gives granules without a block back to the card until `keep` bytes are reserved. */
void pool_trim(CUmemoryPool pool, uint64_t keep);
/* A destroyed pool lives until its last block is freed. */
void pool_discard_if_done(CUmemoryPool pool);

#endif
