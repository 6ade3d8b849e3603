/* What the driver's handles cost: a table from handle to charge. Called with the
 * library's state entered. */
#ifndef VGPU_SHIM_TRACK_H
#define VGPU_SHIM_TRACK_H

#include <stdbool.h>
#include <stdint.h>

#include "account.h"

enum vgpu_kind {
    VGPU_POINTER,
    VGPU_ARRAY,
    VGPU_CONTEXT,
    VGPU_PHYSICAL, /* key: a serial number of ours; handles and mappings point to it */
    VGPU_HANDLE,
    VGPU_MAPPING,
    VGPU_EXEC, /* executable graphs with memory nodes; key: the handle, plus a number by device */
    VGPU_KINDS
};

struct vgpu_item {
    uint64_t key; /* 0 = empty, 1 = deleted */
    int entry;
    struct vgpu_cost cost;
    uint64_t context; /* destroying it destroys the item; 0 = belongs to none */
    uint64_t link;    /* VGPU_HANDLE, VGPU_MAPPING: key of the physical allocation; VGPU_EXEC: device */
    uint64_t bytes;   /* VGPU_MAPPING: length; VGPU_EXEC: of its memory nodes */
    uint32_t handles; /* VGPU_PHYSICAL: how often the program holds it; VGPU_CONTEXT: beyond once */
    uint32_t maps;    /* VGPU_PHYSICAL: how often it is mapped; VGPU_EXEC: launched since a trim */
};

/* False where there is no memory for it. Replaces an item of the same key. */
bool vgpu_track(enum vgpu_kind kind, struct vgpu_item item);
bool vgpu_untrack(enum vgpu_kind kind, uint64_t key, struct vgpu_item *item);
struct vgpu_item *vgpu_tracked(enum vgpu_kind kind, uint64_t key);

/* Visits every item; the visitor's true removes it. */
void vgpu_track_each(enum vgpu_kind kind, bool (*visit)(struct vgpu_item *item, void *data),
                     void *data);

void vgpu_track_forget(void); /* in a forked child */

#endif
