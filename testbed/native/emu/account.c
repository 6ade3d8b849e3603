/* What this process uses of each card, and what all live processes use together.
 *
 * A process takes room from the card while it holds byte CARD_LOCK_MEMORY of cuda.lock
 * (dropped by the kernel if we die): a little more than it asked for, as credit, and what
 * it frees stays its credit too. Credit and use are one word of the slot, so a process
 * turns one into the other by itself, with one compare-and-swap; who finds too little room
 * takes, under the lock, the memory of the dead and everybody's credit. The sum over
 * slots of use, credit and contexts never passes the card.
 *
 * A slot's liveness is its own byte. Whoever finds too little room sweeps: a slot whose
 * byte can be *taken* has a dead owner. The own byte is never tested (taking it always
 * works), and taken anew in each decision, since any close of any descriptor of cuda.lock
 * anywhere in the process drops it silently. A slot that was swept has another generation,
 * which is part of its word of memory: whoever lost it spends nothing from it.
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
/* Credit taken with what was asked for: so much, but not above this part of what is free. */
#define CREDIT_BYTES (64ull << 20)
#define CREDIT_PART 16

static uint64_t charged(const struct device *device)
{
    return device->large_bytes + emu_round_up(device->small_bytes, EMU_GRANULE);
}

static struct card_slot *own_slot(const struct device *device)
{
    return &device->card.state->slots[device->slot];
}

static uint64_t word_of(const struct card_slot *slot)
{
    return __atomic_load_n(&slot->memory, __ATOMIC_ACQUIRE);
}

static bool swap_word(struct card_slot *slot, uint64_t *known, uint64_t next)
{
    return __atomic_compare_exchange_n(&slot->memory, known, next, false, __ATOMIC_ACQ_REL,
                                       __ATOMIC_ACQUIRE);
}

/* Both locks are held, and the slot is ours: nobody else changes it. */
static void publish(struct device *device, uint64_t credit)
{
    struct card_slot *slot = own_slot(device);
    __atomic_store_n(&slot->context_bytes, device->context_bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->swapped_bytes, device->swapped_bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->resident_bytes, device->resident_bytes, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->memory,
                     card_memory_word(device->generation, charged(device), credit),
                     __ATOMIC_RELEASE);
}

/* A slot whose byte we hold: free it for the next owner. */
static void clear(struct card_slot *slot)
{
    uint64_t generation = __atomic_load_n(&slot->generation, __ATOMIC_RELAXED) + 1;
    __atomic_store_n(&slot->memory, card_memory_word(generation, 0, 0), __ATOMIC_RELEASE);
    __atomic_store_n(&slot->context_bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->swapped_bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->resident_bytes, 0, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->generation, generation, __ATOMIC_RELEASE);
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
        time_claim(device, i);
        slot->launches = 0;
        slot->copied_bytes = 0;
        memset(slot->name, 0, sizeof slot->name);
        prctl(PR_GET_NAME, slot->name);
        if ((uint64_t)i + 1 > __atomic_load_n(&state->slot_count, __ATOMIC_RELAXED))
            __atomic_store_n(&state->slot_count, (uint64_t)i + 1, __ATOMIC_RELEASE);
        device->slot = i;
        device->generation = __atomic_add_fetch(&slot->generation, 1, __ATOMIC_ACQ_REL);
        publish(device, 0);
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
        if (lockfile_take(&device->locks, device->slot)) {
            if (__atomic_load_n(&own_slot(device)->generation, __ATOMIC_ACQUIRE) ==
                device->generation)
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

/* `begin`, and our slot is ours. */
static CUresult begin_own(struct device *device)
{
    CUresult result = begin(device);
    if (result == CUDA_SUCCESS && !hold(device)) {
        end(device);
        result = CUDA_ERROR_OPERATING_SYSTEM;
    }
    return result;
}

enum sum { SUM_USED, SUM_TAKEN, SUM_RESIDENT, SUM_SWAPPED }; /* taken: used, and credit */

static uint64_t sum_of(const struct device *device, enum sum what)
{
    const struct card_state *state = device->card.state;
    uint64_t sum = 0;
    for (int i = 0, count = emu_card_slots(state); i < count; i++) {
        const struct card_slot *slot = &state->slots[i];
        if (!emu_slot_used(slot))
            continue;
        uint64_t word = word_of(slot);
        switch (what) {
        case SUM_TAKEN: sum += card_memory_credit(word); /* fall through */
        case SUM_USED:
            sum += card_memory_used(word) +
                   __atomic_load_n(&slot->context_bytes, __ATOMIC_RELAXED);
            break;
        case SUM_RESIDENT:
            sum += __atomic_load_n(&slot->resident_bytes, __ATOMIC_RELAXED);
            break;
        case SUM_SWAPPED:
            sum += __atomic_load_n(&slot->swapped_bytes, __ATOMIC_RELAXED);
            break;
        }
    }
    return sum;
}

static void take_credit(struct card_slot *slot)
{
    uint64_t word = word_of(slot);
    while (card_memory_credit(word) > 0 && !swap_word(slot, &word, word & ~CARD_MEMORY_MASK))
        ;
}

/* Bytes of the card that nobody has; where they are fewer than `wanted`, what the dead
 * used and what the living only hold as credit is taken. Both locks are held. */
static uint64_t room_for(struct device *device, uint64_t wanted)
{
    struct card_state *state = device->card.state;
    uint64_t capacity = emu_card_capacity(state);
    take_credit(own_slot(device));
    uint64_t taken = sum_of(device, SUM_TAKEN);
    if (wanted > capacity || taken > capacity - wanted) {
        sweep(device);
        taken = sum_of(device, SUM_TAKEN);
    }
    if (wanted > capacity || taken > capacity - wanted) {
        for (int i = 0, count = emu_card_slots(state); i < count; i++)
            take_credit(&state->slots[i]);
        taken = sum_of(device, SUM_TAKEN);
    }
    return taken < capacity ? capacity - taken : 0;
}

/* Without the card's lock: `granules` more out of our own credit, or back into it. False
 * where the credit is not enough or the slot is no longer ours. */
static bool spend(struct device *device, int64_t granules)
{
    struct card_slot *slot = own_slot(device);
    uint64_t word = word_of(slot), next;
    uint64_t tag = card_memory_tag(card_memory_word(device->generation, 0, 0));
    do {
        if (card_memory_tag(word) != tag ||
            (granules > 0 && (word & CARD_MEMORY_MASK) < (uint64_t)granules))
            return false;
        next = word + ((uint64_t)granules << CARD_MEMORY_BITS) - (uint64_t)granules;
    } while (!swap_word(slot, &word, next));
    return true;
}

/* Did nobody close a descriptor of the lock file behind our back, or is the lock ours
 * again now? Two system calls, about half a microsecond. */
static bool still_locked(struct device *device)
{
    return lockfile_ready(&device->locks) && lockfile_take(&device->locks, device->slot);
}

static bool charge_alone(struct device *device, uint64_t before, uint64_t after)
{
    if (device->slot < 0)
        return false;
    if (after <= before)
        return spend(device, -(int64_t)((before - after) / EMU_GRANULE));
    uint64_t more = after - before;
    return card_memory_credit(word_of(own_slot(device))) >= more && still_locked(device) &&
           spend(device, (int64_t)(more / EMU_GRANULE));
}

CUresult account_charge(struct device *device, int64_t context, int64_t large, int64_t small)
{
    uint64_t before = charged(device);
    uint64_t after = device->large_bytes + (uint64_t)large +
                     emu_round_up(device->small_bytes + (uint64_t)small, EMU_GRANULE);
    if (context == 0 && device->slot >= 0 &&
        (after == before || charge_alone(device, before, after))) {
        device->large_bytes += (uint64_t)large;
        device->small_bytes += (uint64_t)small;
        return CUDA_SUCCESS;
    }
    CUresult result = begin_own(device);
    if (result != CUDA_SUCCESS)
        return result;
    before += device->context_bytes;
    after += device->context_bytes + (uint64_t)context;
    uint64_t credit = card_memory_credit(word_of(own_slot(device)));
    if (after > before) {
        uint64_t more = after - before, room = room_for(device, more);
        if (more > room) {
            uint64_t evicted = memory_evict(device, more - room);
            device->large_bytes -= evicted;
            device->swapped_bytes += evicted;
            room += evicted;
        }
        if (more > room) {
            result = CUDA_ERROR_OUT_OF_MEMORY;
            credit = 0;
        } else {
            credit = (room - more) / CREDIT_PART;
            credit = credit < CREDIT_BYTES ? credit / EMU_GRANULE * EMU_GRANULE : CREDIT_BYTES;
            if (context != 0)
                credit = 0;
        }
    }
    if (result == CUDA_SUCCESS) {
        device->context_bytes += (uint64_t)context;
        device->large_bytes += (uint64_t)large;
        device->small_bytes += (uint64_t)small;
    }
    publish(device, credit);
    end(device);
    return result;
}

/* --- managed memory ----------------------------------------------------------- */

CUresult account_managed(struct device *device, uint64_t bytes, uint64_t *on_card)
{
    CUresult result = begin_own(device);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t room = room_for(device, bytes) / EMU_GRANULE * EMU_GRANULE;
    uint64_t outside = bytes > room ? bytes - room : 0;
    uint64_t host = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (outside > 0 && sum_of(device, SUM_SWAPPED) + outside > host) {
        result = CUDA_ERROR_OUT_OF_MEMORY;
    } else {
        device->large_bytes += bytes - outside;
        device->swapped_bytes += outside;
        *on_card = bytes - outside;
    }
    publish(device, 0);
    end(device);
    return result;
}

CUresult account_swap_in(struct device *device, uint64_t bytes, uint64_t *moved)
{
    CUresult result = begin_own(device);
    if (result != CUDA_SUCCESS)
        return result;
    uint64_t room = room_for(device, bytes) / EMU_GRANULE * EMU_GRANULE;
    *moved = bytes < room ? bytes : room;
    device->swapped_bytes -= *moved;
    device->large_bytes += *moved;
    publish(device, 0);
    end(device);
    return CUDA_SUCCESS;
}

void account_swap_out(struct device *device, int64_t from_card, int64_t outside)
{
    if (begin_own(device) != CUDA_SUCCESS)
        return;
    device->large_bytes -= (uint64_t)from_card;
    device->swapped_bytes += (uint64_t)outside;
    publish(device, 0);
    end(device);
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
    CUresult result = begin_own(device);
    if (result != CUDA_SUCCESS)
        return result;
    if (bytes > 0) {
        uint64_t limit = budget(device);
        uint64_t used = sum_of(device, SUM_RESIDENT);
        if (used + (uint64_t)bytes > limit) {
            sweep(device);
            used = sum_of(device, SUM_RESIDENT);
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
        __atomic_store_n(&own_slot(device)->resident_bytes, device->resident_bytes,
                         __ATOMIC_RELEASE);
    }
    end(device);
    return result;
}

uint64_t account_used(struct device *device)
{
    if (begin(device) != CUDA_SUCCESS)
        return sum_of(device, SUM_USED);
    if (device->slot >= 0)
        hold(device);
    sweep(device);
    uint64_t sum = sum_of(device, SUM_USED);
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
