/* What the stages of the chunked delta rule need besides products of matrices: conversions, and the token-by-token
 * step.
 *
 * One table, filled for an instruction set; the same bits in all of them. */
#ifndef QN_KERNELS_DELTANET_ROW_KERNELS_H
#define QN_KERNELS_DELTANET_ROW_KERNELS_H

#include "quern/kernels.h"

#include <stddef.h>

/* One token of one value head. */
typedef struct qn_gdn_token {
    const float *q, *k, *v; /* [head_k], [head_k], [head_v] */
    float decay, beta;      /* e^g, and the strength */
    float scale;
} qn_gdn_token;

typedef struct qn_gdn_row_kernels {
    /* n elements of F32, F16 or BF16 to floats, and back, rounded to nearest even. x and y do not overlap. */
    void (*to_f32)(float *y, const void *x, qn_dtype dtype, size_t n);
    void (*from_f32)(void *y, const float *x, qn_dtype dtype, size_t n);
    /* y[i] = the nearest value of the type to x[i], n of them; y may be x. */
    void (*round)(float *y, const float *x, qn_dtype dtype, size_t n);
    /* S = state [head_v][head_k]: with d = S k, each a sum in canonical order, v'_x = beta * (v_x - decay * d_x), then
     * S[x][i] = fma(v'_x, k_i, decay * S[x][i]) and o_x = scale * (S q)_x. head_k is a multiple of 16. */
    void (*step)(float *state, const qn_gdn_token *token, size_t head_k, size_t head_v, float *o);
} qn_gdn_row_kernels;

void qn_gdn_row_kernels_init(qn_gdn_row_kernels *rows, unsigned cpu);

void qn_gdn_row_kernels_init_ref(qn_gdn_row_kernels *rows);
void qn_gdn_row_kernels_init_avx2(qn_gdn_row_kernels *rows);
void qn_gdn_row_kernels_init_avx512(qn_gdn_row_kernels *rows);
void qn_gdn_row_kernels_init_neon(qn_gdn_row_kernels *rows);

#endif
