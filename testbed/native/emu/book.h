/* How a card's time is shared out: pure functions on a book (card.h). No I/O, no clock.
 *
 * All processes that use the card run the same functions on the same values, so it does
 * not matter who moves time on, nor when.
 */
#ifndef VGPU_EMU_BOOK_H
#define VGPU_EMU_BOOK_H

#include "card.h"

#include <stdbool.h>

struct book_rules {
    bool sharing;       /* processor sharing instead of time slices */
    uint64_t slice_ns;  /* a turn, while others wait */
    uint64_t switch_ns; /* from one slot's work to another's; nobody's time */
};

#define BOOK_NOBODY (-1)

/* Moves `book` on towards `until`. `ready[i]` is the device time that slot i has asked
 * for, ever, on the scale of granted_ns; `count` slots, at least book->slots.
 * Stops early, with room for what comes next, when `closed` is full; when `watched`
 * (a slot, or BOOK_NOBODY) has had all that it asked for; and with processor sharing
 * less than `count` ns before `until`. Clears `fresh` first.
 * Returns true if it stopped because of `watched`. */
bool book_step(struct card_book *book, const uint64_t *ready, unsigned int count,
               const struct book_rules *rules, uint64_t until, int watched);

/* How many slots have work. */
unsigned int book_waiting(const struct card_book *book, const uint64_t *ready,
                          unsigned int count);

/* Bytes of a book that are in use up to the entries of granted_ns. */
#define BOOK_HEAD_BYTES offsetof(struct card_book, closed)

#endif
