#define _GNU_SOURCE
#include "asker.h"

#include <link.h>
#include <stdint.h>

#include "clib.h"

#define RETURN 0xc3

struct sought {
    uintptr_t from;
    const unsigned char *found;
};

VGPU_EARLY static int visit(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct sought *sought = data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr, end = start + segment->p_filesz;
        if (segment->p_type != PT_LOAD || sought->from < start || sought->from >= end) continue;
        if ((segment->p_flags & (PF_R | PF_X)) != (PF_R | PF_X)) return 1;
        /* The function that asked returns some day; whose return it is does not matter. */
        for (uintptr_t at = sought->from; at < end && sought->found == NULL; at++)
            if (*(const unsigned char *)at == RETURN) sought->found = (const unsigned char *)at;
        for (uintptr_t at = start; at < sought->from && sought->found == NULL; at++)
            if (*(const unsigned char *)at == RETURN) sought->found = (const unsigned char *)at;
        return 1;
    }
    return 0;
}

static bool shadow_stack(void) {
    unsigned long pointer = 0;
    __asm__ volatile("rdsspq %0" : "+r"(pointer)); /* does nothing where there is none */
    return pointer != 0;
}

VGPU_EARLY const void *vgpu_asker_return(const void *caller) {
    struct sought sought = {.from = (uintptr_t)caller};
    if (shadow_stack()) return NULL;
    dl_iterate_phdr(visit, &sought);
    return sought.found;
}

__asm__(".text\n"
        ".p2align 4\n"
        ".hidden vgpu_ask_as\n"
        ".globl vgpu_ask_as\n"
        ".type vgpu_ask_as, @function\n"
        "vgpu_ask_as:\n"
        ".cfi_startproc\n"
        "    endbr64\n"
        "    movq %rdi, %r9\n" /* back */
        "    movq %rsi, %rax\n" /* function */
        "    movq %rdx, %rdi\n"
        "    movq %rcx, %rsi\n"
        "    movq %r8, %rdx\n"
        "    leaq 1f(%rip), %r8\n"
        "    pushq %r8\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    pushq %r9\n"
        ".cfi_adjust_cfa_offset 8\n"
        "    jmpq *%rax\n"
        ".cfi_adjust_cfa_offset -16\n"
        "1:  ret\n"
        ".cfi_endproc\n"
        ".size vgpu_ask_as, . - vgpu_ask_as\n");
