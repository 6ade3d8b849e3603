/* Stand-in for a library that torch links: the names are there, the work is not.
 *
 * Every function returns the library's own "not supported" status, so that the caller
 * raises an error instead of reading results that nobody computed. The first such call
 * of a process says so in one line on standard error; VGPU_EMU_LOG=off silences it,
 * VGPU_EMU_LOG=debug names every function called. Emulation, not NVIDIA.
 *
 * The including file defines LIBRARY, then uses UNSUPPORTED(name, status) and SAY(name).
 */
#include <errno.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define API __attribute__((visibility("default")))
#define NOT_EMULATED LIBRARY " is not emulated in this version of vgpu-testbed"

API extern const char vgpu_emulation_mark[];
const char vgpu_emulation_mark[] =
    "vgpu-testbed: stand-in for " LIBRARY " on emulated cards, emulation, not NVIDIA";

static atomic_int told;

static void say(const char *function)
{
    int saved = errno;
    const char *level = getenv("VGPU_EMU_LOG");
    int first = !atomic_exchange(&told, 1);
    int all = level && (!strcmp(level, "debug") || !strcmp(level, "trace"));
    if (all || (first && !(level && (!strcmp(level, "off") || !strcmp(level, "0")))))
        fprintf(stderr,
                "vgpu-testbed: %s: " NOT_EMULATED
                " (allocation, copies and memsets work; this call fails)\n",
                function);
    errno = saved;
}

#define SAY(name) say(#name)
#define UNSUPPORTED(name, status)                                                                  \
    API long name(void);                                                                           \
    API long name(void)                                                                            \
    {                                                                                              \
        SAY(name);                                                                                 \
        return (status);                                                                           \
    }
