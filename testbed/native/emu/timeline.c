#define _GNU_SOURCE
#include "driver.h"

#include "callback.h"

#include <errno.h>
#include <time.h>

/* Launches behind a running kernel until one blocks: 1,021, measured on an H200 (driver
 * 580), for each stream. */
#define QUEUE_DEPTH 1022

#define SPIN_NS 60000ull       /* sleeping overshoots by that much */
#define OTHERS_NS 300000ull    /* who has the device may be through at any time */
#define LONGEST_SLEEP_NS 20000000ull /* so that the card's book goes on while we wait */

static struct card_slot *slot_of(struct device *device)
{
    return &device->card.state->slots[device->slot];
}

static uint64_t granted(const struct card_book *book, int slot)
{
    return (uint32_t)slot < book->slots ? book->granted_ns[slot] : 0;
}

void time_claim(struct device *device, int slot)
{
    struct card_book book;
    clock_read(device->card.state, &book);
    struct card_slot *mine = &device->card.state->slots[slot];
    __atomic_store_n(&mine->gone, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&mine->base_ns, granted(&book, slot), __ATOMIC_RELAXED);
    __atomic_store_n(&mine->submitted_ns, granted(&book, slot), __ATOMIC_RELEASE);
}

/* --- from the book to the queues ------------------------------------------------------------ */

static void event_marked(struct queue *queue, void *what, uint64_t serial, uint64_t now_ns)
{
    (void)queue;
    event_done(what, serial, now_ns);
}

static bool begin(struct device *device)
{
    struct device_time *time = &device->time;
    if (device->slot < 0)
        return false;
    if (!time->opened) {
        clock_open(&time->clock, device->card.state, &device->locks);
        time->queue.marked = event_marked;
        time->queue.call = callback_ready;
        time->slot = -1;
        time->opened = true;
    }
    if (time->slot != device->slot || time->generation != device->generation) {
        struct card_book book;
        clock_read(device->card.state, &book);
        time->slot = device->slot;
        time->generation = device->generation;
        time->segments = book.segments;
        time->granted_ns = granted(&book, device->slot);
        time->busy_until = 0;
    } else if (slot_of(device)->gone != 0) {
        /* Our lock was away for a moment, and a neighbour took us for dead. */
        __atomic_store_n(&slot_of(device)->gone, 0, __ATOMIC_RELAXED);
    }
    return true;
}

static uint64_t later(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static bool has_device(const struct device_time *time, const struct card_book *book)
{
    if (book->working == 0)
        return false;
    return time->clock.rules.sharing
               ? (book->sharing[time->slot / 64] >> time->slot % 64 & 1) != 0
               : book->holder == (uint32_t)time->slot + 1;
}

static void use_segment(struct device_time *time, const struct card_segment *segment)
{
    if (segment->slot != (uint64_t)time->slot || segment->end_ns <= time->queue.now_ns ||
        segment->end_ns <= segment->start_ns)
        return;
    uint64_t start = later(segment->start_ns, time->queue.now_ns);
    uint64_t share = (uint64_t)((unsigned __int128)segment->granted_ns *
                                (segment->end_ns - start) /
                                (segment->end_ns - segment->start_ns));
    queue_run(&time->queue, start, 0);
    queue_run(&time->queue, segment->end_ns, share);
    time->granted_ns += share;
}

static void use_book(struct device_time *time, const struct card_book *book, uint64_t target)
{
    bool missed = false;
    uint64_t number = time->segments, fresh = book->segments - book->fresh;
    if (number + CARD_RING < book->segments) {
        number = book->segments - CARD_RING;
        missed = true;
    }
    for (; number < book->segments; number++) {
        struct card_segment segment;
        if (number >= fresh)
            segment = book->closed[number - fresh];
        else if (!clock_segment(time->clock.state, number, &segment)) {
            missed = true;
            continue;
        }
        use_segment(time, &segment);
    }
    time->segments = book->segments;
    uint64_t all = granted(book, time->slot);
    if (all > time->granted_ns) {
        uint64_t rest = all - time->granted_ns;
        if (has_device(time, book) && !missed)
            queue_run(&time->queue, later(time->queue.now_ns, book->open_ns), 0);
        else if (missed)
            __atomic_fetch_add(&time->clock.state->lapped, 1, __ATOMIC_RELAXED);
        if (time->queue.now_ns < book->time_ns)
            queue_run(&time->queue, book->time_ns, rest);
    }
    time->granted_ns = all;
    queue_run(&time->queue, later(book->time_ns, target), 0);
}

static void publish(struct device *device)
{
    struct device_time *time = &device->time;
    uint64_t ready = queue_ready_ns(&time->queue);
    time->busy_until = ready > 0 ? time->queue.now_ns + ready : 0;
    __atomic_store_n(&slot_of(device)->submitted_ns, time->granted_ns + ready, __ATOMIC_RELEASE);
}

static void look(struct device *device, uint64_t now_ns)
{
    struct device_time *time = &device->time;
    if (!begin(device))
        return;
    struct queue *queue = &time->queue;
    bool stopped;
    uint64_t target;
    do {
        /* Where something of ours gets ready without the device, or hangs on the end of
         * what the device does, the book is moved on only so far, and told, before it
         * goes on: nobody needs to have been awake at that moment. */
        uint64_t next = queue_next(queue);
        target = next < now_ns ? later(next, queue->now_ns) : now_ns;
        struct card_book book;
        stopped = clock_advance(&time->clock, (unsigned int)time->slot, target,
                                queue_held(queue) ? time->slot : BOOK_NOBODY, &book);
        use_book(time, &book, stopped ? 0 : target);
        publish(device);
        time->others_until =
            !time->clock.rules.sharing && book.working != 0 && !has_device(time, &book)
                ? book.turn_end_ns
                : 0;
    } while (stopped || target < now_ns);
}

void time_look(struct device *device, uint64_t now_ns)
{
    /* A stream may wait for one of another card. */
    for (int i = 0; i < device_count; i++)
        if (&devices[i] != device && devices[i].time.queue.count > 0)
            look(&devices[i], now_ns);
    look(device, now_ns);
}

/* --- from the program to the queues ----------------------------------------------------------- */

CUresult time_push(struct device *device, struct line *line, const struct work *work)
{
    struct device_time *time = &device->time;
    if (!begin(device))
        return CUDA_ERROR_INVALID_CONTEXT;
    /* While the device surely has work of ours, the book need not be asked: what comes
     * behind only makes that longer. */
    bool busy = work->arrived_ns < time->busy_until;
    if (!busy)
        look(device, work->arrived_ns);
    if (!queue_push(&time->queue, line, work))
        return CUDA_ERROR_OUT_OF_MEMORY;
    if (!busy)
        queue_settle(&time->queue);
    publish(device);
    return CUDA_SUCCESS;
}

bool time_full(struct device *device, struct line *line)
{
    if (line->counted < QUEUE_DEPTH)
        return false;
    time_look(device, emu_now_ns());
    return line->counted >= QUEUE_DEPTH;
}

/* --- waiting ------------------------------------------------------------------------------------- */

static void pass(uint64_t now, uint64_t until)
{
    if (until > now + SPIN_NS) {
        uint64_t rest = until - now - SPIN_NS;
        nanosleep(&(struct timespec){.tv_sec = (time_t)(rest / 1000000000ull),
                                     .tv_nsec = (long)(rest % 1000000000ull)},
                  NULL); /* a signal only means to look earlier */
        return;
    }
    while (emu_now_ns() < until)
        __builtin_ia32_pause();
}

void time_wait(struct device *device, struct line *line, uint64_t position)
{
    for (;;) {
        driver_lock();
        uint64_t now = emu_now_ns();
        time_look(device, now);
        bool done = line->done >= position || device->slot < 0;
        struct queue *queue = &device->time.queue;
        uint64_t least = queue_least_ns(queue, line, position);
        uint64_t until = now + least;
        if (device->time.others_until > now) {
            uint64_t theirs = device->time.others_until - now;
            until = later(until, now + (theirs < OTHERS_NS ? theirs : OTHERS_NS));
        }
        bool hosts = queue->hosts > 0;
        driver_unlock();
        if (done)
            return;
        if (least == 0) /* for something else than the device: another stream, a function */
            until = later(until, now + (hosts ? 100000 : 20000));
        if (until > now + LONGEST_SLEEP_NS)
            until = now + LONGEST_SLEEP_NS;
        pass(now, until);
    }
}
