#define _GNU_SOURCE
#include "clock.h"

#include <string.h>
#include <time.h>

#define ALIVE_NS 20000000ull /* for that long a process that was seen counts as alive */
#define CLOSE_ENOUGH CARD_MAX_SLOTS /* ns; processor sharing moves in steps of so many */

void clock_open(struct clock *clock, struct card_state *state, struct lockfile *locks)
{
    const struct card_description *card = &state->description;
    memset(clock, 0, sizeof *clock);
    clock->state = state;
    clock->locks = locks;
    clock->rules = (struct book_rules){
        .sharing = card->clock_mode == CARD_CLOCK_SHARING,
        .slice_ns = card->time_slice_us > 0 ? card->time_slice_us * 1000ull : 2000000,
        .switch_ns = card->switch_ns,
    };
    clock->period_ns = card->sample_period_us > 0 ? card->sample_period_us * 1000ull : 166667000;
}

static void copy_book(struct card_book *to, const struct card_book *from)
{
    memcpy(to, from, BOOK_HEAD_BYTES);
    /* Torn counts only make the caller try again, if they stay inside. */
    if (to->fresh > CARD_CLOSED)
        to->fresh = CARD_CLOSED;
    if (to->slots > CARD_MAX_SLOTS)
        to->slots = CARD_MAX_SLOTS;
    memcpy(to->closed, from->closed, to->fresh * sizeof to->closed[0]);
    memcpy(to->granted_ns, from->granted_ns, to->slots * sizeof to->granted_ns[0]);
}

uint64_t clock_read(const struct card_state *state, struct card_book *book)
{
    for (;;) {
        uint64_t current = __atomic_load_n(&state->current, __ATOMIC_ACQUIRE);
        copy_book(book, &state->books[card_current_book(current)]);
        __atomic_thread_fence(__ATOMIC_ACQUIRE);
        if (__atomic_load_n(&state->current, __ATOMIC_RELAXED) == current)
            return current;
    }
}

/* --- what slots ask for ----------------------------------------------------------------- */

static bool owner_lives(struct clock *clock, unsigned int slot)
{
    if (clock->locks == NULL)
        return true;
    uint64_t now = emu_now_ns();
    if (now - clock->looked_ns[slot] < ALIVE_NS)
        return true;
    if (!lockfile_ready(clock->locks) || lockfile_owner(clock->locks, slot) >= 0) {
        clock->looked_ns[slot] = now;
        return true;
    }
    return false;
}

static unsigned int gather(struct clock *clock, int own, const struct card_book *book,
                           uint64_t ready[CARD_MAX_SLOTS], bool writable)
{
    struct card_state *state = clock->state;
    unsigned int count = (unsigned int)emu_card_slots(state);
    if (count < book->slots)
        count = book->slots;
    for (unsigned int i = 0; i < count; i++) {
        struct card_slot *slot = &state->slots[i];
        uint64_t generation = __atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE);
        ready[i] = 0;
        if ((generation & 1) == 0 ||
            ((int)i != own && __atomic_load_n(&slot->gone, __ATOMIC_RELAXED) == generation))
            continue;
        uint64_t submitted = __atomic_load_n(&slot->submitted_ns, __ATOMIC_ACQUIRE);
        bool works = submitted > (i < book->slots ? book->granted_ns[i] : 0);
        if (works && (int)i != own && !owner_lives(clock, i)) {
            if (writable)
                __atomic_store_n(&slot->gone, generation, __ATOMIC_RELAXED);
            continue;
        }
        ready[i] = submitted;
    }
    return count;
}

/* --- the past ---------------------------------------------------------------------------- */

/* Before a book is replaced, what it closed goes to the ring: everybody writes the same. */
static void keep_segments(struct card_state *state, const struct card_book *book)
{
    for (uint32_t i = 0; i < book->fresh; i++) {
        uint64_t number = book->segments - book->fresh + i;
        struct card_record *record = &state->ring[number % CARD_RING];
        struct card_record made = {.sequence = number + 1, .segment = book->closed[i]};
        made.check = card_record_check(&made);
        if (memcmp(record, &made, sizeof made) != 0)
            *(volatile struct card_record *)record = made;
    }
}

bool clock_segment(const struct card_state *state, uint64_t number, struct card_segment *segment)
{
    struct card_record record = state->ring[number % CARD_RING];
    if (record.sequence != number + 1 || record.check != card_record_check(&record))
        return false;
    *segment = record.segment;
    return true;
}

static void keep_row(struct clock *clock, uint64_t number, const struct card_book *book)
{
    struct card_row *row = &clock->state->rows[number % CARD_ROWS];
    if (__atomic_load_n(&row->number, __ATOMIC_RELAXED) >= number)
        return; /* we were late, and the row is a newer one's */
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    uint64_t real_ns = (uint64_t)real.tv_sec * 1000000000ull + (uint64_t)real.tv_nsec;
    __atomic_store_n(&row->number, 0, __ATOMIC_RELAXED);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    row->stamp_us = (real_ns - (emu_now_ns() - number * clock->period_ns)) / 1000;
    row->slots = book->slots;
    memcpy(row->granted_ns, book->granted_ns, book->slots * sizeof row->granted_ns[0]);
    __atomic_store_n(&row->number, number, __ATOMIC_RELEASE);
}

/* --- moving on ----------------------------------------------------------------------------- */

/* Within how many ns of a time the card is at it. */
static uint64_t near_enough(const struct clock *clock)
{
    return clock->rules.sharing ? CLOSE_ENOUGH : 0;
}

/* One step of a book, to the end of its sampling period at most; *number is set where the
 * step ended one, else 0. */
static bool one_step(const struct clock *clock, struct card_book *book, const uint64_t *ready,
                     unsigned int count, uint64_t until, int watched, uint64_t *number)
{
    uint64_t period = clock->period_ns, near = near_enough(clock);
    uint64_t boundary = ((book->time_ns + near) / period + 1) * period;
    /* Where nothing happens, periods in between say nothing. */
    if (book->time_ns % period == 0 && book_waiting(book, ready, count) == 0 &&
        until / period * period > boundary)
        boundary = until / period * period;
    uint64_t target = until < boundary ? until : boundary;
    bool stopped = book_step(book, ready, count, &clock->rules, target, watched);
    /* Wherever the step was to end, and why ever it did: the next one looks for the next end. */
    *number = book->time_ns + near >= boundary ? boundary / period : 0;
    return stopped;
}

static bool there(const struct clock *clock, const struct card_book *book, uint64_t until)
{
    return book->time_ns + near_enough(clock) >= until;
}

bool clock_advance(struct clock *clock, unsigned int own, uint64_t until, int watched,
                   struct card_book *book)
{
    struct card_state *state = clock->state;
    uint64_t current = clock_read(state, book);
    while (!there(clock, book, until)) {
        uint64_t ready[CARD_MAX_SLOTS], number;
        unsigned int count = gather(clock, (int)own, book, ready, true);
        keep_segments(state, book);
        uint64_t before = book->time_ns;
        bool stopped = one_step(clock, book, ready, count, until, watched, &number);
        if (book->time_ns == before && book->fresh == 0)
            return stopped;
        unsigned int place = card_current_book(current) == 2 * own ? 1 : 0;
        copy_book(&state->books[2 * own + place], book);
        uint64_t next = card_current(card_current_version(current) + 1, own, place);
        if (!__atomic_compare_exchange_n(&state->current, &current, next, false,
                                         __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            current = clock_read(state, book);
            continue;
        }
        current = next;
        if (number != 0)
            keep_row(clock, number, book);
        if (stopped)
            return true;
    }
    return false;
}

void clock_view(struct clock *clock, uint64_t until, int own, struct card_book *book,
                void (*tell)(void *data, uint64_t number, const struct card_book *book),
                void *data)
{
    clock_read(clock->state, book);
    while (!there(clock, book, until)) {
        uint64_t ready[CARD_MAX_SLOTS], number, before = book->time_ns;
        unsigned int count = gather(clock, own, book, ready, false);
        one_step(clock, book, ready, count, until, BOOK_NOBODY, &number);
        if (number != 0 && tell != NULL)
            tell(data, number, book);
        if (book->time_ns == before && book->fresh == 0)
            break;
    }
}
