/* One line each to stderr, off by default (LIBCUDA_LOG_LEVEL: 0 off, 1 errors and
 * refusals, 2 warnings, 3 decisions, 4 every charge). */
#ifndef VGPU_SHIM_LOG_H
#define VGPU_SHIM_LOG_H

enum vgpu_level { VGPU_LOG_ERROR = 1, VGPU_LOG_WARN = 2, VGPU_LOG_INFO = 3, VGPU_LOG_DEBUG = 4 };

void vgpu_log_open(void); /* reads the environment; before it nothing is written */
void vgpu_log_write(const char *format, ...) __attribute__((format(printf, 1, 2)));

extern int vgpu_log_level;
#define VGPU_LOG(level, ...)                                                                       \
    do {                                                                                           \
        if (__builtin_expect(vgpu_log_level >= (level), 0)) vgpu_log_write(__VA_ARGS__);           \
    } while (0)

#endif
