/* The process's address space as the driver knows it, and the host pages behind it. */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct space memory;

static uint64_t last_id;

/* Index of the first range that starts after the address. */
static size_t after(const struct space *space, uintptr_t address)
{
    size_t low = 0, high = space->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (space->ranges[middle]->start <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct range *space_find(const struct space *space, uintptr_t address)
{
    size_t i = after(space, address);
    if (i == 0)
        return NULL;
    struct range *range = space->ranges[i - 1];
    return address - range->start < range->bytes ? range : NULL;
}

struct range *space_next(const struct space *space, uintptr_t address)
{
    size_t i = after(space, address);
    if (i > 0 && space->ranges[i - 1]->start == address)
        return space->ranges[i - 1];
    return i < space->count ? space->ranges[i] : NULL;
}

CUresult space_add(struct space *space, struct range *range)
{
    if (space->count == space->room) {
        size_t room = space->room == 0 ? 256 : space->room * 2;
        struct range **grown = realloc(space->ranges, room * sizeof *grown);
        if (grown == NULL) {
            free(range);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        space->ranges = grown;
        space->room = room;
    }
    size_t i = after(space, range->start);
    memmove(&space->ranges[i + 1], &space->ranges[i], (space->count - i) * sizeof range);
    space->ranges[i] = range;
    space->count++;
    range->id = ++last_id;
    return CUDA_SUCCESS;
}

void space_remove(struct space *space, struct range *range)
{
    size_t i = after(space, range->start) - 1;
    memmove(&space->ranges[i], &space->ranges[i + 1], (space->count - i - 1) * sizeof range);
    space->count--;
    free(range);
}

bool range_on_device(const struct range *range)
{
    return range->kind == RANGE_DEVICE || range->kind == RANGE_POOL ||
           range->kind == RANGE_MAPPED || range->kind == RANGE_MANAGED ||
           range->kind == RANGE_ARRAY || range->kind == RANGE_IPC;
}

void *pages_map(size_t bytes, size_t align, int protection)
{
    size_t room = bytes + (align > CARD_PAGE ? align : 0);
    if (room < bytes)
        return NULL;
    char *map = mmap(NULL, room, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (map == MAP_FAILED) {
        emu_log(EMU_LOG_ERROR, "%zu bytes of address space: %s (ulimit -v?)", room,
                strerror(errno));
        return NULL;
    }
    char *start = (char *)emu_round_up((uintptr_t)map, align > CARD_PAGE ? align : CARD_PAGE);
    if (start > map)
        munmap(map, (size_t)(start - map));
    if (map + room > start + bytes)
        munmap(start + bytes, (size_t)(map + room - (start + bytes)));
    /* One touched byte shall cost one page, as the budget counts it, not two MiB. */
    madvise(start, bytes, MADV_NOHUGEPAGE);
    return start;
}

/* --- pages ------------------------------------------------------------------- */

void backing_make(struct backing *backing, struct device *device, size_t bytes)
{
    *backing = (struct backing){.device = device,
                                .pages = (bytes + CARD_PAGE - 1) / CARD_PAGE};
}

/* Most memory is freed before a byte of it was written: no table until then. */
static bool make_table(struct backing *backing)
{
    if (backing->touched == NULL)
        backing->touched = calloc((backing->pages + 63) / 64, sizeof(uint64_t));
    return backing->touched != NULL;
}

bool backing_touched(const struct backing *backing, size_t page)
{
    return backing->touched != NULL &&
           (backing->touched[page / 64] >> (page % 64) & 1) != 0;
}

static size_t count_touched(const struct backing *backing, size_t first, size_t last)
{
    size_t count = 0;
    if (backing->touched == NULL)
        return 0;
    if (first < backing->low)
        first = backing->low;
    if (last > backing->high)
        last = backing->high;
    for (size_t page = first; page < last;) {
        if (page % 64 == 0 && last - page >= 64) {
            count += (size_t)__builtin_popcountll(backing->touched[page / 64]);
            page += 64;
        } else {
            count += backing_touched(backing, page);
            page++;
        }
    }
    return count;
}

static void mark(struct backing *backing, size_t first, size_t last, bool value)
{
    if (value && first < last) {
        bool none = backing->high == 0;
        backing->low = none || first < backing->low ? first : backing->low;
        backing->high = last > backing->high ? last : backing->high;
    }
    for (size_t page = first; page < last;) {
        if (page % 64 == 0 && last - page >= 64) {
            backing->touched[page / 64] = value ? ~0ull : 0;
            page += 64;
        } else {
            uint64_t bit = 1ull << (page % 64);
            if (value)
                backing->touched[page / 64] |= bit;
            else
                backing->touched[page / 64] &= ~bit;
            page++;
        }
    }
}

void backing_free(struct backing *backing)
{
    if (backing->touched == NULL)
        return;
    size_t bytes = count_touched(backing, 0, backing->pages) * CARD_PAGE;
    account_resident(backing->device, -(int64_t)bytes);
    free(backing->touched);
    backing->touched = NULL;
    backing->low = backing->high = 0;
}

size_t backing_forget(struct backing *backing, size_t offset, size_t bytes)
{
    size_t first = (offset + CARD_PAGE - 1) / CARD_PAGE;
    size_t last = (offset + bytes) / CARD_PAGE;
    if (first >= last)
        return 0;
    size_t count = count_touched(backing, first, last) * CARD_PAGE;
    if (count == 0)
        return 0;
    mark(backing, first, last, false);
    account_resident(backing->device, -(int64_t)count);
    return count;
}

/* --- ranges of memory ---------------------------------------------------------- */

/* The piece of [address, address + bytes) that lies in one range. */
static struct range *piece(uintptr_t address, size_t bytes, size_t *length)
{
    struct range *range = space_find(&memory, address);
    if (range == NULL)
        return NULL;
    size_t left = range->start + range->bytes - address;
    *length = left < bytes ? left : bytes;
    return range;
}

bool memory_is_device(uintptr_t address, size_t bytes)
{
    while (bytes > 0) {
        size_t length;
        struct range *range = piece(address, bytes, &length);
        if (range == NULL || !range_on_device(range) ||
            (range->kind == RANGE_MAPPED && range->access == CU_MEM_ACCESS_FLAGS_PROT_NONE))
            return false;
        address += length;
        bytes -= length;
    }
    return true;
}

struct pages {
    size_t first, last;
};

static struct pages pages_of(const struct range *range, uintptr_t address, size_t length)
{
    size_t offset = range->backing_offset + (address - range->start);
    return (struct pages){offset / CARD_PAGE, (offset + length + CARD_PAGE - 1) / CARD_PAGE};
}

CUresult memory_touch(uintptr_t address, size_t bytes)
{
    uint64_t missing[EMU_MAX_CARDS] = {0};
    size_t length;
    for (size_t done = 0; done < bytes; done += length) {
        struct range *range = piece(address + done, bytes - done, &length);
        if (range == NULL)
            break; /* the program's own memory */
        if (range->backing == NULL)
            continue;
        if (!make_table(range->backing))
            return CUDA_ERROR_OUT_OF_MEMORY;
        struct pages pages = pages_of(range, address + done, length);
        missing[range->backing->device->ordinal] +=
            (pages.last - pages.first - count_touched(range->backing, pages.first, pages.last)) *
            (uint64_t)CARD_PAGE;
    }
    for (int i = 0; i < device_count; i++) {
        CUresult result = account_resident(&devices[i], (int64_t)missing[i]);
        if (result != CUDA_SUCCESS) {
            while (--i >= 0)
                account_resident(&devices[i], -(int64_t)missing[i]);
            return result;
        }
    }
    for (size_t done = 0; done < bytes; done += length) {
        struct range *range = piece(address + done, bytes - done, &length);
        if (range == NULL)
            break;
        if (range->backing == NULL)
            continue;
        struct pages pages = pages_of(range, address + done, length);
        mark(range->backing, pages.first, pages.last, true);
    }
    return CUDA_SUCCESS;
}

/* Zeroes less than whole pages; an untouched page is zero already. */
static void zero_part(const struct range *range, uintptr_t address, size_t length)
{
    while (length > 0) {
        size_t step = CARD_PAGE - address % CARD_PAGE;
        if (step > length)
            step = length;
        if (range->kind == RANGE_MANAGED || range->backing->shared ||
            backing_touched(range->backing, pages_of(range, address, step).first))
            memset((void *)address, 0, step);
        address += step;
        length -= step;
    }
}

void memory_zero(uintptr_t address, size_t bytes)
{
    size_t length;
    for (size_t done = 0; done < bytes; done += length) {
        uintptr_t at = address + done;
        struct range *range = piece(at, bytes - done, &length);
        if (range == NULL) {
            memset((void *)at, 0, bytes - done);
            return;
        }
        if (range->backing == NULL) {
            memset((void *)at, 0, length);
            continue;
        }
        uintptr_t first = emu_round_up(at, CARD_PAGE);
        uintptr_t last = (at + length) / CARD_PAGE * CARD_PAGE;
        if (first >= last) {
            zero_part(range, at, length);
            continue;
        }
        zero_part(range, at, first - at);
        zero_part(range, last, at + length - last);
        size_t given_back =
            backing_forget(range->backing, range->backing_offset + (first - range->start),
                           last - first);
        /* The program writes to managed memory without our knowledge, other processes to
         * shared memory. */
        if (given_back > 0 || range->kind == RANGE_MANAGED || range->backing->shared)
            madvise((void *)first, last - first,
                    range->kind == RANGE_MAPPED || range->backing->shared ? MADV_REMOVE
                                                                          : MADV_DONTNEED);
    }
}
