/* Asking the C library for a symbol in another's name.
 *
 * RTLD_NEXT means "behind the object that asks", and the C library takes for that the one that
 * its answer returns to. So the answer is made to return there: to a return instruction of the
 * asking object, which goes on to us. */
#ifndef VGPU_SHIM_ASKER_H
#define VGPU_SHIM_ASKER_H

#include "state.h"

/* A return instruction of the object that `caller` lies in; NULL where there is none, or where
 * the processor allows returns to callers only (a shadow stack). */
VGPU_HIDDEN const void *vgpu_asker_return(const void *caller);

/* function(handle, name, version), which returns by way of `back`. */
VGPU_HIDDEN void *vgpu_ask_as(const void *back, void *function, void *handle, const char *name,
                              const char *version);

#endif
