#define _GNU_SOURCE
#include "host.h"

#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

/* In the order of the kernel's numbers (linux/capability.h). */
static const char *const capabilities[] = {
    "CHOWN",           "DAC_OVERRIDE",     "DAC_READ_SEARCH",  "FOWNER",
    "FSETID",          "KILL",             "SETGID",           "SETUID",
    "SETPCAP",         "LINUX_IMMUTABLE",  "NET_BIND_SERVICE", "NET_BROADCAST",
    "NET_ADMIN",       "NET_RAW",          "IPC_LOCK",         "IPC_OWNER",
    "SYS_MODULE",      "SYS_RAWIO",        "SYS_CHROOT",       "SYS_PTRACE",
    "SYS_PACCT",       "SYS_ADMIN",        "SYS_BOOT",         "SYS_NICE",
    "SYS_RESOURCE",    "SYS_TIME",         "SYS_TTY_CONFIG",   "MKNOD",
    "LEASE",           "AUDIT_WRITE",      "AUDIT_CONTROL",    "SETFCAP",
    "MAC_OVERRIDE",    "MAC_ADMIN",        "SYSLOG",           "WAKE_ALARM",
    "BLOCK_SUSPEND",   "AUDIT_READ",       "PERFMON",          "BPF",
    "CHECKPOINT_RESTORE",
};

bool host_may_give(const char *capability) {
    const char *name = strncmp(capability, "CAP_", 4) == 0 ? capability + 4 : capability;
    for (int i = 0; i < (int)(sizeof capabilities / sizeof *capabilities); i++)
        if (strcmp(name, capabilities[i]) == 0) return prctl(PR_CAPBSET_READ, i, 0, 0, 0) != 0;
    return true; /* the runtime knows what to say about a name that we do not know */
}

static int resource_of(const char *name) {
    static const struct {
        const char *name;
        int resource;
    } known[] = {
        {"RLIMIT_AS", RLIMIT_AS},           {"RLIMIT_CORE", RLIMIT_CORE},
        {"RLIMIT_CPU", RLIMIT_CPU},         {"RLIMIT_DATA", RLIMIT_DATA},
        {"RLIMIT_FSIZE", RLIMIT_FSIZE},     {"RLIMIT_LOCKS", RLIMIT_LOCKS},
        {"RLIMIT_MEMLOCK", RLIMIT_MEMLOCK}, {"RLIMIT_MSGQUEUE", RLIMIT_MSGQUEUE},
        {"RLIMIT_NICE", RLIMIT_NICE},       {"RLIMIT_NOFILE", RLIMIT_NOFILE},
        {"RLIMIT_NPROC", RLIMIT_NPROC},     {"RLIMIT_RSS", RLIMIT_RSS},
        {"RLIMIT_RTPRIO", RLIMIT_RTPRIO},   {"RLIMIT_RTTIME", RLIMIT_RTTIME},
        {"RLIMIT_SIGPENDING", RLIMIT_SIGPENDING}, {"RLIMIT_STACK", RLIMIT_STACK},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(name, known[i].name) == 0) return known[i].resource;
    return -1;
}

unsigned long long host_hard_limit(const char *name, unsigned long long wanted) {
    int resource = resource_of(name);
    struct rlimit own;
    if (resource < 0 || getrlimit(resource, &own)) return wanted;
    if (wanted <= own.rlim_max) return wanted;
    /* Whether it may be raised depends on capability and user namespace, and for files on a
     * sysctl: the kernel is asked by trying. What is raised is the runtime's, that is we. */
    struct rlimit raised = {.rlim_cur = own.rlim_cur, .rlim_max = wanted};
    return setrlimit(resource, &raised) == 0 ? wanted : own.rlim_max;
}

long long host_oom_score(void) {
    long long score = 0;
    FILE *file = fopen("/proc/self/oom_score_adj", "re");
    if (!file) return 0;
    if (fscanf(file, "%lld", &score) != 1) score = 0;
    fclose(file);
    return score;
}

bool host_has_gid(unsigned long long gid) {
    FILE *file = fopen("/proc/self/gid_map", "re");
    if (!file) return true;
    unsigned long long inside, outside, count;
    bool found = false;
    while (!found && fscanf(file, "%llu %llu %llu", &inside, &outside, &count) == 3)
        found = gid >= inside && gid - inside < count;
    fclose(file);
    return found;
}
