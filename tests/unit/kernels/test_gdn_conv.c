/* The operations around the delta rule, against float64: the causal convolution, its state, and the two norms. */
#include "helper_gdn.h"

static const qn_dtype types[] = { QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16 };
enum { N_TYPES = COUNT(types) };

/* f32: sums of a few terms and an exponential within 2e-7. f16 and bf16: one rounding, of at most half a unit. */
static double bar_of(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? 1e-6 : dtype == QN_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
}

static qn_view random_view(qn_dtype dtype, size_t n)
{
    const qn_view view = gdn_new(dtype, n);
    for (size_t i = 0; i < n; i++)
        gdn_set(view, i, gdn_normal());
    return view;
}

static double silu(double x)
{
    return x / (1 + exp(-x));
}

/* ---- Convolution ---- */

typedef struct conv_problem {
    qn_conv_shape shape;
    uint32_t ends[8];
    size_t rows, n_sequences;
    qn_view x, weights, bias, initial, y, final;
    double *y_true, *final_true;
} conv_problem;

static size_t sequence(const conv_problem *p, size_t s, size_t *n)
{
    *n = p->shape.n_sequences ? p->ends[s + 1] - p->ends[s] : p->shape.tokens;
    return p->shape.n_sequences ? p->ends[s] : s * p->shape.tokens;
}

/* The input of token t, relative to the sequence's first; for t < 0 it is in the initial state. */
static double input(const conv_problem *p, size_t s, ptrdiff_t t, size_t c)
{
    size_t n;
    const size_t first = sequence(p, s, &n), before = p->shape.taps - 1;
    if (t >= 0)
        return gdn_get(p->x, (first + (size_t)t) * p->shape.channels + c);
    return p->initial.data ? gdn_get(p->initial, (s * before + before - (size_t)-t) * p->shape.channels + c) : 0;
}

static conv_problem make_conv(qn_dtype dtype, const qn_conv_shape *shape, const uint32_t *ends, bool bias, bool initial)
{
    conv_problem p = { .shape = *shape };
    p.rows = shape->batch * shape->tokens;
    p.n_sequences = shape->n_sequences ? shape->n_sequences : shape->batch;
    if (ends)
        memcpy(p.ends, ends, (shape->n_sequences + 1) * sizeof *ends);
    const size_t states = p.n_sequences * (shape->taps - 1) * shape->channels;
    p.x = random_view(dtype, p.rows * shape->channels);
    p.weights = random_view(QN_DTYPE_F32, shape->channels * shape->taps);
    if (bias)
        p.bias = random_view(QN_DTYPE_F32, shape->channels);
    if (initial)
        p.initial = random_view(dtype, states);
    p.y = gdn_new(dtype, p.x.count);
    p.final = gdn_new(dtype, states);
    p.y_true = malloc(p.y.count * sizeof(double));
    p.final_true = malloc((states + 1) * sizeof(double));
    for (size_t i = 0; i < p.y.count; i++)
        p.y_true[i] = (double)NAN;
    for (size_t s = 0; s < p.n_sequences; s++) {
        size_t n;
        const size_t first = sequence(&p, s, &n), before = shape->taps - 1;
        for (size_t c = 0; c < shape->channels; c++) {
            for (size_t t = 0; t < n; t++) {
                double sum = bias ? gdn_get(p.bias, c) : 0;
                for (size_t i = 0; i < shape->taps; i++)
                    sum += gdn_get(p.weights, c * shape->taps + i) *
                           input(&p, s, (ptrdiff_t)(t + i) - (ptrdiff_t)before, c);
                p.y_true[(first + t) * shape->channels + c] = silu(sum);
            }
            for (size_t i = 0; i < before; i++)
                p.final_true[(s * before + i) * shape->channels + c] =
                    input(&p, s, (ptrdiff_t)(n + i) - (ptrdiff_t)before, c);
        }
    }
    return p;
}

static void free_conv(conv_problem *p)
{
    gdn_free(p->x);
    gdn_free(p->weights);
    gdn_free(p->y);
    gdn_free(p->final);
    if (p->bias.data)
        gdn_free(p->bias);
    if (p->initial.data)
        gdn_free(p->initial);
    free(p->y_true);
    free(p->final_true);
}

TEST(conv_near_float64)
{
    static const size_t tokens[] = { 1, 2, 3, 9 }, channels[] = { 1, 15, 16, 33, 130 };
    gdn_random_state = 1;
    for (size_t d = 0; d < N_TYPES; d++)
        for (size_t taps = 1; taps <= 8; taps++)
            for (size_t i = 0; i < 20; i++) {
                const bool bias = i % 3 == 1 && taps < 8, initial = i % 2;
                conv_problem p = make_conv(
                    types[d],
                    &(qn_conv_shape){ .batch = 2, .tokens = tokens[i % 4], .channels = channels[i % 5], .taps = taps },
                    NULL, bias, initial);
                label("type %d, taps %zu, tokens %zu, channels %zu, bias %d, initial %d", (int)types[d], taps,
                      tokens[i % 4], channels[i % 5], bias, initial);
                assert_ok(qn_conv_scan(&p.shape, p.x, p.weights, p.bias, p.initial, p.final, p.y));
                GDN_NEAR(p.y, p.y_true, bar_of(types[d]));
                GDN_NEAR(p.final, p.final_true, 0);
                free_conv(&p);
            }
}

/* Packed sequences, shorter and longer than the filter, one of them empty. */
TEST(conv_of_ragged_batches)
{
    static const uint32_t ends[] = { 0, 2, 2, 3, 20 };
    for (size_t d = 0; d < N_TYPES; d++) {
        conv_problem p = make_conv(
            types[d], &(qn_conv_shape){ .batch = 1, .tokens = 22, .channels = 20, .taps = 4, .n_sequences = 4 }, ends,
            true, true);
        p.shape.cu_seqlens = (qn_view){ p.ends, QN_DTYPE_U32, 5 };
        for (size_t i = 20 * 20; i < 22 * 20; i++)
            gdn_set(p.x, i, (double)NAN);
        label("ragged, type %d", (int)types[d]);
        assert_ok(qn_conv_scan(&p.shape, p.x, p.weights, p.bias, p.initial, p.final, p.y));
        GDN_NEAR(p.y, p.y_true, bar_of(types[d]));
        GDN_NEAR(p.final, p.final_true, 0);
        free_conv(&p);
    }
}

/* No tokens, in one sequence or in several, and no sequences: no input is read, y is not written, the state is
 * unchanged. */
TEST(conv_of_nothing)
{
    static const qn_view none;
    for (size_t d = 0; d < N_TYPES; d++) {
        static const uint32_t ends[] = { 0, 0, 0 };
        qn_conv_shape shape = { .batch = 2, .channels = 20, .taps = 4 };
        for (size_t ragged = 0; ragged < 2; ragged++, shape.batch = 1, shape.n_sequences = 2) {
            label("no tokens, type %d, ragged %zu", (int)types[d], ragged);
            conv_problem p = make_conv(types[d], &shape, ragged ? ends : NULL, true, true);
            p.shape.cu_seqlens = ragged ? (qn_view){ p.ends, QN_DTYPE_U32, 3 } : none;
            const qn_view nothing = { NULL, types[d], 0 };
            assert_ok(qn_conv_scan(&p.shape, nothing, p.weights, p.bias, p.initial, p.final, nothing));
            GDN_NEAR(p.final, p.final_true, 0);
            assert_ok(qn_conv_scan(&p.shape, p.x, p.weights, none, none, p.final, p.y));
            for (size_t i = 0; i < p.final.count; i++)
                assert_true(gdn_get(p.final, i) == 0);
            free_conv(&p);
        }
        const qn_view w = random_view(QN_DTYPE_F32, 80), nothing = { NULL, types[d], 0 };
        shape = (qn_conv_shape){ .tokens = 1, .channels = 20, .taps = 4 };
        assert_ok(qn_conv_scan(&shape, nothing, w, none, none, none, nothing));
        assert_ok(qn_conv_step(&shape, nothing, w, none, nothing, nothing));
        gdn_free(w);
    }
}

/* Token by token, and in several calls with the state updated in place: the same bits as in one call. */
TEST(conv_in_pieces)
{
    enum { TOKENS = 11, CHANNELS = 37, TAPS = 4 };
    for (size_t d = 0; d < N_TYPES; d++)
        for (size_t piece = 1; piece <= 5; piece += 2) {
            label("type %d, %zu tokens at a time", (int)types[d], piece);
            const qn_conv_shape shape = { .batch = 1, .tokens = TOKENS, .channels = CHANNELS, .taps = TAPS };
            conv_problem p = make_conv(types[d], &shape, NULL, true, true);
            assert_ok(qn_conv_scan(&p.shape, p.x, p.weights, p.bias, p.initial, p.final, p.y));
            const qn_view y = gdn_new(types[d], p.y.count);
            for (size_t t = 0; t < TOKENS; t += piece) {
                const size_t n = TOKENS - t < piece ? TOKENS - t : piece, at = t * CHANNELS * gdn_size(types[d]);
                const qn_view x = { (char *)p.x.data + at, types[d], n * CHANNELS };
                const qn_view to = { (char *)y.data + at, types[d], n * CHANNELS };
                p.shape.tokens = n;
                if (piece == 1)
                    assert_ok(qn_conv_step(&p.shape, x, p.weights, p.bias, p.initial, to));
                else
                    assert_ok(qn_conv_scan(&p.shape, x, p.weights, p.bias, p.initial, p.initial, to));
            }
            assert_memory_equal(y.data, p.y.data, y.count * gdn_size(types[d]));
            assert_memory_equal(p.initial.data, p.final.data, p.final.count * gdn_size(types[d]));
            gdn_free(y);
            free_conv(&p);
        }
}

/* ---- Norms ---- */

TEST(norms_near_float64)
{
    static const size_t widths[] = { 1, 7, 16, 48, 128, 200 };
    enum { N = 3 };
    for (size_t d = 0; d < N_TYPES; d++)
        for (size_t i = 0; i < COUNT(widths); i++) {
            const size_t n = widths[i];
            const qn_view x = random_view(types[d], N * n), gate = random_view(types[d], N * n);
            const qn_view weight = random_view(QN_DTYPE_F32, n), out = gdn_new(types[d], N * n);
            double *l2 = malloc(N * n * sizeof *l2), *gated = malloc(N * n * sizeof *gated);
            for (size_t k = 0; k < n; k++)
                gdn_set(x, k, 0); /* a row of zeros: the result is zeros */
            for (size_t row = 0; row < N; row++) {
                double sum = 0;
                for (size_t k = 0; k < n; k++)
                    sum += gdn_get(x, row * n + k) * gdn_get(x, row * n + k);
                for (size_t k = row * n; k < (row + 1) * n; k++) {
                    l2[k] = gdn_get(x, k) / sqrt(sum + 1e-6);
                    gated[k] =
                        gdn_get(x, k) / sqrt(sum / (double)n + 1e-5) * gdn_get(weight, k % n) * silu(gdn_get(gate, k));
                }
            }
            label("type %d, width %zu", (int)types[d], n);
            assert_ok(qn_l2_norm(x, N, n, 1e-6f, out));
            GDN_NEAR(out, l2, bar_of(types[d]));
            gdn_poison(out);
            assert_ok(qn_gated_rms_norm(x, gate, weight, N, n, 1e-5f, out));
            GDN_NEAR(out, gated, bar_of(types[d]));
            assert_ok(qn_gated_rms_norm(x, gate, weight, N, n, 1e-5f, gate));
            assert_memory_equal(gate.data, out.data, N * n * gdn_size(types[d]));
            assert_ok(qn_l2_norm(x, N, n, 1e-6f, x));
            GDN_NEAR(x, l2, bar_of(types[d]));
            gdn_free(x);
            gdn_free(gate);
            gdn_free(weight);
            gdn_free(out);
            free(l2);
            free(gated);
        }
    assert_ok(qn_l2_norm((qn_view){ 0 }, 0, 16, 1e-6f, (qn_view){ 0 }));
}
