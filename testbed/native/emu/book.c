#include "book.h"

static uint64_t left(const struct card_book *book, const uint64_t *ready, unsigned int slot)
{
    /* A slot that was given to another process may show less than it was granted. */
    return ready[slot] > book->granted_ns[slot] ? ready[slot] - book->granted_ns[slot] : 0;
}

unsigned int book_waiting(const struct card_book *book, const uint64_t *ready,
                          unsigned int count)
{
    unsigned int waiting = 0;
    for (unsigned int i = 0; i < count; i++)
        waiting += left(book, ready, i) > 0;
    return waiting;
}

static void record(struct card_book *book, uint64_t granted, unsigned int slot)
{
    /* With more than CARD_CLOSED slots sharing, some segments are left out: their owners
     * see a gap in the numbers and interpolate. */
    if (book->fresh < CARD_CLOSED)
        book->closed[book->fresh++] =
            (struct card_segment){book->open_ns, book->time_ns, granted, slot};
    book->segments++;
}

/* --- time slices ------------------------------------------------------------------------ */

static void close_turn(struct card_book *book)
{
    if (book->working != 0 && book->time_ns > book->open_ns)
        record(book, book->time_ns - book->open_ns, book->holder - 1);
    book->working = 0;
}

/* Whose turn is next: round robin, the present holder last. */
static int next_turn(const struct card_book *book, const uint64_t *ready, unsigned int count)
{
    for (unsigned int i = 0; i < count; i++) {
        unsigned int slot = (book->holder + i) % count; /* holder is the slot + 1 */
        if (left(book, ready, slot) > 0)
            return (int)slot;
    }
    return BOOK_NOBODY;
}

static void begin_turn(struct card_book *book, unsigned int slot, const struct book_rules *rules)
{
    bool changes = book->holder != 0 && book->holder != slot + 1;
    book->switched_ns = book->time_ns + (changes ? rules->switch_ns : 0);
    book->open_ns = book->switched_ns;
    book->turn_end_ns = book->switched_ns + rules->slice_ns;
    book->holder = slot + 1;
    book->working = 1;
}

static uint64_t least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

static bool step_slices(struct card_book *book, const uint64_t *ready, unsigned int count,
                        const struct book_rules *rules, uint64_t until, int watched)
{
    while (book->time_ns < until && book->fresh < CARD_CLOSED) {
        unsigned int slot = book->holder - 1;
        uint64_t rest = book->working != 0 ? left(book, ready, slot) : 0;
        if (rest == 0) {
            close_turn(book);
            int next = next_turn(book, ready, count);
            if (next == BOOK_NOBODY) {
                book->time_ns = until;
                break;
            }
            begin_turn(book, (unsigned int)next, rules);
            continue;
        }
        if (book->time_ns < book->switched_ns) {
            book->time_ns = least(until, book->switched_ns);
            continue;
        }
        uint64_t end = least(least(until, book->turn_end_ns), book->time_ns + rest);
        book->granted_ns[slot] += end - book->time_ns;
        book->time_ns = end;
        if ((int)slot == watched && left(book, ready, slot) == 0)
            return true;
        if (end == book->turn_end_ns) {
            int next = next_turn(book, ready, count);
            if (next == BOOK_NOBODY || (unsigned int)next == slot) {
                book->turn_end_ns += rules->slice_ns; /* nobody waits: no switch */
            } else {
                close_turn(book);
                begin_turn(book, (unsigned int)next, rules);
            }
        }
    }
    return false;
}

/* --- processor sharing --------------------------------------------------------------------- */

static void close_shares(struct card_book *book)
{
    if (book->working != 0 && book->time_ns > book->open_ns)
        for (unsigned int slot = 0; slot < CARD_MAX_SLOTS; slot++)
            if ((book->sharing[slot / 64] >> slot % 64 & 1) != 0)
                record(book, (book->time_ns - book->open_ns) / book->working, slot);
}

static bool step_sharing(struct card_book *book, const uint64_t *ready, unsigned int count,
                         uint64_t until, int watched)
{
    while (book->time_ns < until) {
        uint64_t sharing[CARD_MAX_SLOTS / 64] = {0}, rest = UINT64_MAX;
        unsigned int working = 0;
        for (unsigned int slot = 0; slot < count; slot++) {
            uint64_t own = left(book, ready, slot);
            if (own == 0)
                continue;
            sharing[slot / 64] |= 1ull << slot % 64;
            rest = least(rest, own);
            working++;
        }
        bool same = working == book->working;
        for (unsigned int i = 0; i < CARD_MAX_SLOTS / 64; i++)
            same = same && sharing[i] == book->sharing[i];
        if (!same) {
            if (book->fresh > 0 && book->fresh + book->working > CARD_CLOSED)
                return false; /* no room: in the next step */
            close_shares(book);
            for (unsigned int i = 0; i < CARD_MAX_SLOTS / 64; i++)
                book->sharing[i] = sharing[i];
            book->working = working;
            book->open_ns = book->time_ns;
        }
        if (working == 0) {
            book->time_ns = until;
            return false;
        }
        /* Whole nanoseconds for each: time moves on in steps of `working`. */
        uint64_t each = least((until - book->time_ns) / working, rest);
        if (each == 0)
            return false;
        for (unsigned int slot = 0; slot < count; slot++)
            if ((sharing[slot / 64] >> slot % 64 & 1) != 0)
                book->granted_ns[slot] += each;
        book->time_ns += each * working;
        if (watched != BOOK_NOBODY && (sharing[watched / 64] >> watched % 64 & 1) != 0 &&
            left(book, ready, (unsigned int)watched) == 0)
            return true;
    }
    return false;
}

bool book_step(struct card_book *book, const uint64_t *ready, unsigned int count,
               const struct book_rules *rules, uint64_t until, int watched)
{
    book->fresh = 0;
    while (book->slots < count)
        book->granted_ns[book->slots++] = 0;
    if (count == 0) {
        book->time_ns = until > book->time_ns ? until : book->time_ns;
        return false;
    }
    return rules->sharing ? step_sharing(book, ready, count, until, watched)
                          : step_slices(book, ready, count, rules, until, watched);
}
