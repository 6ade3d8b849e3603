#define _GNU_SOURCE
#include "limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

bool vgpu_parse_size(const char *text, uint64_t *bytes) {
    uint64_t value = 0;
    const char *at = text;
    if (*at < '0' || *at > '9') return false;
    for (; *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, (uint64_t)(*at - '0'), &value))
            value = UINT64_MAX; /* saturate: a huge limit is no limit, never a small one */
    unsigned shift = 0;
    switch (*at) {
    case 'k': case 'K': shift = 10; at++; break;
    case 'm': case 'M': shift = 20; at++; break;
    case 'g': case 'G': shift = 30; at++; break;
    default: break;
    }
    if (*at != '\0') return false;
    *bytes = value > UINT64_MAX >> shift ? UINT64_MAX : value << shift;
    return true;
}

static bool from_variable(const char *name, uint64_t *bytes) {
    const char *text = secure_getenv(name);
    if (text == NULL || text[0] == '\0') return false;
    if (vgpu_parse_size(text, bytes)) return true;
    VGPU_LOG(VGPU_LOG_ERROR, "%s=%s is not a size and is ignored", name, text);
    return false;
}

void vgpu_limits_from_environment(struct vgpu_limits *limits) {
    memset(limits, 0, sizeof *limits);
    uint64_t common = 0;
    from_variable("CUDA_DEVICE_MEMORY_LIMIT", &common);
    for (uint32_t i = 0; i < VGPU_MAX_DEVICES; i++) {
        char name[48];
        snprintf(name, sizeof name, "CUDA_DEVICE_MEMORY_LIMIT_%u", i);
        limits->memory[i] = common;
        from_variable(name, &limits->memory[i]);
        limits->enforced |= limits->memory[i] != 0;
    }
    limits->count = VGPU_MAX_DEVICES;
    const char *text = secure_getenv("CUDA_OVERSUBSCRIBE");
    limits->oversubscribe = text != NULL && strcmp(text, "true") == 0;
}

void vgpu_limits_from_constant(struct vgpu_limits *limits, const struct vgpu_constant *constant) {
    memset(limits, 0, sizeof *limits);
    limits->from_region = limits->enforced = true;
    limits->count = constant->device_count;
    limits->oversubscribe = constant->oversubscribe != 0;
    for (uint32_t i = 0; i < limits->count; i++) {
        memcpy(limits->uuids[i], constant->uuids[i], VGPU_UUID_BYTES - 1);
        limits->memory[i] = constant->memory_limit[i];
    }
}
