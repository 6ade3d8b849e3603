/* Makes driver calls that it is told line by line, so that a test can make any sequence of them.
 *
 *     NAME token token …      calls NAME, found as a runtime finds it (dlsym of libcuda.so.1)
 *     thread NAME token …     the same on a thread of its own, where no context is current
 *     value NAME $n token …   the same for cuIpcOpenMemHandle_v2: 64 bytes as second argument
 *     fork                    goes on in a child until "exit"; then in the parent
 *
 * A token is a number, $n (the value of slot n), &n (its address: the call writes to it) or
 * #hex (the address of these bytes, which the call may change). The answer is the result and then,
 * in order, every &n's value and every #'s bytes. Threads take the current context of the first
 * thread along. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define SLOTS 4096
#define ARGUMENTS 8
#define LINE 8192
#define BYTES 512
#define ERRNO 4711

typedef int function(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t,
                     uint64_t);
struct by_value {
    unsigned char bytes[64];
};
typedef int opening(uint64_t *, struct by_value, unsigned);

static uint64_t slots[SLOTS];
static void *library;

struct call {
    void *function;
    int value;
    uint64_t arguments[ARGUMENTS];
    unsigned char bytes[ARGUMENTS][BYTES];
    size_t lengths[ARGUMENTS];
    int written[ARGUMENTS]; /* slot + 1 */
    void *context;
    int result;
};

/* No buffered reading: what a child reads must not be what its parent read ahead. */
static int read_line(char *line)
{
    size_t length = 0;
    char c;
    while (length < LINE - 1) {
        ssize_t got = read(0, &c, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        if (c == '\n')
            break;
        line[length++] = c;
    }
    line[length] = '\0';
    return 1;
}

static void *find(const char *name)
{
    void *found = dlsym(library, name);
    if (found == NULL) {
        fprintf(stderr, "no %s\n", name);
        exit(3);
    }
    return found;
}

static void parse(struct call *call, char *rest)
{
    int i = 0;
    for (char *token = strtok(rest, " "); token != NULL && i < ARGUMENTS;
         token = strtok(NULL, " "), i++) {
        if (token[0] == '$')
            call->arguments[i] = slots[atoi(token + 1) % SLOTS];
        else if (token[0] == '&') {
            int slot = atoi(token + 1) % SLOTS;
            call->written[i] = slot + 1;
            call->arguments[i] = (uint64_t)(uintptr_t)&slots[slot];
        } else if (token[0] == '#') {
            size_t length = strlen(token + 1) / 2;
            for (size_t n = 0; n < length && n < BYTES; n++) {
                unsigned byte;
                sscanf(token + 1 + 2 * n, "%2x", &byte);
                call->bytes[i][n] = (unsigned char)byte;
            }
            call->lengths[i] = length;
            call->arguments[i] = (uint64_t)(uintptr_t)call->bytes[i];
        } else
            call->arguments[i] = strtoull(token, NULL, 0);
    }
}

static void make(struct call *call)
{
    uint64_t *a = call->arguments;
    errno = ERRNO;
    if (call->value) {
        struct by_value value;
        memcpy(&value, call->bytes[1], sizeof value);
        call->result = ((opening *)call->function)((uint64_t *)(uintptr_t)a[0], value,
                                                   (unsigned)a[2]);
    } else {
        call->result =
            ((function *)call->function)(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7]);
    }
}

static void *on_thread(void *data)
{
    struct call *call = data;
    if (call->context != NULL)
        ((int (*)(void *))find("cuCtxSetCurrent"))(call->context);
    make(call);
    return NULL;
}

static void answer(const struct call *call)
{
    printf("%d", call->result);
    for (int i = 0; i < ARGUMENTS; i++) {
        if (call->written[i] != 0)
            printf(" %llu", (unsigned long long)slots[call->written[i] - 1]);
        if (call->lengths[i] != 0)
            printf(" #");
        for (size_t n = 0; n < call->lengths[i]; n++)
            printf("%02x", call->bytes[i][n]);
    }
    printf("\n");
    fflush(stdout);
}

static void forked(void)
{
    pid_t child = fork();
    if (child == 0) {
        printf("0 %d\n", (int)getpid());
        fflush(stdout);
        return;
    }
    int status = -1;
    while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    printf("%d\n", status);
    fflush(stdout);
}

int main(void)
{
    static char line[LINE];
    library = dlopen("libcuda.so.1", RTLD_NOW);
    if (library == NULL)
        return 5;
    while (read_line(line)) {
        struct call call = {.function = NULL};
        char *at = line;
        if (strcmp(line, "exit") == 0)
            _exit(0);
        if (strcmp(line, "fork") == 0) {
            forked();
            continue;
        }
        int threaded = strncmp(at, "thread ", 7) == 0;
        at += threaded ? 7 : 0;
        call.value = strncmp(at, "value ", 6) == 0;
        at += call.value ? 6 : 0;
        char *rest = strchr(at, ' ');
        if (rest != NULL)
            *rest++ = '\0';
        call.function = find(at);
        if (rest != NULL)
            parse(&call, rest);
        if (threaded) {
            pthread_t thread;
            ((int (*)(void **))find("cuCtxGetCurrent"))(&call.context);
            if (pthread_create(&thread, NULL, on_thread, &call) != 0)
                return 6;
            pthread_join(thread, NULL);
        } else {
            make(&call);
        }
        answer(&call);
    }
    return 0;
}
