/* Modules, libraries, kernels. Images are accepted and never parsed: any name is there. The
 * exception are images of our own, a text that names kernels and how long they take:
 *
 *     VGPU-EMULATED-KERNELS 1
 *     <name> spin         one parameter: uint64, ns
 *     <name> work         uint64 flops, uint64 bytes, uint32 precision (duration.h)
 */
#define _GNU_SOURCE
#include "driver.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define IMAGE_MAGIC 0x6567616d49535645ull
#define GLOBAL_BYTES 65536

struct global {
    char *name;
    CUdeviceptr pointer;
    struct global *next;
};

struct image {
    uint64_t magic;
    bool own; /* in our own format: it has the functions that it names, and no others */
    struct function *functions;
    struct global *globals;
};

struct function *function_of(const void *handle)
{
    struct function *function = (struct function *)handle;
    return function != NULL && function->magic == FUNCTION_MAGIC ? function : NULL;
}

static struct image *image_of(const void *handle)
{
    struct image *image = (struct image *)handle;
    return image != NULL && image->magic == IMAGE_MAGIC ? image : NULL;
}

/* --- images of our own ---------------------------------------------------------------- */

#define OWN_MARK "VGPU-EMULATED-KERNELS 1\n"

static struct function *add_function(struct image *image, const char *name, size_t length,
                                     enum kernel_model model)
{
    struct function *function = calloc(1, sizeof *function);
    char *copied = strndup(name, length);
    if (function == NULL || copied == NULL) {
        free(function);
        free(copied);
        return NULL;
    }
    *function = (struct function){.magic = FUNCTION_MAGIC,
                                  .name = copied,
                                  .image = image,
                                  .model = model,
                                  .max_dynamic_shared = 49152,
                                  .carveout = -1,
                                  .next = image->functions};
    image->functions = function;
    return function;
}

static CUresult parse_line(struct image *image, const char *line, size_t length)
{
    const char *blank = memchr(line, ' ', length);
    if (blank == NULL || blank == line)
        return CUDA_ERROR_INVALID_IMAGE;
    size_t rest = length - (size_t)(blank + 1 - line);
    enum kernel_model model = rest == 4 && memcmp(blank + 1, "spin", 4) == 0   ? MODEL_SPIN
                              : rest == 4 && memcmp(blank + 1, "work", 4) == 0 ? MODEL_WORK
                                                                              : MODEL_GEOMETRY;
    if (model == MODEL_GEOMETRY) {
        emu_log(EMU_LOG_ERROR, "image of emulated kernels: \"%.*s\" is none", (int)length, line);
        return CUDA_ERROR_INVALID_IMAGE;
    }
    return add_function(image, line, (size_t)(blank - line), model) != NULL
               ? CUDA_SUCCESS
               : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult parse(struct image *image, const char *text)
{
    image->own = true;
    for (const char *line = text + strlen(OWN_MARK), *end; *line != '\0'; line = end) {
        end = line + strcspn(line, "\n");
        CUresult result =
            end > line ? parse_line(image, line, (size_t)(end - line)) : CUDA_SUCCESS;
        if (result != CUDA_SUCCESS)
            return result;
        end += *end == '\n';
    }
    return CUDA_SUCCESS;
}

static CUresult load(void *result, const void *code)
{
    if (result == NULL || code == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    struct image *image = calloc(1, sizeof *image);
    if (image == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    image->magic = IMAGE_MAGIC;
    if (strncmp(code, OWN_MARK, strlen(OWN_MARK)) == 0) {
        CUresult parsed = parse(image, code);
        if (parsed != CUDA_SUCCESS) {
            for (struct function *function = image->functions, *next; function != NULL;
                 function = next) {
                next = function->next;
                free(function->name);
                free(function);
            }
            free(image);
            return parsed;
        }
    }
    memcpy(result, &image, sizeof image);
    return CUDA_SUCCESS;
}

static CUresult load_file(void *result, const char *path)
{
    if (path == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return access(path, R_OK) == 0 ? load(result, path) : CUDA_ERROR_FILE_NOT_FOUND;
}

static CUresult unload(void *handle)
{
    LOCKED();
    struct image *image = image_of(handle);
    if (image == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    for (struct global *global = image->globals, *next; global != NULL; global = next) {
        next = global->next;
        memory_free(global->pointer);
        free(global->name);
        free(global);
    }
    /* Functions and the image itself stay, marked: stale handles are recognised. */
    for (struct function *function = image->functions; function != NULL;
         function = function->next)
        function->magic = 0;
    image->magic = 0;
    image->globals = NULL;
    return CUDA_SUCCESS;
}

static CUresult get_function(void *result, void *handle, const char *name)
{
    if (result == NULL || name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    struct image *image = image_of(handle);
    if (image == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    struct function *function = image->functions;
    while (function != NULL && strcmp(function->name, name) != 0)
        function = function->next;
    if (function == NULL && image->own)
        return CUDA_ERROR_NOT_FOUND;
    if (function == NULL) /* torch.cuda._sleep: the one kernel of others whose time is known */
        function = add_function(image, name, strlen(name),
                                strstr(name, "spin_kernel") != NULL ? MODEL_CYCLES
                                                                    : MODEL_GEOMETRY);
    if (function == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memcpy(result, &function, sizeof function);
    return CUDA_SUCCESS;
}

static CUresult get_global(CUdeviceptr *pointer, size_t *bytes, void *handle, const char *name)
{
    if (name == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    LOCKED();
    struct image *image = image_of(handle);
    if (image == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    struct global *global = image->globals;
    while (global != NULL && strcmp(global->name, name) != 0)
        global = global->next;
    if (global == NULL) {
        global = calloc(1, sizeof *global);
        char *copied = strdup(name);
        CUresult result = global == NULL || copied == NULL
                              ? CUDA_ERROR_OUT_OF_MEMORY
                              : memory_allocate(&global->pointer, GLOBAL_BYTES, RANGE_DEVICE, 0,
                                                false); /* part of the context's cost */
        if (result != CUDA_SUCCESS) {
            free(global);
            free(copied);
            return result;
        }
        global->name = copied;
        global->next = image->globals;
        image->globals = global;
    }
    if (pointer != NULL)
        *pointer = global->pointer;
    if (bytes != NULL)
        *bytes = GLOBAL_BYTES;
    return CUDA_SUCCESS;
}

static unsigned int count_functions(const struct image *image)
{
    unsigned int count = 0;
    for (const struct function *function = image->functions; function != NULL;
         function = function->next)
        count++;
    return count;
}

/* --- modules ------------------------------------------------------------------------ */

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
    ENTER();
    return load(module, image);
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned int count,
                            CUjit_option *options, void **values)
{
    ENTER();
    (void)count, (void)options, (void)values;
    return load(module, image);
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
    ENTER();
    return load(module, image);
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
    ENTER();
    return load_file(module, path);
}

CUresult cuModuleUnload(CUmodule module)
{
    ENTER();
    return unload(module);
}

CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
    ENTER();
    if (mode == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name)
{
    ENTER();
    return get_function(function, module, name);
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *pointer, size_t *bytes, CUmodule module,
                              const char *name)
{
    ENTER();
    return get_global(pointer, bytes, module, name);
}

CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule module)
{
    ENTER();
    LOCKED();
    if (count == NULL || image_of(module) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = count_functions(image_of(module));
    return CUDA_SUCCESS;
}

/* --- libraries ------------------------------------------------------------------------ */

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, CUjit_option *jit_options,
                           void **jit_values, unsigned int jit_count, CUlibraryOption *options,
                           void **values, unsigned int count)
{
    ENTER();
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load(library, code);
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, CUjit_option *jit_options,
                               void **jit_values, unsigned int jit_count,
                               CUlibraryOption *options, void **values, unsigned int count)
{
    ENTER();
    (void)jit_options, (void)jit_values, (void)jit_count, (void)options, (void)values, (void)count;
    return load_file(library, path);
}

CUresult cuLibraryUnload(CUlibrary library)
{
    ENTER();
    return unload(library);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
    ENTER();
    return get_function(kernel, library, name);
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
    ENTER();
    LOCKED();
    if (module == NULL || image_of(library) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *module = (CUmodule)(void *)library;
    return CUDA_SUCCESS;
}

CUresult cuLibraryGetGlobal(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                            const char *name)
{
    ENTER();
    return get_global(pointer, bytes, library, name);
}

CUresult cuLibraryGetManaged(CUdeviceptr *pointer, size_t *bytes, CUlibrary library,
                             const char *name)
{
    ENTER();
    return get_global(pointer, bytes, library, name);
}

CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary library)
{
    ENTER();
    LOCKED();
    if (count == NULL || image_of(library) == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *count = count_functions(image_of(library));
    return CUDA_SUCCESS;
}

/* --- kernels and functions: one kind of thing here ---------------------------------------- */

CUresult cuKernelGetFunction(CUfunction *function, CUkernel kernel)
{
    ENTER();
    if (function == NULL || function_of(kernel) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *function = (CUfunction)(void *)kernel;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetLibrary(CUlibrary *library, CUkernel kernel)
{
    ENTER();
    if (library == NULL || function_of(kernel) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *library = (CUlibrary)(void *)function_of(kernel)->image;
    return CUDA_SUCCESS;
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction function)
{
    ENTER();
    if (module == NULL || function_of(function) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *module = (CUmodule)(void *)function_of(function)->image;
    return CUDA_SUCCESS;
}

static CUresult get_name(const char **name, const void *handle)
{
    if (name == NULL || function_of(handle) == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    *name = function_of(handle)->name;
    return CUDA_SUCCESS;
}

CUresult cuKernelGetName(const char **name, CUkernel kernel)
{
    ENTER();
    return get_name(name, kernel);
}

CUresult cuFuncGetName(const char **name, CUfunction function)
{
    ENTER();
    return get_name(name, function);
}

static CUresult get_attribute(int *value, CUfunction_attribute attribute, const void *handle,
                              const struct card_description *card)
{
    const struct function *function = function_of(handle);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (value == NULL || (int)attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK: *value = 1024; break;
    case CU_FUNC_ATTRIBUTE_NUM_REGS: *value = 32; break;
    case CU_FUNC_ATTRIBUTE_PTX_VERSION:
    case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
        *value = (int)(card->compute_major * 10 + card->compute_minor);
        break;
    case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        *value = function->max_dynamic_shared;
        break;
    case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = function->carveout; break;
    default: *value = 0;
    }
    return CUDA_SUCCESS;
}

static CUresult set_attribute(void *handle, CUfunction_attribute attribute, int value,
                              const struct card_description *card)
{
    struct function *function = function_of(handle);
    if (function == NULL)
        return CUDA_ERROR_INVALID_HANDLE;
    if (attribute == CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES) {
        if (value < 0 || (uint32_t)value > card->shared_per_block_optin_bytes)
            return CUDA_ERROR_INVALID_VALUE;
        function->max_dynamic_shared = value;
    } else if (attribute == CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT) {
        if (value < -1 || value > 100)
            return CUDA_ERROR_INVALID_VALUE;
        function->carveout = value;
    }
    return CUDA_SUCCESS;
}

CUresult cuFuncGetAttribute(int *value, CUfunction_attribute attribute, CUfunction function)
{
    ENTER();
    return get_attribute(value, attribute, function, device_description(&devices[0]));
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value)
{
    ENTER();
    return set_attribute(function, attribute, value, device_description(&devices[0]));
}

CUresult cuKernelGetAttribute(int *value, CUfunction_attribute attribute, CUkernel kernel,
                              CUdevice ordinal)
{
    ENTER();
    if (device_at(ordinal) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    return get_attribute(value, attribute, kernel, device_description(device_at(ordinal)));
}

CUresult cuKernelSetAttribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                              CUdevice ordinal)
{
    ENTER();
    if (device_at(ordinal) == NULL)
        return CUDA_ERROR_INVALID_DEVICE;
    return set_attribute(kernel, attribute, value, device_description(device_at(ordinal)));
}

static CUresult accept(const void *handle)
{
    return function_of(handle) != NULL ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache config)
{
    ENTER();
    (void)config;
    return accept(function);
}

CUresult cuKernelSetCacheConfig(CUkernel kernel, CUfunc_cache config, CUdevice ordinal)
{
    ENTER();
    (void)config, (void)ordinal;
    return accept(kernel);
}

CUresult cuFuncSetSharedMemConfig(CUfunction function, CUsharedconfig config)
{
    ENTER();
    (void)config;
    return accept(function);
}

CUresult cuFuncLoad(CUfunction function)
{
    ENTER();
    return accept(function);
}

CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction function)
{
    ENTER();
    if (state == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *state = CU_FUNCTION_LOADING_STATE_LOADED;
    return accept(function);
}

/* Only the image knows the parameters, and images are not parsed. */
CUresult cuKernelGetParamInfo(CUkernel kernel, size_t index, size_t *offset, size_t *bytes)
{
    ENTER();
    (void)index, (void)offset, (void)bytes;
    return accept(kernel) == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED : CUDA_ERROR_INVALID_HANDLE;
}

CUresult cuFuncGetParamInfo(CUfunction function, size_t index, size_t *offset, size_t *bytes)
{
    ENTER();
    (void)index, (void)offset, (void)bytes;
    return accept(function) == CUDA_SUCCESS ? CUDA_ERROR_NOT_SUPPORTED
                                            : CUDA_ERROR_INVALID_HANDLE;
}
