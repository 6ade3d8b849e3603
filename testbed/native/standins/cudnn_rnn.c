/* cuDNN's recurrent networks: descriptors, where parameters lie, and each pass as one launch
 * of the arithmetic of its gates. That a real one runs step by step, with the launches that
 * this takes, is not modelled.
 *
 * The space of the parameters holds, pseudo-layer by pseudo-layer (a layer's directions one
 * behind another), the matrices of the inputs' gates, those of the recurrence's gates and
 * the projection; behind all matrices the biases in the same order.
 */
#include "cudnn.h"

struct network {
    int type, math, gates, layers, directions;
    uint64_t input, hidden, output; /* output: of a step, hidden or projected */
    bool biases;
};

struct sequences {
    int type;
    uint64_t longest, batch, vector, steps; /* steps: of all sequences together */
};

/* --- descriptors -------------------------------------------------------------------------- */

#define CREATED_AND_DESTROYED(name, kind)                                                          \
    API int cudnnCreate##name##Descriptor(kind **object)                                           \
    {                                                                                              \
        if (!object)                                                                               \
            return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;                                            \
        *object = calloc(1, sizeof **object);                                                      \
        return *object ? CUDNN_STATUS_SUCCESS                                                      \
                       : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;                       \
    }                                                                                              \
    API int cudnnDestroy##name##Descriptor(kind *object)                                           \
    {                                                                                              \
        free(object);                                                                              \
        return CUDNN_STATUS_SUCCESS;                                                               \
    }

CREATED_AND_DESTROYED(RNN, struct network)
CREATED_AND_DESTROYED(RNNData, struct sequences)
CREATED_AND_DESTROYED(Dropout, char)

API int cudnnDropoutGetStatesSize(void *handle, size_t *bytes)
{
    (void)handle;
    if (!bytes)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *bytes = 1 << 20; /* assumed: a generator's state for every thread of the card */
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnSetDropoutDescriptor(void *dropout, void *handle, float probability, void *states,
                                  size_t bytes, unsigned long long seed)
{
    (void)probability, (void)states, (void)bytes, (void)seed;
    return dropout && handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
}

API int cudnnRestoreDropoutDescriptor(void *dropout, void *handle, float probability, void *states,
                                      size_t bytes, unsigned long long seed)
{
    return cudnnSetDropoutDescriptor(dropout, handle, probability, states, bytes, seed);
}

API int cudnnSetRNNDescriptor_v8(struct network *network, int algorithm, int cell, int bias,
                                 int direction, int input_mode, int type, int precision, int math,
                                 int32_t input, int32_t hidden, int32_t projected, int32_t layers,
                                 void *dropout, uint32_t flags)
{
    (void)algorithm, (void)input_mode, (void)precision, (void)dropout, (void)flags;
    if (!network)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (input < 1 || hidden < 1 || layers < 1 || cell < 0 || cell > CUDNN_GRU || !dnn_bits(type))
        return CUDNN_STATUS_BAD_PARAM;
    *network = (struct network){
        .type = type,
        .math = math,
        .gates = cell == CUDNN_LSTM ? 4 : cell == CUDNN_GRU ? 3 : 1,
        .layers = layers,
        .directions = direction == CUDNN_BIDIRECTIONAL ? 2 : 1,
        .input = (uint64_t)input,
        .hidden = (uint64_t)hidden,
        .output = (uint64_t)(projected > 0 && projected < hidden ? projected : hidden),
        .biases = bias != CUDNN_RNN_NO_BIAS,
    };
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnSetRNNDataDescriptor(struct sequences *sequences, int type, int layout, int longest,
                                  int batch, int vector, const int *lengths, void *padding)
{
    (void)layout, (void)padding;
    if (!sequences || !lengths)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (longest < 1 || batch < 1 || vector < 1)
        return CUDNN_STATUS_BAD_PARAM;
    *sequences = (struct sequences){type, (uint64_t)longest, (uint64_t)batch, (uint64_t)vector, 0};
    for (int i = 0; i < batch; i++)
        sequences->steps += lengths[i] > 0 ? (uint64_t)lengths[i] : 0;
    return CUDNN_STATUS_SUCCESS;
}

/* --- parameters ------------------------------------------------------------------------------ */

static uint64_t inputs_of(const struct network *network, int layer)
{
    return layer == 0 ? network->input : network->output * (uint64_t)network->directions;
}

/* Elements of the matrices of one direction of a layer. */
static uint64_t matrices_of(const struct network *network, int layer)
{
    uint64_t gates = (uint64_t)network->gates * network->hidden;
    uint64_t projection = network->output < network->hidden ? network->output * network->hidden : 0;
    return times(gates, inputs_of(network, layer) + network->output) + projection;
}

static uint64_t all_matrices(const struct network *network, int layers)
{
    uint64_t sum = 0;
    for (int layer = 0; layer < layers; layer++)
        sum = plus(sum, times(matrices_of(network, layer), (uint64_t)network->directions));
    return sum;
}

static uint64_t biases_of_layer(const struct network *network) /* of one direction */
{
    return network->biases ? 2 * (uint64_t)network->gates * network->hidden : 0;
}

static uint64_t parameter_bytes(const struct network *network)
{
    uint64_t pseudo_layers = (uint64_t)network->layers * (uint64_t)network->directions;
    return times(plus(all_matrices(network, network->layers),
                      times(pseudo_layers, biases_of_layer(network))),
                 dnn_bits(network->type) / 8);
}

API int cudnnGetRNNWeightSpaceSize(void *handle, const struct network *network, size_t *bytes)
{
    (void)handle;
    if (!network || !bytes)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *bytes = parameter_bytes(network);
    return CUDNN_STATUS_SUCCESS;
}

static void describe(struct tensor *tensor, int type, uint64_t rows, uint64_t columns)
{
    if (tensor)
        *tensor = (struct tensor){
            .type = type,
            .count = 3,
            .sizes = {1, (int)rows, (int)columns},
            .strides = {(int)(rows * columns), (int)columns, 1},
        };
}

API int cudnnGetRNNWeightParams(void *handle, const struct network *network, int32_t pseudo_layer,
                                size_t bytes, const void *space, int32_t number,
                                struct tensor *matrix_tensor, void **matrix,
                                struct tensor *bias_tensor, void **bias)
{
    (void)handle, (void)bytes;
    if (!network) /* who asks for one of the two gives no place for the other */
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    bool projection = number == 2 * network->gates && network->output < network->hidden;
    if (pseudo_layer < 0 || pseudo_layer >= network->layers * network->directions || number < 0 ||
        (number >= 2 * network->gates && !projection))
        return CUDNN_STATUS_BAD_PARAM;
    int layer = pseudo_layer / network->directions;
    uint64_t at = all_matrices(network, layer) +
                  matrices_of(network, layer) * (uint64_t)(pseudo_layer % network->directions);
    uint64_t from_input = network->hidden * inputs_of(network, layer);
    uint64_t from_output = network->hidden * network->output;
    uint64_t gates = (uint64_t)network->gates, own = (uint64_t)number;
    uint64_t size = dnn_bits(network->type) / 8;
    at += own < gates ? own * from_input : gates * from_input + (own - gates) * from_output;
    if (matrix)
        *matrix = (char *)(uintptr_t)space + at * size;
    if (projection)
        describe(matrix_tensor, network->type, network->output, network->hidden);
    else
        describe(matrix_tensor, network->type, network->hidden,
                 own < gates ? inputs_of(network, layer) : network->output);
    at = all_matrices(network, network->layers) +
         biases_of_layer(network) * (uint64_t)pseudo_layer + own * network->hidden;
    if (bias)
        *bias = network->biases && !projection ? (char *)(uintptr_t)space + at * size : NULL;
    describe(bias_tensor, network->type, network->hidden, 1);
    return CUDNN_STATUS_SUCCESS;
}

/* Assumed: what the gates of every step are, kept for the way back. */
API int cudnnGetRNNTempSpaceSizes(void *handle, const struct network *network, int mode,
                                  const struct sequences *x, size_t *work, size_t *reserve)
{
    (void)handle;
    if (!network || !x || !work)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    uint64_t step = times(times(x->longest, x->batch), (uint64_t)network->gates * network->hidden);
    *work = times(step, dnn_bits(network->type) / 8);
    if (reserve) /* mode 1: training */
        *reserve = mode ? times(*work, (uint64_t)network->layers * (uint64_t)network->directions)
                        : 0;
    return CUDNN_STATUS_SUCCESS;
}

/* --- passes: forward, to the data, to the weights; as much arithmetic each -------------------- */

static int pass(struct dnn_handle *handle, const struct network *network,
                const struct sequences *x)
{
    if (!handle || !network || !x)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    uint64_t outputs = network->output * (uint64_t)network->directions;
    struct work work = {
        .kind = WORK_MATMUL,
        .precision = dnn_precision(network->type, network->math != CUDNN_FMA_MATH),
        .flops = times(times(all_matrices(network, network->layers), x->steps), 2),
        .bytes = plus(parameter_bytes(network),
                      times(times(x->steps, x->vector + outputs), dnn_bits(network->type) / 8)),
        .blocks = times(x->batch, network->hidden) / (128 * 128) + 1,
        .depth = network->hidden,
    };
    return work_launch(&work, handle->stream) == 0 ? CUDNN_STATUS_SUCCESS
                                                   : CUDNN_STATUS_EXECUTION_FAILED;
}

/* Parameters behind the last one that is looked at are left out: the caller cleans the
 * stack in the System V ABI. */
API int cudnnRNNForward(struct dnn_handle *handle, const struct network *network, int mode,
                        const int32_t *lengths, const struct sequences *x)
{
    (void)mode, (void)lengths;
    return pass(handle, network, x);
}

API int cudnnRNNBackwardData_v8(struct dnn_handle *handle, const struct network *network,
                                const int32_t *lengths, const void *y_sequences, const void *y,
                                const void *dy, const struct sequences *x)
{
    (void)lengths, (void)y_sequences, (void)y, (void)dy;
    return pass(handle, network, x);
}

API int cudnnRNNBackwardWeights_v8(struct dnn_handle *handle, const struct network *network,
                                   int add, const int32_t *lengths, const struct sequences *x)
{
    (void)add, (void)lengths;
    return pass(handle, network, x);
}
