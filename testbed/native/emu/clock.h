/* The card's book as processes share it: reading it, moving it on, looking it up.
 *
 * Moving on takes no lock: the next book is written where nobody looks, and one
 * compare-and-swap makes it current. Who dies before has changed nothing, who dies after
 * has nothing left to do.
 */
#ifndef VGPU_EMU_CLOCK_H
#define VGPU_EMU_CLOCK_H

#include "book.h"
#include "cards.h"
#include "lockfile.h"

struct clock {
    struct card_state *state;
    struct lockfile *locks; /* cuda.lock, to tell the dead; may be NULL */
    struct book_rules rules;
    uint64_t period_ns; /* NVML's sampling period */
    uint64_t looked_ns[CARD_MAX_SLOTS]; /* when a slot's owner was last seen alive */
};

void clock_open(struct clock *clock, struct card_state *state, struct lockfile *locks);

/* A consistent copy of the current book; returns `card_state.current` of it. */
uint64_t clock_read(const struct card_state *state, struct card_book *book);

/* Moves the card's time on to `until` (or does nothing where it is there already), in the
 * name of slot `own`, which this process holds. Stops when slot `watched` runs out of
 * work. `book` is the current book afterwards. Returns true if it stopped early. */
bool clock_advance(struct clock *clock, unsigned int own, uint64_t until, int watched,
                   struct card_book *book);

/* The same on a copy that nobody else sees, for readers: what the book would say at `until`.
 * `tell`, if any, is given the book at the end of each sampling period on the way. */
void clock_view(struct clock *clock, uint64_t until, int own, struct card_book *book,
                void (*tell)(void *data, uint64_t number, const struct card_book *book),
                void *data);

/* A closed segment by its number; false: it is not there any more. */
bool clock_segment(const struct card_state *state, uint64_t number,
                   struct card_segment *segment);

#endif
