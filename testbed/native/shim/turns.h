/* Taking turns on a card: containers that keep it busy hold it one after the other, through
 * its page, instead of having the card switch between them every few milliseconds. Each then
 * has the card for itself for as long as its limit is of the limits at work, nothing is lost
 * to switches (7 % on an H200), and what an event tells is its own time and nobody else's.
 *
 * Nobody is obeyed: a turn is a word that its holder writes into its own entry of the page,
 * and who waits longer than it should goes all the same, and takes no turns for a while. The
 * worst that a dead or lying neighbour costs is that wait. Pure: works on a copy of the page. */
#ifndef VGPU_SHIM_TURNS_H
#define VGPU_SHIM_TURNS_H

#include <stdbool.h>
#include <stdint.h>

#include "page.h"

/* So long before another's turn ends ours begins: better a little beside each other than a
 * card without work. */
#define VGPU_TURN_LEAD_NS 150000

/* No turn ends later than so long after it was taken or prolonged, whatever is in flight: who
 * dies in one keeps the others waiting for it. */
#define VGPU_TURN_MOST_NS 500000000

struct vgpu_turns {
    bool taking;     /* others are at work, and all who are take turns */
    bool wanted;     /* one of them waits for its turn */
    bool behind;     /* one of them waits and had its last turn before ours */
    int64_t until;   /* end of our turn; not after now: we hold none */
    int64_t free_at; /* when the last of the others' turns ends; not after now: nobody's */
    int64_t slot;    /* how long a turn of ours is */
};

/* What the page says at `now`. `ranked`: there are priorities on the card, which decide. */
struct vgpu_turns vgpu_turns_of(const struct vgpu_page_tenant *tenants, uint32_t count,
                                uint64_t own_id, uint32_t limit_pct, bool ranked, int64_t now);

/* Whether a process whose sleeps end so much too late (ns) takes turns: where a node's processors
 * are short, turns would begin too late, and a card that switches loses less; where there is no
 * NVML and only in turns it learns what it used (`raw`), they are worth more than that.
 * `before`: whether it took them until now. */
static inline bool vgpu_turns_able(bool before, bool raw, int64_t late) {
    int64_t most = raw ? 6000000 : 1000000;
    return late < (before ? most : most / 2);
}

/* One process's wish, as its gate left it. */
enum vgpu_wish {
    VGPU_WISH_NONE, /* nothing to launch, or not for want of the card */
    VGPU_WISH_TURN, /* it waits for a turn */
    VGPU_WISH_END,  /* its turn may end: it cannot use the rest */
    VGPU_WISH_DRAIN, /* it launches no more in its turn, which ends when the card is done */
    VGPU_WISH_TAKE, /* it takes a turn now */
    VGPU_WISH_MORE, /* it has launched what ends after its turn */
};

/* What a launch that waits wishes. */
static inline enum vgpu_wish vgpu_turns_wish(const struct vgpu_turns *turns, bool for_turn,
                                             bool for_budget, int64_t now) {
    if (for_turn) return turns->until > now ? VGPU_WISH_DRAIN : VGPU_WISH_TURN;
    return for_budget ? VGPU_WISH_END : VGPU_WISH_NONE;
}

/* The word for our own entry, which has `word`. `busy`: device time that is in flight or will
 * be at once, ns. */
uint64_t vgpu_turns_word(uint64_t word, const struct vgpu_turns *turns, enum vgpu_wish wish,
                         int64_t busy, int64_t now);

#endif
