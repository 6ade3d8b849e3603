/* Runs emu/book.c for test_book.py: a line of numbers in, the book out. */
#include "book.h"

#include <inttypes.h>
#include <stdio.h>

static struct card_book book;

static void say(bool stopped)
{
    printf("%d %" PRIu64 " %" PRIu64 " %u", stopped, book.time_ns, book.segments, book.fresh);
    for (uint32_t i = 0; i < book.fresh; i++)
        printf(" %" PRIu64 " %" PRIu64 " %" PRIu64 " %" PRIu64, book.closed[i].start_ns,
               book.closed[i].end_ns, book.closed[i].granted_ns, book.closed[i].slot);
    for (uint32_t i = 0; i < book.slots; i++)
        printf(" %" PRIu64, book.granted_ns[i]);
    printf("\n");
    fflush(stdout);
}

int main(void)
{
    struct book_rules rules;
    unsigned int sharing, count;
    uint64_t ready[CARD_MAX_SLOTS], until;
    int watched;
    if (scanf("%u %" SCNu64 " %" SCNu64, &sharing, &rules.slice_ns, &rules.switch_ns) != 3)
        return 1;
    rules.sharing = sharing != 0;
    while (scanf("%" SCNu64 " %d %u", &until, &watched, &count) == 3) {
        for (unsigned int i = 0; i < count; i++)
            if (scanf("%" SCNu64, &ready[i]) != 1)
                return 1;
        say(book_step(&book, ready, count, &rules, until, watched));
    }
    return 0;
}
