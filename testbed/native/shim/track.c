#define _GNU_SOURCE
#include "track.h"

#include <string.h>

#include "sys.h"

#define EMPTY 0
#define DELETED 1

static struct table {
    struct vgpu_item *items; /* mapped pages: malloc may be anybody's */
    uint64_t capacity;       /* a power of two */
    uint64_t filled;         /* used and deleted places */
    uint64_t used;
} tables[VGPU_KINDS];

static uint64_t place(const struct table *table, uint64_t key) {
    return (key * 0x9e3779b97f4a7c15ull >> 17) & (table->capacity - 1);
}

static struct vgpu_item *find(const struct table *table, uint64_t key) {
    if (table->capacity == 0 || key <= DELETED) return NULL;
    for (uint64_t i = place(table, key);; i = (i + 1) & (table->capacity - 1)) {
        if (table->items[i].key == key) return &table->items[i];
        if (table->items[i].key == EMPTY) return NULL;
    }
}

static void put(struct table *table, struct vgpu_item item) {
    uint64_t i = place(table, item.key);
    while (table->items[i].key > DELETED) i = (i + 1) & (table->capacity - 1);
    if (table->items[i].key == EMPTY) table->filled++;
    table->items[i] = item;
    table->used++;
}

/* Keeps the table at most half full, deleted places included. */
static bool room(struct table *table) {
    if ((table->filled + 1) * 2 <= table->capacity) return true;
    uint64_t capacity = 256;
    while (capacity < (table->used + 1) * 4) capacity *= 2;
    struct table next = {.capacity = capacity};
    next.items = vgpu_map(capacity * sizeof *next.items, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS, -1);
    if (next.items == NULL) return false;
    for (uint64_t i = 0; i < table->capacity; i++)
        if (table->items[i].key > DELETED) put(&next, table->items[i]);
    if (table->items != NULL) vgpu_unmap(table->items, table->capacity * sizeof *table->items);
    *table = next;
    return true;
}

bool vgpu_track(enum vgpu_kind kind, struct vgpu_item item) {
    struct table *table = &tables[kind];
    struct vgpu_item *old = find(table, item.key);
    if (old != NULL) {
        *old = item;
        return true;
    }
    if (item.key <= DELETED || !room(table)) return false;
    put(table, item);
    return true;
}

bool vgpu_untrack(enum vgpu_kind kind, uint64_t key, struct vgpu_item *item) {
    struct vgpu_item *found = find(&tables[kind], key);
    if (found == NULL) return false;
    *item = *found;
    found->key = DELETED;
    tables[kind].used--;
    return true;
}

struct vgpu_item *vgpu_tracked(enum vgpu_kind kind, uint64_t key) {
    return find(&tables[kind], key);
}

void vgpu_track_each(enum vgpu_kind kind, bool (*visit)(struct vgpu_item *item, void *data),
                     void *data) {
    struct table *table = &tables[kind];
    for (uint64_t i = 0; i < table->capacity; i++)
        if (table->items[i].key > DELETED && visit(&table->items[i], data)) {
            table->items[i].key = DELETED;
            table->used--;
        }
}

void vgpu_track_forget(void) {
    /* The parent may have been inside: nothing in here can be trusted, not even to be
     * given back. The pages are lost to the child, which hardly ever gets here. */
    memset(tables, 0, sizeof tables);
}
