#define _GNU_SOURCE
#include "clib.h"

#include <elf.h>
#include <link.h>
#include <stddef.h>

VGPU_EARLY static const char *last_part(const char *path) {
    const char *part = path;
    for (; path != NULL && *path != '\0'; path++)
        if (*path == '/') part = path + 1;
    return part;
}

struct wanted {
    const char *name;
    uint32_t hash;
    void *found;
    bool musl;
};

VGPU_EARLY static bool begins(const char *text, const char *with) {
    while (*with != '\0' && *text == *with) text++, with++;
    return *with == '\0';
}

/* musl's C library and its loader are one object, under either name (Debian, Alpine). */
VGPU_EARLY static bool is_musl(const char *name) {
    return begins(name, "ld-musl-") || begins(name, "libc.musl-");
}

VGPU_EARLY static uint32_t gnu_hash(const char *name) {
    uint32_t hash = 5381;
    for (; *name != '\0'; name++) hash = hash * 33 + (unsigned char)*name;
    return hash;
}

/* glibc relocates the pointers of a dynamic section in place, other loaders do not. */
VGPU_EARLY static const void *at(const struct dl_phdr_info *info, ElfW(Addr) value) {
    return (const void *)(value < info->dlpi_addr ? info->dlpi_addr + value : value);
}

VGPU_EARLY static int visit_clib(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct wanted *wanted = data;
    const char *name = last_part(info->dlpi_name);
    if (name == NULL ||
        (!vgpu_same(name, "libc.so.6") && !vgpu_same(name, "libdl.so.2") && !is_musl(name)))
        return 0;
    wanted->musl = is_musl(name);
    const ElfW(Dyn) *dynamic = NULL;
    for (int i = 0; i < info->dlpi_phnum; i++)
        if (info->dlpi_phdr[i].p_type == PT_DYNAMIC)
            dynamic = (const ElfW(Dyn) *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);
    const ElfW(Sym) *symbols = NULL;
    const char *strings = NULL;
    const uint32_t *table = NULL;
    for (; dynamic != NULL && dynamic->d_tag != DT_NULL; dynamic++) {
        if (dynamic->d_tag == DT_SYMTAB) symbols = at(info, dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_STRTAB) strings = at(info, dynamic->d_un.d_ptr);
        if (dynamic->d_tag == DT_GNU_HASH) table = at(info, dynamic->d_un.d_ptr);
    }
    if (symbols == NULL || strings == NULL || table == NULL || table[0] == 0) return 0;
    uint32_t buckets = table[0], first = table[1], bloom_words = table[2];
    const uint32_t *bucket = (const uint32_t *)((const ElfW(Addr) *)(table + 4) + bloom_words);
    const uint32_t *chain = bucket + buckets;
    uint32_t i = bucket[wanted->hash % buckets];
    if (i < first) return 0;
    for (;; i++) {
        uint32_t hash = chain[i - first];
        if ((hash | 1) == (wanted->hash | 1) && symbols[i].st_shndx != SHN_UNDEF &&
            ELF64_ST_TYPE(symbols[i].st_info) == STT_FUNC &&
            vgpu_same(strings + symbols[i].st_name, wanted->name)) {
            wanted->found = (void *)(info->dlpi_addr + symbols[i].st_value);
            return 1;
        }
        if (hash & 1) return 0; /* end of the chain */
    }
}

VGPU_EARLY void *vgpu_clib(const char *name) {
    struct wanted wanted = {.name = name, .hash = gnu_hash(name)};
    dl_iterate_phdr(visit_clib, &wanted);
    return wanted.found;
}

bool vgpu_clib_is_musl(void) {
    struct wanted wanted = {.name = "dlsym", .hash = gnu_hash("dlsym")};
    dl_iterate_phdr(visit_clib, &wanted);
    return wanted.musl;
}

struct place {
    uintptr_t address;
    struct vgpu_object *object;
};

VGPU_EARLY static int visit_object(struct dl_phdr_info *info, size_t size, void *data) {
    (void)size;
    struct place *place = data;
    for (int i = 0; i < info->dlpi_phnum; i++) {
        const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
        uintptr_t start = info->dlpi_addr + segment->p_vaddr;
        if (segment->p_type != PT_LOAD || place->address < start ||
            place->address >= start + segment->p_memsz)
            continue;
        const char *name = last_part(info->dlpi_name);
        for (size_t n = 0; name != NULL && name[n] != '\0' && n + 1 < VGPU_OBJECT_NAME; n++)
            place->object->name[n] = name[n];
        place->object->base = info->dlpi_addr;
        place->object->found = true;
        return 1;
    }
    return 0;
}

VGPU_EARLY struct vgpu_object vgpu_object_of(const void *address) {
    struct vgpu_object object = {.found = false};
    struct place place = {.address = (uintptr_t)address, .object = &object};
    dl_iterate_phdr(visit_object, &place);
    return object;
}
