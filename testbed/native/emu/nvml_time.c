/* Utilisation, as NVML tells it: by sampling periods, some time after their end, from the
 * card's book. What nobody has written down yet, because no process has entered the driver
 * since, is worked out on a copy of the book. */
#define _GNU_SOURCE
#include "nvml.h"

#include "clock.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

/* --- the periods that are known ----------------------------------------------------------- */

#define VIEWED 64 /* periods that were not written down; more are interpolated */

struct points {
    struct card_row *row[CARD_ROWS + VIEWED]; /* sorted by number */
    struct card_row rows[CARD_ROWS + VIEWED];
    int count;
    uint64_t newest; /* the last period that is told by now */
    uint64_t period_ns;
    uint64_t offset_us; /* of CLOCK_REALTIME, for periods not written down */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct points points; /* guarded by lock; too large for a stack */

static void copy_row(const struct card_row *row)
{
    uint64_t number = __atomic_load_n(&row->number, __ATOMIC_ACQUIRE);
    struct card_row *copy = &points.rows[points.count];
    if (number == 0 || row->slots > CARD_MAX_SLOTS)
        return;
    memset(copy, 0, sizeof *copy);
    copy->number = number;
    copy->stamp_us = row->stamp_us;
    copy->slots = row->slots;
    memcpy(copy->granted_ns, row->granted_ns, copy->slots * sizeof copy->granted_ns[0]);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    if (__atomic_load_n(&row->number, __ATOMIC_RELAXED) == number)
        points.count++;
}

static void keep_viewed(void *unused, uint64_t number, const struct card_book *book)
{
    (void)unused;
    if (points.count == CARD_ROWS + VIEWED)
        return;
    struct card_row *copy = &points.rows[points.count++];
    memset(copy, 0, sizeof *copy);
    copy->number = number;
    copy->stamp_us = number * points.period_ns / 1000 + points.offset_us;
    copy->slots = book->slots;
    memcpy(copy->granted_ns, book->granted_ns, copy->slots * sizeof copy->granted_ns[0]);
}

static void sort(void)
{
    for (int i = 0; i < points.count; i++) {
        int at = i;
        struct card_row *row = &points.rows[i];
        for (; at > 0 && points.row[at - 1]->number > row->number; at--)
            points.row[at] = points.row[at - 1];
        points.row[at] = row;
    }
}

/* Fills `points`; the lock is held. */
static void look(struct device *device)
{
    static struct clock clocks[EMU_MAX_CARDS];
    struct clock *clock = &clocks[device - nvml_devices];
    struct card_state *state = device->card.state;
    if (clock->state == NULL)
        clock_open(clock, state, &device->locks);
    struct timespec real;
    clock_gettime(CLOCK_REALTIME, &real);
    uint64_t now = emu_now_ns();
    uint64_t lag = state->description.sample_lag_us * 1000ull;
    points.count = 0;
    points.period_ns = clock->period_ns;
    points.offset_us =
        ((uint64_t)real.tv_sec * 1000000000ull + (uint64_t)real.tv_nsec - now) / 1000;
    for (int i = 0; i < CARD_ROWS; i++)
        copy_row(&state->rows[i]);
    struct card_book book;
    clock_view(clock, now, nvml_own_slot(device), &book, keep_viewed, NULL);
    points.newest = now > lag ? (now - lag) / points.period_ns : 0;
    sort();
}

/* Device time of a slot at the end of a period. Between known points nothing is known but
 * the sum, so it is spread evenly. */
static uint64_t granted(uint64_t number, unsigned int slot)
{
    const struct card_row *before = NULL, *after = NULL;
    for (int i = 0; i < points.count; i++) {
        if (points.row[i]->number <= number)
            before = points.row[i];
        else if (after == NULL)
            after = points.row[i];
    }
    if (before == NULL)
        return after != NULL ? after->granted_ns[slot] : 0;
    uint64_t low = before->granted_ns[slot];
    if (before->number == number || after == NULL || after->granted_ns[slot] <= low)
        return low;
    return low + (uint64_t)((unsigned __int128)(after->granted_ns[slot] - low) *
                            (number - before->number) / (after->number - before->number));
}

static uint64_t stamp(uint64_t number)
{
    for (int i = 0; i < points.count; i++)
        if (points.row[i]->number == number)
            return points.row[i]->stamp_us;
    return number * points.period_ns / 1000 + points.offset_us;
}

static unsigned int percent(uint64_t ns)
{
    uint64_t value = (ns * 100 + points.period_ns / 2) / points.period_ns;
    return value > 100 ? 100 : (unsigned int)value;
}

/* Device time of the process that has the slot now, in a period. */
static uint64_t used(const struct card_state *state, uint64_t number, unsigned int slot)
{
    uint64_t base = __atomic_load_n(&state->slots[slot].base_ns, __ATOMIC_RELAXED);
    uint64_t before = granted(number - 1, slot), after = granted(number, slot);
    if (before < base)
        before = base;
    return after > before ? after - before : 0;
}

static uint64_t used_by_all(const struct card_state *state, uint64_t number)
{
    uint64_t sum = 0;
    for (int slot = 0, count = emu_card_slots(state); slot < count; slot++)
        sum += granted(number, (unsigned int)slot) - granted(number - 1, (unsigned int)slot);
    return sum;
}

/* Of the processes that used the card in a period, the one that is said to have used it: one is
 * met as often as it has the card. Everybody who asks gets the same answer. */
static unsigned int seen_in(const struct card_state *state, uint64_t number, uint64_t sum)
{
    uint64_t toss = number * 0x9e3779b97f4a7c15ull; /* SplitMix64 */
    toss = (toss ^ toss >> 30) * 0xbf58476d1ce4e5b9ull;
    toss = (toss ^ toss >> 27) * 0x94d049bb133111ebull;
    toss = (toss ^ toss >> 31) % sum;
    unsigned int slot = 0;
    for (unsigned int count = (unsigned int)emu_card_slots(state); slot + 1 < count; slot++) {
        uint64_t own = granted(number, slot) - granted(number - 1, slot);
        if (toss < own)
            break;
        toss -= own;
    }
    return slot;
}

static unsigned int process_percent(const struct card_state *state, uint64_t number,
                                    unsigned int slot)
{
    uint64_t own = used(state, number, slot);
    if (own == 0 || state->description.process_samples != CARD_SAMPLES_ONE)
        return percent(own);
    uint64_t sum = used_by_all(state, number);
    return sum != 0 && seen_in(state, number, sum) == slot ? percent(sum) : 0;
}

/* --- of the card ----------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
    DEVICE(device);
    NEED(rates != NULL);
    pthread_mutex_lock(&lock);
    look(device);
    rates->gpu = percent(used_by_all(device->card.state, points.newest));
    rates->memory = rates->gpu / 2; /* assumed: traffic is not counted apart */
    pthread_mutex_unlock(&lock);
    return NVML_SUCCESS;
}

#define GPU_SAMPLES 1
#define MEMORY_SAMPLES 2
#define VALUE_UNSIGNED_INT 1

EXPORT nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, int type,
                                         unsigned long long last_seen_us, int *value_type,
                                         unsigned int *count, nvmlSample_t *samples)
{
    DEVICE(device);
    NEED(value_type != NULL && count != NULL);
    if (type != GPU_SAMPLES && type != MEMORY_SAMPLES)
        return NVML_ERROR_NOT_SUPPORTED;
    *value_type = VALUE_UNSIGNED_INT;
    if (samples == NULL) {
        *count = CARD_ROWS - 8;
        return NVML_SUCCESS;
    }
    pthread_mutex_lock(&lock);
    look(device);
    uint64_t made = device->card.state->made_ns / points.period_ns;
    uint64_t first = points.newest > CARD_ROWS - 8 ? points.newest - (CARD_ROWS - 8) + 1 : 1;
    if (first <= made)
        first = made + 1;
    unsigned int found = 0;
    for (uint64_t number = first; number <= points.newest && found < *count; number++) {
        uint64_t stamp_us = stamp(number);
        if (stamp_us <= last_seen_us)
            continue;
        unsigned int value = percent(used_by_all(device->card.state, number));
        samples[found++] = (nvmlSample_t){
            .timeStamp = stamp_us, .uiVal = type == GPU_SAMPLES ? value : value / 2};
    }
    pthread_mutex_unlock(&lock);
    *count = found;
    return found > 0 ? NVML_SUCCESS : NVML_ERROR_NOT_FOUND;
}

/* --- of processes ------------------------------------------------------------------------------ */

/* One entry for each process that used the card in a period that ended after `last_seen_us`:
 * that of its last such period. Returns how many. */
static unsigned int busy_processes(nvmlDevice_t device, unsigned long long last_seen_us,
                                   nvmlProcessUtilizationSample_t *samples, unsigned int room)
{
    struct process processes[CARD_MAX_SLOTS];
    const struct card_state *state = device->card.state;
    if (state->description.process_samples == CARD_SAMPLES_NONE)
        return 0;
    int found = nvml_processes(device, processes);
    unsigned int busy = 0;
    pthread_mutex_lock(&lock);
    look(device);
    uint64_t oldest = points.newest > CARD_ROWS - 8 ? points.newest - (CARD_ROWS - 8) : 0;
    for (int i = 0; i < found; i++)
        for (uint64_t number = points.newest; number > oldest; number--) {
            uint64_t stamp_us = stamp(number);
            if (stamp_us <= last_seen_us)
                break;
            unsigned int value =
                process_percent(state, number, (unsigned int)processes[i].slot);
            if (value == 0)
                continue;
            if (samples != NULL && busy < room)
                samples[busy] =
                    (nvmlProcessUtilizationSample_t){.pid = processes[i].pid,
                                                     .timeStamp = stamp_us,
                                                     .smUtil = value,
                                                     .memUtil = value / 2};
            busy++;
            break;
        }
    pthread_mutex_unlock(&lock);
    return busy;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t device,
                                                    nvmlProcessUtilizationSample_t *samples,
                                                    unsigned int *count,
                                                    unsigned long long last_seen_us)
{
    DEVICE(device);
    NEED(count != NULL);
    unsigned int room = *count;
    unsigned int busy = busy_processes(device, last_seen_us, samples, room);
    *count = busy;
    if (busy == 0)
        return NVML_ERROR_NOT_FOUND;
    return samples == NULL || busy > room ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetProcessesUtilizationInfo(nvmlDevice_t device,
                                                          nvmlProcessesUtilizationInfo_t *info)
{
    DEVICE(device);
    NEED(info != NULL);
    if (info->version != (sizeof *info | 1u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    nvmlProcessUtilizationSample_t samples[CARD_MAX_SLOTS];
    unsigned int room = info->processSamplesCount;
    unsigned int busy =
        busy_processes(device, info->lastSeenTimeStamp, samples, CARD_MAX_SLOTS);
    info->processSamplesCount = busy;
    if (busy == 0)
        return NVML_ERROR_NOT_FOUND;
    if (info->procUtilArray == NULL || busy > room)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < busy; i++)
        info->procUtilArray[i] =
            (nvmlProcessUtilizationInfo_v1_t){.timeStamp = samples[i].timeStamp,
                                              .pid = samples[i].pid,
                                              .smUtil = samples[i].smUtil,
                                              .memUtil = samples[i].memUtil};
    return NVML_SUCCESS;
}
