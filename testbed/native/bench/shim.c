/* What a library between program and driver costs and holds (testbed bench shim).
 *
 *   vgpu-bench-shim tenant NS deep|sync       kernels of NS until it is killed, or stdin ends
 *   vgpu-bench-shim launch BATCHES CALLS NS PAUSE_US   ns a launch, a line a batch
 *   vgpu-bench-shim memory BATCHES CALLS BYTES         ns an allocation and ns a release, likewise
 *   vgpu-bench-shim ordered BATCHES CALLS BYTES        the same of stream-ordered memory
 *   vgpu-bench-shim race PROCESSES ROUNDS CAP CONTEXT  rounds, how many of them passed CAP bytes,
 *                                                      the most that was granted, its refusals
 *
 * The driver is found as a program that is linked to it would find it, whatever is preloaded
 * first; it prints nothing else. A tenant prints "ready", and begins at a line on stdin.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench.h"

#define GRANULE (2ull << 20)
/* Of a racing process: blocks a round at most, and granules of the largest. */
#define BLOCKS 4
#define LARGEST 32
/* Every so many rounds one of the processes makes a context instead. */
#define CONTEXT_EVERY 8
/* Every so many rounds two of the processes ask at the same instant for one block each, of which
 * the cap has room for one only, and this a number of times; the others wait. Who charges after
 * one look alone passes it so. */
#define DUEL_EVERY 2
#define BOUTS 32
/* How far apart the two ask, in turns of a loop: the later may look while the earlier writes. */
#define APART 256
#define MOST_PROCESSES 64

static int (*cu_allocate)(unsigned long long *, size_t);
static int (*cu_release)(unsigned long long);
static int (*cu_allocate_ordered)(unsigned long long *, size_t, void *);
static int (*cu_release_ordered)(unsigned long long, void *);

/* Finds the first of the global scope: a preloaded library's functions before the driver's. */
static void *driver(void)
{
    open_library("libcuda.so.1", RTLD_GLOBAL);
    find(RTLD_DEFAULT, "cuMemAlloc_v2", &cu_allocate);
    find(RTLD_DEFAULT, "cuMemFree_v2", &cu_release);
    return driver_kernel(RTLD_DEFAULT);
}

static uint64_t duration_ns;
static void *parameters[] = {&duration_ns};

static int launch(void *kernel)
{
    return cu_launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
}

/* --- a tenant ---------------------------------------------------------------------------- */

static int synchronised;

static void *work(void *kernel)
{
    MUST(cu_set(context));
    for (;;) {
        MUST(launch(kernel));
        if (synchronised)
            MUST(cu_synchronize());
    }
    return NULL;
}

static int tenant(const char *ns, const char *pattern)
{
    duration_ns = strtoull(ns, NULL, 10);
    synchronised = strcmp(pattern, "sync") == 0;
    if (!synchronised && strcmp(pattern, "deep") != 0)
        return 1;
    void *kernel = driver();
    puts("ready");
    fflush(stdout);
    char line[16];
    pthread_t worker;
    if (fgets(line, sizeof line, stdin) == NULL)
        return 0;
    if (pthread_create(&worker, NULL, work, kernel) != 0)
        fail("thread", 0);
    while (fgets(line, sizeof line, stdin) != NULL)
        ;
    _exit(0); /* what is queued is nobody's any more */
}

/* --- the cost of calls ------------------------------------------------------------------- */

static void bench_launch(long batches, long calls, uint64_t ns, unsigned pause_us)
{
    void *kernel = driver();
    struct timespec pause = {pause_us / 1000000, pause_us % 1000000 * 1000};
    duration_ns = ns;
    for (long batch = 0; batch < batches; batch++) {
        double start = now_ns();
        for (long i = 0; i < calls; i++)
            MUST(launch(kernel));
        double took = now_ns() - start;
        MUST(cu_synchronize());
        printf("%.1f\n", took / (double)calls);
        nanosleep(&pause, NULL);
    }
}

static int take(unsigned long long *pointer, size_t bytes, int ordered)
{
    return ordered ? cu_allocate_ordered(pointer, bytes, NULL) : cu_allocate(pointer, bytes);
}

static int give(unsigned long long pointer, int ordered)
{
    return ordered ? cu_release_ordered(pointer, NULL) : cu_release(pointer);
}

static void bench_memory(long batches, long calls, size_t bytes, int ordered)
{
    driver();
    if (ordered) {
        find(RTLD_DEFAULT, "cuMemAllocAsync", &cu_allocate_ordered);
        find(RTLD_DEFAULT, "cuMemFreeAsync", &cu_release_ordered);
    }
    unsigned long long *pointers = calloc((size_t)calls, sizeof *pointers);
    if (pointers == NULL)
        fail("memory", 0);
    for (long batch = 0; batch < batches; batch++) {
        double start = now_ns();
        for (long i = 0; i < calls; i++)
            MUST(take(&pointers[i], bytes, ordered));
        double between = now_ns();
        for (long i = 0; i < calls; i++)
            MUST(give(pointers[i], ordered));
        double end = now_ns();
        printf("%.1f %.1f\n", (between - start) / (double)calls, (end - between) / (double)calls);
    }
    free(pointers);
}

/* --- the race for the cap ---------------------------------------------------------------- */

struct race {
    pthread_barrier_t barrier;
    /* What the driver has granted in this round; nothing is released before it was judged. */
    _Atomic uint64_t granted;
    _Atomic uint64_t refused;
    _Atomic uint64_t most_in_duel; /* of this round */
    _Atomic long met; /* how often duellists came to where they meet, in all rounds so far */
    uint64_t base, cap, context_bytes, most, passed;
};

static int (*cu_create)(void **, unsigned, int);
static int (*cu_destroy)(void *);

static void meet(struct race *race)
{
    int code = pthread_barrier_wait(&race->barrier);
    if (code != 0 && code != PTHREAD_BARRIER_SERIAL_THREAD)
        fail("barrier", code);
}

static void count(struct race *race, int code, uint64_t bytes)
{
    if (code == 0)
        atomic_fetch_add(&race->granted, bytes);
    else if (code == 2)
        atomic_fetch_add(&race->refused, 1);
    else
        fail("allocation", code);
}

static uint32_t next_of(uint32_t *noise)
{
    *noise ^= *noise << 13, *noise ^= *noise >> 17, *noise ^= *noise << 5;
    return *noise;
}

/* Waits for the other of two without rest, so that both go on at one instant. */
static void meet_opponent(struct race *race, long *meetings)
{
    long wanted = 2 * ++*meetings;
    atomic_fetch_add(&race->met, 1);
    for (long turns = 1; atomic_load(&race->met) < wanted; turns++)
        if (turns % 200000 == 0)
            sched_yield(); /* a millisecond: it has no processor */
}

/* To the first or the second processor that there is: two that take turns on one do not meet. */
static void sit_down(const cpu_set_t *allowed, int which)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET(cpu, allowed) && which-- == 0) {
            cpu_set_t one;
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(0, sizeof one, &one);
            return;
        }
}

/* One of the two; `meetings` is how often any two have met before. */
static void fight(struct race *race, long meetings, uint32_t *noise)
{
    uint64_t bytes = (race->cap - race->base) / 2 / GRANULE * GRANULE + GRANULE;
    for (int bout = 0; bout < BOUTS; bout++) {
        unsigned long long block;
        uint32_t apart = next_of(noise) % APART;
        meet_opponent(race, &meetings);
        for (volatile uint32_t i = 0; i < apart; i++)
            ;
        int code = cu_allocate(&block, bytes);
        count(race, code, bytes);
        meet_opponent(race, &meetings);
        uint64_t granted = atomic_load(&race->granted);
        if (granted > atomic_load(&race->most_in_duel))
            atomic_store(&race->most_in_duel, granted);
        meet_opponent(race, &meetings);
        if (code == 0) {
            MUST(cu_release(block));
            atomic_fetch_sub(&race->granted, bytes);
        }
    }
}

static void racer(struct race *race, long number, long processes, long rounds)
{
    driver();
    find(RTLD_DEFAULT, "cuCtxCreate_v2", &cu_create);
    find(RTLD_DEFAULT, "cuCtxDestroy_v2", &cu_destroy);
    uint32_t noise = 2463534242u + (uint32_t)number;
    cpu_set_t allowed;
    MUST(sched_getaffinity(0, sizeof allowed, &allowed));
    for (long round = 0; round < rounds; round++) {
        unsigned long long held[BLOCKS];
        int blocks = 0;
        void *more = NULL;
        meet(race);
        if (processes > 1 && round % DUEL_EVERY == 1) {
            long duel = round / DUEL_EVERY, first = duel % processes;
            long second = (first + 1 + duel / processes % (processes - 1)) % processes;
            if (number == first || number == second) {
                sit_down(&allowed, number == second);
                fight(race, duel * BOUTS * 3, &noise);
                sched_setaffinity(0, sizeof allowed, &allowed);
            }
        } else if (round % CONTEXT_EVERY == 0 && round / CONTEXT_EVERY % processes == number) {
            count(race, cu_create(&more, 0, 0), race->context_bytes);
        } else {
            for (int i = 0; i < BLOCKS; i++) {
                uint64_t bytes = (1 + next_of(&noise) % LARGEST) * GRANULE;
                int code = cu_allocate(&held[blocks], bytes);
                blocks += code == 0;
                count(race, code, bytes);
            }
        }
        meet(race);
        if (number == 0) {
            uint64_t granted = atomic_exchange(&race->granted, 0);
            uint64_t in_duel = atomic_exchange(&race->most_in_duel, 0);
            uint64_t used = race->base + (granted > in_duel ? granted : in_duel);
            race->most = used > race->most ? used : race->most;
            race->passed += used > race->cap;
        }
        while (blocks > 0)
            MUST(cu_release(held[--blocks]));
        if (more != NULL) {
            MUST(cu_destroy(more));
            MUST(cu_set(context));
        }
        meet(race);
    }
}

static int bench_race(long processes, long rounds, uint64_t cap, uint64_t context_bytes)
{
    struct race *race = mmap(NULL, sizeof *race, PROT_READ | PROT_WRITE,
                             MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_barrierattr_t shared;
    if (race == MAP_FAILED || processes < 1 || processes > MOST_PROCESSES)
        fail("race", 0);
    MUST(pthread_barrierattr_init(&shared));
    MUST(pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED));
    MUST(pthread_barrier_init(&race->barrier, &shared, (unsigned)processes));
    race->cap = cap;
    race->context_bytes = context_bytes;
    race->base = (uint64_t)processes * context_bytes;
    pid_t parent = getpid(), pids[MOST_PROCESSES];
    for (long i = 0; i < processes; i++) {
        pids[i] = fork();
        if (pids[i] < 0)
            fail("fork", 0);
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(2);
            racer(race, i, processes, rounds);
            _exit(0);
        }
    }
    for (long left = processes; left > 0; left--) {
        int status = 0;
        if (wait(&status) < 0 || status != 0) {
            /* The others would wait for it for ever. */
            for (long i = 0; i < processes; i++)
                kill(pids[i], SIGKILL);
            fprintf(stderr, "a racing process ended early (%d)\n", status);
            return 2;
        }
    }
    printf("%ld %llu %llu %llu\n", rounds, (unsigned long long)race->passed,
           (unsigned long long)race->most, (unsigned long long)atomic_load(&race->refused));
    return 0;
}

int main(int count, char **arguments)
{
    const char *what = count > 3 ? arguments[1] : "";
    if (strcmp(what, "tenant") == 0 && count == 4) {
        int code = tenant(arguments[2], arguments[3]);
        if (code == 0)
            return 0;
    } else if (strcmp(what, "launch") == 0 && count == 6) {
        bench_launch(atol(arguments[2]), atol(arguments[3]), strtoull(arguments[4], NULL, 10),
                     (unsigned)atol(arguments[5]));
        return 0;
    } else if ((strcmp(what, "memory") == 0 || strcmp(what, "ordered") == 0) && count == 5) {
        bench_memory(atol(arguments[2]), atol(arguments[3]), strtoull(arguments[4], NULL, 10),
                     what[0] == 'o');
        return 0;
    } else if (strcmp(what, "race") == 0 && count == 6) {
        return bench_race(atol(arguments[2]), atol(arguments[3]),
                          strtoull(arguments[4], NULL, 10), strtoull(arguments[5], NULL, 10));
    }
    fprintf(stderr, "usage: vgpu-bench-shim tenant NS deep|sync | launch BATCHES CALLS NS PAUSE_US | "
                    "memory|ordered BATCHES CALLS BYTES | race PROCESSES ROUNDS CAP CONTEXT\n");
    return 2;
}
