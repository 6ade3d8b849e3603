/* Kernels whose result is a size that the program reads back.
 *
 * Emulated kernels compute nothing, so what they should have written stays what was in that
 * memory before; a program that takes it for a size would ask for gigabytes or for less
 * than nothing. PyTorch's come from two kernels of CUB (nonzero, masks, unique, printing a
 * tensor): behind those, the count is cleared with an ordinary memset on the same stream,
 * which says "nothing was found". Found by name and by the position of the pointer among
 * the kernel's parameters, both from CUB's public source (cub/device/dispatch).
 */
#ifndef VGPU_RUNTIME_COUNTS_H
#define VGPU_RUNTIME_COUNTS_H

#include "cudart_types.h"

/* A kernel that the driver gave for a mangled name. Not by two threads at once. */
void count_remember(CUkernel kernel, const char *mangled);

/* After its launch, on its stream. Does nothing for all other kernels, and for a pointer
 * that is none of the card's. */
void count_nothing(CUkernel kernel, void **parameters, CUstream stream);

#endif
