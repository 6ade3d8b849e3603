/* Functions of the program that a stream runs, on a thread of the driver's own, which is
 * made for the first of them. The driver's lock is held in all of these. */
#ifndef VGPU_EMU_CALLBACK_H
#define VGPU_EMU_CALLBACK_H

#include "abi.h"
#include "queue.h"

struct device;

/* Queues `function(data)` on a line. */
CUresult callback_push(struct device *device, struct line *line, CUhostFn function, void *data,
                       uint64_t arrived_ns);

/* It is a function's turn (of struct queue). */
void callback_ready(struct queue *queue, struct line *line, struct work *work);

/* Is this the driver's thread, running a function of the program? */
bool callback_running(void);
void callback_forget(void); /* in the child of a fork: the thread is gone */

#endif
