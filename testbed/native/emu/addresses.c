/* Address ranges of freed device memory, kept for the next allocation of the same size:
 * a map and an unmap cost more than all the rest of an allocation. Their pages are not
 * touched, so keeping them costs the host only address space, which is bounded here.
 *
 * Found by size in a table of chains, newest first; the oldest goes when there are too
 * many. The driver's lock is held.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <sys/mman.h>

#define MOST_ENTRIES 512
#define MOST_BYTES (128ull << 30)
#define CHAINS 256
#define NONE 0xffff

struct waiting {
    void *start;
    size_t bytes;
    uint16_t newer, older;          /* of all */
    uint16_t chain_next, chain_prev; /* of its chain; or the next free entry */
};

static struct waiting entries[MOST_ENTRIES];
static uint16_t chains[CHAINS];
static uint16_t newest = NONE, oldest = NONE, first_free = NONE;
static uint64_t waiting_bytes;
static bool ready;

static void prepare(void)
{
    for (int i = 0; i < CHAINS; i++)
        chains[i] = NONE;
    for (int i = 0; i < MOST_ENTRIES; i++)
        entries[i].chain_next = (uint16_t)(i + 1 < MOST_ENTRIES ? i + 1 : NONE);
    first_free = 0;
    ready = true;
}

static unsigned int chain_of(size_t bytes)
{
    return (unsigned int)((bytes / CARD_PAGE * 0x9e3779b97f4a7c15ull) >> 56);
}

static void unlink_entry(uint16_t i)
{
    struct waiting *entry = &entries[i];
    *(entry->newer == NONE ? &newest : &entries[entry->newer].older) = entry->older;
    *(entry->older == NONE ? &oldest : &entries[entry->older].newer) = entry->newer;
    *(entry->chain_prev == NONE ? &chains[chain_of(entry->bytes)]
                                : &entries[entry->chain_prev].chain_next) = entry->chain_next;
    if (entry->chain_next != NONE)
        entries[entry->chain_next].chain_prev = entry->chain_prev;
    waiting_bytes -= entry->bytes;
    entry->chain_next = first_free;
    first_free = i;
}

static void drop_oldest(void)
{
    struct waiting entry = entries[oldest];
    unlink_entry(oldest);
    munmap(entry.start, entry.bytes);
}

void addresses_flush(void)
{
    while (oldest != NONE)
        drop_oldest();
}

void *addresses_take(size_t bytes, size_t align)
{
    if (!ready)
        prepare();
    for (uint16_t i = chains[chain_of(bytes)]; i != NONE; i = entries[i].chain_next)
        if (entries[i].bytes == bytes && (uintptr_t)entries[i].start % align == 0) {
            unlink_entry(i);
            return entries[i].start;
        }
    void *start = pages_map(bytes, align, PROT_READ | PROT_WRITE);
    if (start == NULL && oldest != NONE) { /* ulimit -v, vm.max_map_count */
        addresses_flush();
        start = pages_map(bytes, align, PROT_READ | PROT_WRITE);
    }
    return start;
}

void addresses_give(void *start, size_t bytes)
{
    if (!ready)
        prepare();
    if (bytes > MOST_BYTES) {
        munmap(start, bytes);
        return;
    }
    while (first_free == NONE || waiting_bytes + bytes > MOST_BYTES)
        drop_oldest();
    uint16_t i = first_free;
    struct waiting *entry = &entries[i];
    first_free = entry->chain_next;
    unsigned int chain = chain_of(bytes);
    *entry = (struct waiting){start, bytes, NONE, newest, chains[chain], NONE};
    if (newest != NONE)
        entries[newest].newer = i;
    newest = i;
    if (oldest == NONE)
        oldest = i;
    if (chains[chain] != NONE)
        entries[chains[chain]].chain_prev = i;
    chains[chain] = i;
    waiting_bytes += bytes;
}
