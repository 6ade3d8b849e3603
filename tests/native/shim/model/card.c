#define _GNU_SOURCE
#include "card.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <ucontext.h>

#define NEVER 1e300
#define TENTH 1e8
#define THREADS 64
#define SAMPLES 1024
#define TENTHS 4096

struct model_settings model = {
    .slice = 2e6, .change = 50e3, .launch = 2e3, .record = 1200, .query = 300, .event = 700,
    .slack = 60e3, .sample = 1e9 / 6, .lag = 1e8, .noise = 1,
};

struct work {
    double left;
    struct model_event *event;
};
struct stream {
    struct work queue[MODEL_DEPTH + 1];
    uint64_t submitted, done;
};
static struct stream streams[MODEL_CONTEXTS][MODEL_STREAMS];
static int active_streams[MODEL_CONTEXTS];

static double now;
static double busy[MODEL_CONTEXTS], tenths[MODEL_CONTEXTS][TENTHS], any_busy;
static int tenth_count = 1;

/* --- the device ------------------------------------------------------------------------ */

static int turn = -1, last_turn = -1, next_turn = -1; /* next_turn >= 0: changing to it */
static double turn_end, change_end;

static int after(int context) {
    for (int i = 1; i <= MODEL_CONTEXTS; i++)
        if (active_streams[(context + i) % MODEL_CONTEXTS] > 0)
            return (context + i) % MODEL_CONTEXTS;
    return -1;
}

static void next_one(void) {
    int chosen = after(turn >= 0 ? turn : last_turn >= 0 ? last_turn : 0);
    turn = -1;
    if (chosen < 0) return;
    if (chosen == last_turn || last_turn < 0) {
        turn = last_turn = chosen;
        turn_end = now + model.slice;
    } else {
        next_turn = chosen;
        change_end = now + model.change;
    }
}

static int at_work(void) {
    int count = 0;
    for (int c = 0; c < MODEL_CONTEXTS; c++) count += active_streams[c] > 0;
    return count;
}

/* How fast the streams of a context advance. */
static double rate(int context) {
    if (active_streams[context] == 0) return 0;
    double share = model.sharing ? 1.0 / at_work() : context == turn ? 1.0 : 0.0;
    return share / active_streams[context];
}

static double device_next(void) {
    if (!model.sharing && next_turn >= 0) return change_end;
    double soonest = NEVER;
    for (int c = 0; c < MODEL_CONTEXTS; c++) {
        double speed = rate(c);
        if (speed <= 0) continue;
        for (int s = 0; s < MODEL_STREAMS; s++) {
            struct stream *stream = &streams[c][s];
            if (stream->submitted == stream->done) continue;
            double end = now + stream->queue[stream->done % (MODEL_DEPTH + 1)].left / speed;
            if (end < soonest) soonest = end;
        }
    }
    if (!model.sharing && turn >= 0 && at_work() > 1 && turn_end < soonest)
        soonest = turn_end > now ? turn_end : now;
    return soonest;
}

static void account(double span) {
    bool any = false;
    for (int c = 0; c < MODEL_CONTEXTS; c++) {
        double speed = rate(c) * active_streams[c];
        busy[c] += span * speed;
        any |= speed > 0;
    }
    if (any) any_busy += span;
}

static void integrate(double until) { /* no completion lies in between */
    while (now < until) {
        double mark = tenth_count * TENTH, end = until < mark ? until : mark, span = end - now;
        double speeds[MODEL_CONTEXTS];
        for (int c = 0; c < MODEL_CONTEXTS; c++) speeds[c] = next_turn >= 0 ? 0 : rate(c);
        if (next_turn < 0) account(span);
        for (int c = 0; c < MODEL_CONTEXTS; c++)
            for (int s = 0; speeds[c] > 0 && s < MODEL_STREAMS; s++) {
                struct stream *stream = &streams[c][s];
                if (stream->submitted != stream->done)
                    stream->queue[stream->done % (MODEL_DEPTH + 1)].left -= span * speeds[c];
            }
        now = end;
        if (end == mark && tenth_count < TENTHS) {
            for (int c = 0; c < MODEL_CONTEXTS; c++) tenths[c][tenth_count] = busy[c];
            tenth_count++;
        }
    }
}

/* --- host threads ------------------------------------------------------------------------- */

static struct thread {
    ucontext_t context;
    double wake;
    int wait_context, wait_stream;
    uint64_t wait_done;
    bool ended;
    void (*body)(void *);
    void *data;
} threads[THREADS];
static int thread_count, running = -1;
static ucontext_t scheduler;

static void completed(int context, int stream) {
    for (int i = 0; i < thread_count; i++) {
        struct thread *t = &threads[i];
        if (t->wake == NEVER && t->wait_context == context && t->wait_stream == stream &&
            streams[context][stream].done >= t->wait_done)
            t->wake = now;
    }
}

static void device_advance(double until) {
    bool changing = next_turn >= 0 && !model.sharing;
    integrate(until);
    if (changing) {
        if (now < change_end) return;
        turn = last_turn = next_turn;
        next_turn = -1;
        turn_end = now + model.slice;
        if (active_streams[turn] == 0) next_one();
        return;
    }
    for (int c = 0; c < MODEL_CONTEXTS; c++) {
        if (active_streams[c] == 0 || (!model.sharing && c != turn)) continue;
        for (int s = 0; s < MODEL_STREAMS; s++) {
            struct stream *stream = &streams[c][s];
            if (stream->submitted == stream->done) continue;
            struct work *work = &stream->queue[stream->done % (MODEL_DEPTH + 1)];
            if (work->left > 0.5) continue;
            if (work->event != NULL) *work->event = (struct model_event){true, now};
            if (++stream->done == stream->submitted) active_streams[c]--;
            completed(c, s);
        }
    }
    if (model.sharing || turn < 0) return;
    if (active_streams[turn] == 0) next_one();
    else if (now >= turn_end && at_work() > 1) next_one();
    else if (now >= turn_end) turn_end = now + model.slice;
}

/* --- NVML ----------------------------------------------------------------------------------- */

static struct model_sample samples[SAMPLES];
static int sample_count;
static double sampled_at, sampled_busy[MODEL_CONTEXTS];

double model_random(void) {
    static uint64_t state = 88172645463325252ull;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (double)(state >> 11) * 0x1p-53;
}

static void take_sample(void) {
    struct model_sample *sample = &samples[sample_count % SAMPLES];
    *sample = (struct model_sample){
        .number = sample_count + 1, .from = (int64_t)sampled_at, .until = (int64_t)now};
    for (int c = 0; c < MODEL_CONTEXTS; c++) {
        double percent = 100 * (busy[c] - sampled_busy[c]) / (now - sampled_at);
        if (percent > 0) percent += model.noise * (2 * model_random() - 1);
        sample->part[c] = percent < 0 ? 0 : floor(percent + 0.5) / 100;
        sampled_busy[c] = busy[c];
    }
    sampled_at = now;
    sample_count++;
}

struct model_sample model_nvml(void) {
    for (int i = sample_count; i > 0 && model.sample > 0; i--) {
        const struct model_sample *sample = &samples[(i - 1) % SAMPLES];
        if ((double)sample->until + model.lag <= now) return *sample;
    }
    return (struct model_sample){.number = 0};
}

/* --- running ---------------------------------------------------------------------------------- */

static double others_next(void) {
    double soonest = model.sample > 0 ? sampled_at + model.sample : NEVER;
    for (int i = 0; i < thread_count; i++)
        if (i != running && !threads[i].ended && threads[i].wake < soonest)
            soonest = threads[i].wake;
    return soonest;
}

static void give_way(double wake) {
    struct thread *self = &threads[running];
    self->wake = wake;
    swapcontext(&self->context, &scheduler);
}

static void until(double time) {
    for (;;) {
        double device = device_next();
        if (others_next() <= time) {
            give_way(time);
            return;
        }
        if (device > time) break;
        device_advance(device);
    }
    device_advance(time);
}

int64_t model_now(void) { return (int64_t)now + 1000000000; /* no clock begins at 0 */ }
void model_compute(double ns) { if (ns > 0) until(now + ns); }
void model_sleep(double ns) { until(now + (ns > 0 ? ns : 0) + model.slack * (0.7 + 0.6 * model_random())); }

static void enter(void) {
    threads[running].body(threads[running].data);
    threads[running].ended = true;
    swapcontext(&threads[running].context, &scheduler);
}

void model_thread(void (*body)(void *), void *data) {
    struct thread *t = &threads[thread_count++];
    getcontext(&t->context);
    t->context.uc_stack.ss_sp = malloc(1 << 18);
    t->context.uc_stack.ss_size = 1 << 18;
    t->context.uc_link = &scheduler;
    t->wake = now;
    t->wait_context = -1;
    t->body = body;
    t->data = data;
    makecontext(&t->context, enter, 0);
}

void model_run(int64_t end) {
    double last = (double)end;
    while (now < last) {
        double device = device_next(), sample = model.sample > 0 ? sampled_at + model.sample : NEVER;
        double wake = NEVER;
        int chosen = -1;
        for (int i = 0; i < thread_count; i++)
            if (!threads[i].ended && threads[i].wake < wake) {
                wake = threads[i].wake;
                chosen = i;
            }
        double host = sample < wake ? sample : wake;
        if (device > last && host > last) {
            device_advance(last);
            return;
        }
        if (device <= host) {
            device_advance(device);
            continue;
        }
        if (host > now) device_advance(host);
        if (sample <= wake) {
            take_sample();
            continue;
        }
        running = chosen;
        swapcontext(&scheduler, &threads[chosen].context);
        running = -1;
    }
}

/* --- the driver ------------------------------------------------------------------------------------ */

static void wait_done(int context, int stream, uint64_t count) {
    struct stream *s = &streams[context][stream];
    while (s->done < count) {
        double device = device_next();
        if (device >= others_next()) {
            threads[running].wait_context = context;
            threads[running].wait_stream = stream;
            threads[running].wait_done = count;
            give_way(NEVER);
            threads[running].wait_context = -1;
        } else {
            device_advance(device);
        }
    }
}

static void submit(int context, int stream, double ns, struct model_event *event) {
    struct stream *s = &streams[context][stream];
    if (s->submitted - s->done >= MODEL_DEPTH) wait_done(context, stream, s->submitted - MODEL_DEPTH + 1);
    s->queue[s->submitted % (MODEL_DEPTH + 1)] = (struct work){ns, event};
    if (s->submitted++ == s->done) {
        active_streams[context]++;
        if (!model.sharing && turn < 0 && next_turn < 0) next_one();
    }
}

void model_launch(int context, int stream, double ns) {
    model_compute(model.launch);
    submit(context, stream, ns, NULL);
}

void model_record(int context, int stream, struct model_event *event) {
    model_compute(model.record);
    event->done = false;
    submit(context, stream, model.event, event);
}

bool model_done(const struct model_event *event) {
    model_compute(model.query);
    return event->done;
}

void model_synchronize(int context, int stream) {
    model_compute(1000);
    wait_done(context, stream, streams[context][stream].submitted);
    model_compute(5000);
}

void model_kill(int context) {
    for (int s = 0; s < MODEL_STREAMS; s++) streams[context][s].done = streams[context][s].submitted;
    active_streams[context] = 0;
    if (turn == context) next_one();
}

double model_busy(int context) { return busy[context]; }
double model_any_busy(void) { return any_busy; }
double model_busy_at(int context, int64_t tenth) {
    return tenth < tenth_count ? tenths[context][tenth] : busy[context];
}
