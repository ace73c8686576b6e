/* Gated delta rule: the small operations bit for bit and against float64; and heads at the shape of a 27B model for speed. What
 * whole chunks compute is a unit test's. */
#include "check/check.h"

#include "base/memory.h"
#include "kernels/canon.h"
#include "kernels/deltanet/deltanet.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void must(qn_status status)
{
    if (status == QN_OK)
        return;
    fprintf(stderr, "quern-check: %s\n", qn_error_text());
    exit(1);
}

static float *floats(const qn_guarded *g)
{
    return (float *)(void *)g->data;
}

/* ---- Products ---- */

/* A product's sizes and layout; gaps lie between the rows of c and b. */
struct shape {
    size_t m, n, k, c_gap, b_gap;
    bool by_columns; /* a is stored with its rows side by side */
    bool accumulate;
};

/* What is not an element of b is NaN, and what is not one of c has a poison that must stay. */
static void check_product(const qn_deltanet_kernels *kernels, const struct shape *s, float *expected, bool reference)
{
    const size_t c_row = s->n + s->c_gap, b_row = s->n + s->b_gap;
    const size_t a_row = s->by_columns ? 1 : s->k, a_col = s->by_columns ? s->m : 1;
    qn_guarded a = qn_guarded_new(s->m * s->k * sizeof(float), 4 * qn_random_below(16));
    qn_guarded b = qn_guarded_new(s->k * b_row * sizeof(float), 4 * qn_random_below(16));
    qn_guarded c = qn_guarded_new(s->m * c_row * sizeof(float), 4 * qn_random_below(16));
    double *exact, *bound;
    must(qn_alloc(&exact, s->m * s->n, sizeof *exact, "exact"));
    must(qn_alloc(&bound, s->m * s->n, sizeof *bound, "bound"));
    qn_random_floats(floats(&a), s->m * s->k, 1);
    for (size_t j = 0; j < s->k; j++)
        qn_random_floats(floats(&b) + j * b_row, s->n, 1);
    for (size_t i = 0; s->accumulate && i < s->m; i++)
        qn_random_floats(floats(&c) + i * c_row, s->n, 1);
    for (size_t i = 0; i < s->m; i++)
        for (size_t x = 0; x < s->n; x++) {
            double sum = s->accumulate ? (double)floats(&c)[i * c_row + x] : 0, magnitude = fabs(sum);
            for (size_t j = 0; j < s->k; j++) {
                const double term = (double)floats(&a)[i * a_row + j * a_col] * (double)floats(&b)[j * b_row + x];
                sum += term;
                magnitude += fabs(term);
            }
            exact[i * s->n + x] = sum;
            bound[i * s->n + x] = (double)s->k * 0x1p-24 * magnitude; /* one rounding of a partial sum for each term */
        }
    kernels->product(floats(&c), c_row, floats(&a), a_row, a_col, floats(&b), b_row, s->m, s->n, s->k, s->accumulate);
    for (size_t i = 0; i < s->m; i++) {
        const float *row = floats(&c) + i * c_row;
        if (reference) {
            memcpy(expected + i * s->n, row, s->n * sizeof *row);
            qn_expect_near(row, exact + i * s->n, bound + i * s->n, s->n, "element");
        } else {
            qn_expect_same(row, expected + i * s->n, s->n, "element");
        }
        for (size_t x = s->n; x < c_row; x++)
            qn_expect(qn_f32_bits(row[x]) == 0xffffffffu, "row %zu: an element of the gap was written", i);
    }
    qn_expect(qn_guarded_ok(&a) && qn_guarded_ok(&b) && qn_guarded_ok(&c), "bytes outside the matrices were written");
    qn_guarded_free(&a);
    qn_guarded_free(&b);
    qn_guarded_free(&c);
    qn_free(exact);
    qn_free(bound);
}

static void check_products(const qn_level *levels, size_t n_levels)
{
    static const size_t ms[] = { 0, 1, 2, 3, 4, 5, 7, 16, 33, 128 }, ns[] = { 0, 1, 15, 16, 17, 33, 48, 64, 80, 128, 144, 256 };
    static const size_t ks[] = { 0, 1, 2, 15, 17, 63, 64, 65, 128, 256 };
    static float expected[128 * 256];
    for (size_t m = 0; m < sizeof ms / sizeof ms[0]; m++)
        for (size_t n = 0; n < sizeof ns / sizeof ns[0]; n++)
            for (size_t k = 0; k < sizeof ks / sizeof ks[0]; k++) {
                const unsigned kind = (unsigned)(m + 3 * n + 5 * k);
                const struct shape s = { .m = ms[m],
                                         .n = ns[n],
                                         .k = ks[k],
                                         .c_gap = kind % 3,
                                         .b_gap = kind % 4 == 1 ? 5 : 0,
                                         .by_columns = kind & 2,
                                         .accumulate = kind / 4 & 1 };
                if (s.m * s.n * s.k > 1 << 19) /* the reference is slow */
                    continue;
                for (size_t i = 0; i < n_levels; i++) {
                    qn_deltanet_kernels kernels;
                    qn_random_seed(kind + 1000 * k);
                    qn_deltanet_kernels_init(&kernels, levels[i].features);
                    qn_case_begin("deltanet product", levels[i].name, "%zu x %zu x %zu gaps %zu %zu%s%s", s.m, s.n, s.k,
                                  s.c_gap, s.b_gap, s.by_columns ? " by columns" : "", s.accumulate ? " accumulate" : "");
                    check_product(&kernels, &s, expected, i == 0);
                }
            }
}

/* ---- Row by row: gates, scales, corrections, convolution ---- */

enum { MAX_ROW = 1030, CASES = 5 };
static const char *const case_names[CASES] = { "gate", "scale", "correct", "conv", "conv of one tap" };

/* The operation's result on fresh random rows in y, and float64's with a bound. */
static void row_case(const qn_deltanet_kernels *kernels, int which, size_t n, float *y, double *exact, double *bound)
{
    enum { TAPS = QN_CONV_MAX_TAPS };
    static float inputs[TAPS][MAX_ROW + 16], weights[TAPS * (MAX_ROW + 16)];
    static double sums[MAX_ROW];
    const float *rows[TAPS], *w = weights + qn_random_below(16);
    const size_t taps = which == 4 ? 1 : 2 + qn_random_below(TAPS - 1), w_row = n + qn_random_below(3);
    const float factor = qn_random_normal();
    const double at = -30;
    for (size_t t = 0; t < TAPS; t++) {
        rows[t] = inputs[t] + qn_random_below(16);
        qn_random_floats(inputs[t], MAX_ROW + 16, 1);
    }
    qn_random_floats(weights, TAPS * (MAX_ROW + 16), 1);
    for (size_t x = 0; x < n; x++) {
        sums[x] = at + 120 * (double)qn_random_below(1000) / 1000; /* e^0 and down to what underflows */
        const double a = (double)rows[0][x], b = (double)rows[1][x];
        double magnitude = 0;
        switch (which) {
        case 0:
            exact[x] = exp(at - sums[x]) * a;
            /* The exponent, rounded, moves the result by up to |at - sum| 2^-24; qn_exp promises 2e-7, and 4.5e-38 at least. */
            bound[x] = fabs(exact[x]) * ((sums[x] - at) * 0x1p-24 + 2e-7 + 0x1p-24) + 5e-38 * fabs(a);
            y[x] = rows[0][x];
            break;
        case 1:
            exact[x] = (double)factor * a;
            bound[x] = 0x1p-24 * fabs(exact[x]);
            break;
        case 2:
            exact[x] = (double)factor * (a - b);
            bound[x] = 2.01 * 0x1p-24 * fabs(exact[x]);
            break;
        default:
            exact[x] = 0;
            for (size_t t = 0; t < taps; t++) {
                const double term = (double)w[t * w_row + x] * (double)rows[t][x];
                exact[x] += term;
                magnitude += fabs(term);
            }
            exact[x] /= 1 + exp(-exact[x]);
            /* A rounding for each tap, silu's slope of at most 1.1, then its own exponential, sum and quotient. */
            bound[x] = 1.1 * (double)taps * 0x1p-24 * magnitude + fabs(exact[x]) * (2e-7 + 3 * 0x1p-24);
        }
    }
    if (which == 0)
        kernels->gate(y, n, 1, at, sums, n);
    else if (which == 1)
        kernels->scale(y, rows[0], factor, n);
    else if (which == 2)
        kernels->correct(y, rows[0], rows[1], factor, n);
    else
        kernels->conv(y, rows, w, w_row, taps, n);
}

static void check_rows(const qn_level *levels, size_t n_levels)
{
    static const size_t widths[] = { 0, 1, 2, 15, 16, 17, 31, 64, 100, 128, MAX_ROW };
    static float expected[MAX_ROW];
    static double exact[MAX_ROW], bound[MAX_ROW];
    for (size_t c = 0; c < CASES * sizeof widths / sizeof widths[0]; c++)
        for (size_t i = 0; i < n_levels; i++) {
            const size_t n = widths[c / CASES];
            const int which = (int)(c % CASES);
            qn_deltanet_kernels kernels;
            qn_random_seed(c);
            qn_guarded y = qn_guarded_new(n * sizeof(float), 4 * qn_random_below(16));
            qn_deltanet_kernels_init(&kernels, levels[i].features);
            qn_case_begin("deltanet", levels[i].name, "%s width %zu", case_names[which], n);
            row_case(&kernels, which, n, floats(&y), exact, bound);
            if (i == 0) {
                memcpy(expected, y.data, n * sizeof *expected);
                qn_expect_near(expected, exact, bound, n, "element");
            } else {
                qn_expect_same(floats(&y), expected, n, "element");
            }
            qn_expect(qn_guarded_ok(&y), "bytes outside the row were written");
            qn_guarded_free(&y);
        }
}

/* ---- Speed ---- */

struct timed_product {
    const qn_deltanet_kernels *kernels;
    size_t m, n, k;
    float *a, *b, *c;
};

static void timed_product(void *context)
{
    const struct timed_product *t = context;
    t->kernels->product(t->c, t->n, t->a, t->k, 1, t->b, t->n, t->m, t->n, t->k, false);
}

static void bench_product(const qn_deltanet_kernels *kernels, const char *level, size_t m, size_t n, size_t k)
{
    struct timed_product t = { .kernels = kernels, .m = m, .n = n, .k = k };
    char shape[64];
    must(qn_alloc(&t.a, m * k, sizeof(float), "a"));
    must(qn_alloc(&t.b, k * n, sizeof(float), "b"));
    must(qn_alloc(&t.c, m * n, sizeof(float), "c"));
    qn_random_floats(t.a, m * k, 1);
    qn_random_floats(t.b, k * n, 1);
    snprintf(shape, sizeof shape, "product %zu x %zu x %zu", m, n, k);
    qn_bench("deltanet", level, shape, 2.0 * (double)(m * n * k), "FLOP", timed_product, &t);
    qn_free(t.a);
    qn_free(t.b);
    qn_free(t.c);
}

/* Layers of 48 heads with 16 key heads, together larger than any cache: a decoded token reads all of their states. */
enum { DIM = 128, LAYERS = 24, HEADS = 48, KEY_HEADS = 16, PROMPT = 256, ALL_HEADS = LAYERS * HEADS };

struct timed_heads {
    const qn_deltanet_kernels *kernels;
    float *state, *corrected, *keys, *decay, *rows, *o; /* rows: PROMPT of q, k and v, all like q */
    void *scratch;
    size_t n_heads, n_tokens, per_call, open;
};

static void timed_heads(void *context)
{
    const struct timed_heads *t = context;
    for (size_t i = 0; i < t->n_heads; i++) {
        const size_t key_head = i / HEADS * KEY_HEADS + i % KEY_HEADS;
        float *keys = t->keys + key_head * DIM * QN_GDN_CHUNK;
        qn_gdn_head head = { .head_k = DIM,
                             .n_values = DIM,
                             .state = t->state + i * DIM * DIM,
                             .state_row = DIM,
                             .corrected = t->corrected + i * QN_GDN_CHUNK * DIM,
                             .corrected_row = DIM,
                             .keys = keys,
                             .decay = t->decay,
                             .open = t->open };
        for (size_t at = 0; at < t->n_tokens; at += t->per_call) {
            const float *rows = t->rows + at * DIM;
            const qn_gdn_tokens tokens = { .n = t->per_call,
                                           .q = rows,
                                           .k = rows,
                                           .v = rows,
                                           .g = t->decay + QN_GDN_CHUNK,
                                           .beta = t->decay + QN_GDN_CHUNK + 1,
                                           .qk_stride = DIM,
                                           .v_stride = DIM,
                                           .gate_stride = 0,
                                           .scale = 0.1f };
            qn_gdn_advance(t->kernels, &head, &tokens, t->o, DIM, t->scratch);
            if (t->n_tokens > 1) {
                qn_gdn_keep_keys(keys, DIM, head.open, rows, DIM, t->per_call);
                head.open = qn_gdn_open_after(head.open, t->per_call);
            }
        }
    }
}

static void timed_read(void *context)
{
    const struct timed_heads *t = context;
    float sums[4 * QN_LANES] = { 0 };
    for (size_t i = 0; i < t->n_heads * DIM * DIM; i += 4 * QN_LANES) {
        __builtin_prefetch((const void *)((uintptr_t)(t->state + i) + 4096));
        __builtin_prefetch((const void *)((uintptr_t)(t->state + i) + 4160));
        __builtin_prefetch((const void *)((uintptr_t)(t->state + i) + 4224));
        __builtin_prefetch((const void *)((uintptr_t)(t->state + i) + 4288));
        for (size_t x = 0; x < 4 * QN_LANES; x++)
            sums[x] += t->state[i + x];
    }
    memcpy(t->o, sums, sizeof sums);
}

static void bench_heads(const qn_level *levels, size_t n_levels)
{
    struct timed_heads t = { .open = 0 };
    must(qn_alloc(&t.state, (size_t)ALL_HEADS * DIM * DIM, sizeof(float), "states"));
    must(qn_alloc(&t.corrected, (size_t)ALL_HEADS * QN_GDN_CHUNK * DIM, sizeof(float), "corrected values"));
    must(qn_alloc(&t.keys, (size_t)LAYERS * KEY_HEADS * QN_GDN_CHUNK * DIM, sizeof(float), "keys"));
    must(qn_alloc(&t.decay, QN_GDN_CHUNK + 2, sizeof(float), "decays"));
    must(qn_alloc(&t.rows, (size_t)PROMPT * DIM, sizeof(float), "rows"));
    must(qn_alloc(&t.o, (size_t)PROMPT * DIM, sizeof(float), "outputs"));
    must(qn_alloc(&t.scratch, qn_gdn_scratch(DIM), 1, "scratch"));
    qn_random_floats(t.rows, (size_t)PROMPT * DIM, 0.08f);
    for (size_t i = 0; i < (size_t)ALL_HEADS * DIM * DIM; i++)
        t.state[i] = 0.01f; /* memory that was written: zeroed pages would all be one */
    for (size_t i = 0; i < (size_t)ALL_HEADS * QN_GDN_CHUNK * DIM; i++)
        t.corrected[i] = 0.01f;
    for (size_t i = 0; i < (size_t)LAYERS * KEY_HEADS * QN_GDN_CHUNK * DIM; i++)
        t.keys[i] = 0.01f;
    for (size_t i = 0; i <= QN_GDN_CHUNK; i++)
        t.decay[i] = -0.01f;
    t.decay[QN_GDN_CHUNK + 1] = 0.5f;
    t.n_heads = ALL_HEADS;
    const double bytes = (double)ALL_HEADS * DIM * DIM * sizeof(float);
    qn_bench("deltanet", "-", "states of 1152 heads, only read", bytes, "B", timed_read, &t);
    for (size_t i = 0; i < n_levels; i++) {
        qn_deltanet_kernels kernels;
        char shape[64];
        qn_deltanet_kernels_init(&kernels, levels[i].features);
        t.kernels = &kernels;
        t.n_heads = levels[i].features ? ALL_HEADS : HEADS;
        for (size_t open = 0; open < QN_GDN_CHUNK; open += QN_GDN_CHUNK / 2) {
            t.open = open;
            t.n_tokens = t.per_call = 1;
            snprintf(shape, sizeof shape, "%zu heads, a token, %zu before it", t.n_heads, open);
            qn_bench("deltanet", levels[i].name, shape, (double)(t.n_heads * DIM * DIM * sizeof(float)), "B", timed_heads, &t);
        }
        if (!levels[i].features)
            continue;
        t.open = 0;
        t.n_heads = HEADS;
        t.n_tokens = PROMPT;
        for (t.per_call = 1; t.per_call <= PROMPT; t.per_call *= PROMPT) {
            snprintf(shape, sizeof shape, "48 heads, 256 tokens, %zu at a time", t.per_call);
            qn_bench("deltanet", levels[i].name, shape, PROMPT, "token", timed_heads, &t);
        }
    }
    qn_free(t.state);
    qn_free(t.corrected);
    qn_free(t.keys);
    qn_free(t.decay);
    qn_free(t.rows);
    qn_free(t.o);
    qn_free(t.scratch);
}

void qn_check_deltanet(bool bench)
{
    qn_level levels[8];
    const size_t n_levels = qn_levels(levels);
    check_products(levels, n_levels);
    check_rows(levels, n_levels);
    if (!bench)
        return;
    for (size_t i = 0; i < n_levels; i++) {
        qn_deltanet_kernels kernels;
        qn_deltanet_kernels_init(&kernels, levels[i].features);
        bench_product(&kernels, levels[i].name, 2 * QN_GDN_CHUNK, DIM, DIM);
        bench_product(&kernels, levels[i].name, DIM, DIM, QN_GDN_CHUNK);
        bench_product(&kernels, levels[i].name, 16, QN_GDN_CHUNK, DIM);
        bench_product(&kernels, levels[i].name, 2, DIM, DIM);
    }
    bench_heads(levels, n_levels);
}
