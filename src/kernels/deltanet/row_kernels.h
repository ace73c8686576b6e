/* Row kernels of the public Gated DeltaNet functions: conversions between f32 and D, and the token-by-token step.
 *
 * One table, filled for an instruction set; all variants give the same bits. */
#ifndef QN_KERNELS_DELTANET_ROW_KERNELS_H
#define QN_KERNELS_DELTANET_ROW_KERNELS_H

#include "quern/kernels.h"

#include <stddef.h>

/* One token of one value head. */
typedef struct qn_gdn_token {
    const float *q, *k, *v; /* [head_k], [head_k], [head_v] */
    float decay, beta;      /* decay = e^g */
    float scale;
} qn_gdn_token;

typedef struct qn_gdn_row_kernels {
    /* Convert n elements of F32, F16 or BF16 to f32, and f32 back, rounded to nearest even. x and y must not
     * overlap. */
    void (*to_f32)(float *y, const void *x, qn_dtype dtype, size_t n);
    void (*from_f32)(void *y, const float *x, qn_dtype dtype, size_t n);
    /* y[i] = x[i] rounded to dtype, to nearest even, i < n; y may be x. */
    void (*round)(float *y, const float *x, qn_dtype dtype, size_t n);
    /* One token of the recurrence, S = state [head_v][head_k]: v'_x = beta * (v_x - decay * (S k)_x), then
     * S[x][i] = fma(v'_x, k_i, decay * S[x][i]) and o_x = scale * (S q)_x. S k and S q are sums in the canonical order
     * of kernels/canon.h. head_k and head_v are multiples of 16. */
    void (*step)(float *state, const qn_gdn_token *token, size_t head_k, size_t head_v, float *o);
} qn_gdn_row_kernels;

void qn_gdn_row_kernels_init(qn_gdn_row_kernels *rows, unsigned cpu);

void qn_gdn_row_kernels_init_ref(qn_gdn_row_kernels *rows);
void qn_gdn_row_kernels_init_avx2(qn_gdn_row_kernels *rows);
void qn_gdn_row_kernels_init_avx512(qn_gdn_row_kernels *rows);
void qn_gdn_row_kernels_init_neon(qn_gdn_row_kernels *rows);

#endif
