/* The emulated libnvidia-ml: initialisation, devices, and what a card says of itself. */
#define _GNU_SOURCE
#include "nvml.h"

#include "log.h"

#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

EXPORT const char vgpu_emulation_mark[] =
    "vgpu-testbed: emulation of the NVIDIA Management Library, not NVIDIA software";

struct device nvml_devices[EMU_MAX_CARDS];
int nvml_count;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static unsigned int users;

/* --- initialisation ------------------------------------------------------------------ */

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
    (void)flags;
    pthread_mutex_lock(&lock);
    if (nvml_count == 0) {
        /* Once and for all: descriptors and handles outlive nvmlShutdown, since closing
         * a descriptor of cuda.lock would drop libcuda's locks in this process. */
        static struct emu_card cards[EMU_MAX_CARDS];
        int count = emu_cards_find(cards, (const void *)&nvmlInitWithFlags, false);
        for (int i = 0; i < count; i++) {
            nvml_devices[i].card = cards[i];
            lockfile_set(&nvml_devices[i].locks, cards[i].folder, "cuda.lock", false);
        }
        nvml_count = count;
    }
    nvmlReturn_t result = nvml_count > 0 ? NVML_SUCCESS : NVML_ERROR_DRIVER_NOT_LOADED;
    if (result == NVML_SUCCESS)
        users++;
    pthread_mutex_unlock(&lock);
    return result;
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlInit(void)
{
    return nvmlInitWithFlags(0);
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
    pthread_mutex_lock(&lock);
    nvmlReturn_t result = users > 0 ? NVML_SUCCESS : NVML_ERROR_UNINITIALIZED;
    if (users > 0)
        users--;
    pthread_mutex_unlock(&lock);
    return result;
}

nvmlReturn_t nvml_enter(void)
{
    return __atomic_load_n(&users, __ATOMIC_RELAXED) > 0 ? NVML_SUCCESS
                                                         : NVML_ERROR_UNINITIALIZED;
}

nvmlReturn_t nvml_device(const struct device *device)
{
    ENTER();
    NEED(device >= nvml_devices && device < nvml_devices + nvml_count);
    return __atomic_load_n(&device->card.state->faults.fallen_off, __ATOMIC_RELAXED) != 0
               ? NVML_ERROR_GPU_IS_LOST
               : NVML_SUCCESS;
}

static const struct card_description *description(const struct device *device)
{
    return &device->card.state->description;
}

static nvmlReturn_t put(char *text, unsigned int length, const char *value)
{
    NEED(text != NULL);
    return (unsigned int)snprintf(text, length, "%s", value) < length
               ? NVML_SUCCESS
               : NVML_ERROR_INSUFFICIENT_SIZE;
}

/* --- the system ------------------------------------------------------------------------ */

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
    ENTER();
    return put(version, length, description(&nvml_devices[0])->driver_text);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
    ENTER();
    char text[64];
    snprintf(text, sizeof text, "%u.%s", description(&nvml_devices[0])->driver_version / 1000,
             description(&nvml_devices[0])->driver_text);
    return put(version, length, text);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
    ENTER();
    NEED(version != NULL);
    *version = (int)description(&nvml_devices[0])->driver_version;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
    return nvmlSystemGetCudaDriverVersion_v2(version);
}

EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
    ENTER();
    char path[64], text[4096];
    snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return NVML_ERROR_NOT_FOUND;
    size_t got = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[got] = '\0'; /* the first argument ends at its own zero byte */
    return got > 0 ? put(name, length, text) : NVML_ERROR_NOT_FOUND;
}

/* --- handles ---------------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *count)
{
    ENTER();
    NEED(count != NULL);
    *count = (unsigned int)nvml_count;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *count)
{
    return nvmlDeviceGetCount_v2(count);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
    ENTER();
    NEED(device != NULL && index < (unsigned int)nvml_count);
    *device = &nvml_devices[index];
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByIndex_v2(index, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
    ENTER();
    NEED(uuid != NULL && device != NULL);
    for (int i = 0; i < nvml_count; i++)
        if (strcasecmp(description(&nvml_devices[i])->uuid, uuid) == 0) {
            *device = &nvml_devices[i];
            return NVML_SUCCESS;
        }
    return NVML_ERROR_NOT_FOUND;
}

static bool bus_id(const char *text, unsigned int *domain, unsigned int *bus, unsigned int *slot)
{
    if (sscanf(text, "%x:%x:%x", domain, bus, slot) == 3)
        return true;
    *domain = 0;
    return sscanf(text, "%x:%x", bus, slot) == 2;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *text, nvmlDevice_t *device)
{
    ENTER();
    unsigned int domain, bus, slot;
    NEED(text != NULL && device != NULL && bus_id(text, &domain, &bus, &slot));
    for (int i = 0; i < nvml_count; i++) {
        unsigned int own_domain, own_bus, own_slot;
        if (bus_id(description(&nvml_devices[i])->pci_bus_id, &own_domain, &own_bus, &own_slot) &&
            own_domain == domain && own_bus == bus && own_slot == slot) {
            *device = &nvml_devices[i];
            return NVML_SUCCESS;
        }
    }
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *text, nvmlDevice_t *device)
{
    return nvmlDeviceGetHandleByPciBusId_v2(text, device);
}

/* --- what never changes -------------------------------------------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
    DEVICE(device);
    return put(name, length, description(device)->name);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned int length)
{
    DEVICE(device);
    return put(uuid, length, description(device)->uuid);
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
    DEVICE(device);
    NEED(index != NULL);
    *index = (unsigned int)(device - nvml_devices); /* among the visible ones, as handles are */
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned int *minor)
{
    DEVICE(device);
    NEED(minor != NULL);
    *minor = description(device)->minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *info)
{
    DEVICE(device);
    NEED(info != NULL);
    memset(info, 0, sizeof *info);
    if (!bus_id(description(device)->pci_bus_id, &info->domain, &info->bus, &info->device))
        return NVML_ERROR_UNKNOWN;
    snprintf(info->busId, sizeof info->busId, "%08X:%02X:%02X.0", info->domain, info->bus & 0xff,
             info->device & 0xff);
    snprintf(info->busIdLegacy, sizeof info->busIdLegacy, "%04X:%02X:%02X.0",
             info->domain & 0xffff, info->bus & 0xff, info->device & 0xff);
    return NVML_SUCCESS;
}

/* The first two versions lack the long bus id; their text is the legacy one. */
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_v2_t *info)
{
    nvmlPciInfo_t full;
    nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &full);
    if (result != NVML_SUCCESS)
        return result;
    NEED(info != NULL);
    memset(info, 0, sizeof *info);
    memcpy(info->busId, full.busIdLegacy, sizeof info->busId);
    info->domain = full.domain;
    info->bus = full.bus;
    info->device = full.device;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major, int *minor)
{
    DEVICE(device);
    NEED(major != NULL && minor != NULL);
    *major = (int)description(device)->compute_major;
    *minor = (int)description(device)->compute_minor;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned int *cores)
{
    DEVICE(device);
    NEED(cores != NULL);
    /* cores a multiprocessor, by architecture */
    unsigned int each = description(device)->compute_major == 8 &&
                                description(device)->compute_minor == 0
                            ? 64
                            : 128;
    *cores = description(device)->sm_count * each;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryBusWidth(nvmlDevice_t device, unsigned int *bits)
{
    DEVICE(device);
    NEED(bits != NULL);
    *bits = description(device)->memory_bus_bits;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, unsigned int *architecture)
{
    DEVICE(device);
    NEED(architecture != NULL);
    unsigned int major = description(device)->compute_major;
    unsigned int minor = description(device)->compute_minor;
    *architecture = major == 7 ? (minor >= 5 ? 6 : 5)  /* Turing, Volta */
                    : major == 8 ? (minor == 9 ? 8 : 7) /* Ada, Ampere */
                    : major == 9 ? 9                    /* Hopper */
                                 : 0xffffffff;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, int *brand)
{
    DEVICE(device);
    NEED(brand != NULL);
    *brand = 14; /* NVIDIA */
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t device, unsigned int *current,
                                         unsigned int *pending)
{
    DEVICE(device);
    NEED(current != NULL && pending != NULL);
    *current = *pending = 0; /* disabled */
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceIsMigDeviceHandle(nvmlDevice_t device, unsigned int *is)
{
    DEVICE(device);
    NEED(is != NULL);
    *is = 0;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxMigDeviceCount(nvmlDevice_t device, unsigned int *count)
{
    DEVICE(device);
    NEED(count != NULL);
    *count = 0; /* the emulation has no MIG */
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t device, unsigned int index,
                                                        nvmlDevice_t *mig)
{
    DEVICE(device);
    (void)index, (void)mig;
    return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeMode(nvmlDevice_t device, int *mode)
{
    DEVICE(device);
    NEED(mode != NULL);
    *mode = 0; /* default: shared */
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPersistenceMode(nvmlDevice_t device, int *mode)
{
    DEVICE(device);
    NEED(mode != NULL);
    *mode = 1;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t device, int *current, int *pending)
{
    DEVICE(device);
    NEED(current != NULL && pending != NULL);
    *current = *pending = 1;
    return NVML_SUCCESS;
}

/* --- sensors: constant and plausible, since nothing heats up --------------------------------- */

EXPORT nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t device, int sensor, unsigned int *celsius)
{
    DEVICE(device);
    NEED(celsius != NULL && sensor == 0);
    *celsius = 35;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t device, unsigned int *milliwatts)
{
    DEVICE(device);
    NEED(milliwatts != NULL);
    *milliwatts = 60000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetEnforcedPowerLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    DEVICE(device);
    NEED(milliwatts != NULL);
    *milliwatts = 400000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetPowerManagementLimit(nvmlDevice_t device, unsigned int *milliwatts)
{
    return nvmlDeviceGetEnforcedPowerLimit(device, milliwatts);
}

static nvmlReturn_t clock_of(nvmlDevice_t device, int type, unsigned int *mhz)
{
    DEVICE(device);
    NEED(mhz != NULL && type >= 0 && type <= 3);
    *mhz = (type == 2 ? description(device)->memory_clock_khz : description(device)->clock_khz) /
           1000;
    return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t device, int type, unsigned int *mhz)
{
    return clock_of(device, type, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t device, int type, unsigned int *mhz)
{
    return clock_of(device, type, mhz);
}

EXPORT nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t device, int *state)
{
    DEVICE(device);
    NEED(state != NULL);
    *state = 0;
    return NVML_SUCCESS;
}

/* --- errors ------------------------------------------------------------------------------ */

EXPORT const char *nvmlErrorString(nvmlReturn_t result)
{
    switch (result) {
    case NVML_SUCCESS: return "Success";
    case NVML_ERROR_UNINITIALIZED: return "Uninitialized";
    case NVML_ERROR_INVALID_ARGUMENT: return "Invalid Argument";
    case NVML_ERROR_NOT_SUPPORTED: return "Not Supported";
    case NVML_ERROR_NO_PERMISSION: return "Insufficient Permissions";
    case NVML_ERROR_NOT_FOUND: return "Not Found";
    case NVML_ERROR_INSUFFICIENT_SIZE: return "Insufficient Size";
    case NVML_ERROR_DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case NVML_ERROR_TIMEOUT: return "Timeout";
    case NVML_ERROR_FUNCTION_NOT_FOUND: return "Function Not Found";
    case NVML_ERROR_GPU_IS_LOST: return "GPU is lost";
    case NVML_ERROR_ARGUMENT_VERSION_MISMATCH: return "Argument version mismatch";
    case NVML_ERROR_UNKNOWN: return "Unknown Error";
    }
    return "Unknown Error";
}

/* --- exported, not emulated -------------------------------------------------------------- */

#define N(name)                                                                            \
    EXPORT nvmlReturn_t name(void);                                                        \
    EXPORT nvmlReturn_t name(void)                                                         \
    {                                                                                      \
        emu_log(EMU_LOG_INFO, "%s is not emulated", #name);                                \
        return NVML_ERROR_NOT_SUPPORTED;                                                   \
    }
#include "nvml_unsupported.def"
#undef N
