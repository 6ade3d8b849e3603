#include "queue.h"

#include <stdlib.h>
#include <string.h>

/* --- keeping the list --------------------------------------------------------------------- */

static struct work *first(const struct line *line)
{
    return line_at(line, line->done + 1);
}

static bool list(struct queue *queue, struct line *line)
{
    if (line->listed)
        return true;
    if (queue->count == queue->room) {
        size_t room = queue->room == 0 ? 16 : queue->room * 2;
        struct line **grown = realloc(queue->lines, room * sizeof(void *));
        if (grown == NULL)
            return false;
        queue->lines = grown;
        queue->room = room;
    }
    line->listed = true;
    line->turn = ++queue->turns;
    queue->lines[queue->count++] = line;
    return true;
}

static void tidy(struct queue *queue)
{
    size_t kept = 0;
    for (size_t i = 0; i < queue->count; i++) {
        struct line *line = queue->lines[i];
        if (line_idle(line))
            line->listed = false;
        else
            queue->lines[kept++] = line;
    }
    queue->count = kept;
}

static bool make_room(struct line *line)
{
    if (line->pushed - line->done + 1 < line->room)
        return true;
    size_t room = line->room == 0 ? 64 : line->room * 2;
    struct work *grown = malloc(room * sizeof *grown);
    if (grown == NULL)
        return false;
    for (uint64_t at = line->done + 1; at <= line->pushed; at++)
        grown[at & (room - 1)] = *line_at(line, at);
    free(line->ring);
    line->ring = grown;
    line->room = room;
    return true;
}

/* --- what is ready -------------------------------------------------------------------------- */

static bool met(const struct work *wait)
{
    return wait->as.wait.line->done >= wait->as.wait.position;
}

/* Does nothing but device time stand between now and this work's end? */
static bool clear(const struct line *line, const struct work *work)
{
    switch (work->kind) {
    case WORK_DEVICE:
    case WORK_MARK: return true;
    case WORK_WAIT:
        /* A line that waits for its own later work would never be clear. */
        return work->as.wait.line == line || met(work) ||
               work->as.wait.line->clear >= work->as.wait.position;
    default: return false;
    }
}

static void extend_clear(struct line *line)
{
    if (line->clear < line->done)
        line->clear = line->done;
    while (line->clear < line->pushed) {
        const struct work *work = line_at(line, line->clear + 1);
        if (!clear(line, work))
            return;
        line->clear++;
        if (work->kind == WORK_DEVICE) {
            line->clear_ns += work->left_ns;
            line->clear_area += work->left_ns * work->width / QUEUE_WHOLE;
        }
    }
}

static void progress(struct line *line, struct work *work, uint64_t ns)
{
    if (ns > work->left_ns)
        ns = work->left_ns;
    work->left_ns -= ns;
    if (work->kind != WORK_DEVICE || line->clear <= line->done)
        return;
    line->clear_ns = line->clear_ns > ns ? line->clear_ns - ns : 0;
    uint64_t area = ns * work->width / QUEUE_WHOLE;
    line->clear_area = line->clear_area > area ? line->clear_area - area : 0;
}

static void pop(struct queue *queue, struct line *line)
{
    line->counted -= first(line)->counted;
    line->done++;
    line->done_ns = queue->now_ns;
    line->turn = ++queue->turns;
    if (line_idle(line)) {
        line->clear = line->done;
        line->clear_ns = line->clear_area = 0; /* rounding ends here */
    } else {
        extend_clear(line);
    }
}

/* Ends the first work of a line if it needs no more time. */
static bool settle(struct queue *queue, struct line *line)
{
    struct work *work = first(line);
    if (work->arrived_ns > queue->now_ns)
        return false;
    switch (work->kind) {
    case WORK_DEVICE:
    case WORK_COPY_IN:
    case WORK_COPY_OUT:
        if (work->left_ns > 0)
            return false;
        break;
    case WORK_WAIT:
        if (!met(work))
            return false;
        break;
    case WORK_MARK: queue->marked(queue, work->as.mark.what, work->as.mark.serial, queue->now_ns);
        break;
    case WORK_HOST:
        if (!work->started) {
            work->started = true;
            queue->call(queue, line, work);
        }
        if (!work->finished)
            return false;
        queue->hosts--;
        break;
    }
    pop(queue, line);
    return true;
}

void queue_settle(struct queue *queue)
{
    bool moved;
    do {
        moved = false;
        for (size_t i = 0; i < queue->count; i++) {
            struct line *line = queue->lines[i];
            while (!line_idle(line) && settle(queue, line))
                moved = true;
        }
        if (moved) /* what waited for another line may be clear now */
            for (size_t i = 0; i < queue->count; i++)
                extend_clear(queue->lines[i]);
    } while (moved && queue->count > 1);
    tidy(queue);
}

bool queue_push(struct queue *queue, struct line *line, const struct work *work)
{
    if (!make_room(line) || !list(queue, line))
        return false;
    line->pushed++;
    struct work *mine = line_at(line, line->pushed);
    *mine = *work;
    mine->started = mine->finished = false;
    line->counted += work->counted;
    queue->hosts += work->kind == WORK_HOST;
    if (mine->kind == WORK_DEVICE && mine->width > QUEUE_WHOLE)
        mine->width = QUEUE_WHOLE;
    if (line->clear == line->pushed - 1 || line->clear < line->done)
        extend_clear(line);
    return true;
}

/* --- letting time pass ----------------------------------------------------------------------- */

static bool runs(const struct queue *queue, const struct line *line, enum work_kind kind)
{
    const struct work *work = first(line);
    return work->kind == kind && work->arrived_ns <= queue->now_ns;
}

/* Whose device work goes before whose. */
static bool before(const struct line *a, const struct line *b)
{
    if (a->priority != b->priority)
        return a->priority < b->priority; /* lower numbers are more urgent */
    return a->turn < b->turn;
}

#define SHARES 32 /* kernels of a process that run at a time at most */

struct share {
    struct line *line;
    uint32_t part; /* of the device */
};

static size_t share_out(const struct queue *queue, struct share shares[SHARES])
{
    size_t count = 0;
    for (size_t i = 0; i < queue->count; i++) {
        struct line *line = queue->lines[i];
        if (!runs(queue, line, WORK_DEVICE))
            continue;
        size_t at = count < SHARES ? count++ : SHARES;
        if (at == SHARES && !before(line, shares[SHARES - 1].line))
            continue;
        if (at == SHARES)
            at = SHARES - 1;
        while (at > 0 && before(line, shares[at - 1].line)) {
            shares[at] = shares[at - 1];
            at--;
        }
        shares[at].line = line;
    }
    uint32_t room = QUEUE_WHOLE;
    for (size_t i = 0; i < count; i++) {
        uint32_t width = first(shares[i].line)->width;
        shares[i].part = width < room ? width : room;
        room -= shares[i].part;
        if (room == 0)
            return i + 1;
    }
    return count;
}

/* The line whose copy an engine is at: who came first. */
static struct line *engine(const struct queue *queue, enum work_kind kind)
{
    struct line *chosen = NULL;
    for (size_t i = 0; i < queue->count; i++) {
        struct line *line = queue->lines[i];
        if (runs(queue, line, kind) && (chosen == NULL || line->turn < chosen->turn))
            chosen = line;
    }
    return chosen;
}

/* Device time that a work with this part of the device needs to its end. */
static uint64_t needs(const struct work *work, uint32_t part)
{
    if (part >= work->width)
        return work->left_ns;
    return (uint64_t)(((unsigned __int128)work->left_ns * work->width + part - 1) / part);
}

static uint64_t scale(uint64_t value, uint64_t by, uint64_t of)
{
    return by == of ? value : (uint64_t)((unsigned __int128)value * by / of);
}

static uint64_t arrival(const struct queue *queue)
{
    uint64_t next = UINT64_MAX;
    for (size_t i = 0; i < queue->count; i++) {
        uint64_t at = first(queue->lines[i])->arrived_ns;
        if (at > queue->now_ns && at < next)
            next = at;
    }
    return next;
}

uint64_t queue_next(const struct queue *queue)
{
    uint64_t next = arrival(queue);
    for (enum work_kind kind = WORK_COPY_IN; kind <= WORK_COPY_OUT; kind++) {
        const struct line *line = engine(queue, kind);
        if (line != NULL && queue->now_ns + first(line)->left_ns < next)
            next = queue->now_ns + first(line)->left_ns;
    }
    return next;
}

void queue_run(struct queue *queue, uint64_t until, uint64_t granted)
{
    queue_settle(queue);
    while (queue->now_ns < until && queue->count > 0) {
        uint64_t span = until - queue->now_ns;
        struct share shares[SHARES];
        size_t running = granted > 0 ? share_out(queue, shares) : 0;
        struct line *in = engine(queue, WORK_COPY_IN), *out = engine(queue, WORK_COPY_OUT);
        uint64_t step = span, next = queue_next(queue);
        if (next - queue->now_ns < step)
            step = next - queue->now_ns;
        for (size_t i = 0; i < running; i++) {
            uint64_t device = needs(first(shares[i].line), shares[i].part);
            uint64_t wall = scale(device, span, granted);
            /* What is granted in `step` must reach: round up. */
            while (scale(wall, granted, span) < device && wall < span)
                wall++;
            if (wall < step)
                step = wall;
        }
        uint64_t passed = scale(step, granted, span);
        queue->now_ns += step;
        granted -= passed;
        for (size_t i = 0; i < running; i++) {
            struct work *work = first(shares[i].line);
            uint64_t done = shares[i].part >= work->width
                                ? passed
                                : (uint64_t)((unsigned __int128)passed * shares[i].part /
                                             work->width);
            if (passed >= needs(work, shares[i].part))
                done = work->left_ns;
            progress(shares[i].line, work, done);
        }
        if (in != NULL)
            progress(in, first(in), step);
        if (out != NULL)
            progress(out, first(out), step);
        queue_settle(queue);
    }
    if (queue->now_ns < until)
        queue->now_ns = until;
}

/* --- looking ahead ------------------------------------------------------------------------------ */

uint64_t queue_ready_ns(const struct queue *queue)
{
    uint64_t longest = 0, area = 0;
    for (size_t i = 0; i < queue->count; i++) {
        const struct line *line = queue->lines[i];
        if (line->clear_ns > longest)
            longest = line->clear_ns;
        area += line->clear_area;
    }
    return longest > area ? longest : area;
}

bool queue_held(const struct queue *queue)
{
    for (size_t i = 0; i < queue->count; i++)
        if (queue->lines[i]->clear < queue->lines[i]->pushed)
            return true;
    return queue->count > 1;
}

uint64_t queue_least_ns(const struct queue *queue, const struct line *line, uint64_t position)
{
    (void)queue;
    uint64_t sum = 0;
    for (uint64_t at = line->done + 1; at <= position && at <= line->pushed; at++) {
        const struct work *work = line_at(line, at);
        if (work->kind <= WORK_COPY_OUT)
            sum += work->left_ns;
    }
    return sum;
}

uint64_t queue_host_ns(const struct queue *queue)
{
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; queue->hosts > 0 && i < queue->count; i++) {
        const struct line *line = queue->lines[i];
        uint64_t sum = 0;
        for (uint64_t at = line->done + 1; at <= line->pushed && sum < least; at++) {
            const struct work *work = line_at(line, at);
            if (work->kind == WORK_HOST && !work->started)
                least = sum;
            else if (work->kind <= WORK_COPY_OUT)
                sum += work->left_ns;
        }
    }
    return least;
}

void queue_drop(struct queue *queue, struct line *line)
{
    while (!line_idle(line)) {
        struct work *work = first(line);
        if (work->kind == WORK_MARK)
            queue->marked(queue, work->as.mark.what, work->as.mark.serial, queue->now_ns);
        if (work->kind == WORK_HOST)
            queue->hosts--;
        line->counted -= work->counted;
        line->done++;
    }
    line->done_ns = queue->now_ns;
    line->clear = line->done;
    line->clear_ns = line->clear_area = 0;
    queue_settle(queue);
}
