/* Graphs: shared between capture.c, graph.c and graph_exec.c; the lock is held.
 *
 * A graph is the list of its work in the order in which it was recorded, which is one
 * order that its dependencies allow, and what each comes after.
 */
#ifndef VGPU_EMU_GRAPH_H
#define VGPU_EMU_GRAPH_H

#include "driver.h"

#define GRAPH_MAGIC 0x6870617247535645ull
#define EXEC_MAGIC 0x6365784547535645ull

struct CUgraphNode_st {
    struct op op;
    size_t index; /* in the graph */
    size_t *after; /* indices of nodes before it */
    size_t after_count;
};

/* Memory that was allocated while capturing: lives as long as a graph or an executable
 * graph made from it. */
struct graph_memory {
    unsigned int references;
    struct graph_block {
        CUdeviceptr pointer;
        uint64_t id; /* of the range: the program may free it, and the address be reused */
    } *blocks;
    size_t count, room;
};

struct keepsake { /* a user object that the graph holds */
    CUuserObject object;
    unsigned int count;
    struct keepsake *next;
};

struct CUuserObject_st {
    unsigned int references;
    CUhostFn destroy;
    void *data;
};

struct CUgraph_st {
    uint64_t magic, id;
    struct CUgraphNode_st **nodes;
    size_t count, room;
    struct graph_memory *memory;
    struct keepsake *keepsakes;
};

/* One node of an executable graph. Nodes that follow each other share a lane, so that a
 * graph without a fork is one lane: that of the stream it is launched in. */
struct step {
    struct op op;
    size_t lane;
    size_t first_wait, waits; /* of `waits`: nodes of other lanes that come before */
};

struct plan {
    struct step *steps;
    size_t count;
    size_t *waits;
    size_t waits_count;
    size_t lanes;
};

struct CUgraphExec_st {
    uint64_t magic, flags;
    struct plan plan;
    struct graph_memory *memory;
};

CUresult plan_make(struct plan *plan, CUgraph graph);
CUresult plan_copy(struct plan *to, const struct plan *from);
void plan_free(struct plan *plan);
/* Without the lock; one launch of the stream's queue. */
CUresult plan_launch(const struct plan *plan, struct CUstream_st *stream);

bool graph_owns(CUgraph graph, CUdeviceptr pointer);
void graph_memory_put(struct graph_memory *kept);

/* First line of an entry point on a graph. */
#define GRAPH(graph)                                                                       \
    ENTER();                                                                               \
    LOCKED();                                                                              \
    do {                                                                                   \
        if (!graph_valid(graph))                                                           \
            return CUDA_ERROR_INVALID_VALUE;                                               \
    } while (0)

#endif
