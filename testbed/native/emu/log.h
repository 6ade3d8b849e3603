/* Log lines of the emulated driver: silent unless VGPU_EMU_LOG says otherwise. */
#ifndef VGPU_EMU_LOG_H
#define VGPU_EMU_LOG_H

enum emu_log_level { EMU_LOG_OFF, EMU_LOG_ERROR, EMU_LOG_INFO, EMU_LOG_DEBUG };

/* Writes one line to standard error in one write, keeps errno. VGPU_EMU_LOG=off|error|
 * info|debug; without it only EMU_LOG_ALWAYS lines appear. */
void emu_log(enum emu_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* For what nobody could explain otherwise (the host's memory budget is used up):
 * written even when nothing was asked for, unless VGPU_EMU_LOG=off. */
void emu_log_always(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
