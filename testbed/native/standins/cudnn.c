/* cuDNN on an emulated card: handles, tensors, and the calls outside the graph interface
 * that torch makes for batch normalisation and grid_sample. CTC loss and the like answer
 * "not supported"; torch has kernels of its own (torch.backends.cudnn.enabled = False). */
#include "cudnn.h"

/* --- handles ---------------------------------------------------------------------------- */

API int cudnnCreate(struct dnn_handle **handle)
{
    if (!handle)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *handle = NULL;
    if (work_ready() != 0)
        return CUDNN_STATUS_NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    return *handle ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}

API int cudnnDestroy(struct dnn_handle *handle)
{
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnSetStream(struct dnn_handle *handle, CUstream stream)
{
    if (!handle)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnGetStream(struct dnn_handle *handle, CUstream *stream)
{
    if (!handle || !stream)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *stream = handle->stream;
    return CUDNN_STATUS_SUCCESS;
}

API const char *cudnnGetErrorString(int status)
{
    switch (status) {
    case CUDNN_STATUS_SUCCESS:
        return "CUDNN_STATUS_SUCCESS";
    case CUDNN_STATUS_NOT_INITIALIZED:
        return "CUDNN_STATUS_NOT_INITIALIZED: no emulated driver";
    case CUDNN_STATUS_NOT_SUPPORTED:
        return "CUDNN_STATUS_NOT_SUPPORTED: this call of cuDNN is not emulated in this version "
               "of vgpu-testbed";
    case CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED:
        return "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED";
    case CUDNN_STATUS_EXECUTION_FAILED:
        return "CUDNN_STATUS_EXECUTION_FAILED: the driver refused the launch";
    default:
        return status / 1000 == 2 ? "CUDNN_STATUS_BAD_PARAM" : "CUDNN_STATUS_INTERNAL_ERROR";
    }
}

API void cudnnGetLastErrorString(char *text, size_t bytes)
{
    if (text && bytes) /* nothing is kept between calls */
        *text = '\0';
}

/* --- tensors ------------------------------------------------------------------------------ */

API int cudnnCreateTensorDescriptor(struct tensor **tensor)
{
    if (!tensor)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *tensor = calloc(1, sizeof **tensor);
    return *tensor ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}

API int cudnnDestroyTensorDescriptor(struct tensor *tensor)
{
    free(tensor);
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnSetTensorNdDescriptor(struct tensor *tensor, int type, int count, const int *sizes,
                                   const int *strides)
{
    if (!tensor || !sizes || !strides)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    if (count < 1 || count > MOST_DIMENSIONS)
        return CUDNN_STATUS_BAD_PARAM;
    tensor->type = type;
    tensor->count = count;
    memcpy(tensor->sizes, sizes, (size_t)count * sizeof *sizes);
    memcpy(tensor->strides, strides, (size_t)count * sizeof *strides);
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnGetTensorNdDescriptor(const struct tensor *tensor, int room, int *type, int *count,
                                   int *sizes, int *strides)
{
    if (!tensor || !type || !count || !sizes || !strides)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *type = tensor->type;
    *count = tensor->count;
    for (int i = 0; i < room && i < tensor->count; i++) {
        sizes[i] = tensor->sizes[i];
        strides[i] = tensor->strides[i];
    }
    return CUDNN_STATUS_SUCCESS;
}

static uint64_t bytes_of(const struct tensor *tensor)
{
    uint64_t elements = tensor->count ? 1 : 0;
    for (int i = 0; i < tensor->count; i++)
        elements = times(elements, tensor->sizes[i] > 0 ? (uint64_t)tensor->sizes[i] : 0);
    return times(elements, dnn_bits(tensor->type)) / 8;
}

/* --- batch normalisation: as long as its memory takes ------------------------------------- */

/* `passes`: how often a tensor of x's size is read or written. */
static int normalise(struct dnn_handle *handle, const struct tensor *x, unsigned int passes)
{
    if (!handle || !x)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    struct work work = memory_work(times(bytes_of(x), passes));
    return work_launch(&work, handle->stream) == 0 ? CUDNN_STATUS_SUCCESS
                                                   : CUDNN_STATUS_EXECUTION_FAILED;
}

static int none_needed(size_t *bytes)
{
    if (!bytes)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *bytes = 0;
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    void *handle, int mode, int operations, const void *x, const void *z, const void *y,
    const void *scale, const void *activation, size_t *bytes)
{
    (void)handle, (void)mode, (void)operations, (void)x, (void)z, (void)y, (void)scale;
    (void)activation;
    return none_needed(bytes);
}

API int cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    void *handle, int mode, int operations, const void *x, const void *y, const void *dy,
    const void *dz, const void *dx, const void *scale, const void *activation, size_t *bytes)
{
    (void)handle, (void)mode, (void)operations, (void)x, (void)y, (void)dy, (void)dz, (void)dx;
    (void)scale, (void)activation;
    return none_needed(bytes);
}

API int cudnnGetBatchNormalizationTrainingExReserveSpaceSize(void *handle, int mode,
                                                             int operations,
                                                             const void *activation,
                                                             const void *x, size_t *bytes)
{
    (void)handle, (void)mode, (void)operations, (void)activation, (void)x;
    return none_needed(bytes);
}

/* Parameters behind the last one that is looked at are left out: the caller cleans the
 * stack in the System V ABI. */
API int cudnnBatchNormalizationForwardTrainingEx(struct dnn_handle *handle, int mode,
                                                 int operations, const void *alpha,
                                                 const void *beta, const struct tensor *x)
{
    (void)mode, (void)operations, (void)alpha, (void)beta;
    return normalise(handle, x, 3); /* mean and variance; x again; y */
}

API int cudnnBatchNormalizationForwardInference(struct dnn_handle *handle, int mode,
                                                const void *alpha, const void *beta,
                                                const struct tensor *x)
{
    (void)mode, (void)alpha, (void)beta;
    return normalise(handle, x, 2);
}

API int cudnnBatchNormalizationBackwardEx(struct dnn_handle *handle, int mode, int operations,
                                          const void *alpha_data, const void *beta_data,
                                          const void *alpha_parameters,
                                          const void *beta_parameters, const struct tensor *x)
{
    (void)mode, (void)operations, (void)alpha_data, (void)beta_data, (void)alpha_parameters;
    (void)beta_parameters;
    return normalise(handle, x, 5); /* x and dy for the sums, both again, dx */
}

/* --- sampling at the points of a grid ------------------------------------------------------ */

API int cudnnCreateSpatialTransformerDescriptor(void **transformer)
{
    if (!transformer)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    *transformer = calloc(1, 1); /* what it says is in the tensors too */
    return *transformer ? CUDNN_STATUS_SUCCESS
                        : CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
}

API int cudnnDestroySpatialTransformerDescriptor(void *transformer)
{
    free(transformer);
    return CUDNN_STATUS_SUCCESS;
}

API int cudnnSetSpatialTransformerNdDescriptor(void *transformer, int sampler, int type, int count,
                                               const int *sizes)
{
    (void)sampler, (void)type, (void)count, (void)sizes;
    return transformer ? CUDNN_STATUS_SUCCESS : CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
}

static int sample(struct dnn_handle *handle, const struct tensor *x, const struct tensor *y,
                  unsigned int passes)
{
    if (!handle || !x || !y)
        return CUDNN_STATUS_BAD_PARAM_NULL_POINTER;
    struct work work = memory_work(times(plus(bytes_of(x), bytes_of(y)), passes));
    return work_launch(&work, handle->stream) == 0 ? CUDNN_STATUS_SUCCESS
                                                   : CUDNN_STATUS_EXECUTION_FAILED;
}

API int cudnnSpatialTfSamplerForward(struct dnn_handle *handle, void *transformer,
                                     const void *alpha, const struct tensor *x_tensor,
                                     const void *x, const void *grid, const void *beta,
                                     const struct tensor *y_tensor, void *y)
{
    (void)transformer, (void)alpha, (void)x, (void)grid, (void)beta, (void)y;
    return sample(handle, x_tensor, y_tensor, 1);
}

API int cudnnSpatialTfSamplerBackward(struct dnn_handle *handle, void *transformer,
                                      const void *alpha, const struct tensor *x_tensor,
                                      const void *x, const void *beta,
                                      const struct tensor *dx_tensor, void *dx,
                                      const void *alpha_grid, const struct tensor *dy_tensor,
                                      const void *dy, const void *grid, const void *beta_grid,
                                      void *grid_gradient)
{
    (void)transformer, (void)alpha, (void)x, (void)beta, (void)dx_tensor, (void)dx;
    (void)alpha_grid, (void)dy, (void)grid, (void)beta_grid, (void)grid_gradient;
    return sample(handle, x_tensor, dy_tensor, 2); /* and the gradients of both */
}
