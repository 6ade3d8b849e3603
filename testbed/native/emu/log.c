#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <strings.h>
#include <unistd.h>

static int wanted(void)
{
    /* Read at each line: lines are rare, and no lock or once-flag can then be in the
     * wrong state after fork. -1: nothing said. */
    static const char *const names[] = {"off", "error", "info", "debug"};
    const char *text = getenv("VGPU_EMU_LOG");
    if (text == NULL || *text == '\0')
        return -1;
    for (int i = 0; i < 4; i++)
        if (strcasecmp(text, names[i]) == 0)
            return i;
    return EMU_LOG_INFO;
}

static void put(const char *format, va_list arguments)
{
    char line[1024];
    int head = snprintf(line, sizeof line, "vgpu-emu[%d]: ", (int)getpid());
    int body = vsnprintf(line + head, sizeof line - (size_t)head - 1, format, arguments);
    if (body < 0)
        return;
    size_t length = (size_t)head + (size_t)body;
    if (length > sizeof line - 2)
        length = sizeof line - 2;
    line[length++] = '\n';
    if (write(STDERR_FILENO, line, length) < 0)
        return;
}

void emu_log(enum emu_log_level level, const char *format, ...)
{
    if ((int)level > wanted())
        return;
    int saved = errno;
    va_list arguments;
    va_start(arguments, format);
    put(format, arguments);
    va_end(arguments);
    errno = saved;
}

void emu_log_always(const char *format, ...)
{
    if (wanted() == EMU_LOG_OFF)
        return;
    int saved = errno;
    va_list arguments;
    va_start(arguments, format);
    put(format, arguments);
    va_end(arguments);
    errno = saved;
}
