/* What this process holds of each device, and the one place where the limit is decided.
 *
 * Sizes are counted as the driver counts them: an allocation of more than 1 MiB in
 * granules of 2 MiB; others in 512 bytes, and their sum per process in granules.
 * So the card's own count never passes the cap, and a container can fill it to within
 * one granule. */
#ifndef VGPU_SHIM_ACCOUNT_H
#define VGPU_SHIM_ACCOUNT_H

#include <stdbool.h>
#include <stdint.h>

#include "limits.h"
#include "state.h"

#define VGPU_GRANULE (2ull << 20)
#define VGPU_PACKED (1ull << 20) /* the largest that is packed with others (docs/hardware.md) */
#define VGPU_NO_DEVICE (-1)
#define VGPU_UUID_TEXT 96

struct vgpu_cost {
    uint64_t large; /* multiples of the granule */
    uint64_t small; /* multiples of 512 bytes */
};

struct vgpu_cost vgpu_cost_of(uint64_t bytes);
uint64_t vgpu_granules(uint64_t bytes); /* rounded up; saturates */

/* The limits taken and nothing held: in a new process (`first`), in a forked child. Called
 * while the state is being set up. */
void vgpu_account_open(bool first);
void vgpu_account_forget(void);

/* The entry of a device by its uuid, or by its number where no uuids are known. */
int vgpu_entry(const char *uuid, int number);
uint64_t vgpu_limit(int entry); /* 0 = none */
const struct vgpu_limits *vgpu_limits(void); /* compute limits: of this process's start */
bool vgpu_oversubscribed(void);

/* Charges if the container stays within its limit; the answer says so. */
bool vgpu_charge(int entry, struct vgpu_cost cost);
void vgpu_uncharge(int entry, struct vgpu_cost cost);
/* The same at once, without the lock between processes and its system calls, where the container
 * stays `margin` below its limit. False = nothing was charged: vgpu_charge is to decide. */
bool vgpu_charge_far(int entry, struct vgpu_cost cost, uint64_t margin);
/* `actual` instead of what is charged; where that does not fit, the old charge stays, and nobody
 * else could have had its place meanwhile. */
bool vgpu_exchange(int entry, struct vgpu_cost charged, struct vgpu_cost actual);
/* What is there anyway (a pool that the driver grew): no check. */
void vgpu_charge_unchecked(int entry, struct vgpu_cost cost);

/* A context. The first thing that a container puts on a card may pass the limit (D1: a
 * cap below the context's cost shows free = 0); everything later may not. */
bool vgpu_charge_context(int entry, uint64_t bytes);
void vgpu_correct_context(int entry, uint64_t charged, uint64_t actual);
/* What the driver takes for itself in the course of things (its state for stream-ordered
 * memory, say): the most is charged before, and corrected by what was measured. Goes with the
 * last context of the device. */
bool vgpu_charge_hidden(int entry, uint64_t bytes);
void vgpu_correct_hidden(int entry, uint64_t charged, uint64_t actual);
/* What NVML counted for this process, beside what it counted itself (the greater of before and
 * after, so that a charge meanwhile hides nothing): more is believed at once, less when it was
 * seen twice, since a call under way is charged before the driver takes and given back after.
 * True = more. */
bool vgpu_compare_hidden(int entry, uint64_t on_card, uint64_t counted);
/* Whether `bytes` more and the rest of the limit are less than `near` apart. */
bool vgpu_near(int entry, uint64_t bytes, uint64_t near);
uint64_t vgpu_held(int entry);   /* by this process, without what is hidden */
bool vgpu_ordered_yet(int entry); /* whether it had stream-ordered memory on the device */
void vgpu_set_ordered(int entry);

uint64_t vgpu_expected_context(int entry); /* as others of the container found it, 0 = not known */

bool vgpu_over(int entry); /* whether the container holds more than its limit */
uint64_t vgpu_used(int entry); /* by all processes of the container */
void vgpu_refused(int entry, const char *what, uint64_t bytes);
struct vgpu_member;
int vgpu_members(int entry, struct vgpu_member *members); /* as vgpu_shared_members */
void vgpu_announce(void); /* claim a record: the monitor sees that this process is covered */

#endif
