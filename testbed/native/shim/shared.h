/* The shared region of the container: finding it, its locks, and this process's record.
 *
 * Everything here is called with the process's own lock held (account.c). */
#ifndef VGPU_SHIM_SHARED_H
#define VGPU_SHIM_SHARED_H

#include <stdbool.h>

#include "limits.h"
#include "region.h"

/* Maps the region and copies the limits; a private one (shared with forked children
 * only) where the container has none but its environment has limits. */
void vgpu_shared_open(struct vgpu_limits *limits);

/* After fork, in the child: forget the parent's record; it claims its own when needed. */
void vgpu_shared_forked(void);

/* Makes sure that this process has a record and holds its lock, also after a program
 * closed all its descriptors. `holdings` is written into a newly claimed record. False
 * where that is impossible. */
bool vgpu_shared_join(const struct vgpu_device_use holdings[VGPU_MAX_DEVICES]);

/* The same as far as can be told at once: the descriptor is looked at, and whether somebody took
 * the record back; that the record's lock still holds is taken for granted for 10 ms. False =
 * vgpu_shared_join is to tell. */
bool vgpu_shared_present(void);

/* The lock of a device's check and charge, between processes. */
bool vgpu_shared_lock(int device);
void vgpu_shared_unlock(int device);

/* What all other processes hold. `sweep` first takes back the records of dead ones. */
uint64_t vgpu_shared_others(int device, bool sweep);

/* The largest context that any process of the container reported, 0 = none yet. */
uint64_t vgpu_shared_context_bytes(int device);

/* Writes this process's figures of one device (and HAMi's mirror). */
void vgpu_shared_publish(int device, const struct vgpu_device_use *use);

void vgpu_shared_denied(int device);

/* The living processes of the container that hold something of a device; how many there are. */
struct vgpu_member {
    uint32_t pid; /* in our PID namespace */
    uint64_t bytes;
};
int vgpu_shared_members(int device, struct vgpu_member members[VGPU_MAX_PROCESSES]);

/* What the card counts for the container beyond what its processes do, as the monitor's
 * readings show it. `sum` is the processes' present figure. The second is
 * called under the device's accounting lock; the third whenever the sum has changed. */
bool vgpu_shared_new_reading(int device); /* of the monitor's, not yet taken */
uint64_t vgpu_shared_unexplained(int device, uint64_t sum);
uint64_t vgpu_shared_unexplained_known(int device); /* without a new reading; needs no lock */
void vgpu_shared_summed(int device, uint64_t sum);

/* For the compute side, which takes no lock of the region: every word is atomic by itself.
 * NULL where nothing is shared. These two may be called without the process's lock. */
struct vgpu_extension *vgpu_shared_extension(void);
struct vgpu_process_record *vgpu_shared_record(void); /* this process's, NULL while it has none */

/* What the container's own work takes of the device's time, per mille, as the monitor saw it last;
 * false where it has said nothing for two seconds. Needs no lock either. */
bool vgpu_shared_own_use(int device, uint32_t *per_mille);

/* Takes the compute limits anew where the region's constant part was changed and is valid;
 * false where nothing changed. `seen` is the checksum that the caller knows. */
bool vgpu_shared_compute(struct vgpu_limits *limits, uint64_t *seen);
bool vgpu_shared_memory(struct vgpu_limits *limits, uint64_t *seen); /* the memory limits */

#endif
