/* Gated delta rule on the CPU: the recurrence of Gated DeltaNet layers with an open chunk, in f32 and in one canonical
 * order.
 *
 * A value head stores its state S as of the last commit and, for every token j since then, the key k_j, the corrected
 * value v'_j and the log decay g_j. These tokens, up to QN_GDN_CHUNK of them, are the open chunk. gc_i is the sum of g
 * over the open chunk's tokens up to and including i; sums and differences of gc are double, and only the difference is
 * rounded to f32. For token i:
 *
 *     a    = e^gc_i * (S k_i), then a += (e^(gc_i-gc_j) * (k_i.k_j)) * v'_j    for j < i
 *     v'_i = beta_i * (v_i - a)
 *     b    = e^gc_i * (S q_i), then b += (e^(gc_i-gc_j) * (q_i.k_j)) * v'_j    for j <= i
 *     o_i  = scale * b
 *
 * A full chunk is committed to the state when the next token arrives, not before, so every QN_GDN_CHUNK tokens:
 *
 *     S = e^gc_last * S, then S += k_j (e^(gc_last-gc_j) * v'_j)^T             for all j
 *
 * All sums over j are in ascending order of j, with one fused multiply-add each. S k, S q and the dot products k.k and
 * q.k are sums over the key dimension in ascending order, one fused multiply-add each, from zero. All exponents are <=
 * 0, by subtraction before exp. A token's result therefore depends only on its position, not on how the tokens were
 * split over calls. The values of a head are independent of each other, so a head can be split into slices of values
 * for several threads.
 *
 * Method: Yang et al., Gated Delta Networks (2024); chunked form: Parallelizing Linear Transformers with the Delta Rule
 * (2024). */
#ifndef QN_KERNELS_DELTANET_DELTANET_H
#define QN_KERNELS_DELTANET_DELTANET_H

#include "plan/page.h"

#include <stdbool.h>
#include <stddef.h>

enum { QN_GDN_UNIT = 16, QN_GDN_MAX_DIM = 256, QN_CONV_MAX_TAPS = 8 };

typedef struct qn_deltanet_kernels {
    /* c[i, x] = (accumulate ? c[i, x] : 0), then += a[i*a_row + j*a_col] * b[j*b_row + x] for j < k ascending, one
     * fused multiply-add each; i < m, x < n. Any m, n, k >= 0; c overlaps neither a nor b. Exactly m x n elements are
     * written, and of b exactly the elements of the formula are read. next: the address read after b, to prefetch, or
     * NULL; only a hint. */
    void (*gemm)(float *c, size_t c_row, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row,
                 size_t m, size_t n, size_t k, bool accumulate, const float *next);
    /* x[i*x_row + j] = e^(at - gc[j]) * x[i*x_row + j], i < m, j < n: the difference in double, rounded to f32; then
     * qn_exp of kernels/canon.h. */
    void (*gate)(float *x, size_t x_row, size_t m, double at, const double *gc, size_t n);
    /* y[x] = factor * a[x], x < n; y may be a. */
    void (*scale)(float *y, const float *a, float factor, size_t n);
    /* y[x] = beta * (v[x] - a[x]), x < n; y may be v or a. */
    void (*delta)(float *y, const float *v, const float *a, float beta, size_t n);
    /* y[x] = silu(sum over taps t ascending of weights[t*w_row + x] * inputs[t][x]), x < n; the first tap is a
     * multiply, the others one fused multiply-add each; 1 <= taps <= QN_CONV_MAX_TAPS. y overlaps no input. */
    void (*conv)(float *y, const float *const *inputs, const float *weights, size_t w_row, size_t taps, size_t n);
} qn_deltanet_kernels;

void qn_deltanet_kernels_init(qn_deltanet_kernels *kernels, unsigned cpu);

/* A value head, or a slice of its values: its state and open chunk, and its rows of the new tokens. Pointers to values
 * point to the slice's first value. */
typedef struct qn_gdn_head {
    float *state; /* [head_k][state_row]: S transposed, the values of a key dimension are contiguous */
    size_t state_row;
    float *v_new; /* [QN_GDN_CHUNK][v_new_row]: v' of the open chunk's tokens */
    size_t v_new_row;
    const float *log_decay;    /* [QN_GDN_CHUNK]: g of the open chunk's tokens; not changed by qn_gdn_advance */
    const float *v, *g, *beta; /* of the first new token */
    float *o;                  /* of the first new token */
} qn_gdn_head;

/* Value heads that share a key head, or the same slice of each of them, and the new tokens. Row i of a token array
 * begins i*stride elements after the array's first. */
typedef struct qn_gdn_group {
    size_t head_k, n_values; /* key dimension; values of each head; multiples of QN_GDN_UNIT, at most QN_GDN_MAX_DIM */
    const qn_gdn_head *heads;
    size_t n_heads;
    const float *keys;  /* [head_k][QN_GDN_CHUNK]: keys of the open chunk, one column per token; not changed */
    size_t open_tokens; /* tokens in the open chunk before this call, 0 to QN_GDN_CHUNK */
    size_t n;           /* new tokens */
    const float *q, *k;
    size_t qk_stride, v_stride, gate_stride, o_stride;
    float scale;
    const float *next; /* the next group's keys or state, to prefetch, or NULL; only a hint */
} qn_gdn_group;

/* qn_gdn_advance - processes n new tokens in the heads of a group: writes outputs, updates states and corrected values.
 *
 * Keys and decays are shared with other groups and slices: when all of these have advanced, the caller updates them
 * with qn_gdn_append_keys and qn_gdn_append_decay. scratch: qn_gdn_scratch(head_k) bytes, aligned to 64 bytes. Threads:
 * safe on distinct groups and slices, each with its own scratch. */
void qn_gdn_advance(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, void *scratch);

/* qn_gdn_scratch - returns the scratch bytes of qn_gdn_advance and qn_gdn_flush. */
size_t qn_gdn_scratch(size_t head_k);

/* qn_gdn_open_tokens_after - returns the number of tokens in the open chunk after n more. */
size_t qn_gdn_open_tokens_after(size_t open_tokens, size_t n);

/* qn_gdn_append_keys - stores the keys of those new tokens that are in the open chunk after a call.
 *
 *   keys          [head_k][QN_GDN_CHUNK]
 *   open_tokens   tokens in the open chunk before the n new ones
 *   k             [n][head_k], rows k_stride apart */
void qn_gdn_append_keys(float *keys, size_t head_k, size_t open_tokens, const float *k, size_t k_stride, size_t n);

/* qn_gdn_append_decay - stores g of those new tokens that are in the open chunk after a call.
 *
 *   log_decay     [QN_GDN_CHUNK]
 *   open_tokens   tokens in the open chunk before the n new ones
 *   g             [n], g_stride apart */
void qn_gdn_append_decay(float *log_decay, size_t open_tokens, const float *g, size_t g_stride, size_t n);

/* qn_gdn_flush - commits the open chunk's open_tokens tokens to the states. The chunk is empty afterwards: the caller
 * sets open_tokens to 0. */
void qn_gdn_flush(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, void *scratch);

/* qn_gdn_log_decay - returns a token's g = softplus(alpha + bias) * a, with a < 0. */
float qn_gdn_log_decay(float alpha, float bias, float a);

/* qn_gdn_beta - returns a token's beta = sigmoid(x). */
float qn_gdn_beta(float x);

void qn_deltanet_init_ref(qn_deltanet_kernels *kernels);
void qn_deltanet_init_avx2(qn_deltanet_kernels *kernels);
void qn_deltanet_init_avx512(qn_deltanet_kernels *kernels);
void qn_deltanet_init_neon(qn_deltanet_kernels *kernels);

#endif
