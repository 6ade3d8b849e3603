#define _GNU_SOURCE
#include "callback.h"

#include "driver.h"

#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

/* How often to look for a function's turn: not before it can come, but often enough for one
 * that waits for other things than time. */
#define OFTEN_NS 100000ull
#define SELDOM_NS 5000000ull

struct call {
    CUhostFn function;
    void *data;
    struct device *device;
    struct line *line;
    uint64_t position;
    struct call *next;
};

static bool started;
static pthread_cond_t changed;
static struct call *first_ready, **last_ready = &first_ready;
static __thread bool running;

bool callback_running(void)
{
    return running;
}

void callback_forget(void)
{
    started = false;
    first_ready = NULL;
    last_ready = &first_ready;
}

void callback_ready(struct queue *queue, struct line *line, struct work *work)
{
    (void)queue;
    struct call *call = work->as.host.data;
    call->line = line;
    call->position = line->done + 1;
    call->next = NULL;
    *last_ready = call;
    last_ready = &call->next;
    pthread_cond_signal(&changed);
}

/* How long nothing can become ready; UINT64_MAX: nothing is waited for. */
static uint64_t look(void)
{
    uint64_t now = emu_now_ns(), least = UINT64_MAX;
    for (int i = 0; i < device_count; i++) {
        struct queue *queue = &devices[i].time.queue;
        if (queue->hosts == 0)
            continue;
        time_look(&devices[i], now);
        uint64_t next = queue_host_ns(queue);
        least = next < least ? next : least;
    }
    if (least == UINT64_MAX)
        return UINT64_MAX;
    return least < OFTEN_NS ? OFTEN_NS : least > SELDOM_NS ? SELDOM_NS : least;
}

static void *serve(void *unused)
{
    (void)unused;
    pthread_setname_np(pthread_self(), "emu-callbacks");
    driver_lock();
    for (;;) {
        while (first_ready == NULL) {
            uint64_t idle = look();
            if (first_ready != NULL)
                break;
            driver_await(&changed, idle);
        }
        struct call *call = first_ready;
        first_ready = call->next;
        if (first_ready == NULL)
            last_ready = &first_ready;
        driver_unlock();
        running = true;
        call->function(call->data);
        running = false;
        driver_lock();
        uint64_t now = emu_now_ns();
        time_look(call->device, now);
        if (call->line->done < call->position) { /* else the stream was emptied meanwhile */
            line_at(call->line, call->position)->finished = true;
            queue_settle(&call->device->time.queue);
            time_look(call->device, now); /* tells the card what is ready now */
        }
        free(call);
    }
    return NULL;
}

static bool start(void)
{
    if (started)
        return true;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&changed, &attributes);
    pthread_condattr_destroy(&attributes);
    /* The program's signals are the program's. */
    sigset_t all, before;
    sigfillset(&all);
    pthread_t thread;
    pthread_sigmask(SIG_SETMASK, &all, &before);
    started = pthread_create(&thread, NULL, serve, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (started)
        pthread_detach(thread);
    return started;
}

CUresult callback_push(struct device *device, struct line *line, CUhostFn function, void *data,
                       uint64_t arrived_ns)
{
    struct call *call = calloc(1, sizeof *call);
    if (call == NULL || !start()) {
        free(call);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    *call = (struct call){.function = function, .data = data, .device = device};
    CUresult result = time_push(device, line,
                                &(struct work){.kind = WORK_HOST,
                                               .arrived_ns = arrived_ns,
                                               .as.host = {function, call}});
    if (result != CUDA_SUCCESS)
        free(call);
    else
        pthread_cond_signal(&changed); /* it looks when the function's turn comes */
    return result;
}
