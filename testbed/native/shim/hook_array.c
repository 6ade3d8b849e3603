/* Arrays and mipmapped arrays. The driver tells no size for an ordinary array, so it is
 * counted from its description, rows as cuMemAllocPitch aligns them; sparse and deferred
 * arrays own no memory (what is mapped into them comes from cuMemCreate). */
#include "charge.h"
#include "device.h"
#include "lookup.h"

#define ROW_ALIGNMENT 512ull

struct shape {
    uint64_t width, height, depth;
    int format;
    unsigned int channels, flags;
};

static uint64_t channel_bytes(int format) {
    switch (format) {
    case 0x01: case 0x08:            /* 8-bit integers */
    case 0xc0: case 0xc1: case 0xc2: /* unorm8, 1, 2, 4 channels */
    case 0xc6: case 0xc7: case 0xc8: /* snorm8 */
        return 1;
    case 0x02: case 0x09: case 0x10: /* 16-bit integers, half */
    case 0xc3: case 0xc4: case 0xc5: /* unorm16 */
    case 0xc9: case 0xca: case 0xcb: /* snorm16 */
        return 2;
    default: return 4; /* 32-bit; and no compressed or planar format takes more a texel */
    }
}

static uint64_t at_least_one(uint64_t value) { return value == 0 ? 1 : value; }

static uint64_t multiply(uint64_t a, uint64_t b) {
    uint64_t product;
    return __builtin_mul_overflow(a, b, &product) || product > UINT64_MAX / 8 ? UINT64_MAX / 8
                                                                             : product;
}

static uint64_t level_bytes(const struct shape *shape) {
    uint64_t row = multiply(multiply(at_least_one(shape->width), channel_bytes(shape->format)),
                            at_least_one(shape->channels));
    if (shape->height > 1) row = (row + ROW_ALIGNMENT - 1) & ~(ROW_ALIGNMENT - 1);
    return multiply(multiply(row, at_least_one(shape->height)), at_least_one(shape->depth));
}

static uint64_t array_bytes(struct shape shape, unsigned int levels) {
    bool layered = (shape.flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)) != 0;
    uint64_t bytes = 0;
    for (unsigned int i = 0; i < levels && i < 64; i++) {
        bytes += level_bytes(&shape);
        shape.width /= 2;
        shape.height /= 2;
        if (!layered) shape.depth /= 2;
    }
    return bytes;
}

struct request {
    enum { ARRAY_V1, ARRAY_V2, ARRAY3D_V1, ARRAY3D_V2, MIPMAPPED } call;
    void *out; /* CUarray * or CUmipmappedArray * */
    const void *desc;
    unsigned int levels;
    struct shape shape;
};

static CUresult call(const struct request *request) {
    switch (request->call) {
    case ARRAY_V1: return VGPU_CALL(cuArrayCreate, request->out, request->desc);
    case ARRAY_V2: return VGPU_CALL(cuArrayCreate_v2, request->out, request->desc);
    case ARRAY3D_V1: return VGPU_CALL(cuArray3DCreate, request->out, request->desc);
    case ARRAY3D_V2: return VGPU_CALL(cuArray3DCreate_v2, request->out, request->desc);
    default:
        return VGPU_CALL(cuMipmappedArrayCreate, request->out, request->desc, request->levels);
    }
}

static void destroy(const struct request *request) {
    if (request->call == MIPMAPPED)
        VGPU_CALL(cuMipmappedArrayDestroy, *(CUmipmappedArray *)request->out);
    else VGPU_CALL(cuArrayDestroy, *(CUarray *)request->out);
}

static CUresult create(const struct request *request) {
    int entry;
    CUcontext ctx;
    bool empty =
        (request->shape.flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING)) != 0;
    if (request->out == NULL || empty || !vgpu_active() || !vgpu_current(&entry, &ctx))
        return call(request);
    uint64_t bytes = array_bytes(request->shape, request->levels);
    struct vgpu_cost cost = vgpu_cost_of(bytes);
    if (!vgpu_take(entry, cost, "array", bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = call(request);
    if (result == CUDA_SUCCESS &&
        vgpu_keep(VGPU_ARRAY, (uint64_t)(uintptr_t) * (void **)request->out, entry, cost, ctx))
        return result;
    if (result == CUDA_SUCCESS) {
        destroy(request);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    vgpu_give(entry, cost);
    return result;
}

#define SHAPE_2D(d) {d->width, d->height, 0, d->format, d->channels, 0}
#define SHAPE_3D(d) {d->width, d->height, d->depth, d->format, d->channels, d->flags}

CUresult cuArrayCreate(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc) {
    if (desc == NULL) return VGPU_CALL(cuArrayCreate, array, desc);
    return create(&(struct request){ARRAY_V1, array, desc, 1, SHAPE_2D(desc)});
}

CUresult cuArrayCreate_v2(CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v2 *desc) {
    if (desc == NULL) return VGPU_CALL(cuArrayCreate_v2, array, desc);
    return create(&(struct request){ARRAY_V2, array, desc, 1, SHAPE_2D(desc)});
}

CUresult cuArray3DCreate(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc) {
    if (desc == NULL) return VGPU_CALL(cuArray3DCreate, array, desc);
    return create(&(struct request){ARRAY3D_V1, array, desc, 1, SHAPE_3D(desc)});
}

CUresult cuArray3DCreate_v2(CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v2 *desc) {
    if (desc == NULL) return VGPU_CALL(cuArray3DCreate_v2, array, desc);
    return create(&(struct request){ARRAY3D_V2, array, desc, 1, SHAPE_3D(desc)});
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *array, const CUDA_ARRAY3D_DESCRIPTOR_v2 *desc,
                                unsigned int levels) {
    if (desc == NULL) return VGPU_CALL(cuMipmappedArrayCreate, array, desc, levels);
    return create(&(struct request){MIPMAPPED, array, desc, levels, SHAPE_3D(desc)});
}

CUresult cuArrayDestroy(CUarray array) {
    struct vgpu_item item;
    bool known = vgpu_lift(VGPU_ARRAY, (uint64_t)(uintptr_t)array, &item);
    CUresult result = VGPU_CALL(cuArrayDestroy, array);
    if (known) vgpu_settle(VGPU_ARRAY, &item, result);
    return result;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
    struct vgpu_item item;
    bool known = vgpu_lift(VGPU_ARRAY, (uint64_t)(uintptr_t)array, &item);
    CUresult result = VGPU_CALL(cuMipmappedArrayDestroy, array);
    if (known) vgpu_settle(VGPU_ARRAY, &item, result);
    return result;
}
