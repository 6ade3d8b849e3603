/* A libcuda.so.1 for tests of the runtime library: no memory, no card, it counts.
 *
 * Every function that is asked for exists and returns `fake_result`; a few fill what
 * they return. Calls and look-ups are written to `fake_log`, oldest first.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default")))

API extern int fake_result, fake_version, fake_devices, fake_init_result, fake_set_result;
API extern char fake_log[1 << 20], fake_missing[128];
API int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                            int *status);

int fake_result, fake_version = 13020, fake_devices = 2, fake_init_result, fake_set_result;
char fake_log[1 << 20], fake_missing[128];

static _Thread_local void *current;
static int contexts[16]; /* their addresses are the handles */
static int library, kernel, counter, block = 7;

static void note(const char *format, long a, long b)
{
    size_t used = strlen(fake_log);
    snprintf(fake_log + used, sizeof(fake_log) - used, format, a, b);
}

static int init(unsigned int flags)
{
    note("init %ld\n", (long)flags, 0);
    return fake_init_result;
}
static int driver_version(int *version)
{
    *version = fake_version;
    return 0;
}
static int device_count(int *count)
{
    *count = fake_devices;
    return 0;
}
static int device_get(int *device, int ordinal)
{
    *device = ordinal;
    return 0;
}
static int retain(void **context, int device)
{
    note("retain %ld\n", device, 0);
    *context = fake_result ? NULL : &contexts[device];
    return fake_result;
}
static int get_current(void **context)
{
    *context = current;
    return 0;
}
static int set_current(void *context)
{
    current = context;
    note("current %ld\n", context ? (int *)context - contexts : -1, 0);
    return 0;
}
static int context_device(int *device)
{
    *device = (int)((int *)current - contexts);
    return 0;
}
static int alloc(void **pointer, size_t bytes)
{
    note("alloc %ld\n", (long)bytes, 0);
    if (!fake_result)
        *pointer = &block;
    return fake_result;
}
static int load_data(void **handle, const void *image)
{
    note("load %ld\n", image != NULL, 0);
    *handle = &library;
    return fake_result;
}
static int get_kernel(void **handle, void *from, const char *name)
{
    note("kernel %ld\n", from == &library, 0);
    *handle = strstr(name, "Device") ? &counter : &kernel;
    return fake_result;
}
static int get_global(void **pointer, size_t *bytes)
{
    *pointer = &block;
    if (bytes)
        *bytes = 16;
    return fake_result;
}
static int launch(void *function, unsigned int x, unsigned int y, unsigned int z, unsigned int bx)
{
    (void)y, (void)z, (void)bx;
    note("launch %ld %ld\n", function == &kernel, (long)x);
    return fake_result;
}
static int set_bytes(void *to, unsigned char value, size_t bytes, void *stream)
{
    note("set %ld %ld", (long)((char *)to - (char *)&block), value);
    note(" %ld %ld\n", (long)bytes, (long)stream);
    return fake_set_result;
}
static int copy_to_device(void *to, const void *from, size_t bytes)
{
    (void)from;
    note("htod %ld %ld\n", (long)((char *)to - (char *)&block), (long)bytes);
    return fake_result;
}
static int other(void)
{
    return fake_result;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *status)
{
    static const struct {
        const char *name;
        void *function;
    } known[] = {
        {"cuInit", (void *)init},
        {"cuDriverGetVersion", (void *)driver_version},
        {"cuDeviceGetCount", (void *)device_count},
        {"cuDeviceGet", (void *)device_get},
        {"cuDevicePrimaryCtxRetain", (void *)retain},
        {"cuCtxGetCurrent", (void *)get_current},
        {"cuCtxSetCurrent", (void *)set_current},
        {"cuCtxGetDevice", (void *)context_device},
        {"cuMemAlloc", (void *)alloc},
        {"cuLibraryLoadData", (void *)load_data},
        {"cuLibraryGetKernel", (void *)get_kernel},
        {"cuLibraryGetGlobal", (void *)get_global},
        {"cuLaunchKernel", (void *)launch},
        {"cuMemsetD8Async", (void *)set_bytes},
        {"cuMemcpyHtoD", (void *)copy_to_device},
    };
    (void)version, (void)flags;
    *function = (void *)other;
    for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); i++)
        if (!strcmp(known[i].name, name))
            *function = known[i].function;
    if (!strcmp(fake_missing, name))
        *function = NULL;
    if (status)
        *status = *function ? 0 : 1;
    return 0;
}
