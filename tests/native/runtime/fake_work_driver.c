/* A libcuda.so.1 for tests of the stand-ins: keeps the image and the launches that it is
 * given. `fake_log` has a line for each launch: name, blocks, threads, stream, flops, bytes,
 * precision. */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define API __attribute__((visibility("default")))

API extern char fake_log[1 << 20], fake_image[1 << 20];
API extern int fake_init_result, fake_launch_result, fake_loads, fake_lookups;
API int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                            int *status);

char fake_log[1 << 20], fake_image[1 << 20];
int fake_init_result, fake_launch_result, fake_loads, fake_lookups;
static int library;
static char names[4096][64];
static int used;

static int init(unsigned int flags)
{
    return flags ? 1 : fake_init_result;
}

static int load(void **handle, const void *image)
{
    fake_loads++;
    snprintf(fake_image, sizeof fake_image, "%s", (const char *)image);
    *handle = &library;
    return 0;
}

static int get_kernel(void **kernel, void *from, const char *name)
{
    char line[80];
    snprintf(line, sizeof line, "\n%s work\n", name);
    if (from != &library || !strstr(fake_image, line))
        return 500;
    fake_lookups++;
    snprintf(names[used], sizeof names[used], "%s", name);
    *kernel = names[used++];
    return 0;
}

static int launch(const char *kernel, unsigned int x, unsigned int y, unsigned int z,
                  unsigned int threads, unsigned int ty, unsigned int tz, unsigned int shared,
                  void *stream, void **parameters, void **extra)
{
    if (fake_launch_result)
        return fake_launch_result;
    size_t length = strlen(fake_log);
    snprintf(fake_log + length, sizeof fake_log - length, "%s %u %u %ld %lu %lu %u\n", kernel,
             x * y * z, threads * ty * tz, (long)stream,
             (unsigned long)*(uint64_t *)parameters[0], (unsigned long)*(uint64_t *)parameters[1],
             *(uint32_t *)parameters[2]);
    return shared || extra ? 1 : 0;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags,
                        int *status)
{
    static const struct {
        const char *name;
        void *function;
    } known[] = {{"cuInit", (void *)init},
                 {"cuLibraryLoadData", (void *)load},
                 {"cuLibraryGetKernel", (void *)get_kernel},
                 {"cuLaunchKernel", (void *)launch}};
    (void)version, (void)flags, (void)status;
    *function = NULL;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (!strcmp(known[i].name, name))
            *function = known[i].function;
    return *function ? 0 : 500;
}
