/* What the parts of the runtime library share.
 *
 * Every exported function begins with one of two gates: REQUIRE_DRIVER (driver found
 * and initialised, no context made) or REQUIRE_CONTEXT (the thread has a current
 * context: the one that somebody set, else the device's primary one, retained when it
 * is first needed). Results go through done(), which keeps the thread's last error.
 */
#ifndef VGPU_RUNTIME_H
#define VGPU_RUNTIME_H

#include "driver.h"

#define API __attribute__((visibility("default")))

#define RUNTIME_VERSION 13020
#define LEAST_DRIVER_VERSION 13000
#define MAX_DEVICES 64

/* thread.c */
cudaError_t require_driver(void);
cudaError_t require_context(void);
cudaError_t primary_context(int ordinal, CUcontext *context);
cudaError_t current_device(int *ordinal);
cudaError_t device_handle(int ordinal, CUdevice *device);
int device_count(void);

/* errors.c */
cudaError_t translate(CUresult result);
cudaError_t fail(cudaError_t error); /* remembers a runtime error */
cudaError_t done(CUresult result);   /* translates and remembers a driver result */

/* code.c: the kernel behind a registered host function or a kernel handle */
cudaError_t kernel_of(const void *function, CUkernel *kernel);

#define RETURN_IF(call)                                                                            \
    do {                                                                                           \
        cudaError_t error_ = (call);                                                               \
        if (error_ != cudaSuccess)                                                                 \
            return error_;                                                                         \
    } while (0)
#define REQUIRE_DRIVER() RETURN_IF(require_driver())
#define REQUIRE_CONTEXT() RETURN_IF(require_context())

#endif
