/* Moving bytes: copies, memsets, and what a stream's work does to memory. */
#define _GNU_SOURCE
#include "driver.h"

#include <string.h>

/* From the first byte to the last of a block of rows and layers. */
static size_t span(size_t width, size_t height, size_t depth, size_t pitch, size_t slice)
{
    if (width == 0 || height == 0 || depth == 0)
        return 0;
    return (depth - 1) * slice + (height - 1) * pitch + width;
}

/* Pages that reading creates on the host: shared memory has no common zero page. */
static CUresult touch_source(uintptr_t address, size_t bytes)
{
    struct range *range = space_find(&memory, address);
    bool shared = range != NULL && (range->kind == RANGE_MAPPED ||
                                    (range->backing != NULL && range->backing->shared));
    return shared ? memory_touch(address, bytes) : CUDA_SUCCESS;
}

static CUresult prepare_copy(const struct op *op)
{
    size_t to = span(op->as.copy.width, op->as.copy.height, op->as.copy.depth,
                     op->as.copy.to_pitch, op->as.copy.to_slice);
    size_t from = span(op->as.copy.width, op->as.copy.height, op->as.copy.depth,
                       op->as.copy.from_pitch, op->as.copy.from_slice);
    enum copy_direction direction = op->as.copy.direction;
    bool to_device = space_find(&memory, op->as.copy.to) != NULL &&
                     range_on_device(space_find(&memory, op->as.copy.to));
    bool from_device = space_find(&memory, op->as.copy.from) != NULL &&
                       range_on_device(space_find(&memory, op->as.copy.from));
    /* A pointer that nobody knows is the program's own memory, and only where the
     * call does not say "device". Pinned memory has a device address too. */
    bool to_known = space_find(&memory, op->as.copy.to) != NULL;
    bool from_known = space_find(&memory, op->as.copy.from) != NULL;
    if ((direction == COPY_TO_DEVICE || direction == COPY_ON_DEVICE) && !to_known)
        return CUDA_ERROR_INVALID_VALUE;
    if ((direction == COPY_TO_HOST || direction == COPY_ON_DEVICE) && !from_known)
        return CUDA_ERROR_INVALID_VALUE;
    if ((to_device && !memory_is_device(op->as.copy.to, to)) ||
        (from_device && !memory_is_device(op->as.copy.from, from)))
        return CUDA_ERROR_INVALID_VALUE;
    CUresult result = touch_source(op->as.copy.from, from);
    if (result == CUDA_SUCCESS && to_device)
        result = memory_touch(op->as.copy.to, to);
    return result;
}

static CUresult run_copy(const struct op *op)
{
    driver_lock();
    CUresult result = prepare_copy(op);
    driver_unlock();
    if (result != CUDA_SUCCESS)
        return result;
    size_t width = op->as.copy.width, height = op->as.copy.height, depth = op->as.copy.depth;
    if (op->as.copy.to_pitch == width && op->as.copy.from_pitch == width) {
        width *= height; /* rows without a gap are one */
        height = 1;
    }
    for (size_t z = 0; z < depth; z++)
        for (size_t y = 0; y < height; y++)
            memmove((char *)op->as.copy.to + z * op->as.copy.to_slice + y * op->as.copy.to_pitch,
                    (const char *)op->as.copy.from + z * op->as.copy.from_slice +
                        y * op->as.copy.from_pitch,
                    width);
    return CUDA_SUCCESS;
}

static void fill(uintptr_t to, uint32_t value, unsigned int element, size_t count)
{
    if (element == 1) {
        memset((void *)to, (int)(value & 0xff), count);
    } else if (element == 2) {
        uint16_t *at = (uint16_t *)to;
        for (size_t i = 0; i < count; i++)
            at[i] = (uint16_t)value;
    } else {
        uint32_t *at = (uint32_t *)to;
        for (size_t i = 0; i < count; i++)
            at[i] = value;
    }
}

static CUresult run_set(const struct op *op)
{
    size_t row = op->as.set.width * op->as.set.element;
    size_t bytes = span(row, op->as.set.height, 1, op->as.set.pitch, 0);
    if (bytes == 0)
        return CUDA_SUCCESS;
    uintptr_t to = op->as.set.to;
    size_t width = op->as.set.width, height = op->as.set.height;
    if (op->as.set.pitch == row) {
        width *= height;
        row *= height;
        height = 1;
    }
    driver_lock();
    struct range *range = space_find(&memory, to);
    CUresult result = CUDA_SUCCESS;
    bool zero = op->as.set.value == 0;
    if (range == NULL || (range_on_device(range) && !memory_is_device(to, bytes)))
        result = CUDA_ERROR_INVALID_VALUE;
    else if (zero)
        for (size_t y = 0; y < height; y++)
            memory_zero(to + y * op->as.set.pitch, row);
    else
        result = memory_touch(to, bytes);
    driver_unlock();
    if (result == CUDA_SUCCESS && !zero)
        for (size_t y = 0; y < height; y++)
            fill(to + y * op->as.set.pitch, op->as.set.value, op->as.set.element, width);
    return result;
}

bool op_touches(const struct op *op)
{
    return op->kind == OP_COPY || op->kind == OP_SET;
}

CUresult op_run(const struct op *op)
{
    switch (op->kind) {
    case OP_COPY: return run_copy(op);
    case OP_SET: return run_set(op);
    default: return CUDA_SUCCESS; /* kernels compute nothing */
    }
}

/* --- copies ---------------------------------------------------------------------------- */

static CUresult copy(uintptr_t to, uintptr_t from, size_t bytes, enum copy_direction direction,
                     CUstream stream, enum patience patience)
{
    if (bytes == 0)
        return CUDA_SUCCESS;
    return stream_submit(stream, &(struct op){.kind = OP_COPY,
                                              .synchronous = patience == WAIT,
                                              .as.copy = {.to = to,
                                                          .from = from,
                                                          .width = bytes,
                                                          .height = 1,
                                                          .depth = 1,
                                                          .to_pitch = bytes,
                                                          .from_pitch = bytes,
                                                          .direction = direction}});
}

CUresult cuMemcpy(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    ENTER();
    return copy((uintptr_t)to, (uintptr_t)from, bytes, COPY_ANY, NULL, WAIT);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER();
    return copy((uintptr_t)to, (uintptr_t)from, bytes, COPY_ANY, stream, RETURN);
}

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t bytes)
{
    ENTER();
    return copy((uintptr_t)to, (uintptr_t)from, bytes, COPY_TO_DEVICE, NULL, WAIT);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t bytes, CUstream stream)
{
    ENTER();
    return copy((uintptr_t)to, (uintptr_t)from, bytes, COPY_TO_DEVICE, stream, RETURN);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t bytes)
{
    ENTER();
    return copy((uintptr_t)to, (uintptr_t)from, bytes, COPY_TO_HOST, NULL, WAIT);
}

CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER();
    return copy((uintptr_t)to, (uintptr_t)from, bytes, COPY_TO_HOST, stream, RETURN);
}

CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes)
{
    ENTER();
    return copy((uintptr_t)to, (uintptr_t)from, bytes, COPY_ON_DEVICE, NULL, WAIT);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream)
{
    ENTER();
    return copy((uintptr_t)to, (uintptr_t)from, bytes, COPY_ON_DEVICE, stream, RETURN);
}

CUresult cuMemcpyPeer(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                      CUcontext from_context, size_t bytes)
{
    ENTER();
    (void)to_context, (void)from_context;
    return copy((uintptr_t)to, (uintptr_t)from, bytes, COPY_ON_DEVICE, NULL, WAIT);
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from,
                           CUcontext from_context, size_t bytes, CUstream stream)
{
    ENTER();
    (void)to_context, (void)from_context;
    return copy((uintptr_t)to, (uintptr_t)from, bytes, COPY_ON_DEVICE, stream, RETURN);
}

CUresult cuMemcpyBatchAsync_v2(CUdeviceptr *to, CUdeviceptr *from, size_t *bytes, size_t count,
                               CUmemcpyAttributes *attributes, size_t *indices,
                               size_t attribute_count, CUstream stream)
{
    ENTER();
    (void)attributes, (void)indices, (void)attribute_count;
    if (to == NULL || from == NULL || bytes == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        CUresult result =
            copy((uintptr_t)to[i], (uintptr_t)from[i], bytes[i], COPY_ANY, stream, RETURN);
        if (result != CUDA_SUCCESS)
            return result;
    }
    return CUDA_SUCCESS;
}

static enum copy_direction direction(CUmemorytype to, CUmemorytype from)
{
    if (to == CU_MEMORYTYPE_DEVICE)
        return from == CU_MEMORYTYPE_DEVICE ? COPY_ON_DEVICE
               : from == CU_MEMORYTYPE_HOST ? COPY_TO_DEVICE
                                            : COPY_ANY;
    return from == CU_MEMORYTYPE_DEVICE ? COPY_TO_HOST : COPY_ANY;
}

/* Puts the array's memory in the place of an array. */
static CUresult resolve(CUmemorytype *type, CUarray array, CUdeviceptr *at, size_t *pitch,
                        size_t *height, size_t right, size_t bottom, size_t back)
{
    if (*type != CU_MEMORYTYPE_ARRAY)
        return CUDA_SUCCESS;
    struct array_view view;
    uintptr_t start;
    LOCKED();
    if (!array_find(array, &start, &view))
        return CUDA_ERROR_INVALID_HANDLE;
    if (right > view.width || bottom > view.rows || back > view.layers)
        return CUDA_ERROR_INVALID_VALUE;
    *type = CU_MEMORYTYPE_DEVICE;
    *at = start;
    *pitch = view.pitch;
    *height = view.slice / view.pitch;
    return CUDA_SUCCESS;
}

CUresult copy_block(const CUDA_MEMCPY3D *given, CUstream stream, enum patience patience)
{
    CUDA_MEMCPY3D with_memory = *given;
    const CUDA_MEMCPY3D *block = &with_memory;
    CUresult result =
        resolve(&with_memory.srcMemoryType, given->srcArray, &with_memory.srcDevice,
                &with_memory.srcPitch, &with_memory.srcHeight, given->srcXInBytes + given->WidthInBytes,
                given->srcY + given->Height, given->srcZ + given->Depth);
    if (result == CUDA_SUCCESS)
        result = resolve(&with_memory.dstMemoryType, given->dstArray, &with_memory.dstDevice,
                         &with_memory.dstPitch, &with_memory.dstHeight,
                         given->dstXInBytes + given->WidthInBytes, given->dstY + given->Height,
                         given->dstZ + given->Depth);
    if (result != CUDA_SUCCESS)
        return result;
    if (block->WidthInBytes == 0 || block->Height == 0 || block->Depth == 0)
        return CUDA_SUCCESS;
    uintptr_t to = block->dstMemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)block->dstHost
                                                              : (uintptr_t)block->dstDevice;
    uintptr_t from = block->srcMemoryType == CU_MEMORYTYPE_HOST ? (uintptr_t)block->srcHost
                                                                : (uintptr_t)block->srcDevice;
    size_t to_pitch = block->dstPitch != 0 ? block->dstPitch : block->WidthInBytes;
    size_t from_pitch = block->srcPitch != 0 ? block->srcPitch : block->WidthInBytes;
    size_t to_slice = to_pitch * (block->dstHeight != 0 ? block->dstHeight : block->Height);
    size_t from_slice = from_pitch * (block->srcHeight != 0 ? block->srcHeight : block->Height);
    if (block->WidthInBytes > to_pitch || block->WidthInBytes > from_pitch)
        return CUDA_ERROR_INVALID_VALUE;
    to += block->dstZ * to_slice + block->dstY * to_pitch + block->dstXInBytes;
    from += block->srcZ * from_slice + block->srcY * from_pitch + block->srcXInBytes;
    return stream_submit(
        stream, &(struct op){.kind = OP_COPY,
                             .synchronous = patience == WAIT,
                             .as.copy = {.to = to,
                                         .from = from,
                                         .width = block->WidthInBytes,
                                         .height = block->Height,
                                         .depth = block->Depth,
                                         .to_pitch = to_pitch,
                                         .from_pitch = from_pitch,
                                         .to_slice = to_slice,
                                         .from_slice = from_slice,
                                         .direction = direction(block->dstMemoryType,
                                                                block->srcMemoryType)}});
}

static CUresult copy_plane(const CUDA_MEMCPY2D *plane, CUstream stream, enum patience patience)
{
    if (plane == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return copy_block(&(CUDA_MEMCPY3D){.srcXInBytes = plane->srcXInBytes,
                                       .srcY = plane->srcY,
                                       .srcMemoryType = plane->srcMemoryType,
                                       .srcHost = plane->srcHost,
                                       .srcDevice = plane->srcDevice,
                                       .srcArray = plane->srcArray,
                                       .srcPitch = plane->srcPitch,
                                       .dstXInBytes = plane->dstXInBytes,
                                       .dstY = plane->dstY,
                                       .dstMemoryType = plane->dstMemoryType,
                                       .dstHost = plane->dstHost,
                                       .dstDevice = plane->dstDevice,
                                       .dstArray = plane->dstArray,
                                       .dstPitch = plane->dstPitch,
                                       .WidthInBytes = plane->WidthInBytes,
                                       .Height = plane->Height,
                                       .Depth = 1},
                      stream, patience);
}

CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *plane)
{
    ENTER();
    return copy_plane(plane, NULL, WAIT);
}

CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *plane)
{
    ENTER();
    return copy_plane(plane, NULL, WAIT);
}

CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *plane, CUstream stream)
{
    ENTER();
    return copy_plane(plane, stream, RETURN);
}

CUresult cuMemcpy3D_v2(const CUDA_MEMCPY3D *block)
{
    ENTER();
    return block != NULL ? copy_block(block, NULL, WAIT) : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuMemcpy3DAsync_v2(const CUDA_MEMCPY3D *block, CUstream stream)
{
    ENTER();
    return block != NULL ? copy_block(block, stream, RETURN) : CUDA_ERROR_INVALID_VALUE;
}

/* --- memsets ------------------------------------------------------------------------------ */

static CUresult set(CUdeviceptr to, size_t pitch, uint32_t value, unsigned int element,
                    size_t width, size_t height, CUstream stream)
{
    if (width == 0 || height == 0)
        return CUDA_SUCCESS;
    if (to % element != 0 || (height > 1 && pitch < width * element))
        return CUDA_ERROR_INVALID_VALUE;
    return stream_submit(stream,
                         &(struct op){.kind = OP_SET,
                                      .as.set = {.to = (uintptr_t)to,
                                                 .width = width,
                                                 .height = height,
                                                 .pitch = height > 1 ? pitch : width * element,
                                                 .value = value,
                                                 .element = element}});
}

#define MEMSETS(bits, type)                                                                    \
    CUresult cuMemsetD##bits##_v2(CUdeviceptr to, type value, size_t count)                    \
    {                                                                                          \
        ENTER();                                                                               \
        return set(to, 0, value, bits / 8, count, 1, NULL);                                    \
    }                                                                                          \
    CUresult cuMemsetD##bits##Async(CUdeviceptr to, type value, size_t count, CUstream stream) \
    {                                                                                          \
        ENTER();                                                                               \
        return set(to, 0, value, bits / 8, count, 1, stream);                                  \
    }                                                                                          \
    CUresult cuMemsetD2D##bits##_v2(CUdeviceptr to, size_t pitch, type value, size_t width,    \
                                    size_t height)                                             \
    {                                                                                          \
        ENTER();                                                                               \
        return set(to, pitch, value, bits / 8, width, height, NULL);                           \
    }                                                                                          \
    CUresult cuMemsetD2D##bits##Async(CUdeviceptr to, size_t pitch, type value, size_t width,  \
                                      size_t height, CUstream stream)                          \
    {                                                                                          \
        ENTER();                                                                               \
        return set(to, pitch, value, bits / 8, width, height, stream);                         \
    }

MEMSETS(8, unsigned char)
MEMSETS(16, unsigned short)
MEMSETS(32, unsigned int)
