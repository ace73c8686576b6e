/* The public kernels: results against float64, and rejected arguments. */
#include "helper_random.h"

#include "quern/kernels.h"

#include <math.h>

static qn_view view(void *data, qn_dtype dtype, size_t count)
{
    return (qn_view){ data, dtype, count };
}

TEST(matmul_near_float64)
{
    enum { ROWS = 7, COLS = 640, TOKENS = 5 };
    static const qn_dtype types[] = { QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_Q8_0, QN_DTYPE_Q1_0, QN_DTYPE_PTQ1_0 };
    for (size_t i = 0; i < COUNT(types); i++) {
        label("type %d", (int)types[i]);
        float *w = random_floats(ROWS * COLS), *x = random_floats(TOKENS * COLS), out[TOKENS * ROWS];
        size_t bytes;
        assert_ok(qn_view_bytes(types[i], ROWS * COLS, &bytes));
        void *blocks = malloc(bytes);
        assert_ok(qn_encode(view(w, QN_DTYPE_F32, ROWS * COLS), view(blocks, types[i], ROWS * COLS)));
        assert_ok(qn_decode(view(blocks, types[i], ROWS * COLS), view(w, QN_DTYPE_F32, ROWS * COLS)));
        assert_ok(qn_matmul(view(blocks, types[i], ROWS * COLS), ROWS, COLS, view(x, QN_DTYPE_F32, TOKENS * COLS),
                            TOKENS, view(out, QN_DTYPE_F32, TOKENS * ROWS)));
        for (size_t t = 0; t < TOKENS; t++)
            for (size_t r = 0; r < ROWS; r++) {
                double sum = 0, magnitude = 0;
                for (size_t k = 0; k < COLS; k++) {
                    sum += (double)w[r * COLS + k] * (double)x[t * COLS + k];
                    magnitude += fabs((double)w[r * COLS + k] * (double)x[t * COLS + k]);
                }
                /* The error of an int8 activation is at most 1/254 of its group's amax; the mean magnitude here is half
                 * of it. */
                const double bound = types[i] <= QN_DTYPE_F16 ? 1e-6 * magnitude : 2.0 / 254 * magnitude;
                if (!(fabs((double)out[t * ROWS + r] - sum) <= bound))
                    fail_msg("element %zu,%zu: %g, float64 gives %g", t, r, (double)out[t * ROWS + r], sum);
            }
        free(w);
        free(x);
        free(blocks);
    }
}

TEST(matmul_rejects_bad_arguments)
{
    float x[128] = { 0 }, out[4] = { 7, 7, 7, 7 };
    uint8_t w[4 * 18] = { 0 };
    const qn_view acts = view(x, QN_DTYPE_F32, 128), weights = view(w, QN_DTYPE_Q1_0, 512),
                  result = view(out, QN_DTYPE_F32, 4);
    assert_fails(qn_matmul(weights, 4, 100, acts, 1, result), QN_ERR_INVALID, "multiple of 128");
    assert_fails(qn_matmul(weights, 5, 128, acts, 1, result), QN_ERR_INVALID,
                 "weights: 512 elements, expected at least 640");
    assert_fails(qn_matmul(weights, 4, 128, acts, 2, result), QN_ERR_INVALID,
                 "acts: 128 elements, expected at least 256");
    assert_fails(qn_matmul(weights, 4, 128, view(x, QN_DTYPE_F16, 128), 1, result), QN_ERR_INVALID, "acts: type f16");
    assert_fails(qn_matmul(weights, 4, 128, acts, 1, view(out, QN_DTYPE_F32, 3)), QN_ERR_INVALID, "out: 3 elements");
    assert_fails(qn_matmul(weights, 4, 128, acts, 1, view(NULL, QN_DTYPE_F32, 4)), QN_ERR_INVALID, "out: NULL");
    assert_fails(qn_matmul(weights, SIZE_MAX / 2, 256, acts, 1, result), QN_ERR_INVALID, "do not fit in memory");
    assert_fails(qn_matmul(view(w, (qn_dtype)77, 512), 4, 128, acts, 1, result), QN_ERR_INVALID, "type 77");
    for (int i = 0; i < 4; i++)
        assert_true(out[i] == 7);
    assert_ok(qn_matmul(weights, 0, 128, acts, 1, view(NULL, QN_DTYPE_F32, 0)));
}

TEST(attention_near_float64)
{
    enum { HEADS = 6, KV = 2, DIM = 48, TOKENS = 300, CAPACITY = 512 };
    uint16_t *cache_keys = calloc(KV * CAPACITY * DIM, 2), *cache_values = calloc(KV * CAPACITY * DIM, 2);
    float *k = random_floats(TOKENS * KV * DIM), *v = random_floats(TOKENS * KV * DIM),
          *q = random_floats(2 * HEADS * DIM);
    uint32_t *positions = calloc(TOKENS, sizeof *positions), query_positions[2] = { 0, TOKENS - 1 };
    float out[2 * HEADS * DIM];
    const qn_kv_cache cache = { view(cache_keys, QN_DTYPE_F16, KV * CAPACITY * DIM),
                                view(cache_values, QN_DTYPE_F16, KV * CAPACITY * DIM), KV, CAPACITY, DIM };
    for (uint32_t t = 0; t < TOKENS; t++)
        positions[t] = t;
    assert_ok(qn_kv_store(&cache, view(k, QN_DTYPE_F32, TOKENS * KV * DIM), view(v, QN_DTYPE_F32, TOKENS * KV * DIM),
                          view(positions, QN_DTYPE_U32, TOKENS), TOKENS));
    assert_ok(qn_attention(&cache, view(q, QN_DTYPE_F32, 2 * HEADS * DIM), view(query_positions, QN_DTYPE_U32, 2), 2,
                           HEADS, 0.25f, view(out, QN_DTYPE_F32, 2 * HEADS * DIM)));
    for (size_t t = 0; t < 2; t++)
        for (size_t h = 0; h < HEADS; h++) {
            label("token %zu, head %zu", t, h);
            double total = 0, sum[DIM] = { 0 };
            const size_t kv = h / (HEADS / KV);
            for (size_t j = 0; j <= query_positions[t]; j++) {
                double score = 0;
                for (size_t d = 0; d < DIM; d++)
                    score += (double)q[(t * HEADS + h) * DIM + d] * 0.25 * (double)k[(j * KV + kv) * DIM + d];
                total += exp(score);
                for (size_t d = 0; d < DIM; d++)
                    sum[d] += exp(score) * (double)v[(j * KV + kv) * DIM + d];
            }
            /* Keys and values are rounded to f16: 2^-11 of magnitudes up to 1, in scores that are sums of 48 of
             * them. */
            for (size_t d = 0; d < DIM; d++)
                assert_true(fabs((double)out[(t * HEADS + h) * DIM + d] - sum[d] / total) < 3e-3);
        }
    query_positions[1] = CAPACITY;
    assert_fails(qn_attention(&cache, view(q, QN_DTYPE_F32, 2 * HEADS * DIM), view(query_positions, QN_DTYPE_U32, 2), 2,
                              HEADS, 0.25f, view(out, QN_DTYPE_F32, 2 * HEADS * DIM)),
                 QN_ERR_INVALID, "token 1 is at 512");
    free(cache_keys);
    free(cache_values);
    free(k);
    free(v);
    free(q);
    free(positions);
}

TEST(rows_near_float64)
{
    enum { N = 50 };
    float *x = random_floats(2 * N), *w = random_floats(N), out[2 * N];
    assert_ok(qn_rms_norm(view(x, QN_DTYPE_F32, 2 * N), view(w, QN_DTYPE_F32, N), 2, N, 1e-6f,
                          view(out, QN_DTYPE_F32, 2 * N)));
    for (size_t row = 0; row < 2; row++) {
        label("row %zu", row);
        double sum = 0;
        for (size_t i = 0; i < N; i++)
            sum += (double)x[row * N + i] * (double)x[row * N + i];
        for (size_t i = 0; i < N; i++)
            assert_true(fabs((double)out[row * N + i] - (double)x[row * N + i] * (double)w[i] / sqrt(sum / N + 1e-6)) <
                        1e-6);
    }
    assert_ok(qn_swiglu(view(x, QN_DTYPE_F32, N), view(w, QN_DTYPE_F32, N), view(out, QN_DTYPE_F32, N)));
    for (size_t i = 0; i < N; i++)
        assert_true(fabs((double)out[i] - (double)x[i] / (1 + exp(-(double)x[i])) * (double)w[i]) < 1e-6);
    uint32_t position = 1000;
    float head[4] = { 1, 0, 0, 2 };
    assert_ok(qn_rope(view(head, QN_DTYPE_F32, 4), view(&position, QN_DTYPE_U32, 1), 1, 1, 4, 4, 100, QN_ROPE_NEOX));
    assert_true(fabs((double)head[0] - cos(1000)) < 1e-6 && fabs((double)head[2] - sin(1000)) < 1e-6);
    assert_true(fabs((double)head[1] + 2 * sin(100)) < 1e-6 && fabs((double)head[3] - 2 * cos(100)) < 1e-6);
    assert_fails(qn_rope(view(head, QN_DTYPE_F32, 4), view(&position, QN_DTYPE_U32, 1), 1, 1, 4, 3, 100, QN_ROPE_NEOX),
                 QN_ERR_INVALID, "n_rot: 3");
    free(x);
    free(w);
}

TEST(argmax_and_codes)
{
    size_t at = 99;
    float logits[5] = { -1, 3, 2, 3, 0 };
    assert_ok(qn_argmax(view(logits, QN_DTYPE_F32, 5), &at));
    assert_int_equal(at, 1);
    logits[4] = NAN;
    assert_fails(qn_argmax(view(logits, QN_DTYPE_F32, 5), &at), QN_ERR_INVALID, "element 4");
    assert_int_equal(qn_argmax(view(logits, QN_DTYPE_F32, 0), &at), QN_ERR_INVALID);
    uint8_t block[256];
    float x[256] = { 0 };
    assert_int_equal(qn_encode(view(x, QN_DTYPE_F32, 256), view(block, QN_DTYPE_Q6_K, 256)), QN_ERR_UNSUPPORTED);
    x[3] = INFINITY;
    assert_fails(qn_encode(view(x, QN_DTYPE_F32, 32), view(block, QN_DTYPE_Q8_0, 32)), QN_ERR_INVALID, "element 3");
    assert_fails(qn_encode(view(x, QN_DTYPE_F32, 33), view(block, QN_DTYPE_Q8_0, 64)), QN_ERR_INVALID,
                 "multiple of 32");
}
