/* cuBLASLt on an emulated card: descriptors, one algorithm for everything, and the product
 * as one launch of known cost. Epilogues (bias, activation) cost nothing of their own. */
#include "cost.h"
#include "standin.h"

/* The interface's descriptors are opaque; callers only hold pointers. */
struct operation {
    int compute, op_a, op_b;
};

struct layout {
    int type;
    uint64_t rows, columns;
    int32_t batch;
    int64_t stride;
};

static int created(void **object, size_t bytes)
{
    if (!object)
        return CUBLAS_STATUS_INVALID_VALUE;
    *object = calloc(1, bytes);
    return *object ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

static int destroyed(void *object)
{
    free(object);
    return CUBLAS_STATUS_SUCCESS;
}

/* Takes a value whose size is that of the field. */
#define TAKE(field)                                                                                \
    do {                                                                                           \
        if (bytes < sizeof(field))                                                                 \
            return CUBLAS_STATUS_INVALID_VALUE;                                                    \
        memcpy(&(field), value, sizeof(field));                                                    \
        return CUBLAS_STATUS_SUCCESS;                                                              \
    } while (0)

API int cublasLtMatmulDescCreate(struct operation **operation, int compute, int scale_type)
{
    (void)scale_type;
    int status = created((void **)operation, sizeof **operation);
    if (status == CUBLAS_STATUS_SUCCESS)
        (*operation)->compute = compute;
    return status;
}

API int cublasLtMatmulDescDestroy(struct operation *operation)
{
    return destroyed(operation);
}

API int cublasLtMatmulDescSetAttribute(struct operation *operation, int name, const void *value,
                                       size_t bytes)
{
    if (!operation || !value)
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (name) {
    case CUBLASLT_MATMUL_DESC_COMPUTE_TYPE:
        TAKE(operation->compute);
    case CUBLASLT_MATMUL_DESC_TRANSA:
        TAKE(operation->op_a);
    case CUBLASLT_MATMUL_DESC_TRANSB:
        TAKE(operation->op_b);
    default:
        return CUBLAS_STATUS_SUCCESS; /* says nothing about the cost */
    }
}

API int cublasLtMatrixLayoutCreate(struct layout **layout, int type, uint64_t rows,
                                   uint64_t columns, int64_t leading)
{
    (void)leading;
    int status = created((void **)layout, sizeof **layout);
    if (status == CUBLAS_STATUS_SUCCESS)
        **layout = (struct layout){.type = type, .rows = rows, .columns = columns, .batch = 1};
    return status;
}

API int cublasLtMatrixLayoutDestroy(struct layout *layout)
{
    return destroyed(layout);
}

API int cublasLtMatrixLayoutSetAttribute(struct layout *layout, int name, const void *value,
                                         size_t bytes)
{
    if (!layout || !value)
        return CUBLAS_STATUS_INVALID_VALUE;
    switch (name) {
    case CUBLASLT_MATRIX_LAYOUT_TYPE:
        TAKE(layout->type);
    case CUBLASLT_MATRIX_LAYOUT_ROWS:
        TAKE(layout->rows);
    case CUBLASLT_MATRIX_LAYOUT_COLS:
        TAKE(layout->columns);
    case CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT:
        TAKE(layout->batch);
    case CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET:
        TAKE(layout->stride);
    default:
        return CUBLAS_STATUS_SUCCESS;
    }
}

API int cublasLtMatmulPreferenceCreate(void **preference)
{
    return created(preference, 1);
}

API int cublasLtMatmulPreferenceDestroy(void *preference)
{
    return destroyed(preference);
}

API int cublasLtMatmulPreferenceSetAttribute(void *preference, int name, const void *value,
                                             size_t bytes)
{
    (void)name, (void)bytes;
    return preference && value ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

/* --- algorithms: one, which needs no workspace ----------------------------------------- */

API int cublasLtMatmulAlgoGetHeuristic(void *handle, const struct operation *operation,
                                       const struct layout *a, const struct layout *b,
                                       const struct layout *c, const struct layout *d,
                                       const void *preference, int room,
                                       cublasLtMatmulHeuristicResult_t *results, int *count)
{
    (void)preference, (void)c;
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!operation || !a || !b || !d || !results || !count || room < 1)
        return CUBLAS_STATUS_INVALID_VALUE;
    *results = (cublasLtMatmulHeuristicResult_t){.wavesCount = 1.0f};
    *count = 1;
    return CUBLAS_STATUS_SUCCESS;
}

API int cublasLtMatmulAlgoInit(void *handle, int compute, int scale_type, int a_type, int b_type,
                               int c_type, int d_type, int number, cublasLtMatmulAlgo_t *algorithm)
{
    (void)compute, (void)scale_type, (void)a_type, (void)b_type, (void)c_type, (void)d_type;
    (void)number;
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!algorithm)
        return CUBLAS_STATUS_INVALID_VALUE;
    *algorithm = (cublasLtMatmulAlgo_t){0};
    return CUBLAS_STATUS_SUCCESS;
}

API int cublasLtMatmulAlgoCheck(void *handle, const struct operation *operation,
                                const struct layout *a, const struct layout *b,
                                const struct layout *c, const struct layout *d,
                                const cublasLtMatmulAlgo_t *algorithm,
                                cublasLtMatmulHeuristicResult_t *result)
{
    int count = 0;
    if (!algorithm)
        return CUBLAS_STATUS_INVALID_VALUE;
    return cublasLtMatmulAlgoGetHeuristic(handle, operation, a, b, c, d, NULL, 1, result, &count);
}

API int cublasLtMatmulAlgoConfigSetAttribute(cublasLtMatmulAlgo_t *algorithm, int name,
                                             const void *value, size_t bytes)
{
    (void)name, (void)bytes;
    return algorithm && value ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

API int cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t *algorithm, int name,
                                             void *value, size_t bytes, size_t *written)
{
    (void)name;
    if (!algorithm || (bytes ? !value : !written))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (bytes)
        memset(value, 0, bytes);
    if (written)
        *written = bytes ? bytes : sizeof(uint32_t);
    return CUBLAS_STATUS_SUCCESS;
}

/* --- the product ------------------------------------------------------------------------ */

API int cublasLtMatmul(void *handle, const struct operation *operation, const void *alpha,
                       const void *a, const struct layout *a_layout, const void *b,
                       const struct layout *b_layout, const void *beta, const void *c,
                       const struct layout *c_layout, void *d, const struct layout *d_layout,
                       const cublasLtMatmulAlgo_t *algorithm, void *workspace,
                       size_t workspace_bytes, CUstream stream)
{
    (void)alpha, (void)a, (void)b, (void)c_layout, (void)algorithm, (void)workspace;
    (void)workspace_bytes;
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (!operation || !a_layout || !b_layout || !d_layout || d_layout->batch < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!blas_bits(a_layout->type) || !blas_bits(b_layout->type) || !blas_bits(d_layout->type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct product product = {
        .m = d_layout->rows,
        .n = d_layout->columns,
        .k = operation->op_a == CUBLAS_OP_N ? a_layout->columns : a_layout->rows,
        .batch = (uint64_t)d_layout->batch,
        .a_type = a_layout->type,
        .b_type = b_layout->type,
        .c_type = d_layout->type,
        .share_a = a_layout->batch <= 1 || a_layout->stride == 0,
        .share_b = b_layout->batch <= 1 || b_layout->stride == 0,
        /* Without knowing the factor's place and type: a C that is not D is read. */
        .read_c = beta && c && c != d,
    };
    struct work work =
        product_work(&product, blas_precision(a_layout->type, operation->compute,
                                              CUBLAS_DEFAULT_MATH));
    return work_launch(&work, stream) == 0 ? CUBLAS_STATUS_SUCCESS
                                           : CUBLAS_STATUS_EXECUTION_FAILED;
}
