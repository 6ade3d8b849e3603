/* The emulated cards that this process can see: "<cards>/<uuid>/state". */
#ifndef VGPU_EMU_CARDS_H
#define VGPU_EMU_CARDS_H

#include "card.h"

#include <stdbool.h>
#include <stdint.h>

#define EMU_MAX_CARDS 16
#define EMU_SMALL_BYTES (1ull << 20)   /* up to it: summed per process, in EMU_SMALL_UNIT */
#define EMU_SMALL_UNIT 512ull
#define EMU_GRANULE CARD_GRANULE       /* what the card counts in */

struct emu_card {
    struct card_state *state; /* mapped shared, never unmapped */
    char folder[480];
};

/* Finds the cards below VGPU_EMU_CARDS, or below "../cards" of the folder that holds
 * `symbol`'s library; ordered by the card's index. Returns how many. Without `writable`
 * the state is mapped for reading only (a read-only mount will do). */
int emu_cards_find(struct emu_card cards[EMU_MAX_CARDS], const void *symbol, bool writable);

/* "GPU-xxxxxxxx-…" into 16 bytes; false where the text is none. */
bool emu_uuid_bytes(const char *text, unsigned char bytes[16]);

static inline uint64_t emu_round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Bytes that a program can use: what is left of the card beside driver and firmware. */
static inline uint64_t emu_card_capacity(const struct card_state *state)
{
    return state->description.memory_bytes - state->description.reserved_bytes;
}

static inline int emu_card_slots(const struct card_state *state)
{
    uint64_t count = __atomic_load_n(&state->slot_count, __ATOMIC_ACQUIRE);
    return count > CARD_MAX_SLOTS ? CARD_MAX_SLOTS : (int)count;
}

static inline bool emu_slot_used(const struct card_slot *slot)
{
    return (__atomic_load_n(&slot->generation, __ATOMIC_ACQUIRE) & 1) != 0;
}

static inline uint64_t emu_slot_bytes(const struct card_slot *slot)
{
    return card_memory_used(__atomic_load_n(&slot->memory, __ATOMIC_RELAXED)) +
           __atomic_load_n(&slot->context_bytes, __ATOMIC_RELAXED);
}

uint64_t emu_now_ns(void);

/* Exported by libcuda for libnvidia-ml in the same process: F_GETLK never shows the
 * caller's own locks, so only libcuda knows this process's slot. -1: none. */
#define EMU_OWN_SLOT_SYMBOL "vgpuEmuOwnSlot"
typedef int (*emu_own_slot_fn)(const char *uuid);

#endif
