#include "call.h"

#include <stddef.h>
#include <string.h>

/* Options of runc and crun that take their value as the next argument: global ones, then those
 * of create, run, restore and exec. All others are switches or carry their value after '='. */
static const char *const global_values[] = {"log",      "log-format",     "log-level", "root",
                                            "rootless", "cgroup-manager", "criu",      NULL};
static const char *const command_values[] = {
    "bundle", "b",          "console-socket", "pid-file",     "preserve-fds", "process",
    "p",      "cwd",        "env",            "e",            "user",         "u",
    "cap",    "c",          "additional-gids", "g",           "apparmor",     "process-label",
    "cgroup", "image-path", "work-path",      "parent-path",  "lsm-profile",  "lsm-mount-context",
    "empty-ns", "manage-cgroups-mode", "status-fd", "config", "f", NULL};

static bool listed(const char *const *list, const char *name, size_t size) {
    for (; *list; list++)
        if (strlen(*list) == size && memcmp(*list, name, size) == 0) return true;
    return false;
}

static void keep(struct call *call, const char *name, size_t size, const char *value) {
#define NAMED(text) (size == sizeof text - 1 && memcmp(name, text, size) == 0)
    if (NAMED("log")) call->log = value;
    if (NAMED("log-format")) call->log_is_json = strcmp(value, "json") == 0;
    if (NAMED("bundle") || NAMED("b")) call->bundle = value;
    if (NAMED("config") || NAMED("f")) call->config = value;
    if (NAMED("process") || NAMED("p")) call->process = value;
#undef NAMED
}

struct call call_read(char **argv) {
    struct call call = {.bundle = "."};
    for (char **at = argv + 1; *at; at++) {
        if (**at != '-') {
            if (call.command) break; /* the container's id ends the options */
            call.command = *at;
            continue;
        }
        const char *name = *at + strspn(*at, "-");
        size_t size = strcspn(name, "=");
        if (name[size])
            keep(&call, name, size, name + size + 1);
        else if (listed(call.command ? command_values : global_values, name, size) && at[1])
            keep(&call, name, size, *++at);
    }
    return call;
}
