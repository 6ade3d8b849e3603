/* The card's page as this process reaches it. Called by one thread at a time. */
#ifndef VGPU_SHIM_CARD_PAGE_H
#define VGPU_SHIM_CARD_PAGE_H

#include <stdbool.h>

#include "page.h"

struct vgpu_card_page {
    struct vgpu_page *mapped; /* never touched directly: see page.h */
    uint32_t count;           /* entries in `tenants`, which is a copy */
    struct vgpu_page_tenant tenants[VGPU_PAGE_TENANTS];
};

/* Maps the page of a card, if there is one. */
void vgpu_card_page_open(struct vgpu_card_page *page, const char *uuid);

/* Renews the copy; false where the page is gone (cut, or never there). */
bool vgpu_card_page_read(struct vgpu_card_page *page);

/* Writes one entry, raising the page's count to hold it. */
void vgpu_card_page_write(struct vgpu_card_page *page, int place,
                          const struct vgpu_page_tenant *tenant);

#endif
