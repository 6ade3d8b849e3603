/* Physical memory (cuMemCreate): charged to the device of its location, until the
 * program has released every handle and unmapped every mapping of it. Imported handles
 * are not charged: their exporter is. */
#include "charge.h"
#include "device.h"
#include "lookup.h"
#include "oversubscribe.h"

static uint64_t serial = 2; /* under the state's lock */

static struct vgpu_item *physical_of(enum vgpu_kind kind, uint64_t key, uint64_t *id) {
    struct vgpu_item *item = vgpu_tracked(kind, key);
    if (item == NULL) return NULL;
    *id = item->link;
    return vgpu_tracked(VGPU_PHYSICAL, *id);
}

static void drop_if_gone(uint64_t id) {
    struct vgpu_item *physical = vgpu_tracked(VGPU_PHYSICAL, id), item;
    if (physical == NULL || physical->handles != 0 || physical->maps != 0) return;
    vgpu_untrack(VGPU_PHYSICAL, id, &item);
    vgpu_uncharge(item.entry, item.cost);
}

static bool keep(CUmemGenericAllocationHandle handle, int entry, struct vgpu_cost cost) {
    if (!vgpu_enter()) return true;
    uint64_t id = serial++;
    bool kept = vgpu_track(VGPU_PHYSICAL,
                           (struct vgpu_item){
                               .key = id, .entry = entry, .cost = cost, .handles = 1});
    if (kept && !vgpu_track(VGPU_HANDLE, (struct vgpu_item){.key = handle, .link = id})) {
        struct vgpu_item item;
        vgpu_untrack(VGPU_PHYSICAL, id, &item);
        kept = false;
    }
    vgpu_leave();
    return kept;
}

/* Where the card is full and the limit is beyond it: memory of the host, which the device
 * reaches and no page of which moves. Handles for other processes stay the device's. */
static CUresult or_on_host(CUresult result, CUmemGenericAllocationHandle *handle, size_t bytes,
                           const CUmemAllocationProp *prop, unsigned long long flags) {
    if (prop->requested_handle_types != 0 || !vgpu_beyond(result)) return result;
    CUmemAllocationProp host = *prop;
    host.location = (CUmemLocation){.type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0};
    return VGPU_CALL(cuMemCreate, handle, bytes, &host, flags);
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags) {
    int type = prop == NULL ? 0 : prop->location.type;
    if (handle == NULL || bytes == 0 || !vgpu_active() ||
        (type != CU_MEM_LOCATION_TYPE_DEVICE &&
         type != CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN))
        return VGPU_CALL(cuMemCreate, handle, bytes, prop, flags);
    int id = prop->location.id;
    int entry = vgpu_device_entry(type == CU_MEM_LOCATION_TYPE_DEVICE ? id : id & 0xff);
    struct vgpu_cost cost = {.large = vgpu_granules(bytes)};
    if (!vgpu_take(entry, cost, "physical allocation", bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = VGPU_CALL(cuMemCreate, handle, bytes, prop, flags);
    result = or_on_host(result, handle, bytes, prop, flags);
    if (result == CUDA_SUCCESS && keep(*handle, entry, cost)) return result;
    if (result == CUDA_SUCCESS) {
        VGPU_CALL(cuMemRelease, *handle);
        result = CUDA_ERROR_OUT_OF_MEMORY;
    }
    vgpu_give(entry, cost);
    return result;
}

/* Taken out before the call: afterwards the driver may give the number to another. */
CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    uint64_t id = 0;
    bool known = false;
    if (vgpu_enter()) {
        struct vgpu_item *physical = physical_of(VGPU_HANDLE, handle, &id), item;
        known = physical != NULL && physical->handles > 0;
        if (known && --physical->handles == 0) vgpu_untrack(VGPU_HANDLE, handle, &item);
        vgpu_leave();
    }
    CUresult result = VGPU_CALL(cuMemRelease, handle);
    if (known && vgpu_enter()) {
        struct vgpu_item *physical = vgpu_tracked(VGPU_PHYSICAL, id);
        if (result != CUDA_SUCCESS && physical != NULL) {
            physical->handles++;
            vgpu_track(VGPU_HANDLE, (struct vgpu_item){.key = handle, .link = id});
        }
        drop_if_gone(id);
        vgpu_leave();
    }
    return result;
}

struct search {
    CUdeviceptr start, end;
    uint64_t id;
};

static bool holds_address(struct vgpu_item *item, void *data) {
    struct search *search = data;
    if (search->start >= item->key && search->start - item->key < item->bytes)
        search->id = item->link;
    return false;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *addr) {
    CUresult result = VGPU_CALL(cuMemRetainAllocationHandle, handle, addr);
    if (result != CUDA_SUCCESS || handle == NULL || !vgpu_enter()) return result;
    uint64_t id;
    struct vgpu_item *physical = physical_of(VGPU_HANDLE, *handle, &id);
    if (physical == NULL) { /* released before, alive by its mapping */
        struct search search = {.start = (CUdeviceptr)(uintptr_t)addr};
        vgpu_track_each(VGPU_MAPPING, holds_address, &search);
        physical = search.id == 0 ? NULL : vgpu_tracked(VGPU_PHYSICAL, search.id);
        if (physical != NULL &&
            !vgpu_track(VGPU_HANDLE, (struct vgpu_item){.key = *handle, .link = search.id}))
            physical = NULL;
    }
    if (physical != NULL) physical->handles++;
    vgpu_leave();
    return result;
}

CUresult cuMemMap(CUdeviceptr ptr, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags) {
    CUresult result = VGPU_CALL(cuMemMap, ptr, bytes, offset, handle, flags);
    if (result != CUDA_SUCCESS || !vgpu_enter()) return result;
    uint64_t id;
    struct vgpu_item *physical = physical_of(VGPU_HANDLE, handle, &id);
    if (physical != NULL) {
        physical->maps++; /* also where the mapping cannot be remembered: charged for good */
        vgpu_track(VGPU_MAPPING, (struct vgpu_item){.key = ptr, .bytes = bytes, .link = id});
    }
    vgpu_leave();
    return result;
}

static bool in_range(struct vgpu_item *item, void *data) {
    struct search *range = data;
    if (item->key < range->start || item->key >= range->end) return false;
    struct vgpu_item *physical = vgpu_tracked(VGPU_PHYSICAL, item->link);
    if (physical != NULL && physical->maps > 0) physical->maps--;
    drop_if_gone(item->link);
    return true;
}

CUresult cuMemUnmap(CUdeviceptr ptr, size_t bytes) {
    CUresult result = VGPU_CALL(cuMemUnmap, ptr, bytes);
    if (result != CUDA_SUCCESS || !vgpu_enter()) return result;
    struct search range = {.start = ptr, .end = ptr + bytes};
    struct vgpu_item *exact = vgpu_tracked(VGPU_MAPPING, ptr), item;
    if (exact != NULL && exact->bytes == bytes) { /* the usual case, without a walk */
        vgpu_untrack(VGPU_MAPPING, ptr, &item);
        in_range(&item, &range);
    } else {
        vgpu_track_each(VGPU_MAPPING, in_range, &range);
    }
    vgpu_leave();
    return result;
}
