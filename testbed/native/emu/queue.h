/* What a process has asked one card to do, and when each thing was done: the streams of a
 * process as queues of work, run along the stretches of time in which the book granted it
 * the device. No I/O, no clock, no lock of its own.
 *
 * Two kinds of progress: work on the device proceeds with the time granted, copies to and
 * from the host on engines of their own with the time that passes. Within a process a
 * higher priority goes first, then who came first; what does not fill the device leaves
 * room for the next.
 */
#ifndef VGPU_EMU_QUEUE_H
#define VGPU_EMU_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define QUEUE_WHOLE 65536u /* `width` of work that fills the device */

enum work_kind {
    WORK_DEVICE,   /* runs on the device */
    WORK_COPY_IN,  /* host to device */
    WORK_COPY_OUT, /* device to host */
    WORK_WAIT,     /* until a line is at a position */
    WORK_MARK,     /* an event, or the end of something that is waited for */
    WORK_HOST,     /* a function of the program */
};

struct line;

struct work {
    uint8_t kind;
    bool counted;  /* takes a place of the stream's queue while it is there */
    bool started;  /* HOST: handed over; device and copies: has begun */
    bool finished; /* HOST: the function returned */
    uint32_t width;
    uint64_t arrived_ns; /* not before */
    uint64_t left_ns;
    union {
        struct {
            struct line *line;
            uint64_t position;
        } wait;
        struct {
            void *what;
            uint64_t serial;
        } mark;
        struct {
            void (*function)(void *data);
            void *data;
        } host;
    } as;
};

/* A stream's queue. Positions count its works from 1; `done` is that of the last one that
 * is over. Never freed while anything may wait for a position. */
struct line {
    struct work *ring;
    size_t room; /* a power of two, or 0 */
    uint64_t pushed, done;
    uint64_t done_ns; /* when the last one was over */
    unsigned int counted;
    int priority;
    uint64_t turn; /* order in which the line's first work became first */
    bool listed;
    /* Device work that nothing but the device holds up: positions done < p <= clear. */
    uint64_t clear, clear_ns, clear_area;
    void *owner; /* the caller's */
};

struct queue {
    struct line **lines; /* with work */
    size_t count, room;
    uint64_t now_ns;
    uint64_t turns;
    unsigned int hosts; /* HOST works that are not over */
    void (*marked)(struct queue *queue, void *what, uint64_t serial, uint64_t now_ns);
    void (*call)(struct queue *queue, struct line *line, struct work *work);
};

/* Appends; false: no memory. Returns with line->pushed as the work's position. */
bool queue_push(struct queue *queue, struct line *line, const struct work *work);

/* Lets time pass to `until`, `granted` device time spread evenly over it. */
void queue_run(struct queue *queue, uint64_t until, uint64_t granted);

/* Ends what needs no time. Called by queue_push and queue_run. */
void queue_settle(struct queue *queue);

/* When something next happens that the device is not needed for; UINT64_MAX: nothing. */
uint64_t queue_next(const struct queue *queue);

/* Device time until the process has nothing more for the device to do, unless other things
 * happen: what the book is told. */
uint64_t queue_ready_ns(const struct queue *queue);

/* Is anything queued that only becomes ready by other things than the device? */
bool queue_held(const struct queue *queue);

/* The least time until `line` is at `position`. */
uint64_t queue_least_ns(const struct queue *queue, const struct line *line, uint64_t position);

/* The least time until a HOST work's turn comes; UINT64_MAX: there is none. */
uint64_t queue_host_ns(const struct queue *queue);

/* Everything on the line is over at once. */
void queue_drop(struct queue *queue, struct line *line);

static inline struct work *line_at(const struct line *line, uint64_t position)
{
    return &line->ring[position & (line->room - 1)];
}

static inline bool line_idle(const struct line *line)
{
    return line->done == line->pushed;
}

#endif
