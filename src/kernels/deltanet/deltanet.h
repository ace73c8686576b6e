/* Gated delta rule over an open chunk: what Gated DeltaNet layers compute, in float32 and in one canonical order.
 *
 * A value head remembers a state S as it was at the last multiple of QN_GDN_CHUNK tokens, and of every token j since then its
 * key k_j, its corrected value v'_j and its log decay g_j ("the open chunk"). With gc_i = g of the open chunk's tokens up to
 * and including i, summed and differenced in double and only the difference rounded, token i gives
 *
 *     a    = e^gc_i * (S k_i), then a += (e^(gc_i-gc_j) * (k_i.k_j)) * v'_j     j < i rising, one fused multiply-add each
 *     v'_i = beta_i * (v_i - a)
 *     b    = e^gc_i * (S q_i), then b += (e^(gc_i-gc_j) * (q_i.k_j)) * v'_j     j <= i rising, one fused multiply-add each
 *     o_i  = scale * b
 *
 * and a chunk that is full is closed when the next token comes, not before:
 *
 *     S = e^gc_last * S, then S += k_j (e^(gc_last-gc_j) * v'_j)^T               j rising, one fused multiply-add each
 *
 * S k, S q and the dots k.k and q.k are sums over the key dimension in rising order, one fused multiply-add each, from zero.
 * All exponents are <= 0 and chosen before exp. So a token's result depends on its position alone, however the tokens were
 * split over calls; and since values of a head never meet each other, a head can be cut into slices of values for several
 * threads. Yang et al., Gated Delta Networks (2024); the chunk form, Parallelizing Linear Transformers with the Delta Rule
 * (2024). */
#ifndef QN_KERNELS_DELTANET_DELTANET_H
#define QN_KERNELS_DELTANET_DELTANET_H

#include <stdbool.h>
#include <stddef.h>

enum { QN_GDN_CHUNK = 64, QN_GDN_UNIT = 16, QN_GDN_MAX_DIM = 256, QN_CONV_MAX_TAPS = 8 };

typedef struct qn_deltanet_kernels {
    /* c[i, x] = (accumulate ? c[i, x] : 0), then += a[i*a_row + j*a_col] * b[j*b_row + x] for j < k rising, one fused
     * multiply-add each; i < m, x < n. Any m, n, k >= 0; c overlaps neither a nor b. Exactly m x n elements are written, and of
     * b exactly the elements named are read. next: what will be read after b, or NULL; only a hint. */
    void (*gemm)(float *c, size_t c_row, const float *a, size_t a_row, size_t a_col, const float *b, size_t b_row, size_t m,
                 size_t n, size_t k, bool accumulate, const float *next);
    /* x[i*x_row + j] = e^(at - sums[j]) * x[i*x_row + j], i < m, j < n: the difference in double, rounded to float; then qn_exp
     * of kernels/canon.h. */
    void (*gate)(float *x, size_t x_row, size_t m, double at, const double *gc, size_t n);
    /* y[x] = factor * a[x], x < n; y may be a. */
    void (*scale)(float *y, const float *a, float factor, size_t n);
    /* y[x] = beta * (v[x] - a[x]), x < n; y may be either. */
    void (*delta)(float *y, const float *v, const float *a, float beta, size_t n);
    /* y[x] = silu(sum over taps t rising of weights[t*w_row + x] * inputs[t][x]), x < n; the first tap is a product, the others
     * one fused multiply-add each; 1 <= taps <= QN_CONV_MAX_TAPS. y overlaps nothing. */
    void (*conv)(float *y, const float *const *inputs, const float *weights, size_t w_row, size_t taps, size_t n);
} qn_deltanet_kernels;

void qn_deltanet_kernels_init(qn_deltanet_kernels *kernels, unsigned cpu);

/* A value head, or a slice of its values: what it remembers, and its part of the tokens that come. Pointers to values begin at
 * the slice. */
typedef struct qn_gdn_head {
    float *state; /* [head_k][state_row]: S transposed, values side by side */
    size_t state_row;
    float *v_new; /* [QN_GDN_CHUNK][v_new_row]: v' of the open chunk's tokens */
    size_t v_new_row;
    const float *log_decay;    /* [QN_GDN_CHUNK]: g of the open chunk; not changed here */
    const float *v, *g, *beta; /* of the first token */
    float *o;                  /* of the first token */
} qn_gdn_head;

/* Heads, or slices of the same values of heads, that share a key head, and the tokens that come to them. Row i of each array of
 * tokens begins i*stride after its first. */
typedef struct qn_gdn_group {
    size_t head_k, n_values; /* key dimension; values of each head; multiples of QN_GDN_UNIT, at most QN_GDN_MAX_DIM */
    const qn_gdn_head *heads;
    size_t n_heads;
    const float *keys;  /* [head_k][QN_GDN_CHUNK]: keys of the open chunk, a column a token; not changed here */
    size_t open_tokens; /* tokens in the open chunk before this call, 0 to QN_GDN_CHUNK */
    size_t n;           /* tokens that come */
    const float *q, *k;
    size_t qk_stride, v_stride, gate_stride, o_stride;
    float scale;
    const float *next; /* what will be read after this, the next group's keys or state, or NULL; only a hint */
} qn_gdn_group;

/* qn_gdn_advance - n tokens through the heads of a group: their outputs, and their states and corrected values brought up to
 * date. Keys and decays are shared with other groups and slices: when all have advanced, qn_gdn_append_keys and qn_gdn_append_decay
 * bring them up to date. scratch: qn_gdn_scratch(head_k) bytes, aligned to 64. */
void qn_gdn_advance(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, void *scratch);
size_t qn_gdn_scratch(size_t head_k);

/* qn_gdn_open_tokens_after - tokens in the open chunk when n more have come. */
size_t qn_gdn_open_tokens_after(size_t open_tokens, size_t n);

/* qn_gdn_append_keys, qn_gdn_append_decay - of n new tokens, those that are in the open chunk afterwards go to keys
 * [head_k][QN_GDN_CHUNK] and to decay [QN_GDN_CHUNK]; `open` as it was before them. */
void qn_gdn_append_keys(float *keys, size_t head_k, size_t open_tokens, const float *k, size_t k_stride, size_t n);
void qn_gdn_append_decay(float *log_decay, size_t open_tokens, const float *g, size_t g_stride, size_t n);

/* qn_gdn_flush - the states after all `open` tokens of the open chunk, which is empty afterwards (the caller sets open to 0).
 */
void qn_gdn_flush(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, void *scratch);

/* qn_gdn_log_decay, qn_gdn_beta - the gates: g = softplus(alpha + bias) * a, where a is < 0; beta = sigmoid(x). */
float qn_gdn_log_decay(float alpha, float bias, float a);
float qn_gdn_beta(float x);

void qn_deltanet_init_ref(qn_deltanet_kernels *kernels);
void qn_deltanet_init_avx2(qn_deltanet_kernels *kernels);
void qn_deltanet_init_avx512(qn_deltanet_kernels *kernels);
void qn_deltanet_init_neon(qn_deltanet_kernels *kernels);

#endif
