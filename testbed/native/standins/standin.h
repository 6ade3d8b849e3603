/* What every stand-in shares, for the generated half and the written one.
 *
 * A stand-in is a library that torch links, under its own name. The generated file has
 * every function that the installed torch asks for; each returns the library's own "not
 * supported" status, so that the caller raises an error instead of reading results that
 * nobody computed. Those are weak: where a written file beside it (cublas.c, …) has the
 * function, that one is used. The first "not supported" of a process says so in one line
 * on standard error, in the manner of the emulated driver: VGPU_EMU_LOG=off silences it,
 * VGPU_EMU_LOG=debug names every call. Emulation, not NVIDIA.
 *
 * The generated file defines LIBRARY, and so gets the library's mark and voice; it uses
 * UNSUPPORTED(name, status) and SAY(name).
 */
#ifndef VGPU_STANDIN_H
#define VGPU_STANDIN_H

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
#define WEAK __attribute__((weak))

void standin_say(const char *function);
#define SAY(name) standin_say(#name)

#ifdef LIBRARY

#define NOT_EMULATED LIBRARY " is not emulated in this version of vgpu-testbed"

API extern const char vgpu_emulation_mark[];
const char vgpu_emulation_mark[] =
    "vgpu-testbed: stand-in for " LIBRARY " on emulated cards, emulation, not NVIDIA";

static atomic_int told;

void standin_say(const char *function)
{
    int saved = errno;
    const char *level = getenv("VGPU_EMU_LOG");
    if (!level)
        level = "";
    int first = !atomic_exchange(&told, 1);
    if (!strcasecmp(level, "debug") || (first && strcasecmp(level, "off"))) {
        char line[256];
        int length = snprintf(line, sizeof(line), "vgpu-emu[%d]: %s of %s; this call fails\n",
                              (int)getpid(), function, NOT_EMULATED);
        if (length > 0 && write(STDERR_FILENO, line, (size_t)length) < 0)
            errno = saved; /* nobody to tell */
    }
    errno = saved;
}

#define UNSUPPORTED(name, status)                                                                  \
    API WEAK long name(void);                                                                      \
    API WEAK long name(void)                                                                       \
    {                                                                                              \
        SAY(name);                                                                                 \
        return (status);                                                                           \
    }

#endif
#endif
