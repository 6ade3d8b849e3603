/* Time, without anybody's interposer and without a system call where the kernel allows. */
#ifndef VGPU_SHIM_CLOCK_H
#define VGPU_SHIM_CLOCK_H

#include <stdint.h>

int64_t vgpu_clock(void);        /* CLOCK_MONOTONIC, ns */
int64_t vgpu_clock_coarse(void); /* the same, up to a timer tick late, and cheap */
int64_t vgpu_clock_real(void);   /* CLOCK_REALTIME, ns */
void vgpu_clock_sleep(int64_t ns);

#endif
