/* Time as a process sees it: its queues on a device, the card's book, and waiting.
 *
 * Everything but time_wait wants the driver's lock. Nothing here makes a system call but
 * to wait, to look at cuda.lock beside a neighbour, and clock_gettime (vDSO).
 */
#ifndef VGPU_EMU_TIMELINE_H
#define VGPU_EMU_TIMELINE_H

#include "abi.h"
#include "clock.h"
#include "queue.h"

struct device;

struct device_time {
    struct clock clock;
    struct queue queue;
    bool opened;
    int slot; /* that the figures below are of */
    uint64_t generation;
    uint64_t segments;   /* of the book, seen so far */
    uint64_t granted_ns; /* of the book, used up by the queues */
    uint64_t busy_until; /* the device surely has work of ours until then */
    uint64_t others_until; /* somebody else has the device, at most until then */
};

/* A slot is being claimed (its record lock is held, nobody counts it yet): what its former
 * owner left is void. */
void time_claim(struct device *device, int slot);

/* Brings the queues up to now. */
void time_look(struct device *device, uint64_t now_ns);

/* Queues a work that arrives at work->arrived_ns; a stream's line is full where
 * time_full says so, and the caller waits first. */
CUresult time_push(struct device *device, struct line *line, const struct work *work);
bool time_full(struct device *device, struct line *line);

/* Waits, without the lock, until `line` is at `position`. */
void time_wait(struct device *device, struct line *line, uint64_t position);

#endif
