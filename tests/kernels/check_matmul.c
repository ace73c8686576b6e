/* The matmul of every weight type, and the quantisation of its activations. */
#include "problem.h"

#include "base/memory.h"
#include "kernels/matmul/matmul.h"

/* The activation as the matmul reads it. */
static double act_value(const qn_problem *p, size_t token, size_t k)
{
    const qn_acts *a = &p->acts;
    const qn_act_layout layout = qn_act_layout_of(p->type);
    if (layout == QN_ACT_F32)
        return (double)a->values[token * a->n_cols + k];
    const size_t super = token * a->n_super + k / QN_SUPER, at = super * QN_SUPER + qn_act_index(layout, k % QN_SUPER);
    const double code =
        a->hilo ? QN_HILO_BASE * (double)a->codes[layout][at] + a->codes_lo[layout][at] : a->codes[layout][at];
    return code * (double)a->scale[super * QN_SUPER_GROUPS + k % QN_SUPER / QN_QUANT_GROUP];
}

/* Error bound. A partial sum is ceil(n/16) dependent fused steps, over values or over groups of codes; then four
 * additions, and per term the rounding of the product of scales, of the integer sum and, if to_float() multiplies, of
 * the weight. Each rounding is at most 2^-24 of a magnitude below the sum of magnitudes. An offset adds a second
 * term. */
static void check_against_float64(const qn_problem *p, const float *out)
{
    const size_t n_cols = p->weights.n_cols;
    const size_t terms = (qn_act_layout_of(p->type) == QN_ACT_F32 ? n_cols : n_cols / QN_QUANT_GROUP * 2) / 16 + 1;
    float *weights = qn_floats(n_cols);
    for (size_t r = 0; r < p->weights.n_rows; r++) {
        p->type->to_float(p->weights.data + r * p->weights.row_bytes, n_cols / p->type->block_weights, weights);
        for (size_t t = 0; t < p->n_tokens; t++) {
            double sum = 0, magnitude = 0;
            for (size_t k = 0; k < n_cols; k++) {
                const double product = (double)weights[k] * act_value(p, t, k);
                sum += product;
                magnitude += fabs(product);
            }
            /* The code and offset terms of a k-quant cancel before rounding in float64, but not in float32. */
            const double bound = (double)(terms + 8) * 0x1p-24 * magnitude * (p->type->has_offset ? 8 : 1) + 1e-30;
            qn_expect_near(&out[t * p->weights.n_rows + r], &sum, &bound, 1, "element");
        }
    }
}

static void check_problem(const qn_problem *p, bool accumulate)
{
    const size_t n_out = p->n_tokens * p->weights.n_rows;
    float *expected = qn_floats(n_out);
    for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
        const size_t mark = qn_mark();
        qn_matmul_kernels kernels;
        qn_case_begin("matmul", level->name, "%s rows %zu cols %zu tokens %zu%s%s", p->type->name, p->weights.n_rows,
                      p->weights.n_cols, p->n_tokens, p->acts.hilo ? " hi/lo" : "", accumulate ? " added" : "");
        qn_matmul_kernels_init(&kernels, level->features);
        float *y = qn_guarded_floats(n_out);
        for (size_t k = 0; accumulate && k < n_out; k++)
            y[k] = (float)k;
        /* Two ranges of rows, as for two threads. */
        const size_t split_row = qn_random_below(p->weights.n_rows + 1);
        qn_problem_run(&kernels, p, 0, split_row, accumulate, y);
        qn_problem_run(&kernels, p, split_row, p->weights.n_rows, accumulate, y);
        qn_expect_level(level, y, expected, n_out, "element");
        if (qn_is_reference(level) && !accumulate)
            check_against_float64(p, y);
        qn_release_to(mark);
    }
    qn_release();
}

static void check_extremes(const qn_type_info *type, bool hilo)
{
    /* Every code at its maximum by activations of maximum magnitude and one sign: narrow accumulators would overflow
     * here. */
    qn_problem p;
    qn_problem_new(&p, type, 5, 1024, 4, hilo);
    for (size_t i = 0; i < p.n_tokens * 1024; i++)
        p.x[i] = i / 1024 % 2 ? -1.0f : 1.0f;
    qn_matmul_kernels ref;
    qn_matmul_kernels_init(&ref, 0);
    qn_quantize_rows(&ref, &p.acts, p.x, p.n_tokens);
    for (size_t b = 0; b < 5 * 1024 / type->block_weights; b++) {
        uint8_t *block = p.data + b * type->block_bytes, kept[256];
        memcpy(kept, block, type->block_bytes);
        memset(block, b % 2 ? 0xff : 0x00, type->block_bytes);
        /* Scales that all-ones bytes make NaN keep their random values: tested for the first and the last two
         * fields. */
        if (type->find_nonfinite(block, 1) == 0)
            memcpy(block, kept, 4);
        if (type->find_nonfinite(block, 1) == 0)
            memcpy(block + type->block_bytes - 2, kept + type->block_bytes - 2, 2);
        if (type->find_nonfinite(block, 1) == 0)
            memcpy(block, kept, type->block_bytes);
    }
    check_problem(&p, false);
}

/* One NaN or infinity among the activations of token 1 of 3: all its elements are NaN or infinite, those of other
 * tokens finite. */
static void check_not_finite(const qn_type_info *type)
{
    enum { ROWS = 6, COLS = 768, TOKENS = 3 };
    for (const qn_cpu_level *level = qn_levels(); level->name; level++)
        for (int kind = 0; kind < 3; kind++) {
            qn_problem p;
            qn_matmul_kernels kernels;
            float out[TOKENS * ROWS];
            qn_random_seed(kind + 1);
            qn_problem_new(&p, type, ROWS, COLS, TOKENS, false);
            p.x[COLS + qn_random_below(COLS)] = kind == 0 ? NAN : kind == 1 ? INFINITY : -INFINITY;
            qn_matmul_kernels_init(&kernels, level->features);
            qn_quantize_rows(&kernels, &p.acts, p.x, TOKENS);
            qn_case_begin("matmul", level->name, "%s with %s", type->name,
                          kind == 0   ? "NaN"
                          : kind == 1 ? "inf"
                                      : "-inf");
            qn_problem_run(&kernels, &p, 0, ROWS, false, out);
            for (size_t r = 0; r < TOKENS * ROWS; r++)
                qn_expect(isfinite(out[r]) == (r / ROWS != 1), "element %zu of token %zu is %g", r % ROWS, r / ROWS,
                          (double)out[r]);
            qn_release();
        }
}

struct timed {
    const qn_problem *p;
    const qn_matmul_kernels *kernels;
    float *out;
    void *scratch;
};

static void timed_run(void *context)
{
    const struct timed *t = context;
    const qn_packed_matrix weights = { .stored = t->p->weights };
    qn_matmul_rows(t->kernels, &weights, &t->p->acts, t->p->n_tokens, 0, weights.stored.n_rows, false, t->out,
                   weights.stored.n_rows, t->scratch);
}

static void bench_type(const qn_type_info *type, size_t n_rows, size_t n_tokens)
{
    qn_problem p;
    qn_problem_new(&p, type, n_rows, 2048, n_tokens, false);
    for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
        qn_matmul_kernels kernels;
        struct timed timed = { .p = &p, .kernels = &kernels, .out = qn_floats(n_tokens * n_rows) };
        if (qn_is_reference(level) && level[1].name)
            continue; /* the reference is not optimised */
        qn_matmul_kernels_init(&kernels, level->features);
        timed.scratch = qn_new(qn_matmul_scratch(&kernels, 2048), 1);
        const bool decode = n_tokens == 1;
        qn_bench("matmul", level->name, qn_text("%s %zux2048 tokens %zu", type->name, n_rows, n_tokens),
                 decode ? (double)(n_rows * p.weights.row_bytes) : 2.0 * (double)(n_rows * 2048 * n_tokens),
                 decode ? "B" : "OP", timed_run, &timed);
    }
    qn_release();
}

void qn_check_matmul(bool bench)
{
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    static const size_t rows[] = { 1, 2, 3, 5, 16, 19 }, tokens[] = { 1, 2, 3, 4, 7, 12 };
    for (size_t t = 0; t < n_types; t++) {
        const size_t block = types[t].block_weights;
        for (size_t draw = 0; draw < 24; draw++) {
            qn_random_seed(1000 * t + draw);
            const size_t blocks = draw < 4 ? draw + 1 : 1 + qn_random_below(2600 / block);
            const bool hilo = draw % 3 == 2 && types[t].unpack && !types[t].has_factor;
            qn_problem p;
            qn_problem_new(&p, &types[t], rows[qn_random_below(6)], blocks * block, tokens[qn_random_below(6)], hilo);
            check_problem(&p, draw % 4 == 3);
        }
        if (types[t].unpack)
            check_extremes(&types[t], false);
        if (types[t].unpack && !types[t].has_factor)
            check_extremes(&types[t], true);
        check_not_finite(&types[t]);
        qn_problem empty; /* no tokens: nothing may be written */
        qn_problem_new(&empty, &types[t], 3, block, 1, false);
        empty.n_tokens = 0;
        check_problem(&empty, false);
    }
    qn_check_tile_gemm();
    qn_check_blocks();
    for (size_t t = 0; bench && t < n_types; t++) {
        bench_type(&types[t], 4096, 1);
        bench_type(&types[t], 512, 96);
    }
}

/* ---- Quantisation ---- */

static void check_codes(const qn_acts *acts, const float *x)
{
    for (size_t i = 0; i < acts->max_rows * acts->n_super * QN_SUPER; i++) {
        const size_t row = i / (acts->n_super * QN_SUPER), k = i % (acts->n_super * QN_SUPER),
                     group = i / QN_QUANT_GROUP;
        const double expected = k < acts->n_cols ? (double)x[row * acts->n_cols + k] : 0;
        for (int layout = 0; layout < QN_ACT_INT8_LAYOUTS; layout++) {
            const size_t at = i / QN_SUPER * QN_SUPER + qn_act_index((qn_act_layout)layout, i % QN_SUPER);
            double code = acts->codes[layout][at];
            if (acts->hilo)
                code = code * QN_HILO_BASE + acts->codes_lo[layout][at];
            const float value = (float)(code * (double)acts->scale[group]);
            /* Half a step, and the rounding of the scale and of the value itself. */
            const double bound = (0.5 + 32500 * 0x1p-22) * (double)acts->scale[group] + 1e-30;
            qn_expect_near(&value, &expected, &bound, 1, "value");
        }
    }
}

static void expect_same_acts(const qn_acts *found, const qn_acts *expected)
{
    const size_t groups = expected->max_rows * expected->n_super * QN_SUPER_GROUPS;
    for (int layout = 0; layout < QN_ACT_INT8_LAYOUTS; layout++) {
        qn_expect(!memcmp(found->codes[layout], expected->codes[layout], groups * QN_QUANT_GROUP),
                  "codes of layout %d differ", layout);
        if (expected->hilo)
            qn_expect(!memcmp(found->codes_lo[layout], expected->codes_lo[layout], groups * QN_QUANT_GROUP),
                      "lo codes of layout %d differ", layout);
    }
    qn_expect_same(found->scale, expected->scale, groups, "scale");
    qn_expect(!memcmp(found->sum, expected->sum, groups * sizeof(int32_t)), "sums differ");
    qn_expect(!memcmp(found->sum_upper, expected->sum_upper, groups * sizeof(int32_t)),
              "sums of the last 16 values differ");
    qn_expect_same(found->values, expected->values, expected->max_rows * expected->n_cols, "value");
}

struct timed_quantize {
    const qn_matmul_kernels *kernels;
    qn_acts *acts;
    const float *x;
};

static void timed_quantize(void *context)
{
    const struct timed_quantize *t = context;
    qn_quantize_rows(t->kernels, t->acts, t->x, 1);
}

void qn_check_quantize(bool bench)
{
    static const size_t widths[] = { 1, 15, 16, 17, 31, 32, 33, 511, 512, 513, 576, 2048, 3100 };
    for (size_t w = 0; w < QN_LENGTH(widths); w++)
        for (int hilo = 0; hilo < 2; hilo++) {
            enum { ROWS = 3 };
            qn_acts expected, found;
            qn_random_seed(w);
            float *x = qn_floats_of(ROWS * widths[w], 1);
            /* Magnitudes from subnormal to huge, a group of zeros, and values halfway between two codes. */
            for (size_t i = 0; i < ROWS * widths[w]; i++)
                x[i] *= i / 64 % 4 == 1 ? 1e-38f : i / 64 % 4 == 2 ? 1e30f : 1;
            for (size_t i = 0; i < widths[w] && i < 32; i++)
                x[widths[w] + i] = i ? ((float)i - 16.5f) / 127 : 1;
            memset(x, 0, (widths[w] < 32 ? widths[w] : 32) * sizeof *x);
            for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
                qn_matmul_kernels kernels;
                qn_matmul_kernels_init(&kernels, level->features);
                qn_acts *acts = qn_is_reference(level) ? &expected : &found;
                qn_acts_keep(acts, ROWS, widths[w], (1u << QN_ACT_F32) | ((1u << QN_ACT_INT8_LAYOUTS) - 1), hilo);
                qn_quantize_rows(&kernels, acts, x, ROWS);
                qn_case_begin("quantize", level->name, "width %zu%s", widths[w], hilo ? " hi/lo" : "");
                if (qn_is_reference(level))
                    check_codes(&expected, x);
                else
                    expect_same_acts(&found, &expected);
            }
            qn_release();
        }
    for (const qn_cpu_level *level = qn_levels(); bench && level->name; level++) {
        qn_matmul_kernels kernels;
        qn_acts acts;
        float x[2048];
        qn_random_floats(x, 2048, 1);
        qn_matmul_kernels_init(&kernels, level->features);
        qn_acts_keep(&acts, 1, 2048, 1u << QN_ACT_1BIT, false);
        qn_bench("quantize", level->name, "2048", 2048, "value", timed_quantize,
                 &(struct timed_quantize){ &kernels, &acts, x });
        qn_release();
    }
}
