/* Devices: which cards this process sees, and what they say of themselves. */
#define _GNU_SOURCE
#include "driver.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device devices[EMU_MAX_CARDS];
int device_count;

static void add(const struct emu_card *card)
{
    struct device *device = &devices[device_count];
    memset(device, 0, sizeof *device);
    device->card = *card;
    device->ordinal = device_count;
    device->slot = -1;
    lockfile_set(&device->locks, card->folder, "cuda.lock", true);
    device_count++;
}

/* One entry of CUDA_VISIBLE_DEVICES: an index, or a uuid or its unique beginning. */
static int match(const char *entry, const struct emu_card *cards, int count)
{
    if (isdigit((unsigned char)*entry)) {
        char *rest;
        unsigned long index = strtoul(entry, &rest, 10);
        return *rest == '\0' && index < (unsigned long)count ? (int)index : -1;
    }
    if (strncmp(entry, "GPU-", 4) != 0)
        return -1;
    int found = -1;
    for (int i = 0; i < count; i++) {
        if (strncasecmp(cards[i].state->description.uuid, entry, strlen(entry)) != 0)
            continue;
        if (found >= 0)
            return -1; /* ambiguous */
        found = i;
    }
    return found;
}

void devices_open(void)
{
    if (device_count > 0)
        return;
    static struct emu_card cards[EMU_MAX_CARDS];
    static int count;
    if (count == 0)
        count = emu_cards_find(cards, (const void *)&cuInit, true);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible == NULL) {
        for (int i = 0; i < count; i++)
            add(&cards[i]);
        return;
    }
    /* Up to the first entry that names no card: the rest is not visible. */
    char text[1024];
    snprintf(text, sizeof text, "%s", visible);
    unsigned int seen = 0;
    char *save = NULL;
    for (char *entry = strtok_r(text, ",", &save); entry != NULL;
         entry = strtok_r(NULL, ",", &save)) {
        while (isspace((unsigned char)*entry))
            entry++;
        for (size_t n = strlen(entry); n > 0 && isspace((unsigned char)entry[n - 1]); n--)
            entry[n - 1] = '\0';
        int i = match(entry, cards, count);
        if (i < 0 || (seen >> i & 1) != 0)
            return;
        seen |= 1u << i;
        add(&cards[i]);
    }
}

struct device *device_at(CUdevice ordinal)
{
    return ordinal >= 0 && ordinal < device_count ? &devices[ordinal] : NULL;
}

#define DEVICE(ordinal)                                                                    \
    struct device *device = device_at(ordinal);                                            \
    if (device == NULL)                                                                    \
        return CUDA_ERROR_INVALID_DEVICE;                                                  \
    const struct card_description *description = device_description(device);               \
    (void)description

CUresult cuDeviceGetCount(int *count)
{
    ENTER();
    if (count == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = device_count;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *result, int ordinal)
{
    ENTER();
    if (result == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    DEVICE(ordinal);
    *result = ordinal;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int length, CUdevice ordinal)
{
    ENTER();
    DEVICE(ordinal);
    if (name == NULL || length <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    snprintf(name, (size_t)length, "%s", description->name);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice ordinal)
{
    ENTER();
    DEVICE(ordinal);
    if (uuid == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned char bytes[16];
    if (!emu_uuid_bytes(description->uuid, bytes))
        return CUDA_ERROR_UNKNOWN;
    memcpy(uuid->bytes, bytes, sizeof bytes);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice ordinal)
{
    return cuDeviceGetUuid(uuid, ordinal); /* they differ under MIG only */
}

CUresult cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice ordinal)
{
    ENTER();
    (void)luid, (void)mask;
    DEVICE(ordinal);
    return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice ordinal)
{
    ENTER();
    DEVICE(ordinal);
    if (bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *bytes = emu_card_capacity(device->card.state);
    return CUDA_SUCCESS;
}

static bool bus_id(const struct card_description *description, unsigned int *domain,
                   unsigned int *bus, unsigned int *slot)
{
    return sscanf(description->pci_bus_id, "%x:%x:%x", domain, bus, slot) == 3;
}

CUresult cuDeviceGetPCIBusId(char *text, int length, CUdevice ordinal)
{
    ENTER();
    DEVICE(ordinal);
    if (text == NULL || length < 13)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned int domain = 0, bus = 0, slot = 0;
    bus_id(description, &domain, &bus, &slot);
    snprintf(text, (size_t)length, "%04x:%02x:%02x.0", domain & 0xffff, bus & 0xff, slot & 0xff);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetByPCIBusId(CUdevice *result, const char *text)
{
    ENTER();
    if (result == NULL || text == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    unsigned int domain = 0, bus = 0, slot = 0;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) {
        domain = 0;
        if (sscanf(text, "%x:%x", &bus, &slot) != 2)
            return CUDA_ERROR_INVALID_VALUE;
    }
    for (int i = 0; i < device_count; i++) {
        unsigned int own_domain = 0, own_bus = 0, own_slot = 0;
        bus_id(device_description(&devices[i]), &own_domain, &own_bus, &own_slot);
        if (own_domain == domain && own_bus == bus && own_slot == slot) {
            *result = i;
            return CUDA_SUCCESS;
        }
    }
    return CUDA_ERROR_INVALID_DEVICE;
}

CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice ordinal)
{
    ENTER();
    DEVICE(ordinal);
    if (major == NULL || minor == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *major = (int)description->compute_major;
    *minor = (int)description->compute_minor;
    return CUDA_SUCCESS;
}

static int attribute(CUdevice_attribute which, const struct card_description *card)
{
    unsigned int domain = 0, bus = 0, slot = 0;
    bus_id(card, &domain, &bus, &slot);
    switch (which) {
    /* limits that are the same on all cards of the last ten years */
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X:
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y: return 1024;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z: return 64;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y:
    case CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z: return 65535;
    case CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY: return 65536;
    case CU_DEVICE_ATTRIBUTE_WARP_SIZE: return 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PITCH: return 2147483647;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK: return 65536;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT:
    case CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT: return 512;
    case CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT: return 32;
    case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE1D_WIDTH:
    case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_WIDTH: return 131072;
    case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE2D_HEIGHT: return 65536;
    case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_WIDTH:
    case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_HEIGHT:
    case CU_DEVICE_ATTRIBUTE_MAXIMUM_TEXTURE3D_DEPTH: return 16384;
    case CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK: return 1024;

    /* from the profile */
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK:
        return (int)card->shared_per_block_bytes;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN:
        return (int)card->shared_per_block_optin_bytes;
    case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR:
        return (int)card->shared_per_sm_bytes;
    case CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR:
        return (int)card->registers_per_sm;
    case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: return (int)card->clock_khz;
    case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: return (int)card->sm_count;
    case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: return (int)card->memory_clock_khz;
    case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: return (int)card->memory_bus_bits;
    case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: return (int)card->l2_bytes;
    case CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR:
        return (int)card->max_threads_per_sm;
    case CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR:
        return (int)card->max_blocks_per_sm;
    case CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT: return (int)card->copy_engines;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: return (int)card->compute_major;
    case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: return (int)card->compute_minor;
    case CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH: return card->compute_major >= 9;
    case CU_DEVICE_ATTRIBUTE_SINGLE_TO_DOUBLE_PRECISION_PERF_RATIO:
        return card->fp64_flops > 0 ? (int)(card->fp32_flops / card->fp64_flops) : 32;
    case CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE: return (int)(card->l2_bytes / 4 * 3);
    case CU_DEVICE_ATTRIBUTE_MAX_ACCESS_POLICY_WINDOW_SIZE: return 128 << 20;
    case CU_DEVICE_ATTRIBUTE_PCI_BUS_ID: return (int)bus;
    case CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID: return (int)slot;
    case CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID: return (int)domain;
    case CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID: return (int)card->index;
    /* what makes a card share its processors between processes */
    case CU_DEVICE_ATTRIBUTE_MPS_ENABLED: return card->clock_mode == CARD_CLOCK_SHARING;
    case CU_DEVICE_ATTRIBUTE_NUMA_ID:
    case CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID: return -1;

    /* what the emulation can do */
    case CU_DEVICE_ATTRIBUTE_GPU_OVERLAP:
    case CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS:
    case CU_DEVICE_ATTRIBUTE_ECC_ENABLED:
    case CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING:
    case CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY:
    case CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS:
    case CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM:
    case CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH:
    case CU_DEVICE_ATTRIBUTE_CAN_FLUSH_REMOTE_WRITES:
    case CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS:
    case CU_DEVICE_ATTRIBUTE_CAN_USE_STREAM_WAIT_VALUE_NOR: return 1;

    /* Everything else (sharing of handles between processes, arrays, multicast, …)
     * is not there: 0. */
    default: return 0;
    }
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute which, CUdevice ordinal)
{
    ENTER();
    DEVICE(ordinal);
    if (value == NULL || (int)which <= 0)
        return CUDA_ERROR_INVALID_VALUE;
    *value = attribute(which, description);
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetProperties(CUdevprop *properties, CUdevice ordinal)
{
    ENTER();
    DEVICE(ordinal);
    if (properties == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *properties = (CUdevprop){
        .maxThreadsPerBlock = 1024,
        .maxThreadsDim = {1024, 1024, 64},
        .maxGridSize = {2147483647, 65535, 65535},
        .sharedMemPerBlock = (int)description->shared_per_block_bytes,
        .totalConstantMemory = 65536,
        .SIMDWidth = 32,
        .memPitch = 2147483647,
        .regsPerBlock = 65536,
        .clockRate = (int)description->clock_khz,
        .textureAlign = 512,
    };
    return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice ordinal, CUdevice peer)
{
    ENTER();
    DEVICE(ordinal);
    if (can == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(peer) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    *can = ordinal != peer;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute which, CUdevice ordinal,
                                 CUdevice peer)
{
    ENTER();
    DEVICE(ordinal);
    if (value == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (device_at(peer) == NULL || peer == ordinal)
        return CUDA_ERROR_INVALID_DEVICE;
    *value = which == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetExecAffinitySupport(int *supported, CUexecAffinityType type, CUdevice ordinal)
{
    ENTER();
    (void)type;
    DEVICE(ordinal);
    if (supported == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *supported = 0;
    return CUDA_SUCCESS;
}

CUresult cuDeviceGetTexture1DLinearMaxWidth(size_t *width, CUarray_format format,
                                            unsigned int channels, CUdevice ordinal)
{
    ENTER();
    (void)format;
    DEVICE(ordinal);
    if (width == NULL || channels == 0)
        return CUDA_ERROR_INVALID_VALUE;
    *width = (size_t)1 << 28;
    return CUDA_SUCCESS;
}
