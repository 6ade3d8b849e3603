/* What the parts of the cuDNN stand-in share. */
#ifndef VGPU_CUDNN_H
#define VGPU_CUDNN_H

#include "cost.h"
#include "standin.h"

struct dnn_handle {
    CUstream stream;
};

#define MOST_DIMENSIONS 8 /* CUDNN_DIM_MAX */

struct tensor {
    int type, count;
    int sizes[MOST_DIMENSIONS], strides[MOST_DIMENSIONS];
};

/* A descriptor of the graph interface: a type, and attributes as they were set. Others
 * that it names are kept alive by it. */
struct attribute {
    int name, type;
    int64_t count;
    void *values;
    struct attribute *next;
};

struct descriptor {
    int type;
    bool finalized;
    unsigned int references; /* its owner's, and one for each attribute that names it */
    struct attribute *attributes;
    struct work work; /* of a finalised execution plan */
};

const struct attribute *attribute_of(const struct descriptor *descriptor, int name);
int64_t number_of(const struct descriptor *descriptor, int name, int64_t otherwise);
/* The first descriptor under that name; NULL where there is none. */
struct descriptor *member_of(const struct descriptor *descriptor, int name);

/* Costs of a graph's operations and tensors (cudnn_cost.c). */
struct work graph_work(const struct descriptor *graph, bool tensor_cores);

#endif
