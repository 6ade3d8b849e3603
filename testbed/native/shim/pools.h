/* Memory pools of this process, charged by what they reserve on the card. */
#ifndef VGPU_SHIM_POOLS_H
#define VGPU_SHIM_POOLS_H

#include <stdbool.h>
#include <stdint.h>

/* Lets the device's pools give back what they only keep, `need` bytes if they can.
 * True where anything came. Called outside of the state. */
bool vgpu_pools_give_back(int entry, uint64_t need);

/* Brings the charges to what the pools reserve now. */
void vgpu_pools_measure(void);

/* The same after something was freed that may be a pool's, which gives it back at the next
 * synchronisation only. */
void vgpu_pools_freed(void);

void vgpu_pools_forget(void); /* in a forked child */

#endif
