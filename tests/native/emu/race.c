/* One of several processes that allocate and free at the same time. Each counts in a book
 * of the test's own: after it got memory, and before it gives it back; so the book never
 * tells more than is in use, and a book above the card's capacity is a violation.
 *
 * race <state of the card> <book> <how many racers> <rounds> <seed> <part>
 * allocates up to 1/part of the card at a time. */
#include "card.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

#define DEADLINE_S 50

typedef int (*any)();

struct book {
    int64_t used;
    uint64_t arrived, successes, refusals, violations;
};

static any find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL)
        exit(3);
    any function;
    *(void **)&function = symbol;
    return function;
}

static void *map(const char *path, size_t bytes, int protection)
{
    int fd = open(path, protection & PROT_WRITE ? O_RDWR : O_RDONLY);
    void *start = mmap(NULL, bytes, protection, MAP_SHARED, fd, 0);
    if (fd < 0 || start == MAP_FAILED)
        exit(5);
    return start;
}

static uint64_t next(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

int main(int count, char **arguments)
{
    if (count != 7)
        return 4;
    struct card_state *state = map(arguments[1], sizeof *state, PROT_READ);
    struct book *book = map(arguments[2], sizeof *book, PROT_READ | PROT_WRITE);
    uint64_t racers = strtoull(arguments[3], NULL, 10);
    uint64_t seed = strtoull(arguments[5], NULL, 10) * 0x9e3779b97f4a7c15ull + 1;
    uint64_t part = strtoull(arguments[6], NULL, 10);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return 5;
    time_t end = time(NULL) + DEADLINE_S;
    void *context = NULL;
    if (find(library, "cuInit")(0) != 0)
        return 6;
    any retain = find(library, "cuDevicePrimaryCtxRetain");
    while (retain(&context, 0) != 0) /* the others may have all of the card just now */
        if (time(NULL) > end)
            return 6;
    if (find(library, "cuCtxSetCurrent")(context) != 0)
        return 6;
    any allocate = find(library, "cuMemAlloc_v2"), release = find(library, "cuMemFree_v2");
    int64_t capacity =
        (int64_t)(state->description.memory_bytes - state->description.reserved_bytes);
    uint64_t most = (uint64_t)capacity / CARD_GRANULE / part;
    __atomic_add_fetch(&book->used, (int64_t)state->description.context_bytes, __ATOMIC_SEQ_CST);
    __atomic_add_fetch(&book->arrived, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&book->arrived, __ATOMIC_SEQ_CST) < racers)
        if (time(NULL) > end)
            return 8;

    struct {
        unsigned long long pointer;
        size_t bytes;
    } held[4];
    int holding = 0;
    for (long turn = atol(arguments[4]); turn > 0; turn--) {
        size_t bytes = (1 + next(&seed) % most) * CARD_GRANULE;
        if (holding == 4 || (holding > 0 && next(&seed) % 2 == 0)) {
            int which = (int)(next(&seed) % (uint64_t)holding);
            __atomic_sub_fetch(&book->used, (int64_t)held[which].bytes, __ATOMIC_SEQ_CST);
            if (release(held[which].pointer) != 0)
                return 7;
            held[which] = held[--holding];
        } else if (allocate(&held[holding].pointer, bytes) == 0) {
            int64_t now = __atomic_add_fetch(&book->used, (int64_t)bytes, __ATOMIC_SEQ_CST);
            if (now > capacity)
                __atomic_add_fetch(&book->violations, 1, __ATOMIC_SEQ_CST);
            __atomic_add_fetch(&book->successes, 1, __ATOMIC_SEQ_CST);
            held[holding++].bytes = bytes;
        } else {
            __atomic_add_fetch(&book->refusals, 1, __ATOMIC_SEQ_CST);
            if (time(NULL) > end)
                return 9;
        }
    }
    while (holding > 0) {
        holding--;
        __atomic_sub_fetch(&book->used, (int64_t)held[holding].bytes, __ATOMIC_SEQ_CST);
        if (release(held[holding].pointer) != 0)
            return 7;
    }
    /* The context ends with the process. */
    __atomic_sub_fetch(&book->used, (int64_t)state->description.context_bytes, __ATOMIC_SEQ_CST);
    return 0;
}
