/* Device memory that several processes map: a file in memory behind a descriptor. The lock
 * is held.
 *
 * The owner alone pays for it on the card. On the host each process counts the pages that
 * it touched itself; that may count a page twice, never too little.
 */
#ifndef VGPU_EMU_SHARING_H
#define VGPU_EMU_SHARING_H

#include "driver.h"

struct sharing {
    int fd; /* -1: none */
    dev_t device;
    ino_t inode; /* the program may close our descriptor and reuse its number */
};

/* What the other process must know: on a page of its own after the memory. */
struct sharing_label {
    uint64_t magic;
    uint64_t bytes;
    uint32_t kind; /* enum range_kind: what it was exported from */
    uint32_t spare;
    char card[96];
    CUmemAllocationProp properties;
};

/* A new file of `bytes` (whole pages) and its label. */
bool sharing_make(struct sharing *sharing, const struct device *device, size_t bytes,
                  enum range_kind kind, const CUmemAllocationProp *properties);
/* Takes a descriptor over; false, and closed, where it is none of ours. */
bool sharing_take(struct sharing *sharing, int fd, struct sharing_label *label);
bool sharing_ready(const struct sharing *sharing);
void sharing_close(struct sharing *sharing);
/* The card of the label among those of this process; NULL: not visible here. */
struct device *sharing_device(const struct sharing_label *label);

#endif
