/* Stand-in for a library that torch links: the names are there, the work is not.
 *
 * Every function returns the library's own "not supported" status, so that the caller
 * raises an error instead of reading results that nobody computed. The first such call
 * of a process says so in one line on standard error, in the manner of the emulated
 * driver: VGPU_EMU_LOG=off silences it, VGPU_EMU_LOG=debug names every call.
 * Emulation, not NVIDIA.
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
#include <strings.h>
#include <unistd.h>

#define API __attribute__((visibility("default")))
#define NOT_EMULATED LIBRARY " is not emulated in this version of vgpu-testbed"

API extern const char vgpu_emulation_mark[];
const char vgpu_emulation_mark[] =
    "vgpu-testbed: stand-in for " LIBRARY " on emulated cards, emulation, not NVIDIA";

static atomic_int told;

__attribute__((unused)) static void say(const char *function)
{
    int saved = errno;
    const char *level = getenv("VGPU_EMU_LOG");
    if (!level)
        level = "";
    int first = !atomic_exchange(&told, 1);
    if (!strcasecmp(level, "debug") || (first && strcasecmp(level, "off"))) {
        char line[256];
        int length = snprintf(line, sizeof(line), "vgpu-emu[%d]: %s: %s; this call fails\n",
                              (int)getpid(), function, NOT_EMULATED);
        if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0)
            errno = saved; /* nobody to tell */
    }
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
