/* Runs emu/clock.c for test_clock.py: how a card's time moves on, a line each; the rows of NVML's
 * periods out. */
#include "clock.h"

#include <inttypes.h>
#include <stdio.h>

static struct card_state state;

/* What clock.c asks of the rest of the library. There is one process, and it lives. */
uint64_t emu_now_ns(void) { return state.books[card_current_book(state.current)].time_ns; }
bool lockfile_ready(struct lockfile *file) { return file == NULL; }
pid_t lockfile_owner(struct lockfile *file, off_t byte) { return file == NULL ? -1 : (pid_t)byte; }

int main(void)
{
    struct clock clock;
    struct card_book book;
    uint64_t until, submitted[2];
    int watched;
    if (scanf("%" SCNu32 " %" SCNu32, &state.description.clock_mode,
              &state.description.sample_period_us) != 2)
        return 1;
    state.description.time_slice_us = 2000;
    state.slot_count = 2;
    clock_open(&clock, &state, NULL);
    while (scanf("%" SCNu64 " %d %" SCNu64 " %" SCNu64, &until, &watched, &submitted[0],
                 &submitted[1]) == 4) {
        for (int i = 0; i < 2; i++) {
            state.slots[i].generation = 1;
            state.slots[i].submitted_ns = submitted[i];
        }
        clock_advance(&clock, 0, until, watched, &book);
    }
    for (int i = 0; i < CARD_ROWS; i++)
        if (state.rows[i].number != 0)
            printf("%" PRIu64 " %" PRIu64 " %" PRIu64 "\n", state.rows[i].number,
                   state.rows[i].granted_ns[0], state.rows[i].granted_ns[1]);
    return 0;
}
