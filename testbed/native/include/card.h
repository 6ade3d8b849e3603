/* The state of one emulated card: "<cards>/<uuid>/state", shared by every process
 * that uses the card, in whatever container. Emulation, not NVIDIA.
 *
 * Made by the card's provider (testbed.native.card, mode 0666) before anybody
 * opens it; libcuda claims slots and counts; libnvidia-ml reads; the testbed's
 * fault commands write `faults`. No process owns the time or any lock: liveness is
 * a record lock (fcntl) on byte `slot` of "<cards>/<uuid>/cuda.lock", short critical
 * sections take byte CARD_LOCK_MEMORY of the same file, and everything else is
 * atomic. (Robust mutexes do not work here: two containers' main processes are both
 * thread 1 of their PID namespace.)
 *
 * One lock file for each library: a record lock drops when the process closes any
 * descriptor of that file, so libcuda locks cuda.lock and never closes it,
 * libnvidia-ml reads through libcuda's descriptor where libcuda is loaded.
 */
#ifndef VGPU_CARD_H
#define VGPU_CARD_H

#include <stddef.h>
#include <stdint.h>

#define CARD_MAGIC 0x3144524143555056ull /* "VPUCARD1", little endian */
#define CARD_VERSION 3u
#define CARD_MAX_SLOTS 256
#define CARD_RING 2048   /* segments of the past that everybody can look up */
#define CARD_CLOSED 64   /* segments that one step of the book may close */
#define CARD_ROWS 128    /* NVML's samples: 21 s at six a second */
#define CARD_CLOCK_SLICES 0u
#define CARD_CLOCK_SHARING 1u
#define CARD_LOCK_MEMORY 4096 /* byte of cuda.lock: memory is being charged */
#define CARD_PAGE 4096
#define CARD_GRANULE (2ull << 20) /* what memory is counted in */

/* What NVML says of a period in which several processes used the card: what each used; nothing
 * of processes; or all of it for one of them, whichever it saw (an H200 under driver 580). */
enum card_process_samples { CARD_SAMPLES_EACH, CARD_SAMPLES_NONE, CARD_SAMPLES_ONE };

/* constant: from the profile (testbed/card/profiles), never changed afterwards */
struct card_description {
    char uuid[96];       /* "GPU-…" */
    char name[96];       /* "NVIDIA A100-SXM4-80GB" */
    char pci_bus_id[32]; /* "00000000:07:00.0" */
    uint32_t index;      /* order on the node = order in a container */
    uint32_t minor;
    uint64_t memory_bytes;   /* of the card, as NVML reports the total */
    uint64_t reserved_bytes; /* taken by driver and firmware (NVML v2 "reserved"): programs
                              * (cuDeviceTotalMem, cuMemGetInfo) see memory - reserved */
    uint64_t context_bytes;  /* cost of one primary context */
    uint32_t compute_major, compute_minor;
    uint32_t sm_count;
    uint32_t max_threads_per_sm;
    uint32_t max_blocks_per_sm;
    uint32_t shared_per_sm_bytes;
    uint32_t shared_per_block_bytes;
    uint32_t shared_per_block_optin_bytes;
    uint32_t registers_per_sm;
    uint32_t l2_bytes;
    uint32_t clock_khz;
    uint32_t memory_clock_khz;
    uint32_t memory_bus_bits;
    uint32_t numa;
    uint32_t copy_engines;
    uint32_t time_slice_us;    /* 2000 */
    uint32_t clock_mode;       /* 0 time slices, 1 processor sharing */
    uint32_t sample_period_us; /* NVML's sampling period */
    uint32_t launch_overhead_ns;
    uint64_t memory_bandwidth_bps; /* bytes a second */
    uint64_t copy_bandwidth_bps;
    uint64_t fp32_flops, tf32_flops, fp16_flops, fp64_flops; /* a second */
    uint64_t budget_bytes; /* resident pages of the host that this card may use, 0 = none */
    uint32_t driver_version; /* CUDA version that the driver reports, 13020 */
    uint32_t spare32;
    char driver_text[32];    /* "610.12.03" and the like, as NVML reports it */
    uint64_t int8_flops;     /* operations a second; 0: twice fp16 */
    uint32_t switch_ns;      /* from one process's work to another's: nobody's time */
    uint32_t sample_lag_us;  /* from the end of NVML's sampling period to its being told */
    uint32_t event_ns;       /* a timing event costs that on the device */
    uint32_t process_samples; /* enum card_process_samples */
    uint64_t spare[25];
};

/* One process on the card. `generation` is even when free, odd in use; the slot may
 * be reused only by whoever takes its record lock. */
struct card_slot {
    uint64_t generation;
    int32_t pid;      /* in its owner's namespace, for people only */
    uint32_t flags;
    uint64_t started_ns;
    uint64_t context_bytes;
    uint64_t memory; /* allocations and credit, see card_memory_… below */
    uint64_t resident_bytes; /* pages touched on the host */
    uint64_t submitted_ns; /* device time asked for, ever, on the scale of card_book.granted_ns:
                            * written by the owner alone; work is there while it is more */
    uint64_t base_ns;      /* granted_ns when this process came: busy time counts from here */
    uint64_t launches;
    uint64_t copied_bytes;
    char name[32];       /* comm of the process */
    uint64_t swapped_bytes; /* managed memory that the card had no room for */
    uint64_t gone;       /* the generation whose owner somebody found dead: no work of it counts */
    uint64_t spare[16];
};

/* `memory` of a slot. What a process uses and what it may still take without asking are
 * one word, so that one compare-and-swap turns the one into the other: from the top
 * 20 bits of the slot's generation (a slot that was taken back is noticed), 22 bits used,
 * 22 bits credit, both in CARD_GRANULE. Only who holds CARD_LOCK_MEMORY lets the sum of
 * both grow, and may take away the credit of others. */
#define CARD_MEMORY_BITS 22
#define CARD_MEMORY_MASK ((1ull << CARD_MEMORY_BITS) - 1)

static inline uint64_t card_memory_word(uint64_t generation, uint64_t used, uint64_t credit)
{
    return generation << 2 * CARD_MEMORY_BITS | used / CARD_GRANULE << CARD_MEMORY_BITS |
           credit / CARD_GRANULE;
}

static inline uint64_t card_memory_tag(uint64_t word)
{
    return word >> 2 * CARD_MEMORY_BITS;
}

static inline uint64_t card_memory_used(uint64_t word)
{
    return (word >> CARD_MEMORY_BITS & CARD_MEMORY_MASK) * CARD_GRANULE;
}

static inline uint64_t card_memory_credit(uint64_t word)
{
    return (word & CARD_MEMORY_MASK) * CARD_GRANULE;
}

/* --- time: the book (testbed/native/emu/README.md says why it is made so) ---------
 *
 * What the card did up to one moment. A book is never changed once it is current: who
 * moves time on writes the next one into a place of its own slot and swaps
 * `card_state.current` to it. All times are CLOCK_MONOTONIC, ns.
 */
struct card_segment { /* a stretch during which one slot had the device (or its share) */
    uint64_t start_ns, end_ns;
    uint64_t granted_ns; /* end - start in time slices, less with processor sharing */
    uint64_t slot;
};

struct card_book {
    uint64_t time_ns;     /* everything before is decided */
    uint64_t open_ns;     /* the segment that goes on began here */
    uint64_t switched_ns; /* slices: the holder works from here on */
    uint64_t turn_end_ns; /* slices: the holder's turn ends here if others wait */
    uint64_t segments;    /* closed, ever */
    uint32_t holder;      /* slot + 1 of the context on the device; 0: none yet */
    uint32_t working;     /* slots that had work when the open segment began */
    uint32_t fresh;       /* the last `fresh` segments are in `closed` */
    uint32_t slots;       /* entries of granted_ns that are used */
    uint64_t sharing[CARD_MAX_SLOTS / 64]; /* processor sharing: those slots, a bit each */
    struct card_segment closed[CARD_CLOSED];
    uint64_t granted_ns[CARD_MAX_SLOTS]; /* device time, ever, never reset */
};

/* A segment in the ring, at sequence % CARD_RING. Many may write it, all the same; a late
 * one may spoil it, which `check` tells. */
struct card_record {
    uint64_t sequence; /* number of the segment + 1 */
    struct card_segment segment;
    uint64_t check; /* card_record_check */
};

static inline uint64_t card_record_check(const struct card_record *record)
{
    return record->sequence * 0x9e3779b97f4a7c15ull ^ record->segment.start_ns ^
           record->segment.end_ns << 1 ^ record->segment.granted_ns << 2 ^
           record->segment.slot << 3 ^ 0x5645424f4f4b0001ull;
}

/* Device time of all slots at the end of a sampling period of NVML. */
struct card_row {
    uint64_t number;   /* time_ns / period; 0 while it is written */
    uint64_t stamp_us; /* the same moment by CLOCK_REALTIME, as NVML stamps samples */
    uint64_t slots;
    uint64_t granted_ns[CARD_MAX_SLOTS];
};

/* `card_state.current`: version of the book, the slot it lies at, which of the two. */
static inline uint64_t card_current(uint64_t version, unsigned int slot, unsigned int place)
{
    return version << 16 | (uint64_t)slot << 1 | place;
}

static inline uint64_t card_current_version(uint64_t current)
{
    return current >> 16;
}

static inline unsigned int card_current_book(uint64_t current)
{
    return current & (2 * CARD_MAX_SLOTS - 1); /* of `books` */
}

/* Written by the fault commands, obeyed by both libraries. */
struct card_faults {
    uint32_t xid;        /* last XID, 0 = none */
    uint32_t fallen_off; /* device lost */
    uint64_t xid_count;
    uint64_t spare[14];
};

struct card_state {
    uint64_t magic; /* written last */
    uint32_t version;
    uint32_t bytes; /* sizeof(struct card_state) */
    uint64_t made_ns;
    uint64_t spare0[5];
    struct card_description description;

    /* memory: grows under CARD_LOCK_MEMORY only; the truth is the sum over live slots */
    uint64_t slot_count; /* one more than the highest slot ever used */
    uint64_t budget_hits;
    uint64_t reclaimed;  /* slots of dead processes taken back */
    uint64_t spare1[5];

    uint64_t current; /* the book that counts; 0: none yet, an empty one at books[0] */
    uint64_t lapped;  /* times that somebody came too late for his segments */
    uint64_t spare2[6];
    struct card_faults faults;
    struct card_slot slots[CARD_MAX_SLOTS];
    struct card_record ring[CARD_RING];
    struct card_row rows[CARD_ROWS];
    struct card_book books[2 * CARD_MAX_SLOTS]; /* two of each slot */
};

_Static_assert(sizeof(struct card_slot) == 256, "card slot");
_Static_assert(sizeof(struct card_record) == 48, "card record");

#endif
