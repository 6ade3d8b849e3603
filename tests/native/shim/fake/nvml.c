#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fake.h"

/* FAKE_NVML: "own" tells this process's bytes, "foreign" those of others only, "used" the
 * card's only, "none" fails */
static int mode(const char *wanted) {
    const char *text = getenv("FAKE_NVML");
    return strcmp(text == NULL ? "own" : text, wanted) == 0;
}

static int handles[FAKE_CARDS], instances[FAKE_CARDS];
static int instance(const int *device) {
    return device >= instances && device < instances + FAKE_CARDS;
}
static int card_of(const int *device) {
    return (int)(instance(device) ? device - instances : device - handles);
}

struct memory {
    unsigned long long total, free, used;
};
struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};
struct process {
    unsigned int pid;
    unsigned long long used;
    unsigned int gi, ci;
};

int nvmlInit_v2(void) { return mode("none") ? 9 : 0; }
int nvmlShutdown(void) { return 0; }

int nvmlDeviceGetUUID(const int *device, char *text, unsigned int length) {
    unsigned char b[16];
    fake_uuid(card_of(device), b);
    if (instance(device)) b[0] = FAKE_INSTANCE;
    snprintf(text, length, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
             instance(device) ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8],
             b[9], b[10], b[11], b[12], b[13], b[14], b[15]);
    return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(const int *device, unsigned int index, int **out) {
    if (getenv("FAKE_MIG") == NULL || instance(device) || index != 0) return 6;
    *out = &instances[card_of(device)];
    return 0;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(const int *device, int **out) {
    if (!instance(device)) return 2;
    *out = &handles[card_of(device)];
    return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, int **device) {
    if ((int)index >= fake_count()) return 2;
    *device = &handles[index];
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, int **device) {
    for (int i = 0; i < 2 * fake_count(); i++) {
        char text[64];
        int *known = i % 2 == 0 ? &handles[i / 2] : &instances[i / 2];
        if (known == &instances[i / 2] && getenv("FAKE_MIG") == NULL) continue;
        nvmlDeviceGetUUID(known, text, sizeof text);
        if (strcmp(text, uuid) == 0) {
            *device = known;
            return 0;
        }
    }
    return 6;
}

int nvmlDeviceGetIndex(const int *device, unsigned int *index) {
    *index = instance(device) ? 0 : (unsigned int)card_of(device); /* among its card's */
    return 0;
}

int nvmlDeviceGetMemoryInfo(const int *device, struct memory *memory) {
    struct fake_card *card = &fake_state()->cards[card_of(device)];
    memory->total = card->total;
    memory->used = card->used;
    memory->free = card->total - card->used;
    return 0;
}

int nvmlDeviceGetMemoryInfo_v2(const int *device, struct memory_v2 *memory) {
    struct memory v1;
    nvmlDeviceGetMemoryInfo(device, &v1);
    memory->total = v1.total;
    memory->used = v1.used;
    memory->reserved = 512 << 20;
    memory->free = v1.free;
    return 0;
}

/* Somebody else's: NVML tells the processes of the whole node. */
#define FOREIGN 1000001u
static int foreign(unsigned int *count, struct process *out) {
    unsigned int room = *count;
    *count = 1;
    if (room < 1) return 7;
    *out = (struct process){.pid = FOREIGN, .used = 5 << 20};
    return 0;
}

/* Bytes of this process are known where the driver double is loaded, for whomever. */
static uint64_t own_bytes(int card) {
    void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    uint64_t (*own)(int) = NULL;
    if (cuda != NULL) *(void **)&own = dlsym(cuda, "fake_own");
    return own == NULL ? 0 : own(card);
}

int nvmlDeviceGetComputeRunningProcesses_v3(const int *device, unsigned int *count,
                                            struct process *out) {
    if (!mode("own")) return mode("foreign") ? foreign(count, out) : 3;
    uint64_t own = own_bytes(card_of(device));
    unsigned int room = *count;
    *count = 1 + (own != 0);
    if (room < *count) return 7;
    out[0] = (struct process){.pid = FOREIGN, .used = 5 << 20};
    if (own != 0) out[1] = (struct process){.pid = (unsigned int)getpid(), .used = own};
    return 0;
}

struct process_v1 {
    unsigned int pid;
    unsigned long long used;
};
int nvmlDeviceGetComputeRunningProcesses(const int *device, unsigned int *count,
                                         struct process_v1 *out) {
    struct process list[4];
    unsigned int room = *count, all = 4;
    int code = nvmlDeviceGetComputeRunningProcesses_v3(device, &all, list);
    *count = all;
    if (code != 0 || room < all) return code != 0 ? code : 7;
    for (unsigned int i = 0; i < all; i++) out[i] = (struct process_v1){list[i].pid, list[i].used};
    return 0;
}

/* A stranger draws, and this process with him where FAKE_DRAWS is set. */
int nvmlDeviceGetGraphicsRunningProcesses_v3(const int *device, unsigned int *count,
                                             struct process *out) {
    (void)device;
    unsigned int room = *count, all = 1 + (getenv("FAKE_DRAWS") != NULL);
    *count = all;
    if (room < all) return 7;
    out[0] = (struct process){.pid = FOREIGN, .used = 5 << 20};
    if (all > 1) out[1] = (struct process){.pid = (unsigned int)getpid(), .used = 3 << 20};
    return 0;
}

struct detail {
    unsigned int pid;
    unsigned long long used;
    unsigned int gpu, compute;
    unsigned long long protected;
};

struct details {
    unsigned int version, mode, count;
    struct detail *of;
};

/* Of those that compute (mode 0); nobody else does anything. */
int nvmlDeviceGetRunningProcessDetailList(const int *device, struct details *list) {
    if (list == NULL || (list->version & 0xffffff) != sizeof *list) return 25;
    struct process found[4];
    unsigned int room = list->count, all = 4;
    int code = list->mode == 0 ? nvmlDeviceGetComputeRunningProcesses_v3(device, &all, found) : 0;
    if (code != 0) return code;
    list->count = list->mode == 0 ? all : 0;
    if (room < list->count) return 7;
    for (unsigned int i = 0; i < list->count; i++)
        list->of[i] = (struct detail){.pid = found[i].pid, .used = found[i].used};
    return 0;
}

int nvmlDeviceGetAccountingPids(const int *device, unsigned int *count, unsigned int *pids) {
    (void)device;
    unsigned int room = *count;
    *count = 2;
    if (room < 2) return 7;
    pids[0] = FOREIGN;
    pids[1] = (unsigned int)getpid();
    return 0;
}

int nvmlDeviceGetUtilizationRates(const int *device, unsigned int *rates) {
    (void)device;
    rates[0] = 90;
    rates[1] = 40;
    return 0;
}

struct sample {
    unsigned int pid;
    unsigned long long time;
    unsigned int sm, memory, encoder, decoder;
};
int nvmlDeviceGetProcessUtilization(const int *device, struct sample *out, unsigned int *count,
                                    unsigned long long since) {
    (void)device; (void)since;
    unsigned int room = *count;
    *count = 2;
    if (out == NULL || room < 2) return 7;
    out[0] = (struct sample){.pid = FOREIGN, .time = 1, .sm = 60};
    out[1] = (struct sample){.pid = (unsigned int)getpid(), .time = 1, .sm = 30};
    return 0;
}
