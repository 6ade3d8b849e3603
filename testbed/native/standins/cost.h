/* What operations cost: floating-point operations and bytes moved, from their shapes.
 *
 * A multiplication and an addition are two flops. Bytes are those of every operand and
 * result once, as if the card's caches held what is used again. Numbers that do not fit
 * 64 bits stay at the largest that does.
 */
#ifndef VGPU_COST_H
#define VGPU_COST_H

#include "work.h"

#include <stdbool.h>

uint64_t times(uint64_t a, uint64_t b); /* saturating */
uint64_t plus(uint64_t a, uint64_t b);

/* Bits of one element, 0 where the type is unknown; complex ones are two parts. */
unsigned int blas_bits(int type);
bool blas_complex(int type);
unsigned int dnn_bits(int type);

/* What the units that multiply such operands are. `compute` is a cublasComputeType_t,
 * `math` a cublasMath_t (its flags are left out). */
enum precision blas_precision(int type, int compute, int math);
/* `tensor_cores`: fp32 operands may be rounded to TF32. */
enum precision dnn_precision(int type, bool tensor_cores);

/* C(m,n) = op(A)(m,k) op(B)(k,n) + beta C: 2 m n k flops for each of `batch`, four times
 * that for complex numbers. An operand that all products share is read once. */
struct product {
    uint64_t m, n, k, batch;
    int a_type, b_type, c_type;
    bool share_a, share_b;
    bool read_c; /* beta is not known to be 0 */
};
struct work product_work(const struct product *product, enum precision precision);

/* op(A) X = alpha B with a triangle A of order `order`, and `columns` right-hand sides:
 * order^2 columns flops. */
struct work triangle_work(uint64_t order, uint64_t columns, uint64_t batch, int type);

/* Vectors: `flops` for each of n elements, `moved` elements read or written for each. */
struct work vector_work(uint64_t n, unsigned int flops, unsigned int moved, int type);

/* An operation that only moves memory. */
struct work memory_work(uint64_t bytes);

#endif
