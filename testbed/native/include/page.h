/* The page of one card, shared by all containers on it: who is there, who has work, and of
 * which priority. It tells within milliseconds what NVML tells after a third of a second.
 *
 * Made by the device plugin (testbed.native.page, mode 0666) below the hook path and bound
 * into every container of the card; the library of each container claims one entry and all
 * processes of the container write to it. No locks, no liveness but time: an entry whose
 * times are VGPU_PAGE_STALE_NS old belongs to whoever claims it next. A claim is
 * written and read back; of two at once the later stays, and the earlier finds another
 * entry when it next looks. (A tenant may cut the file, and a load or a compare-and-swap
 * in a mapping of a cut file kills the process: so the library copies in and out by a
 * system call, process_vm_readv of its own mapping, that fails instead.) Times are CLOCK_MONOTONIC of the node. Tenants can write
 * anything anywhere in it: every reader bounds what it reads, and the worst that a lie does
 * is to make others believe that a neighbour has work, or to make them wait for its turn on the
 * card once in a while (shim/turns.h).
 */
#ifndef VGPU_PAGE_H
#define VGPU_PAGE_H

#include <stddef.h>
#include <stdint.h>

#define VGPU_PAGE_MAGIC 0x4547415055504756ull /* "VGPUPAGE", little endian */
#define VGPU_PAGE_VERSION 1u
#define VGPU_PAGE_TENANTS 128
#define VGPU_PAGE_STALE_NS 10000000000ull
#define VGPU_PAGE_UUID_BYTES 96

struct vgpu_page_tenant {
    uint64_t id;        /* FNV-1a 64 of "<pod uid>/<container>", 0 = free */
    uint64_t active_ns; /* newest launch, or wait for one; renewed about every millisecond */
    uint64_t busy_until_ns; /* when the device time in flight will be done, as estimated */
    uint64_t granted_ns;    /* device time so far, by the library's own reckoning */
    uint32_t priority;      /* 0 = high, larger = lower */
    uint32_t limit_pct;     /* 0 = none */
    uint64_t wanting_ns; /* newest wish to launch of one that yields to a higher priority */
    uint64_t flight_ns;  /* newest time with measured device time in flight, 0 = not measured */
    /* Bit 0: it waits for a turn. The rest: when its turn ends, or its last one ended; 0 where it
     * takes no turns. */
    uint64_t turn;
};

struct vgpu_page {
    uint64_t magic; /* written last */
    uint32_t version;
    uint32_t bytes; /* sizeof(struct vgpu_page) */
    char uuid[VGPU_PAGE_UUID_BYTES];
    uint32_t tenant_count; /* one more than the highest entry ever used */
    uint32_t spare32;
    uint64_t spare[497];
    struct vgpu_page_tenant tenants[VGPU_PAGE_TENANTS];
};

_Static_assert(sizeof(struct vgpu_page_tenant) == 64, "one cache line a tenant");
_Static_assert(offsetof(struct vgpu_page, tenants) == 4096, "page header");

#endif
