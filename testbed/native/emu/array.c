/* Arrays and mipmapped arrays: memory with rows and layers, reached by copies only.
 * Textures and surfaces on them are not emulated.
 *
 * How hardware lays arrays out is not documented. Assumed here: tiles of 64 bytes by 8 rows,
 * so a row is whole 64 bytes and (from two dimensions on) rows come in eights; layers and
 * mipmap levels follow each other; the sum is counted as any allocation.
 */
#include "driver.h"

#include <stdlib.h>
#include <string.h>

#define ROW_UNIT 64
#define ROWS_UNIT 8
#define MOST_LEVELS 32
#define ARRAY_LAYERED 0x01u
#define ARRAY_CUBEMAP 0x04u
#define ARRAY_UNSUPPORTED (0x40u | 0x80u) /* sparse, deferred mapping */

struct CUarray_st {
    CUDA_ARRAY3D_DESCRIPTOR shape;
    uintptr_t start;
    struct array_view view;
    size_t bytes;
    uint64_t range; /* id of the memory: gone with its context */
    struct CUmipmappedArray_st *whole; /* of which it is a level */
    struct CUarray_st *next;
};

struct CUmipmappedArray_st {
    CUarray levels[MOST_LEVELS];
    unsigned int count;
    CUdeviceptr memory;
    struct CUmipmappedArray_st *next;
};

static struct CUarray_st *arrays;
static struct CUmipmappedArray_st *mipmaps;

static size_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    size_t bytes;
    switch (shape->Format) {
    case CU_AD_FORMAT_UNSIGNED_INT8:
    case CU_AD_FORMAT_SIGNED_INT8: bytes = 1; break;
    case CU_AD_FORMAT_UNSIGNED_INT16:
    case CU_AD_FORMAT_SIGNED_INT16:
    case CU_AD_FORMAT_HALF: bytes = 2; break;
    case CU_AD_FORMAT_UNSIGNED_INT32:
    case CU_AD_FORMAT_SIGNED_INT32:
    case CU_AD_FORMAT_FLOAT: bytes = 4; break;
    default: return 0;
    }
    bool channels = shape->NumChannels == 1 || shape->NumChannels == 2 || shape->NumChannels == 4;
    return channels ? bytes * shape->NumChannels : 0;
}

static size_t at_least_one(size_t value)
{
    return value > 0 ? value : 1;
}

/* Fills the view; false where the shape is none or too large. */
static bool lay_out(const CUDA_ARRAY3D_DESCRIPTOR *shape, struct array_view *view, size_t *bytes)
{
    size_t element = element_bytes(shape);
    if (element == 0 || shape->Width == 0 || shape->Width > (size_t)1 << 32 ||
        shape->Height > (size_t)1 << 20 || shape->Depth > (size_t)1 << 20)
        return false;
    view->width = shape->Width * element;
    view->rows = at_least_one(shape->Height);
    view->layers = at_least_one(shape->Depth);
    view->pitch = emu_round_up(view->width, ROW_UNIT);
    size_t rows = shape->Height > 0 ? emu_round_up(shape->Height, ROWS_UNIT) : 1;
    view->slice = view->pitch * rows;
    return !__builtin_mul_overflow(view->slice, view->layers, bytes);
}

/* The array where it is alive; what lost its memory with a context is dropped. */
static CUarray find(CUarray array)
{
    for (struct CUarray_st *each = arrays; each != NULL; each = each->next)
        if (each == array) {
            const struct range *range = space_find(&memory, array->start);
            return range != NULL && range->id == array->range ? array : NULL;
        }
    return NULL;
}

static void forget(CUarray array)
{
    for (struct CUarray_st **link = &arrays; *link != NULL; link = &(*link)->next)
        if (*link == array) {
            *link = array->next;
            free(array);
            return;
        }
}

bool array_find(CUarray array, uintptr_t *start, struct array_view *view)
{
    if (find(array) == NULL)
        return false;
    *start = array->start;
    *view = array->view;
    return true;
}

static CUarray make(const CUDA_ARRAY3D_DESCRIPTOR *shape, uintptr_t start, uint64_t range)
{
    CUarray array = calloc(1, sizeof *array);
    if (array == NULL)
        return NULL;
    array->shape = *shape;
    array->start = start;
    array->range = range;
    lay_out(shape, &array->view, &array->bytes);
    array->next = arrays;
    arrays = array;
    return array;
}

static CUresult check(const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    if ((shape->Flags & ARRAY_UNSUPPORTED) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    struct array_view view;
    size_t bytes;
    bool cube = (shape->Flags & ARRAY_CUBEMAP) != 0;
    if (!lay_out(shape, &view, &bytes) || (shape->Height == 0 && shape->Depth != 0 &&
                                           (shape->Flags & ARRAY_LAYERED) == 0) ||
        (cube && (shape->Width != shape->Height || shape->Depth == 0 || shape->Depth % 6 != 0)))
        return CUDA_ERROR_INVALID_VALUE;
    return CUDA_SUCCESS;
}

CUresult cuArray3DCreate_v2(CUarray *result, const CUDA_ARRAY3D_DESCRIPTOR *shape)
{
    CURRENT();
    if (result == NULL || shape == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult done = check(shape);
    if (done != CUDA_SUCCESS)
        return done;
    struct array_view view;
    size_t bytes;
    lay_out(shape, &view, &bytes);
    CUdeviceptr pointer;
    done = memory_allocate(&pointer, bytes, RANGE_ARRAY, shape->Flags, true);
    if (done != CUDA_SUCCESS)
        return done;
    struct range *range = space_find(&memory, (uintptr_t)pointer);
    *result = make(shape, range->start, range->id);
    if (*result == NULL) {
        memory_release(range);
        return CUDA_ERROR_OUT_OF_MEMORY;
    }
    return CUDA_SUCCESS;
}

CUresult cuArrayCreate_v2(CUarray *result, const CUDA_ARRAY_DESCRIPTOR *shape)
{
    if (shape == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return cuArray3DCreate_v2(result, &(CUDA_ARRAY3D_DESCRIPTOR){.Width = shape->Width,
                                                                 .Height = shape->Height,
                                                                 .Format = shape->Format,
                                                                 .NumChannels =
                                                                     shape->NumChannels});
}

CUresult cuArrayDestroy(CUarray array)
{
    ENTER();
    LOCKED();
    if (find(array) == NULL || array->whole != NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    memory_release(space_find(&memory, array->start));
    forget(array);
    return CUDA_SUCCESS;
}

CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *shape, CUarray array)
{
    ENTER();
    LOCKED();
    if (find(array) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (shape == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *shape = array->shape;
    return CUDA_SUCCESS;
}

CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *shape, CUarray array)
{
    ENTER();
    LOCKED();
    if (find(array) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (shape == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *shape = (CUDA_ARRAY_DESCRIPTOR){.Width = array->shape.Width,
                                     .Height = array->shape.Height,
                                     .Format = array->shape.Format,
                                     .NumChannels = array->shape.NumChannels};
    return CUDA_SUCCESS;
}

CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs, CUarray array,
                                      CUdevice device)
{
    ENTER();
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED();
    if (needs == NULL || find(array) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *needs = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = array->bytes, .alignment = ROW_UNIT};
    return CUDA_SUCCESS;
}

/* --- mipmapped arrays ------------------------------------------------------------- */

static size_t halved(size_t value, unsigned int level)
{
    return value == 0 ? 0 : at_least_one(value >> level);
}

static CUDA_ARRAY3D_DESCRIPTOR shape_of_level(const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                              unsigned int level)
{
    CUDA_ARRAY3D_DESCRIPTOR at = *shape;
    at.Width = halved(shape->Width, level);
    at.Height = halved(shape->Height, level);
    if ((shape->Flags & (ARRAY_LAYERED | ARRAY_CUBEMAP)) == 0) /* layers stay */
        at.Depth = halved(shape->Depth, level);
    return at;
}

static struct CUmipmappedArray_st *find_mipmap(CUmipmappedArray whole)
{
    for (struct CUmipmappedArray_st *each = mipmaps; each != NULL; each = each->next)
        if (each == whole)
            return find(each->levels[0]) != NULL ? each : NULL;
    return NULL;
}

static void forget_mipmap(CUmipmappedArray whole)
{
    for (struct CUmipmappedArray_st **link = &mipmaps; *link != NULL; link = &(*link)->next)
        if (*link == whole) {
            *link = whole->next;
            break;
        }
    for (unsigned int i = 0; i < whole->count; i++)
        forget(whole->levels[i]);
    free(whole);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *result, const CUDA_ARRAY3D_DESCRIPTOR *shape,
                                unsigned int levels)
{
    CURRENT();
    if (result == NULL || shape == NULL || levels == 0)
        return CUDA_ERROR_INVALID_VALUE;
    CUresult done = check(shape);
    if (done != CUDA_SUCCESS)
        return done;
    size_t most = shape->Width > shape->Height ? shape->Width : shape->Height;
    unsigned int useful = 1;
    while (most >> useful != 0)
        useful++;
    levels = levels < useful ? levels : useful;
    levels = levels < MOST_LEVELS ? levels : MOST_LEVELS;
    size_t starts[MOST_LEVELS], total = 0;
    for (unsigned int i = 0; i < levels; i++) {
        CUDA_ARRAY3D_DESCRIPTOR at = shape_of_level(shape, i);
        struct array_view view;
        size_t bytes;
        starts[i] = total;
        if (!lay_out(&at, &view, &bytes) || __builtin_add_overflow(total, bytes, &total))
            return CUDA_ERROR_INVALID_VALUE;
    }
    struct CUmipmappedArray_st *whole = calloc(1, sizeof *whole);
    if (whole == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    done = memory_allocate(&whole->memory, total, RANGE_ARRAY, shape->Flags, true);
    if (done != CUDA_SUCCESS) {
        free(whole);
        return done;
    }
    whole->next = mipmaps;
    mipmaps = whole;
    struct range *range = space_find(&memory, (uintptr_t)whole->memory);
    for (unsigned int i = 0; i < levels; i++) {
        CUDA_ARRAY3D_DESCRIPTOR at = shape_of_level(shape, i);
        CUarray level = make(&at, range->start + starts[i], range->id);
        if (level == NULL) {
            memory_release(range);
            forget_mipmap(whole);
            return CUDA_ERROR_OUT_OF_MEMORY;
        }
        level->whole = whole;
        whole->levels[whole->count++] = level;
    }
    *result = whole;
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayDestroy(CUmipmappedArray whole)
{
    ENTER();
    LOCKED();
    if (find_mipmap(whole) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    memory_release(space_find(&memory, (uintptr_t)whole->memory));
    forget_mipmap(whole);
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetLevel(CUarray *level, CUmipmappedArray whole, unsigned int number)
{
    ENTER();
    LOCKED();
    if (find_mipmap(whole) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (level == NULL || number >= whole->count)
        return CUDA_ERROR_INVALID_VALUE;
    *level = whole->levels[number];
    return CUDA_SUCCESS;
}

CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *needs,
                                               CUmipmappedArray whole, CUdevice device)
{
    ENTER();
    if (device_at(device) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    LOCKED();
    if (needs == NULL || find_mipmap(whole) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    const struct range *range = space_find(&memory, (uintptr_t)whole->memory);
    *needs = (CUDA_ARRAY_MEMORY_REQUIREMENTS){.size = range->bytes, .alignment = ROW_UNIT};
    return CUDA_SUCCESS;
}

/* --- copies of one row ---------------------------------------------------------------- */

CUresult cuMemcpyHtoAAsync_v2(CUarray to, size_t offset, const void *from, size_t bytes,
                              CUstream stream)
{
    ENTER();
    return copy_block(&(CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_HOST,
                                       .srcHost = from,
                                       .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                       .dstArray = to,
                                       .dstXInBytes = offset,
                                       .WidthInBytes = bytes,
                                       .Height = 1,
                                       .Depth = 1},
                      stream, RETURN);
}

CUresult cuMemcpyHtoA_v2(CUarray to, size_t offset, const void *from, size_t bytes)
{
    return cuMemcpyHtoAAsync_v2(to, offset, from, bytes, NULL);
}

CUresult cuMemcpyAtoHAsync_v2(void *to, CUarray from, size_t offset, size_t bytes,
                              CUstream stream)
{
    ENTER();
    return copy_block(&(CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                                       .srcArray = from,
                                       .srcXInBytes = offset,
                                       .dstMemoryType = CU_MEMORYTYPE_HOST,
                                       .dstHost = to,
                                       .WidthInBytes = bytes,
                                       .Height = 1,
                                       .Depth = 1},
                      stream, RETURN);
}

CUresult cuMemcpyAtoH_v2(void *to, CUarray from, size_t offset, size_t bytes)
{
    return cuMemcpyAtoHAsync_v2(to, from, offset, bytes, NULL);
}

CUresult cuMemcpyDtoA_v2(CUarray to, size_t offset, CUdeviceptr from, size_t bytes)
{
    ENTER();
    return copy_block(&(CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                                       .srcDevice = from,
                                       .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                       .dstArray = to,
                                       .dstXInBytes = offset,
                                       .WidthInBytes = bytes,
                                       .Height = 1,
                                       .Depth = 1}, NULL, WAIT);
}

CUresult cuMemcpyAtoD_v2(CUdeviceptr to, CUarray from, size_t offset, size_t bytes)
{
    ENTER();
    return copy_block(&(CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                                       .srcArray = from,
                                       .srcXInBytes = offset,
                                       .dstMemoryType = CU_MEMORYTYPE_DEVICE,
                                       .dstDevice = to,
                                       .WidthInBytes = bytes,
                                       .Height = 1,
                                       .Depth = 1}, NULL, WAIT);
}

CUresult cuMemcpyAtoA_v2(CUarray to, size_t to_offset, CUarray from, size_t from_offset,
                         size_t bytes)
{
    ENTER();
    return copy_block(&(CUDA_MEMCPY3D){.srcMemoryType = CU_MEMORYTYPE_ARRAY,
                                       .srcArray = from,
                                       .srcXInBytes = from_offset,
                                       .dstMemoryType = CU_MEMORYTYPE_ARRAY,
                                       .dstArray = to,
                                       .dstXInBytes = to_offset,
                                       .WidthInBytes = bytes,
                                       .Height = 1,
                                       .Depth = 1}, NULL, WAIT);
}
