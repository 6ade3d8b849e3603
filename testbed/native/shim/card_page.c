#define _GNU_SOURCE
#include "card_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>

#include "log.h"
#include "sys.h"

#ifndef VGPU_PAGE_FOLDER
#define VGPU_PAGE_FOLDER "/usr/local/vgpu/pages"
#endif

#define FEW 8 /* entries are read in any case */

static bool copy_all_in(const struct iovec *remote, const struct iovec *local, int count) {
    size_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += local[i].iov_len;
    return vgpu_sys(SYS_process_vm_readv, vgpu_getpid(), (long)local, count, (long)remote, count,
                    0) == (long)bytes;
}

static bool copy_in(const void *from, void *to, size_t bytes) {
    struct iovec local = {to, bytes}, remote = {(void *)from, bytes};
    return copy_all_in(&remote, &local, 1);
}

static bool copy_out(const void *from, void *to, size_t bytes) {
    struct iovec local = {(void *)from, bytes}, remote = {to, bytes};
    return vgpu_sys(SYS_process_vm_writev, vgpu_getpid(), (long)&local, 1, (long)&remote, 1, 0) ==
           (long)bytes;
}

#define HEAD_FIELD(head, field, out)                                                               \
    memcpy(out, (head) + offsetof(struct vgpu_page, field), sizeof *(out))

static bool valid(const struct vgpu_page *mapped, const char *uuid) {
    char head[offsetof(struct vgpu_page, spare32)]; /* not the whole page: a stack may be small */
    uint64_t magic;
    uint32_t version, bytes;
    char name[sizeof mapped->uuid];
    if (!copy_in(mapped, head, sizeof head)) return false;
    HEAD_FIELD(head, magic, &magic);
    HEAD_FIELD(head, version, &version);
    HEAD_FIELD(head, bytes, &bytes);
    HEAD_FIELD(head, uuid, &name);
    return magic == VGPU_PAGE_MAGIC && version == VGPU_PAGE_VERSION &&
           bytes == sizeof(struct vgpu_page) && strncmp(name, uuid, sizeof name) == 0;
}

static void *map(const char *folder, const char *uuid) {
    char path[512];
    if (snprintf(path, sizeof path, "%s/%s.page", folder, uuid) >= (int)sizeof path) return NULL;
    int fd = vgpu_open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW | O_NOCTTY, 0);
    if (fd < 0) return NULL;
    struct stat st;
    void *at = NULL;
    if (vgpu_fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
        (size_t)st.st_size >= sizeof(struct vgpu_page))
        at = vgpu_map(sizeof(struct vgpu_page), PROT_READ | PROT_WRITE, MAP_SHARED, fd);
    vgpu_close(fd);
    if (at != NULL && !valid(at, uuid)) {
        VGPU_LOG(VGPU_LOG_ERROR, "card page %s is not valid", path);
        vgpu_unmap(at, sizeof(struct vgpu_page));
        return NULL;
    }
    return at;
}

void vgpu_card_page_open(struct vgpu_card_page *page, const char *uuid) {
    memset(page, 0, sizeof *page);
    if (uuid[0] == '\0' || strchr(uuid, '/') != NULL) return;
    page->mapped = map(VGPU_PAGE_FOLDER, uuid);
    const char *folder = secure_getenv("VGPU_PAGE_FOLDER");
    if (page->mapped == NULL && folder != NULL && folder[0] != '\0')
        page->mapped = map(folder, uuid);
}

bool vgpu_card_page_read(struct vgpu_card_page *page) {
    if (page->mapped == NULL) return false;
    /* As many as there were, in one call with their number. */
    uint32_t count, known = page->count > FEW ? page->count : FEW;
    struct vgpu_page_tenant *tenants = page->mapped->tenants;
    struct iovec local[] = {{&count, sizeof count}, {page->tenants, known * sizeof *tenants}};
    struct iovec remote[] = {{&page->mapped->tenant_count, sizeof count},
                             {tenants, known * sizeof *tenants}};
    if (!copy_all_in(remote, local, 2)) return false;
    if (count > VGPU_PAGE_TENANTS) count = VGPU_PAGE_TENANTS;
    if (count > known && !copy_in(tenants + known, page->tenants + known,
                                  (count - known) * sizeof *tenants))
        return false;
    page->count = count;
    return true;
}

void vgpu_card_page_write(struct vgpu_card_page *page, int place,
                          const struct vgpu_page_tenant *tenant) {
    if (page->mapped == NULL || place < 0 || place >= VGPU_PAGE_TENANTS) return;
    copy_out(tenant, &page->mapped->tenants[place], sizeof *tenant);
    uint32_t count = (uint32_t)place + 1;
    if (count > page->count) copy_out(&count, &page->mapped->tenant_count, sizeof count);
}
