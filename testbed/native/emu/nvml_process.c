/* Which processes use a card, and how much of its memory.
 *
 * A slot counts while its record lock is held. F_GETLK names the holder in our own PID
 * namespace, but never shows our own locks: those libcuda knows, if it is in this
 * process. Dead owners' slots are left out here and taken back by libcuda.
 */
#define _GNU_SOURCE
#include "nvml.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

int nvml_own_slot(const struct device *device)
{
    /* Asked anew each time: libcuda may come later. Never loaded from here. */
    void *library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (library == NULL)
        return -1;
    emu_own_slot_fn ask;
    void *symbol = dlsym(library, EMU_OWN_SLOT_SYMBOL);
    memcpy(&ask, &symbol, sizeof ask);
    int slot = ask != NULL ? ask(device->card.state->description.uuid) : -1;
    dlclose(library);
    return slot;
}

int nvml_processes(struct device *device, struct process processes[CARD_MAX_SLOTS])
{
    const int saved = errno;
    const struct card_state *state = device->card.state;
    int own = nvml_own_slot(device), found = 0;
    pthread_mutex_lock(&lock);
    bool readable = lockfile_ready(&device->locks);
    for (int i = 0, count = emu_card_slots(state); i < count; i++) {
        const struct card_slot *slot = &state->slots[i];
        if (!emu_slot_used(slot))
            continue;
        pid_t pid = i == own ? getpid() : readable ? lockfile_owner(&device->locks, i) : -1;
        if (pid < 0)
            continue;
        uint64_t bytes = emu_slot_bytes(slot);
        if (bytes > 0)
            processes[found++] = (struct process){(unsigned int)pid, i, bytes};
    }
    pthread_mutex_unlock(&lock);
    errno = saved;
    return found;
}

static uint64_t used(struct device *device)
{
    struct process processes[CARD_MAX_SLOTS];
    uint64_t sum = 0;
    for (int i = 0, count = nvml_processes(device, processes); i < count; i++)
        sum += processes[i].bytes;
    return sum;
}

/* --- memory ------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *memory)
{
    DEVICE(device);
    NEED(memory != NULL);
    const struct card_description *card = &device->card.state->description;
    /* The first version counts what driver and firmware took as used. */
    memory->total = card->memory_bytes;
    memory->used = card->reserved_bytes + used(device);
    memory->free = memory->used < memory->total ? memory->total - memory->used : 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *memory)
{
    DEVICE(device);
    NEED(memory != NULL);
    if (memory->version != (sizeof *memory | 2u << 24))
        return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
    const struct card_description *card = &device->card.state->description;
    memory->total = card->memory_bytes;
    memory->reserved = card->reserved_bytes;
    memory->used = used(device);
    uint64_t taken = memory->used + memory->reserved;
    memory->free = taken < memory->total ? memory->total - taken : 0;
    return NVML_SUCCESS;
}

/* --- processes ------------------------------------------------------------------------ */

#define NO_INSTANCE 0xffffffffu

/* The caller gives the room in *count and gets the number back; too little room is an
 * error that tells how much is needed, and a question for the number alone has none. */
static nvmlReturn_t answer(nvmlDevice_t device, unsigned int *count, void *infos, int version)
{
    DEVICE(device);
    NEED(count != NULL);
    struct process processes[CARD_MAX_SLOTS];
    unsigned int found = (unsigned int)nvml_processes(device, processes), room = *count;
    *count = found;
    if (found == 0)
        return NVML_SUCCESS;
    if (room < found || infos == NULL)
        return NVML_ERROR_INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < found; i++)
        if (version == 1)
            ((nvmlProcessInfo_v1_t *)infos)[i] =
                (nvmlProcessInfo_v1_t){processes[i].pid, processes[i].bytes};
        else
            ((nvmlProcessInfo_v2_t *)infos)[i] = (nvmlProcessInfo_v2_t){
                processes[i].pid, processes[i].bytes, NO_INSTANCE, NO_INSTANCE};
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t device, unsigned int *count,
                                                         nvmlProcessInfo_v1_t *infos)
{
    return answer(device, count, infos, 1);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t device,
                                                            unsigned int *count,
                                                            nvmlProcessInfo_v2_t *infos)
{
    return answer(device, count, infos, 2);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t device,
                                                            unsigned int *count,
                                                            nvmlProcessInfo_v2_t *infos)
{
    return answer(device, count, infos, 3);
}

static nvmlReturn_t nobody(nvmlDevice_t device, unsigned int *count)
{
    DEVICE(device);
    NEED(count != NULL);
    *count = 0;
    return NVML_SUCCESS;
}

#define NOBODY(name)                                                                       \
    EXPORT nvmlReturn_t name(nvmlDevice_t device, unsigned int *count, void *infos)        \
    {                                                                                      \
        (void)infos;                                                                       \
        return nobody(device, count);                                                      \
    }
NOBODY(nvmlDeviceGetGraphicsRunningProcesses)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v2)
NOBODY(nvmlDeviceGetGraphicsRunningProcesses_v3)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v2)
NOBODY(nvmlDeviceGetMPSComputeRunningProcesses_v3)
