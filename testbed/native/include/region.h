/* The shared region of one container: HAMi-core's layout v1.2, then our extension.
 *
 * The first 2,008,952 bytes are HAMi's, bit for bit, so that its tools can read a
 * container of ours; its two semaphores are left unused (a process killed inside
 * one would leave it down for ever: HAMi #2500). Our extension begins at the next
 * 4 KiB boundary but one, is found by its magic and guarded by a checksum over its
 * constant part.
 *
 * Who writes what. The device plugin makes the file (mode 0666) with limits, uuids
 * and the extension's constant part before the container starts. Processes of the
 * container claim records and count. The monitor reads, and writes the feedback
 * fields. Everything can be written by the tenant: every reader validates.
 *
 * Locks. `region.lock` beside the region file (same folder, "<uuid>.cache.lock")
 * carries record locks (fcntl): byte i says that record i's owner lives; byte
 * VGPU_LOCK_ACCOUNT + d is held for the few instructions that check and charge
 * device d near its limit. The kernel drops them when the owner dies, however it dies.
 */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include <stddef.h>
#include <stdint.h>

#define VGPU_MAX_DEVICES 16
#define VGPU_MAX_PROCESSES 1024
#define VGPU_UUID_BYTES 96

/* --- HAMi-core v1.2 ------------------------------------------------------- */

#define HAMI_REGION_MAGIC 19920718
#define HAMI_REGION_MAJOR 1
#define HAMI_REGION_MINOR 2
#define HAMI_REGION_BYTES 2008952

struct hami_device_memory {
    uint64_t context_bytes;
    uint64_t module_bytes;
    uint64_t buffer_bytes;
    uint64_t offset;
    uint64_t total_bytes;
    uint64_t spare[3];
};

struct hami_device_util {
    uint64_t decoder;
    uint64_t encoder;
    uint64_t sm;
    uint64_t spare[3];
};

struct hami_process_slot {
    int32_t pid;      /* in the container's PID namespace */
    int32_t host_pid; /* 0 where it is not known */
    struct hami_device_memory used[VGPU_MAX_DEVICES];
    uint64_t monitor_used[VGPU_MAX_DEVICES];
    struct hami_device_util util[VGPU_MAX_DEVICES];
    int32_t status;
    uint32_t pad;
    uint64_t sequence; /* odd while a writer is inside (sequence lock) */
    uint64_t spare[2];
};

struct hami_region {
    int32_t magic; /* written last when the file is made */
    uint32_t major;
    uint32_t minor;
    int32_t sm_init;
    uint64_t semaphore_owner;
    unsigned char semaphore[32]; /* unused by us */
    uint64_t device_count;
    char uuids[VGPU_MAX_DEVICES][VGPU_UUID_BYTES];
    uint64_t memory_limit[VGPU_MAX_DEVICES]; /* bytes, 0 = none */
    uint64_t sm_limit[VGPU_MAX_DEVICES];     /* percent, 0 or >= 100 = none */
    struct hami_process_slot slots[VGPU_MAX_PROCESSES];
    int32_t slot_count; /* one more than the highest slot ever used */
    int32_t utilization_switch;
    int32_t recent_kernel;
    int32_t priority;
    uint64_t last_kernel_time; /* seconds */
    unsigned char semaphore_post_init[32]; /* unused by us */
};

_Static_assert(sizeof(struct hami_device_memory) == 64, "hami device memory");
_Static_assert(sizeof(struct hami_device_util) == 48, "hami device util");
_Static_assert(sizeof(struct hami_process_slot) == 1960, "hami slot");
_Static_assert(offsetof(struct hami_process_slot, monitor_used) == 1032, "hami monitor_used");
_Static_assert(offsetof(struct hami_process_slot, util) == 1160, "hami util");
_Static_assert(offsetof(struct hami_process_slot, status) == 1928, "hami status");
_Static_assert(offsetof(struct hami_region, uuids) == 64, "hami uuids");
_Static_assert(offsetof(struct hami_region, memory_limit) == 1600, "hami memory_limit");
_Static_assert(offsetof(struct hami_region, sm_limit) == 1728, "hami sm_limit");
_Static_assert(offsetof(struct hami_region, slots) == 1856, "hami slots");
_Static_assert(offsetof(struct hami_region, slot_count) == 2008896, "hami slot_count");
_Static_assert(offsetof(struct hami_region, last_kernel_time) == 2008912, "hami last kernel");
_Static_assert(sizeof(struct hami_region) == HAMI_REGION_BYTES, "hami region");

/* --- our extension -------------------------------------------------------- */

#define VGPU_EXT_OFFSET 2011136u /* 491 * 4096 */
#define VGPU_EXT_MAGIC 0x3154584555504756ull /* "VGPUEXT1", little endian */
#define VGPU_EXT_VERSION 2u

#define VGPU_LOCK_ACCOUNT 4096 /* first byte of the accounting locks */

enum vgpu_policy { VGPU_POLICY_DEFAULT = 0, VGPU_POLICY_FORCE = 1, VGPU_POLICY_DISABLE = 2 };

/* Flags that the container's processes raise and the monitor shows. */
enum vgpu_state_flags {
    VGPU_STATE_DEGRADED = 1u << 0,  /* throttling without feedback, below the limit */
    VGPU_STATE_NO_REGION = 1u << 1, /* a process ran on its environment alone */
};

/* What one process holds of one device. Written by the owner only, which writes what it
 * wants to hold before it looks at what others do; taken back by whoever takes a dead owner's lock. */
struct vgpu_device_use {
    uint64_t context_bytes;
    uint64_t module_bytes; /* what the driver took for itself beside contexts */
    uint64_t buffer_bytes; /* allocations, rounded as the driver rounds them */
    /* Compute, written without a lock, each a running total of this process: */
    uint64_t launches;           /* kernels, graphs, large copies and fills */
    uint64_t granted_ns;         /* device time by our own reckoning */
    uint64_t waited_budget_ns;   /* launches held back because the share was used up */
    uint64_t waited_queue_ns;    /* because enough device time was in flight already */
    uint64_t waited_priority_ns; /* because a pod of higher priority had work */
};

struct vgpu_process_record {
    uint64_t generation; /* even = free, odd = in use; +1 at each claim and release */
    int32_t pid;         /* for people only: identity is the record lock */
    uint32_t flags;
    uint64_t started_ns; /* CLOCK_MONOTONIC */
    uint64_t active_ns;  /* CLOCK_MONOTONIC of a recent launch, 0 = none yet */
    uint32_t active_devices; /* bit per device: which ones it launches on */
    int32_t last_error;      /* CUresult of the newest launch that failed, 0 = none */
    uint64_t spare[3];
    struct vgpu_device_use use[VGPU_MAX_DEVICES];
};

/* Written by the monitor, one entry a device, at every new NVML sample. `stamp_ns` is
 * zeroed first and written last; a reader takes the entry only if it is fresh and
 * unchanged. NVML lags (about 100 ms), so the stamp is the end of the interval that the
 * figures are of, not the time of writing: compare them with what was done in
 * [stamp_ns - interval_ns, stamp_ns]. */
struct vgpu_feedback {
    uint64_t stamp_ns;     /* CLOCK_MONOTONIC of the node, end of the sample's interval */
    uint32_t own_util_pm;  /* per mille of the device, this container */
    uint32_t other_util_pm; /* all other processes on the card */
    uint64_t own_bytes;    /* as the card counts this container */
    uint64_t other_bytes;
    uint64_t interval_ns;  /* length of the sample's interval */
    uint64_t bytes_ns;     /* CLOCK_MONOTONIC of own_bytes, 0 = never; written after them */
    uint64_t spare[2];
};

/* The compute ledger of one device, shared by all processes of the container. No lock:
 * every word is atomic by itself, one process at a time takes a new NVML sample (it wins
 * `sample_ns` by compare-and-swap), and a process that is killed anywhere in between leaves
 * figures that the next sample puts right. Nanoseconds of device time are signed. */
#define VGPU_HISTORY 256
#define VGPU_HISTORY_TICK_NS 10000000u
struct vgpu_history {
    uint64_t tick;       /* CLOCK_MONOTONIC / VGPU_HISTORY_TICK_NS that this entry is of */
    int64_t booked_ns[2]; /* the ledger's totals at the beginning of that tick */
    int64_t charged_ns;
    int64_t weak_ns;
};

struct vgpu_ledger {
    int64_t booked_ns[2]; /* completed device time as events tell: short, long kernels */
    int64_t charged_ns;   /* the same as it was charged: after kappa */
    int64_t weak_ns;      /* the part whose kernels are too short to be measured well */
    uint64_t tick;        /* newest tick of `history` */
    uint64_t sample_ns;   /* end of the newest NVML sample that was taken */
    uint64_t other_ns;    /* end of the newest sample that showed a neighbour */
    uint64_t samples_alone, samples_beside;
    uint64_t contended;   /* by NVML: a neighbour within the last second */
    uint64_t kappa_ppm[2]; /* true device time / ledger, short and long; 1000000 = equal */
    uint64_t gain_ppm;    /* what NVML tells / true device time */
    int64_t kappa_used_ns, kappa_booked_ns[2]; /* sums that fade, behind kappa and gain */
    int64_t gain_used_ns, gain_booked_ns;
    int64_t residual_ns;  /* owed or to be refunded */
    int64_t suspense_ns;  /* measured too long; charged if NVML says that we were alone */
    uint64_t limit_ppm;   /* that debts in paid_until_ns are reckoned by */
    /* Memory, beside the compute ledger for want of another place per device: what the card
     * counts for the container and its processes do not (`unexplained_bytes`), bounded by the
     * highest and lowest sum of their figures since the last three of the monitor's readings. */
    uint64_t unexplained_bytes;
    uint64_t reading_ns; /* newest `bytes_ns` that was taken */
    uint64_t highest_bytes[3], lowest_bytes[3];
    uint64_t all_measured_ns; /* before that work ran on the device that nobody had measured */
    uint64_t spare[2];
    struct vgpu_history history[VGPU_HISTORY];
};

struct vgpu_extension {
    uint64_t magic; /* written last */
    uint32_t version;
    uint32_t bytes;    /* sizeof(struct vgpu_extension) */
    uint64_t checksum; /* FNV-1a 64 over [constant .. constant_end) */

    /* constant: set by the plugin before the container starts. Its limits are looked at
     * again when `checksum` changes (written after the part that it covers). */
    struct vgpu_constant {
        uint32_t device_count;
        uint32_t policy;   /* enum vgpu_policy */
        uint32_t priority; /* 0 high, 1 low */
        uint32_t oversubscribe;
        char pod_uid[64];
        char pod_namespace[64];
        char pod_name[256];
        char container_name[64];
        char uuids[VGPU_MAX_DEVICES][VGPU_UUID_BYTES];
        uint64_t memory_limit[VGPU_MAX_DEVICES]; /* bytes, 0 = none */
        uint64_t sm_limit[VGPU_MAX_DEVICES];     /* percent, 0 or >= 100 = none */
        uint32_t priority_floor_pct; /* share that a low priority keeps beside a high one */
        uint32_t spare32;
        uint64_t spare[31];
    } constant;

    /* variable */
    uint32_t state_flags;  /* enum vgpu_state_flags, or-ed in */
    uint32_t record_count; /* one more than the highest record ever used */
    uint64_t paid_until_ns[VGPU_MAX_DEVICES]; /* CLOCK_MONOTONIC up to which use is paid */
    uint64_t denied[VGPU_MAX_DEVICES];        /* allocations refused by the limit */
    /* Running totals of all processes, living or dead; the waits sum over launches, so
     * sixteen threads that wait a second have waited sixteen. */
    uint64_t waited_ns[VGPU_MAX_DEVICES]; /* launches held back, for whatever reason */
    uint64_t launches[VGPU_MAX_DEVICES];
    uint64_t granted_ns[VGPU_MAX_DEVICES];         /* device time by the library's reckoning */
    uint64_t waited_queue_ns[VGPU_MAX_DEVICES];    /* of waited_ns: enough in flight */
    uint64_t waited_priority_ns[VGPU_MAX_DEVICES]; /* of waited_ns: a higher priority */
    struct vgpu_feedback feedback[VGPU_MAX_DEVICES];
    struct vgpu_process_record records[VGPU_MAX_PROCESSES];
    struct vgpu_ledger ledgers[VGPU_MAX_DEVICES];
};

#define VGPU_REGION_BYTES ((size_t)VGPU_EXT_OFFSET + sizeof(struct vgpu_extension))

_Static_assert(VGPU_EXT_OFFSET >= HAMI_REGION_BYTES && VGPU_EXT_OFFSET % 4096 == 0, "extension");
_Static_assert(sizeof(struct vgpu_device_use) == 64, "device use");
_Static_assert(sizeof(struct vgpu_process_record) == 64 + 64 * VGPU_MAX_DEVICES, "record");
_Static_assert(sizeof(struct vgpu_feedback) == 64, "feedback");
_Static_assert(offsetof(struct vgpu_ledger, history) == 256, "ledger");
_Static_assert(sizeof(struct vgpu_history) == 40, "history");

#endif
