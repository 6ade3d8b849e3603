/* The shape of every allocating hook: charge, call the driver, keep or give back. */
#ifndef VGPU_SHIM_CHARGE_H
#define VGPU_SHIM_CHARGE_H

#include "account.h"
#include "hooks.h"
#include "track.h"

/* Outside of the state: a refusal counted and logged; whether the limit is passed. */
void vgpu_refuse(int entry, const char *what, uint64_t bytes);
bool vgpu_passed_limit(int entry);

/* Charges outside of the state; where it does not fit, pools give back what they only
 * keep, and it is tried once more. False = refused (counted and logged). */
bool vgpu_take(int entry, struct vgpu_cost cost, const char *what, uint64_t bytes);
/* Charges what an allocation turned out to take instead of what was charged before; where that
 * does not fit, the old charge stays. */
bool vgpu_retake(int entry, struct vgpu_cost charged, struct vgpu_cost actual, const char *what,
                 uint64_t bytes);
void vgpu_give(int entry, struct vgpu_cost cost);

/* Remembers what a new handle costs; false where that is impossible. */
bool vgpu_keep(enum vgpu_kind kind, uint64_t key, int entry, struct vgpu_cost cost, CUcontext ctx);

/* Takes an item out before the driver frees it (afterwards another thread may already
 * have the same address), and puts it back or gives back its charge by the result. */
bool vgpu_lift(enum vgpu_kind kind, uint64_t key, struct vgpu_item *item);
void vgpu_settle(enum vgpu_kind kind, const struct vgpu_item *item, CUresult result);

#endif
