#ifndef VGPU_SHIM_CONTEXTS_H
#define VGPU_SHIM_CONTEXTS_H

void vgpu_contexts_forget(void); /* in a forked child */

#endif
