/* What a graph of operations costs.
 *
 * Flops are those of its convolutions, products and attention; everything else in a graph
 * runs while their results pass by. Bytes are those of the tensors that the graph reads
 * and writes in memory, each once; virtual ones stay in the chip.
 */
#include "cudnn.h"

#define TILE 128
#define MOST_TENSORS 256 /* of one graph, counted one by one; further ones cost nothing */

static uint64_t elements(const struct descriptor *tensor, int64_t from)
{
    const struct attribute *sizes = attribute_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    uint64_t product = sizes && sizes->count > from ? 1 : 0;
    for (int64_t i = from; sizes && i < sizes->count; i++) {
        int64_t size = ((const int64_t *)sizes->values)[i];
        product = times(product, size > 0 ? (uint64_t)size : 0);
    }
    return product;
}

static uint64_t dimension(const struct descriptor *tensor, int64_t from_the_end)
{
    const struct attribute *sizes = attribute_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    if (!sizes || sizes->count < from_the_end)
        return 0;
    int64_t size = ((const int64_t *)sizes->values)[sizes->count - from_the_end];
    return size > 0 ? (uint64_t)size : 0;
}

static int type_of(const struct descriptor *tensor)
{
    const struct attribute *type = attribute_of(tensor, CUDNN_ATTR_TENSOR_DATA_TYPE);
    return type ? *(const int *)type->values : CUDNN_DATA_FLOAT;
}

/* In memory a tensor takes what its sizes say, without dimensions of stride 0. */
static uint64_t bytes(const struct descriptor *tensor)
{
    const struct attribute *sizes = attribute_of(tensor, CUDNN_ATTR_TENSOR_DIMENSIONS);
    const struct attribute *strides = attribute_of(tensor, CUDNN_ATTR_TENSOR_STRIDES);
    uint64_t product = sizes ? 1 : 0;
    for (int64_t i = 0; sizes && i < sizes->count; i++) {
        int64_t size = ((const int64_t *)sizes->values)[i];
        bool repeated = strides && i < strides->count && ((const int64_t *)strides->values)[i] == 0;
        product = times(product, size <= 0 ? 0 : repeated ? 1 : (uint64_t)size);
    }
    return times(product, dnn_bits(type_of(tensor))) / 8;
}

/* --- operations: flops, outputs, products per output ------------------------------------- */

struct part {
    uint64_t flops, outputs, depth;
    const struct descriptor *operand; /* its type decides the precision */
};

/* A filter has one output channel in its first dimension: the others are what is summed
 * for each element of y. The gradients do the same products in another order. */
static struct part convolution(const struct descriptor *y, const struct descriptor *filter,
                               const struct descriptor *operand, const struct descriptor *result)
{
    if (!y || !filter || !operand || !result)
        return (struct part){0};
    uint64_t flops = times(times(elements(y, 0), elements(filter, 1)), 2);
    uint64_t outputs = elements(result, 0);
    return (struct part){flops, outputs, outputs ? flops / 2 / outputs : 0, operand};
}

static struct part product(const struct descriptor *a, const struct descriptor *b,
                           const struct descriptor *c)
{
    if (!a || !b || !c)
        return (struct part){0};
    uint64_t outputs = elements(c, 0), depth = dimension(a, 1);
    return (struct part){times(times(outputs, depth), 2), outputs, depth, a};
}

/* Scores and their weighted sum: two products forward, five backward (scores again, and
 * the gradients of scores, queries, keys and values). */
static struct part attention(const struct descriptor *q, const struct descriptor *k,
                             const struct descriptor *v, bool backward)
{
    if (!q || !k || !v)
        return (struct part){0};
    uint64_t depth = dimension(q, 1), rows = depth ? elements(q, 0) / depth : 0;
    uint64_t keys = dimension(k, 2), width = dimension(v, 1);
    uint64_t scores = times(times(rows, keys), times(depth, 2));
    uint64_t sums = times(times(rows, keys), times(width, 2));
    uint64_t flops = backward ? plus(times(scores, 3), times(sums, 2)) : plus(scores, sums);
    return (struct part){flops, times(rows, width), keys, q};
}

static struct part part_of(const struct descriptor *operation)
{
#define MEMBER(name) member_of(operation, CUDNN_ATTR_OPERATION_##name)
    switch (operation->type) {
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR:
        return convolution(MEMBER(CONVOLUTION_FORWARD_Y), MEMBER(CONVOLUTION_FORWARD_W),
                           MEMBER(CONVOLUTION_FORWARD_X), MEMBER(CONVOLUTION_FORWARD_Y));
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR:
        return convolution(MEMBER(CONVOLUTION_BWD_DATA_DY), MEMBER(CONVOLUTION_BWD_DATA_W),
                           MEMBER(CONVOLUTION_BWD_DATA_DY), MEMBER(CONVOLUTION_BWD_DATA_DX));
    case CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR:
        return convolution(MEMBER(CONVOLUTION_BWD_FILTER_DY), MEMBER(CONVOLUTION_BWD_FILTER_DW),
                           MEMBER(CONVOLUTION_BWD_FILTER_X), MEMBER(CONVOLUTION_BWD_FILTER_DW));
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
        return product(MEMBER(MATMUL_ADESC), MEMBER(MATMUL_BDESC), MEMBER(MATMUL_CDESC));
    case CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR:
        return attention(MEMBER(SDPA_FWD_QDESC), MEMBER(SDPA_FWD_KDESC), MEMBER(SDPA_FWD_VDESC),
                         false);
    case CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR:
        return attention(MEMBER(SDPA_BWD_QDESC), MEMBER(SDPA_BWD_KDESC), MEMBER(SDPA_BWD_VDESC),
                         true);
    default:
        return (struct part){0};
    }
#undef MEMBER
}

/* --- the graph ---------------------------------------------------------------------------- */

struct tensors {
    int64_t seen[MOST_TENSORS];
    size_t count;
    uint64_t bytes;
};

static void add_tensor(struct tensors *tensors, const struct descriptor *tensor)
{
    int64_t id = number_of(tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, 0);
    if (number_of(tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, 0) ||
        number_of(tensor, CUDNN_ATTR_TENSOR_IS_BY_VALUE, 0) || tensors->count == MOST_TENSORS)
        return;
    for (size_t i = 0; i < tensors->count; i++)
        if (tensors->seen[i] == id)
            return;
    tensors->seen[tensors->count++] = id;
    tensors->bytes = plus(tensors->bytes, bytes(tensor));
}

struct work graph_work(const struct descriptor *graph, bool tensor_cores)
{
    const struct attribute *operations = attribute_of(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    struct tensors tensors = {.count = 0};
    struct work work = {.kind = WORK_CONVOLUTION};
    struct part largest = {0};
    for (int64_t i = 0; operations && i < operations->count; i++) {
        const struct descriptor *operation = ((struct descriptor **)operations->values)[i];
        for (const struct attribute *a = operation->attributes; a; a = a->next)
            for (int64_t j = 0; a->type == CUDNN_TYPE_BACKEND_DESCRIPTOR && j < a->count; j++) {
                const struct descriptor *member = ((struct descriptor **)a->values)[j];
                if (member->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR)
                    add_tensor(&tensors, member);
            }
        struct part part = part_of(operation);
        work.flops = plus(work.flops, part.flops);
        if (part.flops > largest.flops)
            largest = part;
    }
    if (!largest.operand)
        return memory_work(tensors.bytes);
    work.precision = dnn_precision(type_of(largest.operand), tensor_cores);
    work.bytes = tensors.bytes;
    work.depth = largest.depth;
    work.blocks = largest.outputs / (TILE * TILE) + 1;
    return work;
}
