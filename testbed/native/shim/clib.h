/* Finding functions and objects without dlsym, which we replace. */
#ifndef VGPU_SHIM_CLIB_H
#define VGPU_SHIM_CLIB_H

#include <stdbool.h>
#include <stdint.h>

/* The C library's own function, NULL where it has none (libdl.so.2 before glibc 2.34). */
void *vgpu_clib(const char *name);

struct vgpu_object {
    char name[64]; /* last part of the path, cut */
    uintptr_t base;
    bool found;
};

/* The loaded object that holds an address. */
struct vgpu_object vgpu_object_of(const void *address);

#endif
