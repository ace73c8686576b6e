/* Test problems of the public Gated DeltaNet kernels: edge-case inputs, outputs with guard bytes, and the token
 * recurrence in float64 as the reference. */
#ifndef QN_TESTS_HELPER_GDN_H
#define QN_TESTS_HELPER_GDN_H

#include "helper_assert.h"

#include "base/f16.h"
#include "quern/kernels.h"

#include <math.h>

static uint64_t gdn_random_state;

static inline double gdn_uniform(void) /* in [0, 1) */
{
    gdn_random_state = gdn_random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(gdn_random_state >> 11) * 0x1p-53;
}

static inline double gdn_normal(void)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += gdn_uniform();
    return sum;
}

/* ---- Typed arrays with guard bytes ---- */

enum { GDN_GUARD = 64, GDN_POISON = 0xff }; /* 0xff..ff is NaN in f32, f16 and bf16 */

static inline size_t gdn_size(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 || dtype == QN_DTYPE_U32 ? 4 : 2;
}

static inline void gdn_poison(qn_view view)
{
    memset(view.data, GDN_POISON, view.count * gdn_size(view.dtype));
}

static inline qn_view gdn_new(qn_dtype dtype, size_t count)
{
    uint8_t *block = malloc(count * gdn_size(dtype) + 2 * GDN_GUARD);
    assert_non_null(block);
    memset(block, GDN_POISON, count * gdn_size(dtype) + 2 * GDN_GUARD);
    return (qn_view){ block + GDN_GUARD, dtype, count };
}

static inline void gdn_free(qn_view view)
{
    const uint8_t *data = view.data;
    const size_t bytes = view.count * gdn_size(view.dtype);
    for (size_t i = 0; i < GDN_GUARD; i++)
        if (data[-(ptrdiff_t)i - 1] != GDN_POISON || data[bytes + i] != GDN_POISON)
            fail_msg("bytes outside an array were written");
    free((uint8_t *)view.data - GDN_GUARD);
}

static inline double gdn_get(qn_view view, size_t i)
{
    uint16_t half;
    float x;
    if (view.dtype == QN_DTYPE_F32) {
        memcpy(&x, (const float *)view.data + i, sizeof x);
        return (double)x;
    }
    memcpy(&half, (const uint16_t *)view.data + i, sizeof half);
    return (double)(view.dtype == QN_DTYPE_F16 ? qn_f16_to_f32(half) : qn_bf16_to_f32(half));
}

static inline void gdn_set(qn_view view, size_t i, double value)
{
    if (view.dtype == QN_DTYPE_F32)
        ((float *)view.data)[i] = (float)value;
    else
        ((uint16_t *)view.data)[i] =
            view.dtype == QN_DTYPE_F16 ? qn_f32_to_f16((float)value) : qn_f32_to_bf16((float)value);
}

/* Rounds to the type, as the kernels do at their rounding points. */
static inline double gdn_round(qn_dtype dtype, double value)
{
    if (dtype == QN_DTYPE_F32)
        return value;
    return (double)(dtype == QN_DTYPE_F16 ? qn_f16_to_f32(qn_f32_to_f16((float)value))
                                          : qn_bf16_to_f32(qn_f32_to_bf16((float)value)));
}

/* found - expected| / |expected| over all elements whose expected value is not NaN; where it is NaN, the poison must
 * be intact. */
static inline double gdn_distance(qn_view found, const double *expected)
{
    double difference = 0, size = 0;
    for (size_t i = 0; i < found.count; i++) {
        const double x = gdn_get(found, i);
        if (isnan(expected[i])) {
            const uint8_t *byte = (const uint8_t *)found.data + i * gdn_size(found.dtype);
            for (size_t b = 0; b < gdn_size(found.dtype); b++)
                if (byte[b] != GDN_POISON)
                    fail_msg("element %zu is outside of all sequences and was written", i);
            continue;
        }
        difference += (x - expected[i]) * (x - expected[i]);
        size += expected[i] * expected[i];
    }
    return size > 0 ? sqrt(difference / size) : sqrt(difference);
}

#define GDN_NEAR(found, expected, bar)                                                                                 \
    do {                                                                                                               \
        const double gdn_d = gdn_distance(found, expected);                                                            \
        if (!(gdn_d <= (bar)))                                                                                         \
            fail_msg("the relative error of %s is %.2e, expected at most %.2e", #found, gdn_d, (double)(bar));         \
    } while (0)

/* ---- Problems ---- */

typedef enum gdn_decay { GDN_NONE, GDN_MILD, GDN_MIXED, GDN_STRONG, GDN_ABSURD } gdn_decay;
typedef enum gdn_keys { GDN_RANDOM_KEYS, GDN_SIMILAR_KEYS, GDN_EQUAL_KEYS } gdn_keys;

typedef struct gdn_problem {
    qn_gdn_shape shape;
    qn_dtype dtype;
    uint32_t ends[8];
    size_t rows, n_sequences, n_chunks;
    qn_view q, k, v, g, beta, initial;
    qn_view o, final;            /* poisoned */
    double *o_true, *final_true; /* o_true: NaN outside of all sequences */
} gdn_problem;

static inline size_t gdn_sequence(const gdn_problem *p, size_t s, size_t *n)
{
    const bool ragged = p->shape.n_sequences;
    *n = ragged ? p->ends[s + 1] - p->ends[s] : p->shape.tokens;
    return ragged ? p->ends[s] : s * p->shape.tokens;
}

static inline size_t gdn_key_head(const qn_gdn_shape *shape, size_t head)
{
    return shape->mapping == QN_GDN_TILED ? head % shape->k_heads : head * shape->k_heads / shape->v_heads;
}

static inline double gdn_draw_decay(gdn_decay decay)
{
    const double mild = -exp(gdn_uniform() * 6 - 6);
    switch (decay) {
    case GDN_NONE: return 0;
    case GDN_MILD: return mild;
    case GDN_MIXED: return gdn_uniform() < 0.1 ? -50 : mild;
    case GDN_STRONG: return -50;
    default: return gdn_uniform() < 0.1 ? -1e30 : mild;
    }
}

/* Rows of unit vectors: independent, or equal or similar to a common direction. */
static inline void gdn_draw_vectors(qn_view view, size_t rows, size_t n, gdn_keys keys)
{
    double x[256], shared[256];
    for (size_t i = 0; i < n; i++)
        shared[i] = gdn_normal();
    for (size_t row = 0; row < rows; row++) {
        double sum = 0;
        for (size_t i = 0; i < n; i++) {
            x[i] = keys == GDN_RANDOM_KEYS ? gdn_normal()
                                           : shared[i] + (keys == GDN_SIMILAR_KEYS ? 0.05 * gdn_normal() : 0);
            sum += x[i] * x[i];
        }
        for (size_t i = 0; i < n; i++)
            gdn_set(view, row * n + i, x[i] / sqrt(sum));
    }
}

static inline void gdn_step_true(const gdn_problem *p, double *state, size_t row, size_t head, const double *q,
                                 const double *k)
{
    const qn_gdn_shape *s = &p->shape;
    const size_t gate = row * s->v_heads + head;
    const double decay = exp(gdn_get(p->g, gate)), beta = gdn_get(p->beta, gate);
    for (size_t x = 0; x < s->head_v; x++, state += s->head_k) {
        double recalled = 0, out = 0;
        for (size_t i = 0; i < s->head_k; i++)
            recalled += decay * state[i] * k[i];
        const double corrected = beta * (gdn_get(p->v, gate * s->head_v + x) - recalled);
        for (size_t i = 0; i < s->head_k; i++) {
            state[i] = decay * state[i] + corrected * k[i];
            out += state[i] * q[i];
        }
        p->o_true[gate * s->head_v + x] = (double)s->scale * out;
    }
}

/* The q or k of a token, normalised if shape.normalize. */
static inline void gdn_row_true(const gdn_problem *p, qn_view view, size_t row, size_t key_head, double *out)
{
    const size_t n = p->shape.head_k;
    double sum = 1e-6;
    for (size_t i = 0; i < n; i++) {
        out[i] = gdn_get(view, (row * p->shape.k_heads + key_head) * n + i);
        sum += out[i] * out[i];
    }
    for (size_t i = 0; i < n && p->shape.normalize; i++)
        out[i] /= sqrt(sum);
}

/* Computes o_true and final_true token by token. */
static inline void gdn_solve(gdn_problem *p)
{
    const qn_gdn_shape *s = &p->shape;
    const size_t size = s->head_v * s->head_k;
    for (size_t i = 0; i < p->o.count; i++)
        p->o_true[i] = (double)NAN;
    for (size_t i = 0; i < p->final.count; i++)
        p->final_true[i] = p->initial.data ? gdn_get(p->initial, i) : 0;
    for (size_t q = 0; q < p->n_sequences; q++) {
        size_t n;
        const size_t first = gdn_sequence(p, q, &n);
        for (size_t h = 0; h < s->v_heads; h++)
            for (size_t t = first; t < first + n; t++) {
                double query[256], key[256];
                gdn_row_true(p, p->q, t, gdn_key_head(s, h), query);
                gdn_row_true(p, p->k, t, gdn_key_head(s, h), key);
                gdn_step_true(p, p->final_true + (q * s->v_heads + h) * size, t, h, query, key);
            }
    }
}

/* Allocates arrays of the shape's sizes, filled with poison. */
static inline void gdn_allocate(gdn_problem *p, bool initial)
{
    qn_gdn_shape *s = &p->shape;
    p->rows = s->batch * s->tokens;
    p->n_sequences = s->n_sequences ? s->n_sequences : s->batch;
    s->cu_seqlens = (qn_view){ p->ends, QN_DTYPE_U32, s->n_sequences + 1 };
    p->q = gdn_new(p->dtype, p->rows * s->k_heads * s->head_k);
    p->k = gdn_new(p->dtype, p->rows * s->k_heads * s->head_k);
    p->v = gdn_new(p->dtype, p->rows * s->v_heads * s->head_v);
    p->g = gdn_new(QN_DTYPE_F32, p->rows * s->v_heads);
    p->beta = gdn_new(QN_DTYPE_F32, p->rows * s->v_heads);
    p->initial = (qn_view){ 0 };
    p->o = gdn_new(p->dtype, p->v.count);
    p->final = gdn_new(QN_DTYPE_F32, p->n_sequences * s->v_heads * s->head_v * s->head_k);
    if (initial)
        p->initial = gdn_new(QN_DTYPE_F32, p->final.count);
    p->o_true = malloc(p->o.count * sizeof(double));
    p->final_true = malloc(p->final.count * sizeof(double));
    assert_non_null(p->o_true);
    assert_non_null(p->final_true);
}

/* Fills a problem of p->shape with random inputs, and computes the expected result. The caller sets shape, dtype and
 * ends. */
static inline void gdn_make(gdn_problem *p, gdn_decay decay, gdn_keys keys, bool initial)
{
    const qn_gdn_shape *s = &p->shape;
    gdn_allocate(p, initial);
    gdn_random_state = p->rows * 131 + s->head_k * 17 + s->head_v + (size_t)decay * 7 + (size_t)keys;
    for (size_t q = 0; q < p->n_sequences; q++) {
        size_t n;
        const size_t first = gdn_sequence(p, q, &n), at = first * s->k_heads * s->head_k;
        if (!n)
            continue;
        const qn_view queries = { (uint8_t *)p->q.data + at * gdn_size(p->dtype), p->dtype, p->q.count - at };
        const qn_view rows = { (uint8_t *)p->k.data + at * gdn_size(p->dtype), p->dtype, p->k.count - at };
        gdn_draw_vectors(queries, n * s->k_heads, s->head_k, GDN_RANDOM_KEYS);
        gdn_draw_vectors(rows, n * s->k_heads, s->head_k, keys);
        for (size_t i = first * s->v_heads; i < (first + n) * s->v_heads; i++) {
            gdn_set(p->g, i, gdn_draw_decay(decay));
            gdn_set(p->beta, i, gdn_uniform());
        }
        for (size_t i = first * s->v_heads * s->head_v; i < (first + n) * s->v_heads * s->head_v; i++)
            gdn_set(p->v, i, gdn_normal());
    }
    for (size_t i = 0; i < p->initial.count; i++)
        gdn_set(p->initial, i, 0.3 * gdn_normal());
    assert_ok(qn_gdn_chunk_count(&p->shape, &p->n_chunks));
    gdn_solve(p);
}

static inline void gdn_problem_free(gdn_problem *p)
{
    gdn_free(p->q);
    gdn_free(p->k);
    gdn_free(p->v);
    gdn_free(p->g);
    gdn_free(p->beta);
    gdn_free(p->o);
    gdn_free(p->final);
    if (p->initial.data)
        gdn_free(p->initial);
    free(p->o_true);
    free(p->final_true);
}

#endif
