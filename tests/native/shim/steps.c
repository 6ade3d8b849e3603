/* Kills a process at a chosen instruction of a chosen call.
 *
 * Each command makes a process anew, the first of a PID namespace of its own where the kernel
 * allows it, lets it prepare the call at full speed, and then lets it make it:
 *     trace CALL        instruction by instruction; how many of the library's instructions it comes
 *                       through (each counted once), and how many stops at system calls it has
 *     at CALL N         SIGKILL before it comes to instruction N of these for the first time
 *     stop CALL N       SIGKILL at stop N (before a system call, after it, before the next one, …)
 * The last two answer "killed", or "ended" where the call was through before.
 * CALL: register, far, near, refused, free, ordered, physical, context. */
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
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)
#define MOST 65536
/* So many instructions of a call are looked at one by one; of the longest, most of which is the
 * driver's work, the rest is known by its system calls only. */
#define TRACED 25000
/* The container's limit is 4 GiB, of which the survivor and the victim have a context each. */
#define FAR (2 * MIB)
#define NEAR (2800 * MIB)
#define TOO_MUCH (8000 * MIB)

struct physical {
    int type, handles, location, id;
    void *none;
    unsigned char flags[8];
};

static void *library;

static void *find(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL)
        _exit(3);
    return found;
}

#define CALL(name, ...) ((int (*)())find(#name))(__VA_ARGS__)

static void must(int result)
{
    if (result != 0)
        _exit(4);
}

static void registered(void)
{
    void *context;
    must(CALL(cuDevicePrimaryCtxRetain, &context, 0));
    must(CALL(cuCtxSetCurrent, context));
}

/* What precedes the call, the call, and a mark on either side. */
static void victim(const char *call)
{
    unsigned long long pointer = 0;
    size_t total;
    struct physical props = {.type = 1, .location = 1};
    int (*allocate)() = find("cuMemAlloc_v2"), (*release)() = find("cuMemFree_v2");
    int (*ordered)() = find("cuMemAllocAsync"), (*create)() = find("cuMemCreate");
    int (*let_go)() = find("cuDevicePrimaryCtxRelease_v2");
    must(CALL(cuInit, 0));
    if (strcmp(call, "register") == 0)
        must(CALL(cuDeviceTotalMem_v2, &total, 0)); /* reads the limits, and registers nobody */
    else
        registered();
    if (strcmp(call, "free") == 0)
        must(allocate(&pointer, NEAR));
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) != 0)
        _exit(5);
    raise(SIGSTOP);
    if (strcmp(call, "register") == 0)
        registered();
    else if (strcmp(call, "far") == 0)
        must(allocate(&pointer, FAR));
    else if (strcmp(call, "near") == 0)
        must(allocate(&pointer, NEAR));
    else if (strcmp(call, "refused") == 0)
        must(allocate(&pointer, TOO_MUCH) != 2);
    else if (strcmp(call, "free") == 0)
        must(release(pointer));
    else if (strcmp(call, "ordered") == 0)
        must(ordered(&pointer, NEAR, NULL));
    else if (strcmp(call, "physical") == 0)
        must(create(&pointer, NEAR, &props, 0ull));
    else if (strcmp(call, "context") == 0)
        must(let_go(0));
    else
        _exit(6);
    raise(SIGSTOP);
    _exit(7); /* it is killed at the mark */
}

static int wait_for(pid_t pid)
{
    int status = -1;
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
    }
    return status;
}

static pid_t prepared(const char *call)
{
    pid_t made = (pid_t)syscall(SYS_clone, (unsigned long)CLONE_NEWPID | SIGCHLD, 0, 0, 0, 0);
    if (made < 0 && errno == EPERM)
        made = fork();
    if (made == 0)
        victim(call);
    int status = made < 0 ? -1 : wait_for(made);
    if (made < 0 || !WIFSTOPPED(status)) {
        printf("failed %#x\n", status);
        exit(8);
    }
    ptrace(PTRACE_SETOPTIONS, made, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL);
    return made;
}

static void end(pid_t pid)
{
    kill(pid, SIGKILL);
    while (!WIFSIGNALED(wait_for(pid))) {
    }
}

/* Goes on by single instructions, to stops or to a breakpoint, `most` times at most; how often. */
static long go_on(pid_t pid, int request, long most, void (*look)(pid_t))
{
    for (long i = 0; i < most; i++) {
        if (ptrace(request, pid, NULL, NULL) != 0)
            exit(9);
        int status = wait_for(pid);
        if (!WIFSTOPPED(status)) {
            printf("failed %#x\n", status);
            exit(10);
        }
        if (WSTOPSIG(status) == SIGSTOP)
            return i;
        if (look != NULL)
            look(pid);
    }
    return most;
}

/* --- the library's instructions, each where a call first comes to it ----------------------- */

static uintptr_t text, text_end;
static unsigned char *seen;
static uintptr_t first[MOST];
static long found_count;

static void find_text(void)
{
    char line[512], rights[8];
    FILE *maps = fopen("/proc/self/maps", "r");
    uintptr_t start, end;
    while (maps != NULL && fgets(line, sizeof line, maps) != NULL)
        if (strstr(line, "libvgpu.so") != NULL &&
            sscanf(line, "%lx-%lx %7s", &start, &end, rights) == 3 && rights[2] == 'x') {
            text = start;
            text_end = end;
        }
    if (text == 0 || (seen = malloc(text_end - text)) == NULL)
        exit(11);
    fclose(maps);
}

static void note(pid_t pid)
{
    struct user_regs_struct registers;
    if (ptrace(PTRACE_GETREGS, pid, NULL, &registers) != 0)
        exit(12);
    uintptr_t at = (uintptr_t)registers.rip;
    if (at < text || at >= text_end || seen[at - text] || found_count == MOST)
        return;
    seen[at - text] = 1;
    first[found_count++] = at;
}

static void set_breakpoint(pid_t pid, uintptr_t at)
{
    errno = 0;
    long word = ptrace(PTRACE_PEEKTEXT, pid, (void *)at, NULL);
    if (errno != 0 || ptrace(PTRACE_POKETEXT, pid, (void *)at, (void *)((word & ~0xffl) | 0xcc)))
        exit(13);
}

int main(void)
{
    char command[16], call[16], line[64];
    library = dlopen("libcuda.so.1", RTLD_NOW);
    /* Also loaded here: else its loading were most of what the calls do, and the addresses of
     * one process not those of the next. */
    if (library == NULL || dlopen("libnvidia-ml.so.1", RTLD_NOW) == NULL)
        return 3;
    find_text();
    while (fgets(line, sizeof line, stdin) != NULL) {
        long number = 0, went, wanted = 1;
        if (sscanf(line, "%15s %15s %ld", command, call, &number) < 2)
            return 2;
        pid_t pid = prepared(call);
        if (strcmp(command, "trace") == 0) {
            memset(seen, 0, text_end - text);
            found_count = 0;
            go_on(pid, PTRACE_SINGLESTEP, TRACED, note);
            end(pid);
            pid = prepared(call);
            printf("%ld %ld\n", found_count, go_on(pid, PTRACE_SYSCALL, 1L << 40, NULL));
        } else {
            if (strcmp(command, "at") == 0) {
                if (number < 0 || number >= found_count)
                    return 2;
                set_breakpoint(pid, first[number]);
                went = go_on(pid, PTRACE_CONT, wanted, NULL);
            } else {
                wanted = number + 1;
                went = go_on(pid, PTRACE_SYSCALL, wanted, NULL);
            }
            puts(went == wanted ? "killed" : "ended");
        }
        end(pid);
        fflush(stdout);
    }
    return 0;
}
