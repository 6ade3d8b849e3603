/* Memory nodes of graphs. The driver reserves their memory when the graph is launched (or its
 * node added), and keeps it for graphs until it is asked to trim. So what counts is what it
 * tells to have reserved for graphs. Before a node is added there must be room for it; before
 * a graph is launched, for what its nodes need beyond what is reserved already: an executable
 * that ran before has its memory, unless that was trimmed. Where it does not fit, graphs and
 * pools first give back what they only keep. */
#define _GNU_SOURCE
#include "graphs.h"

#include <string.h>

#include "charge.h"
#include "device.h"
#include "growth.h"
#include "log.h"
#include "lookup.h"
#include "pools.h"
#include "sys.h"
#include "throttle.h"

#define CARDS 64
#define DEEPEST 8 /* graphs within graphs */
/* Devices of one graph whose memory is looked at. An executable is noted once for each, its
 * handle with the number added: handles are addresses of at least so many bytes. */
#define MOST 8

static struct vgpu_lock lock; /* held over driver calls: two growing graphs measure apart */
static _Atomic int any;       /* this process made a memory node: before, nothing is looked at */
static struct device {
    _Atomic bool seen; /* looked at before the lock is taken */
    int entry;
    uint64_t charged;
    uint64_t base;   /* reserved at the last trim */
    uint64_t mapped; /* what executables launched since then need in all */
} devices[CARDS];

void vgpu_graphs_forget(void) {
    atomic_store(&lock.state, 0);
    atomic_store(&any, 0);
    memset(devices, 0, sizeof devices);
}

/* --- called with the lock held ----------------------------------------------------------- */

static uint64_t measure(CUdevice dev) {
    struct device *device = &devices[dev];
    uint64_t reserved = 0;
    if (VGPU_CALL(cuDeviceGetGraphMemAttribute, dev, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT,
                  &reserved) != CUDA_SUCCESS)
        return device->charged;
    reserved = vgpu_granules(reserved);
    if (reserved != device->charged && vgpu_enter()) {
        if (reserved > device->charged)
            vgpu_charge_unchecked(device->entry,
                                  (struct vgpu_cost){.large = reserved - device->charged});
        else
            vgpu_uncharge(device->entry, (struct vgpu_cost){.large = device->charged - reserved});
        vgpu_leave();
    }
    device->charged = reserved;
    return reserved;
}

static bool unmap(struct vgpu_item *item, void *data) {
    if (item->entry == *(int *)data) item->maps = 0;
    return false;
}

/* Executables that were launched may have lost their memory. */
static void begin_anew(CUdevice dev) {
    struct device *device = &devices[dev];
    device->base = measure(dev);
    device->mapped = 0;
    if (vgpu_enter()) {
        vgpu_track_each(VGPU_EXEC, unmap, &device->entry);
        vgpu_leave();
    }
}

static bool trim(CUdevice dev) {
    struct device *device = &devices[dev];
    uint64_t before = measure(dev);
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED; /* another thread's capture is not ours to spoil */
    VGPU_CALL(cuThreadExchangeStreamCaptureMode, &mode);
    VGPU_CALL(cuDeviceGraphMemTrim, dev);
    VGPU_CALL(cuThreadExchangeStreamCaptureMode, &mode);
    begin_anew(dev);
    return device->base < before;
}

static bool reserve(int entry, uint64_t bytes) {
    if (bytes != 0) vgpu_growth_look(entry, bytes);
    if (bytes == 0 || !vgpu_enter()) return true;
    bool fits = vgpu_charge(entry, (struct vgpu_cost){.large = bytes});
    vgpu_leave();
    return fits;
}

/* What a launch may add to what is reserved. */
static uint64_t missing(const struct device *device, uint64_t bytes, uint64_t reserved) {
    uint64_t needed = device->base + device->mapped + bytes;
    return needed > reserved ? needed - reserved : 0;
}

enum how { CAPTURED, ADDED, LAUNCHED };

static bool room(CUdevice dev, uint64_t bytes, enum how how) {
    struct device *device = &devices[dev];
    for (int look = 0; look < 2; look++) {
        uint64_t reserved = measure(dev);
        uint64_t growth = how == LAUNCHED ? missing(device, bytes, reserved) : bytes;
        if (reserve(device->entry, growth)) {
            device->charged += growth; /* corrected when it is known */
            return true;
        }
        if (how == CAPTURED) break; /* what could make room would spoil the capture */
        if (look == 0) {
            trim(dev);
            vgpu_pools_give_back(device->entry, growth);
        }
    }
    vgpu_refuse(device->entry,
                how == LAUNCHED ? "launch of a graph with memory" : "memory node of a graph",
                bytes);
    return false;
}

/* --- around the driver's calls -------------------------------------------------------------- */

static bool known(CUdevice dev) { return dev >= 0 && dev < CARDS; }

bool vgpu_graph_adding(struct vgpu_graph_use *use, int entry, CUdevice dev, uint64_t bytes,
                       bool capturing) {
    *use = (struct vgpu_graph_use){.device = dev};
    if (entry == VGPU_NO_DEVICE || !known(dev) || !vgpu_active()) return true;
    atomic_store(&any, 1);
    vgpu_lock(&lock);
    devices[dev].seen = true;
    devices[dev].entry = entry;
    use->on = room(dev, vgpu_granules(bytes), capturing ? CAPTURED : ADDED);
    if (!use->on) vgpu_unlock(&lock);
    return use->on;
}

/* The launch is recorded only: its graph becomes part of another. */
static bool captures(CUstream stream, bool per_thread) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    CUresult result = per_thread ? VGPU_CALL(cuStreamIsCapturing_ptsz, stream, &status)
                                 : VGPU_CALL(cuStreamIsCapturing, stream, &status);
    return result == CUDA_SUCCESS && status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* What an executable needs, by device; with the state entered. */
static int items_of(uint64_t exec, struct vgpu_item items[MOST]) {
    int count = 0;
    struct vgpu_item *found;
    while (count < MOST && (found = vgpu_tracked(VGPU_EXEC, exec + (uint64_t)count)) != NULL)
        items[count++] = *found;
    return count;
}

/* Room on every device, or on none. */
static bool room_for(const struct vgpu_item *items, int count) {
    for (int i = 0; i < count; i++) {
        CUdevice dev = (CUdevice)items[i].link;
        if (items[i].maps != 0) continue;
        devices[dev].seen = true;
        devices[dev].entry = items[i].entry;
        if (room(dev, items[i].bytes, LAUNCHED)) continue;
        for (int k = 0; k < i; k++) measure((CUdevice)items[k].link);
        return false;
    }
    return true;
}

bool vgpu_graph_launching(struct vgpu_graph_use *use, CUgraphExec exec, CUstream stream,
                          bool per_thread) {
    *use = (struct vgpu_graph_use){.on = false};
    if (!atomic_load_explicit(&any, memory_order_relaxed) || !vgpu_enter()) return true;
    struct vgpu_item items[MOST];
    int count = items_of((uint64_t)(uintptr_t)exec, items);
    bool unmapped = false;
    for (int i = 0; i < count; i++) unmapped |= items[i].maps == 0;
    vgpu_leave();
    if (!unmapped || captures(stream, per_thread)) return true;
    use->exec = (uint64_t)(uintptr_t)exec;
    vgpu_lock(&lock);
    use->on = room_for(items, count);
    if (!use->on) vgpu_unlock(&lock);
    return use->on;
}

static int mark_mapped(uint64_t exec, struct vgpu_item items[MOST]) {
    if (!vgpu_enter()) return 0;
    int count = items_of(exec, items);
    for (int i = 0; i < count; i++) {
        if (items[i].maps != 0) continue;
        vgpu_tracked(VGPU_EXEC, items[i].key)->maps = 1;
        devices[items[i].link].mapped += items[i].bytes;
    }
    vgpu_leave();
    return count;
}

void vgpu_graph_done(struct vgpu_graph_use *use, CUresult result) {
    if (!use->on) return;
    if (use->exec == 0) measure(use->device);
    else {
        struct vgpu_item items[MOST];
        int count = 0;
        if (result == CUDA_SUCCESS) count = mark_mapped(use->exec, items);
        else if (vgpu_enter()) {
            count = items_of(use->exec, items);
            vgpu_leave();
        }
        for (int i = 0; i < count; i++) measure((CUdevice)items[i].link);
    }
    vgpu_unlock(&lock);
}

void vgpu_graphs_context_gone(int entry) {
    if (!atomic_load_explicit(&any, memory_order_relaxed)) return;
    vgpu_lock(&lock);
    for (CUdevice dev = 0; dev < CARDS; dev++) {
        if (!devices[dev].seen || devices[dev].entry != entry) continue;
        uint64_t before = devices[dev].charged;
        if (measure(dev) < before) begin_anew(dev);
    }
    vgpu_unlock(&lock);
}

bool vgpu_graphs_give_back(int entry) {
    if (!atomic_load_explicit(&any, memory_order_relaxed)) return false;
    bool given = false;
    vgpu_lock(&lock);
    for (CUdevice dev = 0; dev < CARDS; dev++)
        if (devices[dev].seen && devices[dev].entry == entry) given |= trim(dev);
    vgpu_unlock(&lock);
    return given;
}

CUresult cuDeviceGraphMemTrim(CUdevice dev) {
    if (!atomic_load(&any) || !known(dev) || !devices[dev].seen)
        return VGPU_CALL(cuDeviceGraphMemTrim, dev);
    CUresult result = VGPU_CALL(cuDeviceGraphMemTrim, dev);
    vgpu_lock(&lock);
    trim(dev);
    vgpu_unlock(&lock);
    return result;
}

/* --- adding nodes ------------------------------------------------------------------------------ */

static bool adding(struct vgpu_graph_use *use, const CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    *use = (struct vgpu_graph_use){.on = false};
    if (params == NULL || params->props.location.type != CU_MEM_LOCATION_TYPE_DEVICE ||
        !vgpu_active())
        return true;
    CUdevice dev = params->props.location.id;
    return vgpu_graph_adding(use, vgpu_device_entry(dev), dev, params->bytes, false);
}

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                                size_t count, CUDA_MEM_ALLOC_NODE_PARAMS *params) {
    struct vgpu_graph_use use;
    if (!adding(&use, params)) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = VGPU_CALL(cuGraphAddMemAllocNode, node, graph, deps, count, params);
    vgpu_graph_done(&use, result);
    return result;
}

static const CUDA_MEM_ALLOC_NODE_PARAMS *allocating(const CUgraphNodeParams *params) {
    return params != NULL && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC
               ? (const void *)params->body
               : NULL;
}

CUresult cuGraphAddNode(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps, size_t count,
                        CUgraphNodeParams *params) {
    struct vgpu_graph_use use;
    if (!adding(&use, allocating(params))) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = VGPU_CALL(cuGraphAddNode, node, graph, deps, count, params);
    vgpu_graph_done(&use, result);
    return result;
}

CUresult cuGraphAddNode_v2(CUgraphNode *node, CUgraph graph, const CUgraphNode *deps,
                           const void *edges, size_t count, CUgraphNodeParams *params) {
    struct vgpu_graph_use use;
    if (!adding(&use, allocating(params))) return CUDA_ERROR_OUT_OF_MEMORY;
    CUresult result = VGPU_CALL(cuGraphAddNode_v2, node, graph, deps, edges, count, params);
    vgpu_graph_done(&use, result);
    return result;
}

/* --- executables: what their nodes need ---------------------------------------------------------- */

struct needs {
    int count;
    struct need {
        CUdevice dev;
        uint64_t bytes;
    } of[MOST];
};

static void add(struct needs *needs, CUdevice dev, uint64_t bytes) {
    int i = 0;
    while (i < needs->count && needs->of[i].dev != dev) i++;
    if (!known(dev) || i == MOST || bytes >= UINT64_MAX / 4) return;
    if (i == needs->count) needs->of[needs->count++] = (struct need){.dev = dev};
    needs->of[i].bytes += vgpu_granules(bytes);
}

/* Adds up a graph's memory nodes. */
static void sum(CUgraph graph, struct needs *needs, int depth) {
    size_t count = 0;
    if (depth > DEEPEST || VGPU_CALL(cuGraphGetNodes, graph, NULL, &count) != CUDA_SUCCESS ||
        count == 0)
        return;
    size_t room = (count * sizeof(CUgraphNode) + 4095) & ~(size_t)4095;
    CUgraphNode *nodes = vgpu_scratch(room);
    if (nodes == NULL) return;
    if (VGPU_CALL(cuGraphGetNodes, graph, nodes, &count) != CUDA_SUCCESS) count = 0;
    for (size_t i = 0; i < count; i++) {
        int type = -1;
        CUDA_MEM_ALLOC_NODE_PARAMS params;
        CUgraph child;
        if (VGPU_CALL(cuGraphNodeGetType, nodes[i], &type) != CUDA_SUCCESS) continue;
        if (type == CU_GRAPH_NODE_TYPE_GRAPH &&
            VGPU_CALL(cuGraphChildGraphNodeGetGraph, nodes[i], &child) == CUDA_SUCCESS)
            sum(child, needs, depth + 1);
        if (type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
            VGPU_CALL(cuGraphMemAllocNodeGetParams, nodes[i], &params) == CUDA_SUCCESS &&
            params.props.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
            add(needs, params.props.location.id, params.bytes);
    }
    vgpu_unmap(nodes, room);
}

static CUresult instantiated(CUresult result, CUgraphExec *exec, CUgraph graph) {
    if (result != CUDA_SUCCESS || exec == NULL ||
        !atomic_load_explicit(&any, memory_order_relaxed) || !vgpu_active())
        return result;
    struct needs needs = {.count = 0};
    sum(graph, &needs, 0);
    uint64_t key = (uint64_t)(uintptr_t)*exec;
    for (int i = 0; i < needs.count; i++) {
        int entry = vgpu_device_entry(needs.of[i].dev);
        if (entry == VGPU_NO_DEVICE || !vgpu_enter()) continue;
        vgpu_track(VGPU_EXEC, (struct vgpu_item){.key = key++,
                                                 .entry = entry,
                                                 .link = (uint64_t)needs.of[i].dev,
                                                 .bytes = needs.of[i].bytes});
        vgpu_leave();
    }
    return result;
}

void vgpu_graph_exec_gone(CUgraphExec exec) {
    if (!atomic_load_explicit(&any, memory_order_relaxed)) return;
    vgpu_lock(&lock);
    struct vgpu_item item;
    if (vgpu_enter()) {
        for (uint64_t key = (uint64_t)(uintptr_t)exec; vgpu_untrack(VGPU_EXEC, key, &item); key++) {
            if (item.maps == 0) continue;
            uint64_t *mapped = &devices[item.link].mapped;
            *mapped = *mapped > item.bytes ? *mapped - item.bytes : 0;
        }
        vgpu_leave();
    }
    vgpu_unlock(&lock);
}

CUresult cuGraphInstantiate(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                            size_t bytes) {
    return instantiated(VGPU_CALL(cuGraphInstantiate, exec, graph, error, log, bytes), exec,
                        graph);
}
CUresult cuGraphInstantiate_v2(CUgraphExec *exec, CUgraph graph, CUgraphNode *error, char *log,
                               size_t bytes) {
    return instantiated(VGPU_CALL(cuGraphInstantiate_v2, exec, graph, error, log, bytes), exec,
                        graph);
}
CUresult cuGraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph, unsigned long long flags) {
    return instantiated(VGPU_CALL(cuGraphInstantiateWithFlags, exec, graph, flags), exec, graph);
}
CUresult cuGraphInstantiateWithParams(CUgraphExec *exec, CUgraph graph, void *params) {
    return instantiated(VGPU_CALL(cuGraphInstantiateWithParams, exec, graph, params), exec,
                        graph);
}
CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *exec, CUgraph graph, void *params) {
    return instantiated(VGPU_CALL(cuGraphInstantiateWithParams_ptsz, exec, graph, params), exec,
                        graph);
}

/* --- uploads: a launch without the work ------------------------------------------------------------ */

#define UPLOAD(symbol, per_thread)                                                                             \
    CUresult symbol(CUgraphExec exec, CUstream stream) {                                           \
        struct vgpu_graph_use use;                                                                 \
        if (!vgpu_graph_launching(&use, exec, stream, per_thread))                                 \
            return CUDA_ERROR_OUT_OF_MEMORY;                                                       \
        CUresult result = VGPU_CALL(symbol, exec, stream);                                         \
        vgpu_graph_done(&use, result);                                                             \
        return result;                                                                             \
    }
UPLOAD(cuGraphUpload, false)
UPLOAD(cuGraphUpload_ptsz, true)
