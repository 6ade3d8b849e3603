/* Allocates more than half of the card, again and again, and looks each time whether all
 * slots together pass what the card has. Prints successes and violations. */
#include "card.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

typedef int (*any)();

static any find(void *library, const char *name)
{
    void *symbol = dlsym(library, name);
    if (symbol == NULL)
        exit(3);
    any function;
    *(void **)&function = symbol;
    return function;
}

int main(int count, char **arguments)
{
    if (count != 3)
        return 4;
    int fd = open(arguments[1], O_RDONLY);
    struct card_state *state =
        mmap(NULL, sizeof *state, PROT_READ, MAP_SHARED, fd, 0);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (state == MAP_FAILED || library == NULL)
        return 5;
    int device = 0;
    void *context = NULL;
    if (find(library, "cuInit")(0) != 0 ||
        find(library, "cuDevicePrimaryCtxRetain")(&context, device) != 0 ||
        find(library, "cuCtxSetCurrent")(context) != 0)
        return 6;
    any allocate = find(library, "cuMemAlloc_v2"), release = find(library, "cuMemFree_v2");
    uint64_t capacity = state->description.memory_bytes - state->description.reserved_bytes;
    size_t bytes = (size_t)(capacity / 2);
    /* Together from the start: wait until the other one is there. */
    while (__atomic_load_n(&state->slot_count, __ATOMIC_ACQUIRE) < 2)
        ;
    long successes = 0, violations = 0;
    for (long turn = atol(arguments[2]); turn > 0; turn--) {
        unsigned long long pointer;
        if (allocate(&pointer, bytes) != 0)
            continue;
        successes++;
        uint64_t sum = 0;
        for (int i = 0; i < 2; i++)
            sum += card_memory_used(__atomic_load_n(&state->slots[i].memory, __ATOMIC_ACQUIRE)) +
                   __atomic_load_n(&state->slots[i].context_bytes, __ATOMIC_ACQUIRE);
        violations += sum > capacity;
        if (release(pointer) != 0)
            return 7;
    }
    printf("%ld %ld\n", successes, violations);
    return 0;
}
