#include "duration.h"

#define WHOLE 65536u
#define WAVE_CYCLES 2000 /* assumed: two dependent trips to memory and some arithmetic */
#define BYTES_A_THREAD 32
/* Of the data sheet's bandwidth: measured on an H200, 4.27 TB/s for memsets and 4.11 TB/s
 * for copies (read and written) of 4.8. */
#define REACHED_PERCENT 87
#define LONGEST_NS 3600000000000ull /* one launch; also keeps sums far from wrapping */

static uint64_t time_for(uint64_t amount, uint64_t rate)
{
    if (rate == 0)
        return 0;
    unsigned __int128 ns = (unsigned __int128)amount * 1000000000u / rate;
    return ns > LONGEST_NS ? LONGEST_NS : (uint64_t)ns;
}

static uint64_t traffic_ns(const struct card_description *card, uint64_t bytes)
{
    return time_for(bytes, card->memory_bandwidth_bps / 100 * REACHED_PERCENT);
}

uint32_t blocks_per_sm(const struct card_description *card, uint32_t threads,
                       uint64_t shared_bytes)
{
    if (threads == 0 || threads > 1024)
        return 0;
    uint32_t fit = card->max_threads_per_sm / ((threads + 31) / 32 * 32);
    if (fit > card->max_blocks_per_sm)
        fit = card->max_blocks_per_sm;
    if (shared_bytes > 0 && fit > card->shared_per_sm_bytes / shared_bytes)
        fit = (uint32_t)(card->shared_per_sm_bytes / shared_bytes);
    return fit;
}

static uint64_t rate(const struct card_description *card, uint32_t precision)
{
    switch (precision) {
    case PRECISION_TF32: return card->tf32_flops > 0 ? card->tf32_flops : card->fp32_flops;
    case PRECISION_FP16: return card->fp16_flops;
    case PRECISION_FP64: return card->fp64_flops;
    case PRECISION_INT8: return card->int8_flops > 0 ? card->int8_flops : 2 * card->fp16_flops;
    default: return card->fp32_flops;
    }
}

static uint64_t longer(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

struct duration kernel_duration(const struct card_description *card, const struct cost *cost)
{
    uint32_t fit = blocks_per_sm(card, cost->threads, cost->shared_bytes);
    uint64_t room = (uint64_t)(fit > 0 ? fit : 1) * (card->sm_count > 0 ? card->sm_count : 1);
    struct duration made = {.width = WHOLE};
    switch (cost->model) {
    case MODEL_CYCLES: made.ns = time_for(cost->amount, card->clock_khz * 1000ull); break;
    case MODEL_SPIN: made.ns = cost->amount; break;
    case MODEL_WORK:
        made.ns = card->launch_overhead_ns + longer(time_for(cost->amount,
                                                             rate(card, cost->precision)),
                                                    traffic_ns(card, cost->bytes));
        break;
    case MODEL_GEOMETRY: {
        uint64_t waves = (cost->blocks + room - 1) / room;
        unsigned __int128 bytes =
            (unsigned __int128)cost->blocks * cost->threads * BYTES_A_THREAD;
        made.ns = card->launch_overhead_ns +
                  longer(time_for(waves, 1 + card->clock_khz * 1000ull / WAVE_CYCLES),
                         traffic_ns(card, bytes > UINT64_MAX ? UINT64_MAX : (uint64_t)bytes));
        if (cost->blocks < room)
            made.width = (uint32_t)longer(1, cost->blocks * WHOLE / room);
        break;
    }
    }
    if (made.ns > LONGEST_NS)
        made.ns = LONGEST_NS;
    return made;
}

uint64_t copy_duration_ns(const struct card_description *card, enum copy_kind kind,
                          uint64_t bytes)
{
    uint64_t ns = card->launch_overhead_ns;
    switch (kind) {
    case COPY_HOST_DEVICE: return ns + time_for(bytes, card->copy_bandwidth_bps);
    case COPY_DEVICE_DEVICE:
        return ns + traffic_ns(card, bytes < UINT64_MAX / 2 ? 2 * bytes : UINT64_MAX);
    case COPY_FILL: return ns + traffic_ns(card, bytes);
    }
    return ns;
}
