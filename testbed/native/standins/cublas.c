/* cuBLAS on an emulated card: products, triangular solves and the few vector calls that
 * torch makes, each one launch of known cost. Nothing is computed. What is not here (LU,
 * QR, least squares, …) answers "not supported": torch would read pivots and statuses
 * that nobody wrote. */
#include "cost.h"
#include "standin.h"

struct handle {
    CUstream stream;
    int math, pointer_mode;
};

/* --- handles ----------------------------------------------------------------------- */

API int cublasCreate_v2(struct handle **handle)
{
    if (!handle)
        return CUBLAS_STATUS_INVALID_VALUE;
    *handle = NULL;
    if (work_ready() != 0)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    *handle = calloc(1, sizeof **handle);
    return *handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_ALLOC_FAILED;
}

API int cublasDestroy_v2(struct handle *handle)
{
    free(handle);
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

API int cublasSetStream_v2(struct handle *handle, CUstream stream)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->stream = stream;
    return CUBLAS_STATUS_SUCCESS;
}

API int cublasGetStream_v2(struct handle *handle, CUstream *stream)
{
    if (!handle || !stream)
        return handle ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_INITIALIZED;
    *stream = handle->stream;
    return CUBLAS_STATUS_SUCCESS;
}

API int cublasSetWorkspace_v2(struct handle *handle, void *workspace, size_t bytes)
{
    (void)workspace, (void)bytes; /* torch's own allocation: it counts as such */
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

API int cublasSetMathMode(struct handle *handle, int mode)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->math = mode;
    return CUBLAS_STATUS_SUCCESS;
}

API int cublasGetMathMode(struct handle *handle, int *mode)
{
    if (!handle || !mode)
        return handle ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_INITIALIZED;
    *mode = handle->math;
    return CUBLAS_STATUS_SUCCESS;
}

API int cublasSetPointerMode_v2(struct handle *handle, int mode)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    handle->pointer_mode = mode;
    return CUBLAS_STATUS_SUCCESS;
}

API int cublasGetPointerMode_v2(struct handle *handle, int *mode)
{
    if (!handle || !mode)
        return handle ? CUBLAS_STATUS_INVALID_VALUE : CUBLAS_STATUS_NOT_INITIALIZED;
    *mode = handle->pointer_mode;
    return CUBLAS_STATUS_SUCCESS;
}

API int cublasSetSmCountTarget(struct handle *handle, int count)
{
    (void)count;
    return handle ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_INITIALIZED;
}

static int launched(struct handle *handle, struct work work)
{
    return work_launch(&work, handle->stream) == 0 ? CUBLAS_STATUS_SUCCESS
                                                   : CUBLAS_STATUS_EXECUTION_FAILED;
}

/* --- products ---------------------------------------------------------------------- */

/* Only where it is surely zero is C not read: a factor on the card is not looked at. */
static bool zero(const struct handle *handle, const void *factor, size_t bytes)
{
    static const char nothing[16];
    return factor && handle->pointer_mode == CUBLAS_POINTER_MODE_HOST &&
           memcmp(factor, nothing, bytes) == 0;
}

/* Bytes of alpha and beta: those of the type that is computed in. */
static size_t factor_bytes(int c_type, int compute)
{
    size_t bytes = compute == 64 || compute == 65 ? 2 : compute == 70 || compute == 71 ? 8 : 4;
    return blas_complex(c_type) ? 2 * bytes : bytes;
}

struct gemm {
    int m, n, k, a_type, b_type, c_type, compute, batch;
    const void *beta;
    long long stride_a, stride_b;
    bool strided; /* else each product has its own operands */
};

static int gemm(struct handle *handle, const struct gemm *g)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (g->m < 0 || g->n < 0 || g->k < 0 || g->batch < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    if (!blas_bits(g->a_type) || !blas_bits(g->b_type) || !blas_bits(g->c_type))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    struct product product = {
        .m = (uint64_t)g->m,
        .n = (uint64_t)g->n,
        .k = (uint64_t)g->k,
        .batch = (uint64_t)g->batch,
        .a_type = g->a_type,
        .b_type = g->b_type,
        .c_type = g->c_type,
        .share_a = g->strided && g->stride_a == 0,
        .share_b = g->strided && g->stride_b == 0,
        .read_c = !zero(handle, g->beta, factor_bytes(g->c_type, g->compute)),
    };
    return launched(handle,
                    product_work(&product, blas_precision(g->a_type, g->compute, handle->math)));
}

/* CUDA type, and what it is computed in, by the letter of a function. */
#define S_TYPES CUDA_R_32F, CUBLAS_COMPUTE_32F
#define D_TYPES CUDA_R_64F, 70
#define C_TYPES CUDA_C_32F, CUBLAS_COMPUTE_32F
#define Z_TYPES CUDA_C_64F, 70
#define FOR_LETTERS(X) X(S, S_TYPES) X(D, D_TYPES) X(C, C_TYPES) X(Z, Z_TYPES)
#define EXPAND(MACRO, ...) MACRO(__VA_ARGS__)

#define GEMMS(letter, type, computed)                                                              \
    API int cublas##letter##gemm_v2(struct handle *handle, int op_a, int op_b, int m, int n,       \
                                    int k, const void *alpha, const void *a, int lda,              \
                                    const void *b, int ldb, const void *beta, void *c, int ldc)    \
    {                                                                                              \
        (void)op_a, (void)op_b, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)c,      \
            (void)ldc;                                                                             \
        return gemm(handle, &(struct gemm){m, n, k, type, type, type, computed, 1, beta, 1, 1,     \
                                           true});                                                 \
    }                                                                                              \
    API int cublas##letter##gemmStridedBatched(                                                    \
        struct handle *handle, int op_a, int op_b, int m, int n, int k, const void *alpha,         \
        const void *a, int lda, long long stride_a, const void *b, int ldb, long long stride_b,    \
        const void *beta, void *c, int ldc, long long stride_c, int batch)                         \
    {                                                                                              \
        (void)op_a, (void)op_b, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)c,      \
            (void)ldc, (void)stride_c;                                                             \
        return gemm(handle, &(struct gemm){m, n, k, type, type, type, computed, batch, beta,       \
                                           stride_a, stride_b, true});                             \
    }                                                                                              \
    API int cublas##letter##gemmBatched(struct handle *handle, int op_a, int op_b, int m, int n,   \
                                        int k, const void *alpha, const void *const a[], int lda,  \
                                        const void *const b[], int ldb, const void *beta,          \
                                        void *const c[], int ldc, int batch)                       \
    {                                                                                              \
        (void)op_a, (void)op_b, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)c,      \
            (void)ldc;                                                                             \
        return gemm(handle, &(struct gemm){m, n, k, type, type, type, computed, batch, beta, 0, 0, \
                                           false});                                                \
    }
#define X(letter, types) EXPAND(GEMMS, letter, types)
FOR_LETTERS(X)
#undef X

API int cublasSgemmEx(struct handle *handle, int op_a, int op_b, int m, int n, int k,
                      const void *alpha, const void *a, int a_type, int lda, const void *b,
                      int b_type, int ldb, const void *beta, void *c, int c_type, int ldc)
{
    (void)op_a, (void)op_b, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)c, (void)ldc;
    return gemm(handle, &(struct gemm){m, n, k, a_type, b_type, c_type, CUBLAS_COMPUTE_32F, 1,
                                       beta, 1, 1, true});
}

API int cublasGemmEx(struct handle *handle, int op_a, int op_b, int m, int n, int k,
                     const void *alpha, const void *a, int a_type, int lda, const void *b,
                     int b_type, int ldb, const void *beta, void *c, int c_type, int ldc,
                     int compute, int algorithm)
{
    (void)op_a, (void)op_b, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)c,
        (void)ldc, (void)algorithm;
    return gemm(handle, &(struct gemm){m, n, k, a_type, b_type, c_type, compute, 1, beta, 1, 1,
                                       true});
}

API int cublasGemmStridedBatchedEx(struct handle *handle, int op_a, int op_b, int m, int n, int k,
                                   const void *alpha, const void *a, int a_type, int lda,
                                   long long stride_a, const void *b, int b_type, int ldb,
                                   long long stride_b, const void *beta, void *c, int c_type,
                                   int ldc, long long stride_c, int batch, int compute,
                                   int algorithm)
{
    (void)op_a, (void)op_b, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb, (void)c,
        (void)ldc, (void)stride_c, (void)algorithm;
    return gemm(handle, &(struct gemm){m, n, k, a_type, b_type, c_type, compute, batch, beta,
                                       stride_a, stride_b, true});
}

/* --- a matrix and a vector, vectors --------------------------------------------------- */

static int gemv(struct handle *handle, int op, int m, int n, int type, const void *beta)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    struct product product = {
        .m = (uint64_t)(op == CUBLAS_OP_N ? m : n),
        .n = 1,
        .k = (uint64_t)(op == CUBLAS_OP_N ? n : m),
        .batch = 1,
        .a_type = type,
        .b_type = type,
        .c_type = type,
        .read_c = !zero(handle, beta, blas_bits(type) / 8),
    };
    return launched(handle, product_work(&product, blas_precision(type, CUBLAS_COMPUTE_32F,
                                                                  CUBLAS_DEFAULT_MATH)));
}

static int vector(struct handle *handle, int n, unsigned int flops, unsigned int moved, int type)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    return launched(handle, vector_work(n > 0 ? (uint64_t)n : 0, flops, moved, type));
}

/* The caller reads a result on the host at once: it must not be what was there before. */
static int dot(struct handle *handle, int n, int type, void *result, int result_type)
{
    if (handle && handle->pointer_mode == CUBLAS_POINTER_MODE_HOST && result)
        memset(result, 0, blas_bits(result_type) / 8);
    return vector(handle, n, 2, 2, type);
}

#define VECTORS(letter, type, computed)                                                            \
    API int cublas##letter##gemv_v2(struct handle *handle, int op, int m, int n,                   \
                                    const void *alpha, const void *a, int lda, const void *x,      \
                                    int step_x, const void *beta, void *y, int step_y)             \
    {                                                                                              \
        (void)alpha, (void)a, (void)lda, (void)x, (void)step_x, (void)y, (void)step_y;             \
        return gemv(handle, op, m, n, type, beta);                                                 \
    }                                                                                              \
    API int cublas##letter##scal_v2(struct handle *handle, int n, const void *alpha, void *x,      \
                                    int step)                                                      \
    {                                                                                              \
        (void)alpha, (void)x, (void)step;                                                          \
        return vector(handle, n, 1, 2, type);                                                      \
    }                                                                                              \
    API int cublas##letter##axpy_v2(struct handle *handle, int n, const void *alpha,               \
                                    const void *x, int step_x, void *y, int step_y)                \
    {                                                                                              \
        (void)alpha, (void)x, (void)step_x, (void)y, (void)step_y;                                 \
        return vector(handle, n, 2, 3, type);                                                      \
    }                                                                                              \
    API int cublas##letter##copy_v2(struct handle *handle, int n, const void *x, int step_x,       \
                                    void *y, int step_y)                                           \
    {                                                                                              \
        (void)x, (void)step_x, (void)y, (void)step_y;                                              \
        return vector(handle, n, 0, 2, type);                                                      \
    }                                                                                              \
    API int cublas##letter##swap_v2(struct handle *handle, int n, void *x, int step_x, void *y,    \
                                    int step_y)                                                    \
    {                                                                                              \
        (void)x, (void)step_x, (void)y, (void)step_y;                                              \
        return vector(handle, n, 0, 4, type);                                                      \
    }
#define X(letter, types) EXPAND(VECTORS, letter, types)
FOR_LETTERS(X)
#undef X

#define DOT(name, type)                                                                            \
    API int cublas##name##_v2(struct handle *handle, int n, const void *x, int step_x,             \
                              const void *y, int step_y, void *result)                             \
    {                                                                                              \
        (void)x, (void)step_x, (void)y, (void)step_y;                                              \
        return dot(handle, n, type, result, type);                                                 \
    }
DOT(Sdot, CUDA_R_32F)
DOT(Ddot, CUDA_R_64F)
DOT(Cdotu, CUDA_C_32F)
DOT(Cdotc, CUDA_C_32F)
DOT(Zdotu, CUDA_C_64F)
DOT(Zdotc, CUDA_C_64F)

API int cublasDotEx(struct handle *handle, int n, const void *x, int x_type, int step_x,
                    const void *y, int y_type, int step_y, void *result, int result_type,
                    int execution)
{
    (void)x, (void)step_x, (void)y, (void)y_type, (void)step_y, (void)execution;
    return dot(handle, n, x_type, result, result_type);
}

/* --- triangular solves ------------------------------------------------------------------ */

static int trsm(struct handle *handle, int side, int m, int n, int type, int batch)
{
    if (!handle)
        return CUBLAS_STATUS_NOT_INITIALIZED;
    if (m < 0 || n < 0 || batch < 0)
        return CUBLAS_STATUS_INVALID_VALUE;
    bool left = side == CUBLAS_SIDE_LEFT;
    return launched(handle, triangle_work((uint64_t)(left ? m : n), (uint64_t)(left ? n : m),
                                          (uint64_t)batch, type));
}

#define SOLVES(letter, type, computed)                                                             \
    API int cublas##letter##trsm_v2(struct handle *handle, int side, int part, int op, int unit,   \
                                    int m, int n, const void *alpha, const void *a, int lda,       \
                                    void *b, int ldb)                                              \
    {                                                                                              \
        (void)part, (void)op, (void)unit, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb;     \
        return trsm(handle, side, m, n, type, 1);                                                  \
    }                                                                                              \
    API int cublas##letter##trsmBatched(struct handle *handle, int side, int part, int op,         \
                                        int unit, int m, int n, const void *alpha,                 \
                                        const void *const a[], int lda, void *const b[], int ldb,  \
                                        int batch)                                                 \
    {                                                                                              \
        (void)part, (void)op, (void)unit, (void)alpha, (void)a, (void)lda, (void)b, (void)ldb;     \
        return trsm(handle, side, m, n, type, batch);                                              \
    }
#define X(letter, types) EXPAND(SOLVES, letter, types)
FOR_LETTERS(X)
#undef X
