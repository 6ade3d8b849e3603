/* The region as account.c sees it, played: what others hold is read from a script, one figure a
 * look, and everything that account.c does is written down. */
#include "shared.h"

#include <stdio.h>
#include <string.h>

#include "log.h"

#define MOST 256

struct vgpu_event {
    char what; /* P publish, O look at the others, L lock, U unlock, J join */
    uint64_t value;
} events[MOST];
int event_count;
uint64_t script[MOST]; /* the last one is repeated */
int script_count, script_at;
uint64_t limit_bytes, unexplained_bytes;
bool reading;
int vgpu_log_level;

static void note(char what, uint64_t value) {
    if (event_count < MOST) events[event_count++] = (struct vgpu_event){what, value};
}

void play(uint64_t limit, const uint64_t *others, int count) {
    limit_bytes = limit;
    memcpy(script, others, (size_t)count * sizeof *others);
    script_count = count;
    script_at = event_count = 0;
}

static struct vgpu_extension extension;

void vgpu_log_write(const char *format, ...) { (void)format; }
void vgpu_shared_open(struct vgpu_limits *limits) {
    memset(limits, 0, sizeof *limits);
    limits->enforced = limits->from_region = true;
    limits->count = 1;
    limits->memory[0] = limit_bytes;
}
void vgpu_shared_forked(void) {}
bool vgpu_shared_join(const struct vgpu_device_use holdings[VGPU_MAX_DEVICES]) {
    (void)holdings;
    note('J', 0);
    return true;
}
bool vgpu_shared_present(void) { return true; }
bool vgpu_shared_lock(int device) {
    note('L', (uint64_t)device);
    return true;
}
void vgpu_shared_unlock(int device) { note('U', (uint64_t)device); }
uint64_t vgpu_shared_others(int device, bool sweep) {
    (void)device;
    uint64_t bytes = script[script_at];
    /* The second look of a check counts the same others: nobody is dead here. */
    if (!sweep && script_at + 1 < script_count) script_at++;
    note('O', bytes);
    return bytes;
}
void vgpu_shared_publish(int device, const struct vgpu_device_use *use) {
    if (device == 0) note('P', use->context_bytes + use->module_bytes + use->buffer_bytes);
}
void vgpu_shared_denied(int device) { (void)device; }
int vgpu_shared_members(int device, struct vgpu_member members[VGPU_MAX_PROCESSES]) {
    (void)device, (void)members;
    return 0;
}
bool vgpu_shared_new_reading(int device) {
    (void)device;
    return reading;
}
uint64_t vgpu_shared_unexplained(int device, uint64_t sum) {
    (void)device, (void)sum;
    reading = false;
    return unexplained_bytes;
}
uint64_t vgpu_shared_unexplained_known(int device) {
    (void)device;
    return unexplained_bytes;
}
void vgpu_shared_summed(int device, uint64_t sum) { (void)device, (void)sum; }
struct vgpu_extension *vgpu_shared_extension(void) { return &extension; }
bool vgpu_shared_memory(struct vgpu_limits *limits, uint64_t *seen) {
    (void)seen;
    limits->memory[0] = limit_bytes;
    return false;
}
uint64_t vgpu_shared_context_bytes(int device) {
    (void)device;
    return 0;
}
