/* How calls get here: by exported names (programs linked with libcuda), by dlsym
 * (CUDA runtimes, NVML bindings) and by cuGetProcAddress (everything newer).
 *
 * Our dlsym and dlvsym must not change the meaning of anybody else's: RTLD_NEXT depends on
 * the caller's address, so every request that is not for a hooked name *jumps* to the C
 * library's with the caller's stack untouched (an allocator's interposer would
 * otherwise find itself and recurse). No lock, no allocation on that path. */
#define _GNU_SOURCE
#include "lookup.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "asker.h"
#include "clib.h"

enum stream_kind { ANY, LEGACY, PER_THREAD };

struct hook {
    const char *symbol;
    const char *base;
    int since;
    enum stream_kind stream;
    void *entry;
};

#define CUDA_ROW(symbol, base, since, stream, params)                                              \
    {#symbol, #base, since, stream, (void *)symbol},
#define NVML_ROW(symbol, params) {#symbol, NULL, 0, ANY, (void *)symbol},
static const struct hook hooks[VGPU_SYM_HOOKS] = {VGPU_CUDA_HOOKS(CUDA_ROW)
                                                      VGPU_NVML_HOOKS(NVML_ROW)};

#define NAME_ROW(symbol, ...) #symbol,
static const char *const names[VGPU_SYM_COUNT] = {
    VGPU_CUDA_HOOKS(NAME_ROW) VGPU_NVML_HOOKS(NAME_ROW) VGPU_CUDA_USES(NAME_ROW)
        VGPU_NVML_USES(NAME_ROW)};

_Atomic(void *) vgpu_reals[VGPU_SYM_COUNT];

typedef void *dlsym_fn(void *handle, const char *name);
typedef void *dlvsym_fn(void *handle, const char *name, const char *version);
typedef void *dlopen_fn(const char *path, int mode);
static _Atomic(dlsym_fn *) clib_dlsym;
static _Atomic(dlvsym_fn *) clib_dlvsym;
static _Atomic(dlopen_fn *) clib_dlopen;

VGPU_EARLY static void *no_dlsym(void *handle, const char *name) {
    (void)handle;
    (void)name;
    return NULL;
}

VGPU_EARLY static dlsym_fn *real_dlsym(void) {
    dlsym_fn *found = atomic_load_explicit(&clib_dlsym, memory_order_acquire);
    if (found == NULL) {
        found = (dlsym_fn *)vgpu_clib("dlsym");
        if (found == NULL) return no_dlsym;
        atomic_store_explicit(&clib_dlsym, found, memory_order_release);
    }
    return found;
}

VGPU_EARLY static void *no_dlvsym(void *handle, const char *name, const char *version) {
    (void)version;
    return no_dlsym(handle, name);
}

VGPU_EARLY static dlvsym_fn *real_dlvsym(void) {
    dlvsym_fn *found = atomic_load_explicit(&clib_dlvsym, memory_order_acquire);
    if (found == NULL) {
        found = (dlvsym_fn *)vgpu_clib("dlvsym");
        if (found == NULL) return no_dlvsym; /* musl has none */
        atomic_store_explicit(&clib_dlvsym, found, memory_order_release);
    }
    return found;
}

static void *real_dlopen(const char *path, int mode) {
    dlopen_fn *found = atomic_load_explicit(&clib_dlopen, memory_order_acquire);
    if (found == NULL) {
        found = (dlopen_fn *)vgpu_clib("dlopen");
        if (found == NULL) return NULL;
        atomic_store_explicit(&clib_dlopen, found, memory_order_release);
    }
    return found(path, mode);
}

static bool is_nvml(const char *name) { return name[0] == 'n'; }

static void *library(const char *name, bool load) {
    const char *soname = is_nvml(name) ? "libnvidia-ml.so.1" : "libcuda.so.1";
    int kept = errno; /* a search finds files missing */
    void *handle = real_dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
    if (handle == NULL && load) handle = real_dlopen(soname, RTLD_LAZY);
    errno = kept;
    return handle;
}

void *vgpu_find_real(enum vgpu_symbol symbol) {
    const char *name = names[symbol];
    void *handle = library(name, true);
    if (handle == NULL) return NULL;
    void *found = real_dlsym()(handle, name);
    if (found != NULL) atomic_store_explicit(&vgpu_reals[symbol], found, memory_order_release);
    return found;
}

VGPU_EARLY static int hook_index(const char *name) {
    for (int i = 0; i < VGPU_SYM_HOOKS; i++)
        if (vgpu_same(hooks[i].symbol, name)) return i;
    return -1;
}

/* --- dlsym ----------------------------------------------------------------- */

static bool is_driver(const struct vgpu_object *object) {
    return object->found && (strncmp(object->name, "libcuda.so", 10) == 0 ||
                             strncmp(object->name, "libnvidia-ml.so", 15) == 0);
}

/* What the C library finds for whoever asked. */
static void *find_for(void *caller, void *handle, const char *name, const char *version) {
    void *function = version == NULL ? (void *)real_dlsym() : (void *)real_dlvsym();
    if (handle == RTLD_NEXT)
        return vgpu_ask_as(vgpu_asker_return(caller), function, handle, name, version);
    return version == NULL ? real_dlsym()(handle, name) : real_dlvsym()(handle, name, version);
}

/* A hooked name: what the C library finds decides. Only the driver's own function is
 * replaced; a wrapper library's function of the same name stays the wrapper's. */
static void *hooked(void *handle, const char *name, const char *version, void *caller) {
    void *found = find_for(caller, handle, name, version);
    if (found == NULL) return NULL;
    int i = hook_index(name);
    struct vgpu_object from = vgpu_object_of(found);
    struct vgpu_object self = vgpu_object_of((void *)hooked);
    if (from.found && self.found && from.base == self.base) {
        /* Found us in the global scope. Without us the answer would be the driver's
         * if it is loaded, else nothing: a program that probes for CUDA must not be
         * told that it is there. */
        if (library(name, false) != NULL && vgpu_real((enum vgpu_symbol)i) != NULL) return found;
        void *next = real_dlsym()(RTLD_NEXT, name); /* sets dlerror */
        __asm__ volatile("" : "+r"(next)); /* no jump there: it is our address that it goes by */
        return next;
    }
    if (!is_driver(&from)) return found;
    struct vgpu_object asking = vgpu_object_of(caller);
    if (asking.found && asking.base == from.base) return found; /* the driver itself */
    void *none = NULL;
    atomic_compare_exchange_strong(&vgpu_reals[i], &none, found);
    return hooks[i].entry;
}

static void *dlsym_hooked(void *handle, const char *name, void *caller) {
    return hooked(handle, name, NULL, caller);
}

static void *dlvsym_hooked(void *handle, const char *name, const char *version, void *caller) {
    return hooked(handle, name, version, caller);
}

VGPU_EARLY static bool ours_to_answer(void *handle, const char *name, void *caller) {
    return name != NULL &&
           ((name[0] == 'c' && name[1] == 'u') || (name[0] == 'n' && name[1] == 'v')) &&
           hook_index(name) >= 0 && (handle != RTLD_NEXT || vgpu_asker_return(caller) != NULL);
}

/* Where `dlsym` and `dlvsym` go on: called by the assembly below, before anything is set up. */
#define TARGET __attribute__((visibility("hidden"), used)) VGPU_EARLY
TARGET void *vgpu_dlsym_target(void *handle, const char *name, void *caller);
TARGET void *vgpu_dlvsym_target(void *handle, const char *name, const char *version, void *caller);

void *vgpu_dlsym_target(void *handle, const char *name, void *caller) {
    return ours_to_answer(handle, name, caller) ? (void *)dlsym_hooked : (void *)real_dlsym();
}

void *vgpu_dlvsym_target(void *handle, const char *name, const char *version, void *caller) {
    return version != NULL && ours_to_answer(handle, name, caller) ? (void *)dlvsym_hooked
                                                                   : (void *)real_dlvsym();
}

/* `symbol`(handle, name[, version]): ask `target`, then jump there with the arguments, the
 * caller's address as one more, and the stack as it was at entry. Exported under both version
 * nodes that glibc has used (2.2.5 in libdl, 2.34 in libc). `caller`: the register of that
 * argument. Not under the thread sanitizer, whose dl_iterate_phdr works only when it has looked up
 * everything else by dlsym. */
#ifndef __SANITIZE_THREAD__
#define ENTRY(symbol, caller)                                                                      \
    __asm__(".text\n"                                                                              \
            ".p2align 4\n"                                                                         \
            ".globl vgpu_" symbol "\n"                                                             \
            ".globl vgpu_" symbol "_old\n"                                                         \
            ".type vgpu_" symbol ", @function\n"                                                   \
            ".type vgpu_" symbol "_old, @function\n"                                               \
            "vgpu_" symbol "_old:\n"                                                               \
            "vgpu_" symbol ":\n"                                                                   \
            ".cfi_startproc\n"                                                                     \
            "    endbr64\n"                                                                        \
            "    pushq %rdi\n"                                                                     \
            ".cfi_adjust_cfa_offset 8\n"                                                           \
            "    pushq %rsi\n"                                                                     \
            ".cfi_adjust_cfa_offset 8\n"                                                           \
            "    pushq %rdx\n"                                                                     \
            ".cfi_adjust_cfa_offset 8\n"                                                           \
            "    movq 24(%rsp), %" caller "\n"                                                     \
            "    call vgpu_" symbol "_target\n"                                                    \
            "    popq %rdx\n"                                                                      \
            ".cfi_adjust_cfa_offset -8\n"                                                          \
            "    popq %rsi\n"                                                                      \
            ".cfi_adjust_cfa_offset -8\n"                                                          \
            "    popq %rdi\n"                                                                      \
            ".cfi_adjust_cfa_offset -8\n"                                                          \
            "    movq (%rsp), %" caller "\n"                                                       \
            "    jmpq *%rax\n"                                                                     \
            ".cfi_endproc\n"                                                                       \
            ".size vgpu_" symbol ", . - vgpu_" symbol "\n"                                         \
            ".size vgpu_" symbol "_old, . - vgpu_" symbol "_old\n"                                 \
            ".symver vgpu_" symbol ", " symbol "@@GLIBC_2.34\n"                                    \
            ".symver vgpu_" symbol "_old, " symbol "@GLIBC_2.2.5\n")
ENTRY("dlsym", "rdx");
ENTRY("dlvsym", "rcx");
#endif

/* --- cuGetProcAddress ------------------------------------------------------ */

static bool fits(const struct hook *hook, int version, uint64_t flags) {
    bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    if (hook->stream != ANY && (hook->stream == PER_THREAD) != per_thread) return false;
    return hook->since <= version;
}

/* The hook of the same ABI as the function that the driver answered with. Its address
 * tells; where a driver answers with another address than its exports have, the
 * requested version does (the newest ABI that is not newer than the request). */
static void *hook_for(const char *base, void *found, int version, uint64_t flags) {
    int best = -1;
    for (int i = 0; i < VGPU_SYM_HOOKS; i++) {
        if (hooks[i].base == NULL ||
            (strcmp(hooks[i].base, base) != 0 && strcmp(hooks[i].symbol, base) != 0))
            continue;
        if (found == hooks[i].entry) return found;
        if (vgpu_real((enum vgpu_symbol)i) == found) return hooks[i].entry;
        if (fits(&hooks[i], version, flags) && (best < 0 || hooks[i].since > hooks[best].since))
            best = i;
    }
    if (best < 0) return found;
    void *none = NULL;
    atomic_compare_exchange_strong(&vgpu_reals[best], &none, found);
    return hooks[best].entry;
}

CUresult cuGetProcAddress(const char *name, void **pfn, int version, uint64_t flags) {
    CUresult result = VGPU_CALL(cuGetProcAddress, name, pfn, version, flags);
    if (result == CUDA_SUCCESS && name != NULL && pfn != NULL && *pfn != NULL)
        *pfn = hook_for(name, *pfn, version, flags);
    return result;
}

CUresult cuGetProcAddress_v2(const char *name, void **pfn, int version, uint64_t flags,
                             int *found) {
    CUresult result = VGPU_CALL(cuGetProcAddress_v2, name, pfn, version, flags, found);
    if (result == CUDA_SUCCESS && name != NULL && pfn != NULL && *pfn != NULL)
        *pfn = hook_for(name, *pfn, version, flags);
    return result;
}
