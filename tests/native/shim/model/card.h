/* A card in virtual time, for tests of the throttle: discrete events, exact on a machine of
 * any load. Contexts of processes take turns (or share the processors), streams keep their
 * order, a full queue blocks, events complete in order, NVML samples with period and lag. */
#ifndef MODEL_CARD_H
#define MODEL_CARD_H

#include <stdbool.h>
#include <stdint.h>

enum { MODEL_CONTEXTS = 8, MODEL_STREAMS = 20, MODEL_DEPTH = 1024 };

struct model_event {
    bool done;
    double time; /* ns */
};

struct model_settings {
    bool sharing;           /* processor sharing instead of time slices */
    double slice, change;   /* ns: length of a turn, loss at a change of turns */
    double launch, record, query; /* host time of calls */
    double event;           /* device time of an event */
    double slack;           /* how much a sleep overshoots, about */
    double sample, lag;     /* NVML */
    int noise;              /* NVML: +- percent */
};
extern struct model_settings model;

/* Host threads are coroutines; these may be called in them only, `model_now` anywhere. */
int64_t model_now(void);
double model_random(void); /* 0..1, the same sequence every time */
void model_thread(void (*body)(void *), void *data);
void model_run(int64_t until);
void model_compute(double ns);
void model_sleep(double ns);

void model_launch(int context, int stream, double ns);
void model_record(int context, int stream, struct model_event *event);
bool model_done(const struct model_event *event);
void model_synchronize(int context, int stream);
void model_kill(int context); /* its queue vanishes, as when its process dies */

/* What the card itself counts. */
double model_busy(int context);     /* ns of device time so far */
double model_busy_at(int context, int64_t tenth); /* at the beginning of a tenth of a second */
double model_any_busy(void);

/* The newest NVML sample that can be read by now; its number, 0 = none. */
struct model_sample {
    int number;
    int64_t from, until;
    double part[MODEL_CONTEXTS]; /* 0..1, of whole percents */
};
struct model_sample model_nvml(void);

#endif
