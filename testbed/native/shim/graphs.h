/* Memory of graphs: what the driver reserves for their memory nodes, charged by device. */
#ifndef VGPU_SHIM_GRAPHS_H
#define VGPU_SHIM_GRAPHS_H

#include <stdbool.h>

#include "hooks.h"

struct vgpu_graph_use {
    bool on;
    CUdevice device;
    uint64_t exec; /* to be marked as mapped, 0 = none */
};

/* Around a call that adds a memory node of so many bytes; in a capture nothing else is asked of
 * the driver. False = they do not fit (refused, counted and logged). */
bool vgpu_graph_adding(struct vgpu_graph_use *use, int entry, CUdevice device, uint64_t bytes,
                       bool capturing);
/* Around a launch or an upload: the driver maps the graph's memory then. */
bool vgpu_graph_launching(struct vgpu_graph_use *use, CUgraphExec exec, CUstream stream,
                          bool per_thread);
void vgpu_graph_done(struct vgpu_graph_use *use, CUresult result);

/* Lets the driver give back what it keeps of graphs that do not run. */
bool vgpu_graphs_give_back(int entry);

/* A context of the device was destroyed, and graphs' memory may have gone with it. */
void vgpu_graphs_context_gone(int entry);

void vgpu_graphs_forget(void); /* in a forked child */
void vgpu_graph_exec_gone(CUgraphExec exec); /* before the driver destroys it */

#endif
