/* The table of exports: stubs of what is not implemented, and cuGetProcAddress. */
#include "driver.h"

#include <string.h>

/* What is exported but not implemented. The callee's frame does not depend on the
 * arguments (System V ABI), so one shape fits all. */
static CUresult refuse(const char *name)
{
    emu_log(EMU_LOG_INFO, "%s is not emulated", name);
    return CUDA_ERROR_NOT_SUPPORTED;
}

/* The twin of a function marks its call and goes on there with the same arguments: the
 * default stream is the thread's own in it (driver_enter). */
#define F(base, since, symbol, arguments)
#define P(base, since, symbol, target)                                                     \
    __asm__(".pushsection .text\n\t.globl " #symbol "\n\t.type " #symbol ", @function\n"   \
            #symbol ":\n\tendbr64\n\tmovq driver_per_thread@GOTTPOFF(%rip), %rax\n\t"      \
            "movl $1, %fs:(%rax)\n\tjmp " #target "@PLT\n\t.size " #symbol ", .-" #symbol     \
            "\n\t.popsection");                                                            \
    extern CUresult symbol(void);
#define N(base, since, symbol)                                                             \
    EXPORT CUresult symbol(void);                                                          \
    EXPORT CUresult symbol(void)                                                           \
    {                                                                                      \
        return refuse(#symbol);                                                            \
    }
#define T(base, since, symbol) N(base, since, symbol)
#include "symbols.def"
#undef F
#undef P
#undef N
#undef T

enum twin { ONE, PER_THREAD };

static const struct symbol {
    const char *base;
    const char *name;
    int since;
    enum twin twin;
    void *address;
} symbols[] = {
#define F(base, since, symbol, arguments) {#base, #symbol, since, ONE, (void *)&symbol},
#define P(base, since, symbol, target) {#base, #symbol, since, PER_THREAD, (void *)&symbol},
#define N(base, since, symbol) {#base, #symbol, since, ONE, (void *)&symbol},
#define T(base, since, symbol) {#base, #symbol, since, PER_THREAD, (void *)&symbol},
#include "symbols.def"
#undef F
#undef P
#undef N
#undef T
};

#define SYMBOLS (sizeof symbols / sizeof symbols[0])

static const struct symbol *look_up(const char *base, int version, enum twin twin, bool *known)
{
    const struct symbol *best = NULL;
    size_t low = 0, high = SYMBOLS;
    while (low < high) { /* first entry of that base name */
        size_t middle = (low + high) / 2;
        if (strcmp(symbols[middle].base, base) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < SYMBOLS && strcmp(symbols[low].base, base) == 0; low++) {
        *known = true;
        if (symbols[low].twin == twin && symbols[low].since <= version)
            best = &symbols[low];
    }
    return best;
}

EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char *name, void **function, int version,
                                            cuuint64_t flags,
                                            CUdriverProcAddressQueryResult *status)
{
    if (name == NULL || function == NULL || (flags & ~3ull) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    bool known = false;
    const struct symbol *found = NULL;
    if ((flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0)
        found = look_up(name, version, PER_THREAD, &known);
    if (found == NULL)
        found = look_up(name, version, ONE, &known);
    /* An exact export ("cuDeviceGetUuid_v2") is no base name, but some callers ask so. */
    for (size_t i = 0; found == NULL && !known && i < SYMBOLS; i++)
        if (strcmp(symbols[i].name, name) == 0)
            found = &symbols[i];
    *function = found != NULL ? found->address : NULL;
    emu_log(EMU_LOG_DEBUG, "cuGetProcAddress(%s, %d) = %s", name, version,
            found != NULL ? found->name : "nothing");
    if (status != NULL)
        *status = found != NULL ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known       ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return found != NULL ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

EXPORT CUresult CUDAAPI cuGetProcAddress(const char *name, void **function, int version,
                                         cuuint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
