/* Runs emu/queue.c for test_queue.py: commands on standard input, what was reached out.
 *
 *     p <line> <kind> <left> <width> <arrives> <other line> <position>   push
 *     r <until> <granted>                                                run
 *     y <line> <priority>
 */
#include "queue.h"

#include <inttypes.h>
#include <stdio.h>

#define LINES 4

static struct line lines[LINES];
static struct queue queue;

static void marked(struct queue *own, void *what, uint64_t serial, uint64_t now_ns)
{
    (void)own, (void)what;
    printf("%" PRIu64 " %" PRIu64 " ", serial, now_ns);
}

static void call(struct queue *own, struct line *line, struct work *work)
{
    (void)own, (void)line;
    work->finished = true;
}

int main(void)
{
    char command;
    uint64_t serial = 0;
    queue.marked = marked;
    queue.call = call;
    while (scanf(" %c", &command) == 1) {
        unsigned int line, kind, width, other;
        uint64_t left, arrives, position, until, granted;
        int priority;
        if (command == 'p') {
            if (scanf("%u %u %" SCNu64 " %u %" SCNu64 " %u %" SCNu64, &line, &kind, &left, &width,
                      &arrives, &other, &position) != 7)
                return 1;
            struct work work = {.kind = (uint8_t)kind, .left_ns = left, .width = width,
                                .arrived_ns = arrives};
            if (kind == WORK_WAIT) {
                work.as.wait.line = &lines[other];
                work.as.wait.position =
                    position < lines[other].pushed ? position : lines[other].pushed;
            }
            struct work mark = {.kind = WORK_MARK, .arrived_ns = arrives,
                                .as.mark = {NULL, ++serial}};
            if (!queue_push(&queue, &lines[line], &work) ||
                !queue_push(&queue, &lines[line], &mark))
                return 1;
        } else if (command == 'r') {
            if (scanf("%" SCNu64 " %" SCNu64, &until, &granted) != 2)
                return 1;
            queue_run(&queue, until, granted);
            printf("= %" PRIu64 " %zu\n", queue_ready_ns(&queue), queue.count);
            fflush(stdout);
        } else if (command == 'y') {
            if (scanf("%u %d", &line, &priority) != 2)
                return 1;
            lines[line].priority = priority;
        }
    }
    return 0;
}
