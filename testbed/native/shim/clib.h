/* Finding functions and objects without dlsym, which we replace. */
#ifndef VGPU_SHIM_CLIB_H
#define VGPU_SHIM_CLIB_H

#include <stdbool.h>
#include <stdint.h>

/* The C library's own function, NULL where it has none (libdl.so.2 before glibc 2.34). */
void *vgpu_clib(const char *name);

/* For what runs inside of anybody's dlsym: also before a sanitizer, an allocator's
 * interposer or the program itself is set up, so no library call and no instrumentation. */
#define VGPU_EARLY __attribute__((no_sanitize("address", "undefined", "thread")))

VGPU_EARLY static inline bool vgpu_same(const char *a, const char *b) {
    for (; *a != '\0' && *a == *b; a++, b++) {
    }
    return *a == *b;
}

#define VGPU_OBJECT_NAME 64

struct vgpu_object {
    char name[VGPU_OBJECT_NAME]; /* last part of the path, cut */
    uintptr_t base;
    bool found;
};

/* The loaded object that holds an address. */
struct vgpu_object vgpu_object_of(const void *address);

/* Whether this process's C library is musl, which reads no /etc/ld.so.preload. */
bool vgpu_clib_is_musl(void);

#endif
