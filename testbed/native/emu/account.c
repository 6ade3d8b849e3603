/* What this process uses of each card, and what all live processes use together.
 *
 * Decisions are made while byte CARD_LOCK_MEMORY of cuda.lock is held; it is dropped
 * by the kernel if we die. A slot's liveness is its own byte. Whoever finds too little
 * room sweeps: a slot whose byte can be *taken* has a dead owner. The own byte is
 * never tested (taking it always works), and taken anew in each decision, since any
 * close of any descriptor of cuda.lock anywhere in the process drops it silently.
 */
#define _GNU_SOURCE
#include "driver.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LOCK_PATIENCE_MS 10000
#define LOOK_EVERY_NS 100000000ull

static uint64_t charged(const struct device *device)
{
    return device->large_bytes + emu_round_up(device->small_bytes, EMU_GRANULE);
}

static void publish(struct device *device)
{
    struct card_slot *slot = &device->card.state->slots[device->slot];
    __atomic_store_n(&slot->context_bytes, device->context_bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->memory_bytes, charged(device), __ATOMIC_RELAXED);
    __atomic_store_n(&slot->resident_bytes, device->resident_bytes, __ATOMIC_RELEASE);
}

/* A slot whose byte we hold: free it for the next owner. */
static void clear(struct card_slot *slot)
{
    uint64_t generation = __atomic_load_n(&slot->generation, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->context_bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->memory_bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->resident_bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->generation, generation + 1, __ATOMIC_RELEASE);
}

static void sweep(struct device *device)
{
    struct card_state *state = device->card.state;
    int count = emu_card_slots(state);
    for (int i = 0; i < count; i++) {
        if (i == device->slot || !emu_slot_used(&state->slots[i]) ||
            !lockfile_take(&device->locks, i))
            continue;
        clear(&state->slots[i]);
        __atomic_fetch_add(&state->reclaimed, 1, __ATOMIC_RELAXED);
        lockfile_drop(&device->locks, i);
        emu_log(EMU_LOG_INFO, "card %s: slot %d of a dead process taken back",
                state->description.uuid, i);
    }
}

static bool claim(struct device *device)
{
    struct card_state *state = device->card.state;
    device->slot = -1;
    for (int i = 0; i < CARD_MAX_SLOTS; i++) {
        struct card_slot *slot = &state->slots[i];
        if (!lockfile_take(&device->locks, i))
            continue;
        if (emu_slot_used(slot)) {
            clear(slot);
            __atomic_fetch_add(&state->reclaimed, 1, __ATOMIC_RELAXED);
        }
        slot->pid = getpid();
        slot->flags = 0;
        slot->started_ns = emu_now_ns();
        slot->busy_until = 0;
        slot->busy_ns = 0;
        slot->launches = 0;
        slot->copied_bytes = 0;
        memset(slot->name, 0, sizeof slot->name);
        prctl(PR_GET_NAME, slot->name);
        if ((uint64_t)i + 1 > __atomic_load_n(&state->slot_count, __ATOMIC_RELAXED))
            __atomic_store_n(&state->slot_count, (uint64_t)i + 1, __ATOMIC_RELEASE);
        device->slot = i;
        device->generation = __atomic_add_fetch(&slot->generation, 1, __ATOMIC_ACQ_REL);
        publish(device);
        emu_log(EMU_LOG_DEBUG, "card %s: slot %d", state->description.uuid, i);
        return true;
    }
    emu_log(EMU_LOG_ERROR, "card %s: no free slot of %d", state->description.uuid,
            CARD_MAX_SLOTS);
    return false;
}

/* The memory lock is held: make sure that our slot is ours. */
static bool hold(struct device *device)
{
    if (device->slot >= 0) {
        const struct card_slot *slot = &device->card.state->slots[device->slot];
        if (lockfile_take(&device->locks, device->slot)) {
            if (__atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE) == device->generation)
                return true;
            lockfile_drop(&device->locks, device->slot);
        }
        emu_log(EMU_LOG_INFO, "card %s: slot %d was lost with its lock",
                device->card.state->description.uuid, device->slot);
    }
    return claim(device);
}

static CUresult begin(struct device *device)
{
    if (!lockfile_ready(&device->locks)) {
        emu_log(EMU_LOG_ERROR, "%s: %s", device->locks.path, strerror(errno));
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (!lockfile_wait(&device->locks, CARD_LOCK_MEMORY, LOCK_PATIENCE_MS)) {
        emu_log(EMU_LOG_ERROR, "%s: the memory lock was not to be had in %d ms",
                device->locks.path, LOCK_PATIENCE_MS);
        return CUDA_ERROR_SYSTEM_NOT_READY;
    }
    return CUDA_SUCCESS;
}

static void end(struct device *device)
{
    lockfile_drop(&device->locks, CARD_LOCK_MEMORY);
}

static uint64_t sum_bytes(const struct device *device)
{
    const struct card_state *state = device->card.state;
    uint64_t sum = 0;
    for (int i = 0, count = emu_card_slots(state); i < count; i++)
        if (emu_slot_used(&state->slots[i]))
            sum += emu_slot_bytes(&state->slots[i]);
    return sum;
}

static uint64_t sum_resident(const struct device *device)
{
    const struct card_state *state = device->card.state;
    uint64_t sum = 0;
    for (int i = 0, count = emu_card_slots(state); i < count; i++)
        if (emu_slot_used(&state->slots[i]))
            sum += __atomic_load_n(&state->slots[i].resident_bytes, __ATOMIC_RELAXED);
    return sum;
}

CUresult account_charge(struct device *device, int64_t context, int64_t large, int64_t small)
{
    uint64_t before = charged(device) + device->context_bytes;
    uint64_t after = device->context_bytes + (uint64_t)context + device->large_bytes +
                     (uint64_t)large +
                     emu_round_up(device->small_bytes + (uint64_t)small, EMU_GRANULE);
    if (after == before && device->slot >= 0) {
        device->small_bytes += (uint64_t)small;
        return CUDA_SUCCESS;
    }
    CUresult result = begin(device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!hold(device)) {
        end(device);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (after > before) {
        uint64_t capacity = emu_card_capacity(device->card.state);
        uint64_t more = after - before;
        if (more > capacity || sum_bytes(device) > capacity - more) {
            sweep(device);
            if (more > capacity || sum_bytes(device) > capacity - more)
                result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result == CUDA_SUCCESS) {
        device->context_bytes += (uint64_t)context;
        device->large_bytes += (uint64_t)large;
        device->small_bytes += (uint64_t)small;
        publish(device);
    }
    end(device);
    return result;
}

/* --- the host's memory budget ----------------------------------------------- */

static uint64_t parse_bytes(const char *text)
{
    char *rest = NULL;
    errno = 0;
    double number = strtod(text, &rest);
    if (rest == text || errno != 0 || !(number >= 0))
        return 0;
    switch (*rest) {
    case 'k': case 'K': number *= 1024.0; break;
    case 'm': case 'M': number *= 1024.0 * 1024; break;
    case 'g': case 'G': number *= 1024.0 * 1024 * 1024; break;
    case 't': case 'T': number *= 1024.0 * 1024 * 1024 * 1024; break;
    default: break;
    }
    return number < 9e18 ? (uint64_t)number : UINT64_MAX / 2;
}

static uint64_t budget(const struct device *device)
{
    const char *text = getenv("VGPU_EMU_MEMORY_BUDGET");
    if (text != NULL && *text != '\0') {
        uint64_t bytes = parse_bytes(text);
        if (bytes > 0)
            return bytes;
    }
    if (device_description(device)->budget_bytes > 0)
        return device_description(device)->budget_bytes;
    uint64_t host = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE) / 2;
    return host < (8ull << 30) ? host : 8ull << 30;
}

CUresult account_resident(struct device *device, int64_t bytes)
{
    if (bytes == 0)
        return CUDA_SUCCESS;
    CUresult result = begin(device);
    if (result != CUDA_SUCCESS)
        return result;
    if (!hold(device)) {
        end(device);
        return CUDA_ERROR_OPERATING_SYSTEM;
    }
    if (bytes > 0) {
        uint64_t limit = budget(device);
        uint64_t used = sum_resident(device);
        if (used + (uint64_t)bytes > limit) {
            sweep(device);
            used = sum_resident(device);
        }
        if (used + (uint64_t)bytes > limit) {
            __atomic_fetch_add(&device->card.state->budget_hits, 1, __ATOMIC_RELAXED);
            emu_log_always("card %s: a copy or memset would touch %lld more bytes of the host's "
                           "memory; %llu of the budget of %llu are in use "
                           "(VGPU_EMU_MEMORY_BUDGET raises it)",
                           device_description(device)->uuid, (long long)bytes,
                           (unsigned long long)used, (unsigned long long)limit);
            result = CUDA_ERROR_OUT_OF_MEMORY;
        }
    }
    if (result == CUDA_SUCCESS) {
        device->resident_bytes += (uint64_t)bytes;
        publish(device);
    }
    end(device);
    return result;
}

uint64_t account_used(struct device *device)
{
    if (begin(device) != CUDA_SUCCESS)
        return sum_bytes(device);
    if (device->slot >= 0)
        hold(device);
    sweep(device);
    uint64_t sum = sum_bytes(device);
    end(device);
    return sum;
}

int account_own_slot(struct device *device)
{
    if (device->slot < 0)
        return -1;
    /* The reader is about to trust that the slot is ours: make it so again where a
     * program closed our descriptor in between. */
    if (begin(device) == CUDA_SUCCESS) {
        hold(device);
        end(device);
    }
    return device->slot;
}

/* A program that only launches and copies makes no other call that would notice that its
 * lock is gone: look now and then. */
static void look_after_lock(struct device *device)
{
    uint64_t now = emu_now_ns();
    uint64_t before = __atomic_load_n(&device->looked_ns, __ATOMIC_RELAXED);
    if (now - before < LOOK_EVERY_NS ||
        !__atomic_compare_exchange_n(&device->looked_ns, &before, now, false, __ATOMIC_RELAXED,
                                     __ATOMIC_RELAXED))
        return;
    driver_lock();
    account_own_slot(device);
    driver_unlock();
}

/* Without the lock. */
void account_launch(struct device *device, uint64_t launches, uint64_t copied_bytes)
{
    if (device->slot < 0)
        return;
    look_after_lock(device);
    struct card_slot *slot = &device->card.state->slots[device->slot];
    if (__atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE) != device->generation)
        return;
    __atomic_fetch_add(&slot->launches, launches, __ATOMIC_RELAXED);
    __atomic_fetch_add(&slot->copied_bytes, copied_bytes, __ATOMIC_RELAXED);
}
