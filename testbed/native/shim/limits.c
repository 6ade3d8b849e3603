#define _GNU_SOURCE
#include "limits.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

static uint32_t percent_or_number(const char *name, uint32_t otherwise) {
    const char *text = secure_getenv(name);
    uint32_t value = 0, digits = 0;
    if (text == NULL || text[0] == '\0') return otherwise;
    for (; text[digits] >= '0' && text[digits] <= '9' && digits < 9; digits++)
        value = value * 10 + (uint32_t)(text[digits] - '0');
    if (digits > 0 && text[digits] == '\0') return value;
    VGPU_LOG(VGPU_LOG_ERROR, "%s=%s is not a number and is ignored", name, text);
    return otherwise;
}

static uint32_t policy_of_environment(void) {
    const char *text = secure_getenv("GPU_CORE_UTILIZATION_POLICY");
    if (text == NULL || text[0] == '\0' || strcasecmp(text, "default") == 0)
        return VGPU_POLICY_DEFAULT;
    if (strcasecmp(text, "force") == 0) return VGPU_POLICY_FORCE;
    if (strcasecmp(text, "disable") == 0) return VGPU_POLICY_DISABLE;
    VGPU_LOG(VGPU_LOG_ERROR, "GPU_CORE_UTILIZATION_POLICY=%s is no policy and is ignored", text);
    return VGPU_POLICY_DEFAULT;
}

static void compute_from_environment(struct vgpu_limits *limits) {
    uint32_t common = percent_or_number("CUDA_DEVICE_SM_LIMIT", 0);
    for (uint32_t i = 0; i < VGPU_MAX_DEVICES; i++) {
        char name[48];
        snprintf(name, sizeof name, "CUDA_DEVICE_SM_LIMIT_%u", i);
        limits->compute[i] = percent_or_number(name, common);
        limits->enforced |= limits->compute[i] > 0 && limits->compute[i] < 100;
    }
    limits->policy = policy_of_environment();
    limits->priority = percent_or_number("CUDA_TASK_PRIORITY", 1);
    limits->floor = percent_or_number("VGPU_PRIORITY_FLOOR", 0);
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
    compute_from_environment(limits);
    limits->count = VGPU_MAX_DEVICES;
    const char *text = secure_getenv("CUDA_OVERSUBSCRIBE");
    limits->oversubscribe = text != NULL && strcmp(text, "true") == 0;
}

void vgpu_killer_from_environment(struct vgpu_limits *limits) {
    const char *text = secure_getenv("ACTIVE_OOM_KILLER");
    limits->oom_killer =
        text != NULL && (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0);
}

/* FNV-1a, as testbed.native.page.tenant_id has it. */
static uint64_t tenant_of(const struct vgpu_constant *constant) {
    const struct {
        const char *text;
        size_t most;
    } parts[] = {{constant->pod_uid, sizeof constant->pod_uid},
                 {"/", 1},
                 {constant->container_name, sizeof constant->container_name}};
    uint64_t hash = 0xcbf29ce484222325ull;
    if (constant->pod_uid[0] == '\0') return 0;
    for (int part = 0; part < 3; part++)
        for (size_t i = 0; i < parts[part].most && parts[part].text[i] != '\0'; i++)
            hash = (hash ^ (unsigned char)parts[part].text[i]) * 0x100000001b3ull;
    return hash != 0 ? hash : 1;
}

void vgpu_compute_from_constant(struct vgpu_limits *limits, const struct vgpu_constant *constant) {
    limits->policy = constant->policy;
    limits->priority = constant->priority;
    limits->floor = constant->priority_floor_pct;
    for (uint32_t i = 0; i < limits->count; i++)
        limits->compute[i] = constant->sm_limit[i] < 100 ? (uint32_t)constant->sm_limit[i] : 0;
}

void vgpu_memory_from_constant(struct vgpu_limits *limits, const struct vgpu_constant *constant) {
    for (uint32_t i = 0; i < limits->count; i++) limits->memory[i] = constant->memory_limit[i];
}

void vgpu_limits_from_constant(struct vgpu_limits *limits, const struct vgpu_constant *constant) {
    memset(limits, 0, sizeof *limits);
    limits->from_region = limits->enforced = true;
    limits->count = constant->device_count;
    limits->oversubscribe = constant->oversubscribe != 0;
    limits->tenant = tenant_of(constant);
    vgpu_compute_from_constant(limits, constant);
    vgpu_memory_from_constant(limits, constant);
    for (uint32_t i = 0; i < limits->count; i++)
        memcpy(limits->uuids[i], constant->uuids[i], VGPU_UUID_BYTES - 1);
}
