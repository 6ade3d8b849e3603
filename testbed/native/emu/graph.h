/* Graphs: shared between capture.c, graph.c and graph_exec.c; the lock is held.
 *
 * A graph is the list of its work in the order in which it was recorded, which is one
 * order that its dependencies allow.
 */
#ifndef VGPU_EMU_GRAPH_H
#define VGPU_EMU_GRAPH_H

#include "driver.h"

#define GRAPH_MAGIC 0x6870617247535645ull
#define EXEC_MAGIC 0x6365784547535645ull

struct CUgraphNode_st {
    struct op op;
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

struct CUgraphExec_st {
    uint64_t magic, flags;
    struct op *ops;
    size_t count;
    struct graph_memory *memory;
};

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
