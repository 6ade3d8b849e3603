#define _GNU_SOURCE
#include "log.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "sys.h"

int vgpu_log_level;

void vgpu_log_open(void) {
    const char *text = secure_getenv("LIBCUDA_LOG_LEVEL");
    if (text != NULL && text[0] >= '0' && text[0] <= '9') vgpu_log_level = text[0] - '0';
}

void vgpu_log_write(const char *format, ...) {
    int kept = errno;
    char line[400];
    int used = snprintf(line, sizeof line, "[vgpu %d] ", vgpu_getpid());
    va_list arguments;
    va_start(arguments, format);
    int more = vsnprintf(line + used, sizeof line - (size_t)used - 1, format, arguments);
    va_end(arguments);
    if (more > 0) used += more;
    if (used > (int)sizeof line - 2) used = (int)sizeof line - 2;
    line[used++] = '\n';
    vgpu_sys(SYS_write, 2, (long)line, used, 0, 0, 0);
    errno = kept;
}
