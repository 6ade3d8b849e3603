#define _GNU_SOURCE
#include "clock.h"

#include <stdatomic.h>
#include <time.h>

#include "clib.h"
#include "sys.h"

typedef int gettime_fn(clockid_t clock, struct timespec *time);

static int by_call(clockid_t clock, struct timespec *time) {
    return (int)vgpu_sys(SYS_clock_gettime, clock, (long)time, 0, 0, 0, 0);
}

/* The C library's own, which needs no system call: a preloaded library that bends a
 * program's time must not bend its budget. */
static _Atomic(gettime_fn *) gettime;

static gettime_fn *find(void) {
    gettime_fn *found = (gettime_fn *)vgpu_clib("clock_gettime");
    if (found == NULL) found = by_call;
    atomic_store_explicit(&gettime, found, memory_order_release);
    return found;
}

static int64_t read_clock(clockid_t clock) {
    gettime_fn *function = atomic_load_explicit(&gettime, memory_order_acquire);
    struct timespec time = {0, 0};
    (function != NULL ? function : find())(clock, &time);
    return time.tv_sec * 1000000000ll + time.tv_nsec;
}

int64_t vgpu_clock(void) { return read_clock(CLOCK_MONOTONIC); }
int64_t vgpu_clock_coarse(void) { return read_clock(CLOCK_MONOTONIC_COARSE); }
int64_t vgpu_clock_real(void) { return read_clock(CLOCK_REALTIME); }

void vgpu_clock_sleep(int64_t ns) {
    struct timespec time = {.tv_sec = ns / 1000000000, .tv_nsec = ns % 1000000000};
    vgpu_sys(SYS_nanosleep, (long)&time, 0, 0, 0, 0, 0);
}
