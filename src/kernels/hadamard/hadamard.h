/* Signed block Walsh-Hadamard transform: y = H (S x) or y = S (H x) for each of contiguous blocks of n.
 *
 * H is the normalised Sylvester matrix, H[r][c] = (-1)^popcount(r & c) / sqrt(n), S a diagonal of signs. The transform
 * is log2(n) stages of butterflies (a, b) -> (a + b, a - b) with strides 1, 2, 4, ... n/2, each sum rounded to f32, and
 * one multiplication by 1/sqrt(n) (rounded to f32) at the end: all variants give the same bits. */
#ifndef QN_KERNELS_HADAMARD_HADAMARD_H
#define QN_KERNELS_HADAMARD_HADAMARD_H

#include <stddef.h>

enum { QN_HADAMARD_MAX_BLOCK = 1 << 16 };

typedef struct qn_hadamard_kernels {
    /* Transforms one block in place: x [n], n a power of two, 1 to QN_HADAMARD_MAX_BLOCK. signs_before and signs_after:
     * [n] floats of +-1 that multiply x before and after the butterflies, or NULL. */
    void (*block)(float *x, size_t n, const float *signs_before, const float *signs_after);
} qn_hadamard_kernels;

void qn_hadamard_kernels_init(qn_hadamard_kernels *kernels, unsigned cpu);

/* qn_hadamard_scale - returns 1/sqrt(n), rounded to f32. */
float qn_hadamard_scale(size_t n);

void qn_hadamard_init_ref(qn_hadamard_kernels *kernels);
void qn_hadamard_init_avx2(qn_hadamard_kernels *kernels);
void qn_hadamard_init_avx512(qn_hadamard_kernels *kernels);
void qn_hadamard_init_neon(qn_hadamard_kernels *kernels);

#endif
