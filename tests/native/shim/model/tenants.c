/* Scenarios: tenants of the library's own control code (ledger, cost, meter, presence) on a
 * model of a card. Usage: tenants key=value …; prints JSON. What a product process does
 * around that code (throttle.c) is done here in the same order, in virtual time. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "card.h"
#include "gate.h"
#include "presence.h"

enum kind { FIXED, MIX, BIMODAL, MANY, FRESH };

struct container {
    struct vgpu_ledger ledger;
    uint64_t paid_until;
    struct vgpu_rules rules;
    uint64_t id;
    unsigned contexts;
    int newest_sample;
    uint64_t active[MODEL_CONTEXTS];
    bool degraded;
};

struct process {
    struct vgpu_meter *meter;
    struct container *container;
    struct vgpu_regime regime;
    struct vgpu_presence presence;
    int64_t tick, next_tick, newest_launch;
    int context;
    bool bare, measured, unmeasured, yielding, turning;
    int64_t unsettled;
    enum vgpu_wish wish;
    double need;
    enum kind kind;
    bool sync;
    int streams;
    double kernel, think, on, off; /* ns; on/off: periods of work and of rest */
    double later;                  /* what the same kernel takes from some moment on */
    int64_t later_at;
    long burst; /* launches between two synchronisations, and between two pauses to think */
    int64_t start, stop, burst_began, stalled;
    long launches, repeats, waited[4];
    double *latencies; /* ns, from the first launch of a burst until it is done */
    size_t latency_count, latency_room;
};

static struct container containers[MODEL_CONTEXTS];
static struct process processes[MODEL_CONTEXTS];
static int container_count, process_count;
static struct vgpu_page_tenant page[VGPU_PAGE_TENANTS];
static double blur; /* host time between an event and its launch that nobody measures, ns, at most */
static double cold; /* likewise, behind a sleep */
static double stall; /* host time after every fifth of such launches, before its end is seen, ns */
static bool with_repeats = true; /* without: every launch takes the long way */
static bool with_page = true, with_nvml = true, with_turns = true, with_settling = true;
static int64_t warm_until, stall_every;
static double stall_ns;

/* --- the driver's side of a meter -------------------------------------------------------------- */

static void *event_new(void *env) { (void)env; return calloc(1, sizeof(struct model_event)); }
static bool record(void *env, void *event, struct vgpu_stream_id stream) {
    struct process *p = env;
    model_record(p->context, (int)stream.handle - 10, event);
    return true;
}
static enum vgpu_progress progress(void *env, void *event) {
    (void)env;
    return model_done(event) ? VGPU_DONE : VGPU_PENDING;
}
static bool when(void *env, void *event, double *ns) {
    (void)env;
    *ns = ((struct model_event *)event)->time;
    return true;
}
static const struct vgpu_meter_ops ops = {event_new, record, progress, when};

/* --- what throttle.c does every few milliseconds ------------------------------------------------- */

static struct vgpu_budget budget_of(struct container *c) {
    return (struct vgpu_budget){.ledger = &c->ledger, .paid_until = &c->paid_until};
}

static void feed(struct process *p, bool beside) {
    struct container *c = p->container;
    struct model_sample sample = model_nvml();
    if (!with_nvml || sample.number <= c->newest_sample) return;
    c->newest_sample = sample.number;
    struct vgpu_usage usage = {.from = sample.from + VGPU_SEC, .until = sample.until + VGPU_SEC};
    for (int i = 0; i < MODEL_CONTEXTS; i++)
        *(c->contexts >> i & 1 ? &usage.own : &usage.other) += sample.part[i];
    struct vgpu_budget budget = budget_of(c);
    vgpu_ledger_sample(&budget, &usage, beside, p->regime.limit, model_now());
}

static struct vgpu_turns turns_of(struct process *p, int64_t now) {
    struct container *c = p->container;
    return vgpu_turns_of(page, VGPU_PAGE_TENANTS, c->id, c->rules.limit_pct, p->presence.ranked,
                         now);
}

static void announce(struct process *p, int64_t now) {
    struct container *c = p->container;
    if (!with_page) return;
    int place = vgpu_presence_claim(page, VGPU_PAGE_TENANTS, c->id, now);
    struct vgpu_page_tenant *tenant = &page[place];
    tenant->id = c->id;
    tenant->priority = c->rules.priority;
    tenant->limit_pct = c->rules.limit_pct;
    if (p->yielding) tenant->wanting_ns = (uint64_t)now;
    else tenant->active_ns = (uint64_t)now;
    uint64_t until = (uint64_t)now + (uint64_t)p->meter->outstanding;
    if (p->measured && until > tenant->busy_until_ns) tenant->busy_until_ns = until;
    if (p->measured && (p->meter->outstanding > 0 || tenant->flight_ns == 0))
        tenant->flight_ns = (uint64_t)now;
    if (!p->measured || !p->turning) tenant->turn = 0;
    else {
        double busy = p->wish == VGPU_WISH_TAKE ? p->need : (double)vgpu_meter_busy(p->meter, now);
        struct vgpu_turns turns = turns_of(p, now); /* as the page is at this moment */
        tenant->turn = vgpu_turns_word(tenant->turn, &turns, p->wish, (int64_t)busy, now);
    }
}

static void tick(struct process *p) {
    int64_t now = model_now();
    if (now < p->next_tick) return;
    p->next_tick = now + VGPU_MS;
    struct container *c = p->container;
    struct vgpu_budget budget = budget_of(c);
    p->turning = with_turns && with_page && vgpu_turns_able(p->turning, p->regime.raw, p->meter->late);
    announce(p, now);
    c->active[p->context] = (uint64_t)now;
    bool siblings = false;
    for (int i = 0; i < MODEL_CONTEXTS; i++)
        siblings |= i != p->context && c->active[i] != 0 &&
                    now - (int64_t)c->active[i] < vgpu_tuning.hold;
    p->presence = vgpu_presence_of(page, VGPU_PAGE_TENANTS, c->id, c->rules.priority, now);
    feed(p, p->presence.others || siblings);
    p->measured = vgpu_at_work(&c->rules, &p->presence);
    if (p->measured && p->unmeasured) p->unsettled = now;
    p->unmeasured = !p->measured;
    if (p->measured && p->unsettled != 0 && with_settling)
        vgpu_ledger_unmeasured(&budget, now);
    vgpu_regime_of(&p->regime, &c->rules, &p->presence, siblings, &budget, now);
    p->regime.turns = p->turning ? turns_of(p, now) : (struct vgpu_turns){.taking = false};
    c->degraded = p->regime.raw && !p->regime.off;
}

/* A sleep of the library; once in a while the host has another thing to do when it ends. */
static void nap(struct process *p, double ns) {
    model_sleep(ns);
    if (stall_ns <= 0 || model_now() - p->stalled < stall_every) return;
    p->stalled = model_now();
    model_sleep(stall_ns);
}

static void launch(struct process *p, uint64_t key, int stream, double ns) {
    p->launches++;
    if (p->bare) {
        model_launch(p->context, stream, ns);
        return;
    }
    tick(p);
    if (!p->measured) {
        model_launch(p->context, stream, ns);
        return;
    }
    if (p->unsettled != 0) {
        vgpu_meter_begins(p->meter, p->unsettled);
        if (p->meter->settled) p->unsettled = 0;
    }
    struct vgpu_stream_id id = {.handle = (uint64_t)stream + 10};
    struct vgpu_admission admission;
    if (with_repeats && vgpu_gate_repeats(p->meter, key, id, &p->regime, model_now(), &admission)) {
        p->repeats++;
        model_launch(p->context, stream, ns);
        return;
    }
    struct vgpu_waiting waiting = {.paying = false};
    enum vgpu_reason reason;
    int64_t sleep, before = model_now();
    bool slept = false;
    while ((reason = vgpu_gate(p->meter, key, 1, &p->regime, &waiting, model_now(), &sleep)) !=
           VGPU_GO) {
        p->yielding = reason == VGPU_WAIT_PRIORITY;
        if (reason == VGPU_TAKE_TURN) {
            p->wish = VGPU_WISH_TAKE;
            p->need = waiting.need;
            p->next_tick = 0;
            tick(p);
            p->wish = VGPU_WISH_NONE;
            continue;
        }
        p->wish = vgpu_turns_wish(&p->regime.turns, reason == VGPU_WAIT_TURN,
                                  reason == VGPU_WAIT_BUDGET, model_now());
        if (reason == VGPU_WAIT_TURN) p->next_tick = 0;
        tick(p);
        nap(p, (double)sleep);
        slept = true;
        if (reason == VGPU_WAIT_TURN) reason = VGPU_WAIT_QUEUE;
        p->waited[reason] += model_now() - before;
        before = model_now();
        tick(p);
    }
    p->yielding = false;
    p->wish = VGPU_WISH_NONE;
    int64_t now = model_now();
    vgpu_meter_admit(p->meter, key, id, &p->regime, now, &admission);
    if (vgpu_gate_tells(p->meter, &p->regime, admission.cost, now, &p->wish)) {
        p->next_tick = 0;
        tick(p);
        p->wish = VGPU_WISH_NONE;
    }
    if (admission.timed) model_compute(blur * model_random());
    if (admission.timed && slept && cold > 0) model_compute(cold * model_random());
    before = model_now();
    model_launch(p->context, stream, ns);
    if (stall > 0 && admission.timed && model_random() < .2) model_compute(stall); /* it is out already */
    if (admission.finish)
        vgpu_meter_launched(p->meter, &p->regime, &admission, true, model_now() - before, model_now());
}

static void synchronize(struct process *p, int stream) {
    struct vgpu_stream_id id = {.handle = (uint64_t)stream + 10};
    struct vgpu_sync sync;
    if (!p->bare && p->measured)
        vgpu_meter_syncing(p->meter, &id, &p->regime, model_now(), &sync);
    model_synchronize(p->context, stream);
    if (!p->bare && p->measured)
        vgpu_meter_synced(p->meter, &id, &p->regime, &sync, model_now());
}

/* --- what tenants do --------------------------------------------------------------------------------- */

static double choose(struct process *p, long i, uint64_t *key) {
    double r = model_random();
    switch (p->kind) {
    case MIX:
        *key = r < .6 ? 1 : r < .9 ? 2 : r < .99 ? 3 : 4;
        return r < .6 ? 5e3 : r < .9 ? 1e5 : r < .99 ? 5e6 : 5e7;
    case BIMODAL:
        *key = 5;
        return r < .5 ? 2e6 : 8e6;
    case MANY:
    case FRESH:
        *key = 10 + (p->kind == MANY ? (uint64_t)(r * 300) : (uint64_t)(i / 2));
        if (p->kind == FRESH && i > 7000) *key = 10 + (uint64_t)(r * 3000);
        return 5e3 * pow(4000, (double)(*key * 0x9e3779b97f4a7c15ull >> 11) * 0x1p-53);
    default: *key = 1; return model_now() < p->later_at ? p->kernel : p->later;
    }
}

static void note_latency(struct process *p, int64_t ns) {
    if (model_now() < warm_until) return;
    if (p->latency_count == p->latency_room) {
        p->latency_room = p->latency_room != 0 ? 2 * p->latency_room : 4096;
        p->latencies = realloc(p->latencies, p->latency_room * sizeof *p->latencies);
    }
    p->latencies[p->latency_count++] = (double)ns;
}

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* A quantile of a container's first process, us; 0 where nothing is synchronised. */
static double latency(const struct container *c, double part) {
    for (int i = 0; i < process_count; i++) {
        struct process *p = &processes[i];
        if (p->container != c || p->latency_count == 0) continue;
        qsort(p->latencies, p->latency_count, sizeof *p->latencies, compare);
        return p->latencies[(size_t)(part * (double)(p->latency_count - 1))] / 1e3;
    }
    return 0;
}

static void body(void *data) {
    struct process *p = data;
    if (p->start > model_now()) model_sleep((double)(p->start - model_now()));
    for (long i = 0; model_now() < p->stop; i++) {
        if (p->off > 0 && fmod((double)(model_now() - p->start), p->on + p->off) > p->on)
            model_sleep(p->on + p->off - fmod((double)(model_now() - p->start), p->on + p->off));
        uint64_t key;
        double ns = choose(p, i, &key) * (.98 + .04 * model_random());
        int stream = (int)(i % p->streams);
        bool last = (i + 1) % p->burst == 0;
        if (i % p->burst == 0) p->burst_began = model_now();
        launch(p, key, stream, ns);
        if (p->sync && last) {
            synchronize(p, stream);
            note_latency(p, model_now() - p->burst_began);
        }
        if (p->think > 0 && last) model_compute(p->think);
    }
    model_kill(p->context);
    p->container->active[p->context] = 0;
}

/* --- the command line ---------------------------------------------------------------------------------- */

static int argument_count;
static char **arguments;

static const char *text(const char *key, int index, const char *otherwise) {
    char numbered[32];
    snprintf(numbered, sizeof numbered, "%s%d=", key, index);
    for (int pass = index < 0 ? 1 : 0; pass < 2; pass++) {
        if (pass == 1) snprintf(numbered, sizeof numbered, "%s=", key);
        for (int i = 1; i < argument_count; i++)
            if (strncmp(arguments[i], numbered, strlen(numbered)) == 0)
                return arguments[i] + strlen(numbered);
    }
    return otherwise;
}

static double number(const char *key, int index, double otherwise) {
    const char *given = text(key, index, NULL);
    return given == NULL ? otherwise : atof(given);
}

static double part(int container, int64_t from, int64_t until) { /* tenths of a second */
    double sum = 0;
    for (int i = 0; i < process_count; i++)
        if (containers[container].contexts >> i & 1)
            sum += model_busy_at(i, until) - model_busy_at(i, from);
    return sum / ((double)(until - from) * 1e8) * 100;
}

static void set_limit(void *data) { /* a change of the limit while it runs */
    struct container *c = data;
    int index = (int)(c - containers);
    model_sleep(number("relimit_at", index, 1e9) * 1e9);
    c->rules.limit_pct = (uint32_t)number("relimit", index, 0);
}

/* Writes for ever that it has work, waits, and holds the card, for as long as is believed. */
static void lie(void *data) {
    (void)data;
    for (;;) {
        uint64_t now = (uint64_t)model_now();
        page[VGPU_PAGE_TENANTS - 1] = (struct vgpu_page_tenant){
            .id = 1, .active_ns = now, .busy_until_ns = now + VGPU_SEC, .priority = 1,
            .limit_pct = 50, .flight_ns = now, .turn = (now + VGPU_TURN_MOST_NS) | 1};
        model_sleep(1e6);
    }
}

static void make(int count) {
    for (int i = 0; i < count; i++) {
        struct container *c = &containers[container_count++];
        const char *policy = text("policy", i, "force");
        c->id = 1000 + (uint64_t)i;
        c->rules = (struct vgpu_rules){
            .limit_pct = (uint32_t)number("limit", i, 50),
            .policy = policy[0] == 'f' ? VGPU_POLICY_FORCE
                      : policy[1] == 'e' ? VGPU_POLICY_DEFAULT
                                         : VGPU_POLICY_DISABLE,
            .priority = (uint32_t)number("priority", i, 1),
            .floor_pct = (uint32_t)number("floor", i, 0),
        };
        if (policy[0] == 'd' && policy[1] == 'i') c->rules.policy = VGPU_POLICY_DISABLE;
        if (text("relimit", i, NULL) != NULL) model_thread(set_limit, c);
        for (int j = 0; j < (int)number("processes", i, 1); j++) {
            struct process *p = &processes[process_count];
            const char *kernel = text("kernel", i, "100");
            p->context = process_count++;
            c->contexts |= 1u << p->context;
            p->container = c;
            p->bare = number("bare", i, 0) != 0;
            p->kind = !strcmp(kernel, "mix")    ? MIX
                      : !strcmp(kernel, "bi")   ? BIMODAL
                      : !strcmp(kernel, "many") ? MANY
                      : !strcmp(kernel, "fresh") ? FRESH
                                                 : FIXED;
            p->kernel = atof(kernel) * 1e3;
            p->later = number("later", i, p->kernel / 1e3) * 1e3;
            p->later_at = (int64_t)(number("later_at", i, 1e6) * 1e9) + VGPU_SEC;
            p->sync = !strcmp(text("pattern", i, "deep"), "sync");
            p->streams = (int)number("streams", i, 1);
            p->burst = (long)number("burst", i, 1);
            p->think = number("think", i, 0) * 1e3;
            p->on = number("on", i, 0) * 1e6;
            p->off = number("off", i, 0) * 1e6;
            p->start = (int64_t)(number("start", i, 0) * 1e9) + VGPU_SEC;
            p->stop = (int64_t)(number("stop", i, 1e6) * 1e9) + VGPU_SEC;
            p->turning = true;
            p->meter = calloc(1, sizeof *p->meter);
            vgpu_meter_init(p->meter, &ops, p, budget_of(c));
            model_thread(body, p);
        }
    }
}

int main(int argc, char **argv) {
    argument_count = argc;
    arguments = argv;
    int64_t seconds = (int64_t)number("seconds", -1, 13), warm = (int64_t)number("warm", -1, 3);
    model.sharing = !strcmp(text("clock", -1, "slices"), "sharing");
    model.slice = number("slice_us", -1, 2000) * 1e3;
    model.change = number("change_us", -1, 50) * 1e3;
    model.slack = number("slack_us", -1, 60) * 1e3;
    model.event = number("event_ns", -1, 700);
    model.lag = number("lag_ms", -1, 100) * 1e6;
    model.noise = (int)number("noise", -1, 1);
    stall_ns = number("stall_ms", -1, 0) * 1e6;
    stall_every = (int64_t)(number("stall_every", -1, 1) * 1e9);
    stall = number("stall_us", -1, 0) * 1e3;
    with_repeats = number("repeats", -1, 1) != 0;
    blur = number("blur_us", -1, 0) * 1e3;
    cold = number("cold_us", -1, 0) * 1e3;
    with_nvml = number("nvml", -1, 1) != 0;
    with_page = number("page", -1, 1) != 0;
    with_turns = number("turns", -1, !model.sharing) != 0; /* as with MPS */
    with_settling = number("settling", -1, 1) != 0;
    warm_until = (warm + 1) * VGPU_SEC;
    if (number("liar", -1, 0) != 0) model_thread(lie, NULL);
    make((int)number("tenants", -1, 1));
    model_run(warm * VGPU_SEC);
    double any = model_any_busy();
    model_run(seconds * VGPU_SEC + 1000);
    printf("{\"busy_pct\": %.3f, \"tenants\": [",
           100 * (model_any_busy() - any) / ((double)(seconds - warm) * 1e9));
    for (int i = 0; i < container_count; i++) {
        double least1 = 1e9, most1 = -1, least10 = 1e9, most10 = -1;
        for (int64_t t = warm * 10; t + 10 <= seconds * 10; t++) {
            double share = part(i, t, t + 10);
            least1 = fmin(least1, share), most1 = fmax(most1, share);
            if (t + 100 > seconds * 10) continue;
            share = part(i, t, t + 100);
            least10 = fmin(least10, share), most10 = fmax(most10, share);
        }
        long launches = 0, repeats = 0, waited[4] = {0};
        for (int j = 0; j < process_count; j++)
            if (containers[i].contexts >> j & 1) {
                launches += processes[j].launches;
                repeats += processes[j].repeats;
                for (int k = 0; k < 4; k++) waited[k] += processes[j].waited[k];
            }
        struct vgpu_ledger *l = &containers[i].ledger;
        printf("%s{\"share\": %.3f, \"one\": [%.3f, %.3f], \"ten\": [%.3f, %.3f], "
               "\"launches\": %ld, \"repeats\": %ld, \"waited_s\": [%.3f, %.3f, %.3f], \"kappa\": [%.3f, %.3f], "
               "\"gain\": %.3f, \"latency_us\": {\"p50\": %.1f, \"p99\": %.1f}, "
               "\"degraded\": %s, \"seconds\": [",
               i ? ", " : "", part(i, warm * 10, seconds * 10), least1, most1, least10, most10,
               launches, repeats, (double)waited[1] / 1e9, (double)waited[2] / 1e9, (double)waited[3] / 1e9,
               (double)l->kappa_ppm[0] / 1e6, (double)l->kappa_ppm[1] / 1e6,
               (double)l->gain_ppm / 1e6, latency(&containers[i], .5),
               latency(&containers[i], .99), containers[i].degraded ? "true" : "false");
        for (int64_t t = 0; t < seconds; t++)
            printf("%s%.2f", t ? ", " : "", part(i, t * 10, t * 10 + 10));
        printf("], \"tenths\": [");
        for (int64_t t = 0; t < seconds * 10; t++)
            printf("%s%.1f", t ? ", " : "", part(i, t, t + 1));
        printf("]}");
    }
    printf("]}\n");
    return 0;
}
