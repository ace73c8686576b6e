/* GEMM of packed matrices, compared bit for bit with the reference on the stored rows; and packing and unpacking
 * themselves. The instruction set lists the types that it packs and their layouts: all of them are checked. */
#include "problem.h"

#include "base/memory.h"
#include "kernels/matmul/packed.h"

static const qn_packed_kernel *kernel_of(const qn_cpu_level *level, const qn_type_info *type,
                                         qn_matmul_kernels *kernels)
{
    qn_matmul_kernels_init(kernels, level->features);
    return qn_matmul_packed(kernels, type);
}

/* The problem's matrix with a packed copy. */
static qn_packed_matrix pack(const qn_problem *p, qn_packing packing)
{
    const size_t n_panels = p->weights.n_rows / QN_PANEL_ROWS, middle = qn_random_below(n_panels + 1);
    uint8_t *packed = qn_guarded(n_panels * QN_PANEL_ROWS * p->weights.row_bytes, 0);
    qn_matmul_pack(&p->weights, packing, middle, n_panels, packed); /* two ranges, as for two threads */
    qn_matmul_pack(&p->weights, packing, 0, middle, packed);
    return (qn_packed_matrix){ .stored = p->weights, .packed = packed };
}

static void expect_round_trip(const qn_packed_matrix *weights, qn_packing packing)
{
    const size_t panel_bytes = QN_PANEL_ROWS * weights->stored.row_bytes;
    for (size_t panel = 0; panel < weights->stored.n_rows / QN_PANEL_ROWS; panel++) {
        uint8_t *rows = qn_guarded(panel_bytes, 0);
        qn_matmul_unpack(weights, packing, panel, rows);
        qn_expect(!memcmp(rows, weights->stored.data + panel * panel_bytes, panel_bytes),
                  "panel %zu is not unpacked as it was", panel);
    }
}

/* Activations quantised by the tested kernels, in the layouts that they require and no others, over poisoned
 * buffers. blocks: as the level's matmuls, in the arithmetic of blocks.h if it has that, which check_blocks.c checks.
 */
static void acts_new(qn_acts *acts, const qn_problem *p, const qn_packed_matrix *weights,
                     const qn_matmul_kernels *kernels, bool blocks)
{
    const size_t n_cols = p->weights.n_cols;
    qn_acts_keep(acts, p->n_tokens, n_cols, qn_matmul_act_layouts(kernels, weights, blocks), p->acts.hilo);
    const size_t groups = p->n_tokens * acts->n_super * QN_SUPER_GROUPS;
    for (int layout = 0; layout < QN_ACT_INT8_LAYOUTS; layout++) {
        if (acts->codes[layout])
            memset(acts->codes[layout], 0xff, groups * QN_QUANT_GROUP);
        if (acts->codes_lo[layout])
            memset(acts->codes_lo[layout], 0xff, groups * QN_QUANT_GROUP);
    }
    if (acts->lut)
        memset(acts->lut, 0xff, groups * QN_GROUP_LUT_BYTES);
    if (acts->lut_lo)
        memset(acts->lut_lo, 0xff, groups * QN_GROUP_LUT_BYTES);
    memset(acts->scale, 0xff, groups * sizeof *acts->scale);
    memset(acts->sum, 0xff, groups * sizeof *acts->sum);
    memset(acts->sum_upper, 0xff, groups * sizeof *acts->sum_upper);
    qn_quantize_rows(kernels, acts, p->x, p->n_tokens);
}

/* The matmul of a packed matrix into out [n_tokens][stride], split into up to three ranges of rows. */
static void run_packed(const qn_matmul_kernels *kernels, const qn_packed_matrix *weights, const qn_acts *acts,
                       size_t n_tokens, bool accumulate, float *out, size_t stride)
{
    const size_t n_panels = weights->stored.n_rows / QN_PANEL_ROWS;
    void *scratch = qn_guarded(qn_matmul_scratch(kernels, weights->stored.n_cols), 0);
    for (size_t begin = 0, end; begin < weights->stored.n_rows; begin = end) {
        const size_t n_panels_in_call = 1 + qn_random_below(n_panels + 1); /* beyond the last: all remaining rows */
        end = begin + n_panels_in_call * QN_PANEL_ROWS < weights->stored.n_rows
                  ? begin + n_panels_in_call * QN_PANEL_ROWS
                  : weights->stored.n_rows;
        qn_matmul_rows(kernels, weights, acts, n_tokens, begin, end, accumulate, out, stride, scratch);
    }
}

/* Initial content of out: numbers if the result is added. If it is stored, poison stays, also between the rows of
 * tokens. */
static void fill(float *out, size_t n_tokens, size_t n_rows, size_t stride)
{
    for (size_t i = 0; i < n_tokens * n_rows; i++)
        out[i / n_rows * stride + i % n_rows] = (float)i;
}

/* With skip_token < n_tokens, that token's elements must be NaN or infinite; their bits are not compared with the
 * reference's. */
static void check_level(const qn_problem *p, const qn_cpu_level *level, bool accumulate, size_t skip_token,
                        const float *expected)
{
    const size_t n_rows = p->weights.n_rows, stride = n_rows + qn_random_below(5), mark = qn_mark();
    qn_matmul_kernels kernels;
    qn_acts acts;
    const qn_packed_kernel *kernel = kernel_of(level, p->type, &kernels);
    if (!kernel || (p->acts.hilo && !kernel->hilo))
        return;
    qn_case_begin("packed", level->name, "%s rows %zu cols %zu tokens %zu%s%s%s", p->type->name, n_rows,
                  p->weights.n_cols, p->n_tokens, p->acts.hilo ? " hi/lo" : "", accumulate ? " added" : "",
                  skip_token < p->n_tokens ? " one not finite" : "");
    const qn_packed_matrix weights = pack(p, kernel->packing);
    expect_round_trip(&weights, kernel->packing);
    acts_new(&acts, p, &weights, &kernels, false);
    float *out = qn_guarded_floats(p->n_tokens * stride - (stride - n_rows));
    if (accumulate)
        fill(out, p->n_tokens, n_rows, stride);
    run_packed(&kernels, &weights, &acts, p->n_tokens, accumulate, out, stride);
    for (size_t t = 0; t < p->n_tokens; t++) {
        if (t != skip_token)
            qn_expect_same(out + t * stride, expected + t * n_rows, n_rows, "element");
        for (size_t r = 0; t == skip_token && r < n_rows; r++)
            qn_expect(!isfinite(out[t * stride + r]), "element %zu of token %zu is %g", r, t,
                      (double)out[t * stride + r]);
        for (size_t i = n_rows; i < stride && t + 1 < p->n_tokens; i++)
            qn_expect(isnan(out[t * stride + i]), "an element between tokens was written");
    }
    qn_release_to(mark);
}

/* Compares one level, or with NULL all levels, and frees the problem. */
static void check_problem(const qn_problem *p, const qn_cpu_level *only, bool accumulate, size_t skip_token)
{
    qn_matmul_kernels ref;
    qn_matmul_kernels_init(&ref, 0);
    float *expected = qn_floats(p->n_tokens * p->weights.n_rows);
    if (accumulate)
        fill(expected, p->n_tokens, p->weights.n_rows, p->weights.n_rows);
    qn_problem_run(&ref, p, 0, p->weights.n_rows, accumulate, expected);
    for (const qn_cpu_level *level = only ? only : qn_levels(); level->name && (!only || level == only); level++)
        check_level(p, level, accumulate, skip_token, expected);
    qn_release();
}

static void check_shapes(const qn_type_info *type, const qn_packed_kernel *kernel, const qn_cpu_level *level)
{
    static const size_t rows[] = { 64, 65, 128, 130, 192 };
    size_t tokens[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 25, 29, 1 };
    const size_t n_tokens = QN_LENGTH(tokens), block = type->block_weights;
    if (kernel->max_tokens < 64)
        tokens[n_tokens - 1] = kernel->max_tokens + 1;
    else if (kernel->gemm_batch) /* more than one block of tokens, and of rows; a last block that is not full */
        tokens[n_tokens - 1] = 70;
    for (size_t draw = 0; draw < (kernel->hilo ? 4 : 2) * n_tokens; draw++) {
        if (!qn_case_selected())
            continue;
        qn_random_seed(1000 * (size_t)type->type + draw);
        /* Each number of tokens with one to four blocks, which do not fill a super-block, and with any number of
         * blocks; then both with the hi/lo split. */
        const size_t blocks = draw / n_tokens % 2 ? 1 + qn_random_below(2600 / block) : draw % 4 + 1;
        qn_problem p;
        const size_t n_rows = tokens[draw % n_tokens] == 70 ? 641 : rows[draw % 5];
        qn_problem_new(&p, type, n_rows, blocks * block, tokens[draw % n_tokens], draw >= 2 * n_tokens);
        check_problem(&p, level, draw % 3 == 2, SIZE_MAX);
    }
    /* One token, for which kernels compute several panels at once: even and odd numbers of panels. */
    for (size_t draw = 0; draw < 12; draw++) {
        static const size_t some[] = { 128, 192, 256, 321 };
        if (!qn_case_selected())
            continue;
        qn_random_seed(2000 * (size_t)type->type + draw);
        const size_t blocks = draw < 4 ? draw + 1 : 1 + qn_random_below(2600 / block);
        qn_problem p;
        qn_problem_new(&p, type, some[draw % 4], blocks * block, 1, kernel->hilo && draw >= 8);
        check_problem(&p, level, draw % 3 == 2, SIZE_MAX);
    }
}

/* Extremes of the narrow accumulators: every code at its minimum or maximum, by activations of maximum magnitude and
 * one sign, and by quads whose sums have low bytes, high bytes or both at the ends of the tables' range (packed.h): 479
 * and -481 are 31 above a multiple of 32. Values just below half a code above 126 have the largest lo term of the hi/lo
 * split. */
static void check_extremes(const qn_type_info *type, bool hilo)
{
    enum { ROWS = 64, COLS = 1024, PATTERNS = 8 };
    static const float quads[PATTERNS][4] = { { 127, 127, 127, 127 },
                                              { -127, -127, -127, -127 },
                                              { 127, 127, 127, 98 },
                                              { -127, -127, -127, -100 },
                                              { -127, 127, -127, 127 },
                                              { 127, -127, -1, 0 },
                                              { 127, 126.499f, 126.499f, 126.499f },
                                              { -127, -126.499f, -126.499f, -126.499f } };
    const size_t n_blocks = ROWS * COLS / type->block_weights;
    const size_t scale_at = type->type == QN_TYPE_PTQ1_0 ? type->block_bytes - 2 : 0;
    qn_matmul_kernels ref;
    qn_problem p;
    qn_matmul_kernels_init(&ref, 0);
    qn_random_seed(7);
    qn_problem_new(&p, type, ROWS, COLS, PATTERNS, hilo);
    for (size_t i = 0; i < PATTERNS * COLS; i++)
        p.x[i] = quads[i / COLS][i % 4] * (1.0f / 127);
    qn_quantize_rows(&ref, &p.acts, p.x, PATTERNS);
    for (size_t b = 0; b < n_blocks; b++) {
        static const uint8_t codes[] = { 0xff, 0x00, 0xff, 0x55, 0xaa };
        uint8_t *block = p.data + b * type->block_bytes, scale[2];
        memcpy(scale, block + scale_at, sizeof scale);
        memset(block, codes[b % sizeof codes], type->block_bytes);
        memcpy(block + scale_at, scale, sizeof scale);
    }
    check_problem(&p, NULL, false, SIZE_MAX);
}

/* A NaN or infinity in token 1 of 5 stays in token 1. */
static void check_not_finite(const qn_type_info *type)
{
    enum { COLS = 768, TOKENS = 5 };
    for (int kernel = 0; kernel < 3; kernel++) {
        qn_matmul_kernels ref;
        qn_problem p;
        qn_matmul_kernels_init(&ref, 0);
        qn_random_seed(kernel + 1);
        qn_problem_new(&p, type, 2 * QN_PANEL_ROWS, COLS, TOKENS, false);
        p.x[COLS + qn_random_below(COLS)] = kernel == 0 ? NAN : kernel == 1 ? INFINITY : -INFINITY;
        qn_quantize_rows(&ref, &p.acts, p.x, TOKENS);
        check_problem(&p, NULL, false, 1);
    }
}

/* ---- Speed ---- */

struct timed {
    const qn_matmul_kernels *kernels;
    const qn_packed_matrix *weights;
    const qn_acts *acts;
    size_t n_tokens;
    float *out;
    void *scratch;
};

static void timed_rows(void *context)
{
    const struct timed *t = context;
    qn_matmul_rows(t->kernels, t->weights, t->acts, t->n_tokens, 0, t->weights->stored.n_rows, false, t->out,
                   t->weights->stored.n_rows, t->scratch);
}

struct timed_pack {
    const qn_packed_matrix *weights;
    qn_packing packing;
    uint8_t *packed, *rows;
};

static void timed_pack(void *context)
{
    const struct timed_pack *t = context;
    qn_matmul_pack(&t->weights->stored, t->packing, 0, t->weights->stored.n_rows / QN_PANEL_ROWS, t->packed);
}

static void timed_unpack(void *context)
{
    const struct timed_pack *t = context;
    for (size_t panel = 0; panel < t->weights->stored.n_rows / QN_PANEL_ROWS; panel++)
        qn_matmul_unpack(t->weights, t->packing, panel, t->rows);
}

/* Stored rows, then packed rows. */
static void bench_matmul(const qn_type_info *type, const qn_cpu_level *level, size_t n_rows, size_t n_tokens)
{
    enum { COLS = 2048 };
    qn_matmul_kernels kernels;
    qn_problem p;
    const qn_packed_kernel *kernel = kernel_of(level, type, &kernels);
    qn_problem_new(&p, type, n_rows, COLS, n_tokens, false);
    const qn_packed_matrix packed = pack(&p, kernel->packing), stored = { .stored = p.weights };
    for (int i = 0; i < 2; i++) {
        const bool decode = n_tokens == 1;
        qn_acts acts;
        struct timed timed = { .kernels = &kernels,
                               .weights = i ? &packed : &stored,
                               .acts = &acts,
                               .n_tokens = n_tokens,
                               .out = qn_floats(n_tokens * n_rows),
                               .scratch = qn_new(qn_matmul_scratch(&kernels, COLS), 1) };
        acts_new(&acts, &p, timed.weights, &kernels, true);
        qn_bench("packed", level->name,
                 qn_text("%s %zux%d tokens %zu %s", type->name, n_rows, COLS, n_tokens, i ? "packed" : "stored"),
                 decode ? (double)(n_rows * p.weights.row_bytes) : 2.0 * (double)(n_rows * COLS * n_tokens),
                 decode ? "B" : "OP", timed_rows, &timed);
    }
    qn_release();
}

static void bench_packing(const qn_type_info *type, const qn_cpu_level *level)
{
    enum { ROWS = 4096, COLS = 2048 };
    qn_matmul_kernels kernels;
    qn_problem p;
    const qn_packing packing = kernel_of(level, type, &kernels)->packing;
    const char *name = packing == QN_PACKING_WORDS ? "words" : "bytes";
    qn_problem_new(&p, type, ROWS, COLS, 1, false);
    const double bytes = (double)(ROWS * p.weights.row_bytes);
    const qn_packed_matrix weights = pack(&p, packing);
    struct timed_pack timed = { .weights = &weights,
                                .packing = packing,
                                .packed = qn_new(ROWS, p.weights.row_bytes),
                                .rows = qn_new(QN_PANEL_ROWS, p.weights.row_bytes) };
    qn_bench("packed", level->name, qn_text("%s %dx%d to %s", type->name, ROWS, COLS, name), bytes, "B", timed_pack,
             &timed);
    qn_bench("packed", level->name, qn_text("%s %dx%d from %s", type->name, ROWS, COLS, name), bytes, "B", timed_unpack,
             &timed);
    qn_release();
}

void qn_check_packed(bool bench)
{
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    for (size_t t = 0; t < n_types; t++) {
        bool is_packed = false;
        for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
            qn_matmul_kernels kernels;
            const qn_packed_kernel *kernel = kernel_of(level, &types[t], &kernels);
            if (!kernel)
                continue;
            is_packed = true;
            check_shapes(&types[t], kernel, level);
            if (!bench)
                continue;
            bench_matmul(&types[t], level, 4096, 1);
            bench_matmul(&types[t], level, 512, 16);
            bench_matmul(&types[t], level, 512, 96);
            bench_packing(&types[t], level);
        }
        if (!is_packed)
            continue;
        check_extremes(&types[t], false);
        check_extremes(&types[t], true);
        check_not_finite(&types[t]);
    }
}
