/* Many processes of one container, each forked from this one and, where the kernel allows it, the
 * first of a PID namespace of its own, as the processes of pods are.
 *
 *     crowd BYTES     allocated by each
 *
 * Commands, a line each, and what they answer:
 *     start N         forks N one after the other, which register at the same time; how many had
 *                     all they asked for, how many were refused, how many are pid 1
 *     kill N          N of those that got all, by SIGKILL; "killed"
 *     end             all others give back and end; how many did so with status 0 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define MOST 4096

struct told {
    int granted, pid;
};

static int (*init)(unsigned), (*retain)(void **, int), (*set_current)(void *);
static int (*allocate)(unsigned long long *, size_t), (*release)(unsigned long long);
static int (*let_go)(int);
static size_t bytes;
static int results[2], ending[2];
static pid_t children[MOST];
static int count;

static void *find(void *library, const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        exit(3);
    return found;
}

static void child(void)
{
    void *context;
    unsigned long long pointer;
    close(ending[1]);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    struct told told = {.pid = (int)getpid()};
    told.granted = init(0) == 0 && retain(&context, 0) == 0 && set_current(context) == 0 &&
                   allocate(&pointer, bytes) == 0;
    if (write(results[1], &told, sizeof told) != sizeof told)
        _exit(4);
    char end;
    while (read(ending[0], &end, 1) < 0 && errno == EINTR) {
    }
    if (!told.granted)
        _exit(0);
    _exit(release(pointer) == 0 && let_go(0) == 0 ? 0 : 5);
}

static pid_t new_process(void)
{
    pid_t made = (pid_t)syscall(SYS_clone, (unsigned long)CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
    return made < 0 && errno == EPERM ? fork() : made;
}

static void start(int wanted)
{
    int granted = 0, refused = 0, first = 0;
    for (int i = 0; i < wanted; i++) {
        pid_t made = count < MOST ? new_process() : -1;
        if (made < 0) {
            perror("fork");
            exit(6);
        }
        if (made == 0)
            child();
        children[count++] = made;
    }
    for (int i = 0; i < wanted; i++) {
        struct told told;
        if (read(results[0], &told, sizeof told) != sizeof told)
            exit(7);
        granted += told.granted;
        refused += !told.granted;
        first += told.pid == 1;
    }
    printf("%d %d %d\n", granted, refused, first);
}

static int wait_for(pid_t pid)
{
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

int main(int argc, char **argv)
{
    if (argc != 2 || pipe(results) != 0 || pipe(ending) != 0)
        return 2;
    bytes = strtoull(argv[1], NULL, 10);
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return 3;
    *(void **)&init = find(library, "cuInit");
    *(void **)&retain = find(library, "cuDevicePrimaryCtxRetain");
    *(void **)&let_go = find(library, "cuDevicePrimaryCtxRelease_v2");
    *(void **)&set_current = find(library, "cuCtxSetCurrent");
    *(void **)&allocate = find(library, "cuMemAlloc_v2");
    *(void **)&release = find(library, "cuMemFree_v2");
    char line[64];
    while (fgets(line, sizeof line, stdin) != NULL) {
        int number = 0, ended = 0;
        if (sscanf(line, "start %d", &number) == 1)
            start(number);
        else if (sscanf(line, "kill %d", &number) == 1) {
            for (int i = 0; i < number; i++)
                kill(children[i], SIGKILL);
            for (int i = 0; i < number; i++)
                wait_for(children[i]);
            count -= number;
            memmove(children, children + number, (size_t)count * sizeof *children);
            puts("killed");
        } else {
            close(ending[1]);
            for (int i = 0; i < count; i++)
                ended += wait_for(children[i]) == 0;
            count = 0;
            printf("%d\n", ended);
        }
        fflush(stdout);
    }
    for (int i = 0; i < count; i++)
        kill(children[i], SIGKILL);
    return 0;
}
