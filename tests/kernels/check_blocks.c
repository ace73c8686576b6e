/* The arithmetic of kernels/matmul/blocks.h: the reference compared with float64, all others with the reference bit for
 * bit, on stored and packed rows: AVX-512's kernels for few tokens, amx-ref, which emulates matrix units in C and runs
 * everywhere, and the CPU's units, if it has any. A part of operation matmul. */
#include "problem.h"

#include "kernels/matmul/blocks.h"
#include "kernels/matmul/packed.h"

#include <string.h>

enum { MAX_VARIANTS = 6 };

struct variant {
    const char *name;
    qn_matmul_kernels kernels;
};

/* The reference comes first. */
static size_t find_variants(struct variant variants[MAX_VARIANTS])
{
    size_t n = 2;
    variants[0].name = "ref";
    qn_matmul_kernels_init(&variants[0].kernels, 0);
    variants[0].kernels.block_scales = true;
    variants[1].name = "amx-ref";
    qn_matmul_kernels_init(&variants[1].kernels, 0);
    qn_matmul_init_amx_ref(&variants[1].kernels);
    for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
        if (!(level->features & QN_CPU_AVX512))
            continue;
        struct variant *few = &variants[n++];
        qn_matmul_kernels_init(&few->kernels, level->features);
        few->name = level->name;
        few->kernels.block_scales = true;
        few->kernels.min_block_tokens = few->kernels.min_ternary_tokens = 1;
        if (few->kernels.gemm_blocks || n == MAX_VARIANTS)
            continue;
        struct variant *many = &variants[n++]; /* packed by AVX-512, multiplied by tiles in C */
        *many = *few;
        many->kernels.gemm_blocks = qn_block_gemm_ref;
        many->name = "avx512 and amx-ref";
    }
    return n;
}

/* The block's activation as a multiple of its scale. */
static double act_of(const qn_acts *acts, const qn_type_info *type, size_t token, size_t k)
{
    const qn_act_layout layout = qn_act_layout_of(type);
    const size_t super = token * acts->n_super + k / QN_SUPER,
                 at = super * QN_SUPER + qn_act_index(layout, k % QN_SUPER),
                 group = super * QN_SUPER_GROUPS + k % QN_SUPER / QN_QUANT_GROUP;
    const double code = acts->hilo ? QN_HILO_BASE * (double)acts->codes[layout][at] + acts->codes_lo[layout][at]
                                   : acts->codes[layout][at];
    return code * acts->factor[group];
}

/* Error bound: two roundings for each block, of the product of scales and of the fused multiply-add, each at most
 * 2^-24 of a magnitude below the sum of magnitudes. */
static void check_against_float64(const qn_problem *p, const qn_acts *acts, const float *out)
{
    const size_t n_cols = p->weights.n_cols;
    float *weights = qn_floats(n_cols);
    for (size_t r = 0; r < p->weights.n_rows; r++) {
        p->type->to_float(p->weights.data + r * p->weights.row_bytes, n_cols / QN_BLOCK, weights);
        for (size_t t = 0; t < p->n_tokens; t++) {
            double sum = 0, magnitude = 0;
            for (size_t k = 0; k < n_cols; k++) {
                const double scale = (double)acts->block_scale[t * qn_act_blocks(acts) + k / QN_BLOCK],
                             product = (double)weights[k] * act_of(acts, p->type, t, k) * scale;
                sum += product;
                magnitude += fabs(product);
            }
            const double bound = (double)(n_cols / QN_BLOCK + 2) * 0x1p-24 * magnitude + 1e-30;
            qn_expect_near(&out[t * p->weights.n_rows + r], &sum, &bound, 1, "element");
        }
    }
}

/* Codes are within half a step of the values. */
static void check_codes(const qn_problem *p, const qn_acts *acts)
{
    for (size_t t = 0; t < p->n_tokens; t++)
        for (size_t k = 0; k < p->weights.n_cols; k++) {
            const size_t group = t * acts->n_super * QN_SUPER_GROUPS + k / QN_QUANT_GROUP;
            const double expected = (double)p->x[t * p->weights.n_cols + k],
                         scale = (double)acts->block_scale[group / QN_BLOCK_GROUPS];
            const float value = (float)(act_of(acts, p->type, t, k) * scale);
            const double bound = (0.5 + 32500 * 0x1p-22) * scale * acts->factor[group] + 1e-30;
            qn_expect_near(&value, &expected, &bound, 1, "value");
        }
}

static void expect_same_scales(const qn_acts *found, const qn_acts *expected)
{
    const size_t groups = expected->max_rows * expected->n_super * QN_SUPER_GROUPS, blocks = groups / QN_BLOCK_GROUPS;
    qn_expect_same(found->scale, expected->scale, groups, "scale");
    qn_expect_same(found->block_scale, expected->block_scale, blocks, "block scale");
    qn_expect(!memcmp(found->factor, expected->factor, groups * sizeof(int32_t)), "factors differ");
    qn_expect(!memcmp(found->block_sum, expected->block_sum, blocks * sizeof(int32_t)), "sums of blocks differ");
}

static qn_packed_matrix pack(const qn_problem *p, const qn_packed_kernel *kernel)
{
    qn_packed_matrix weights = { .stored = p->weights };
    const size_t n_panels = p->weights.n_rows / QN_PANEL_ROWS;
    if (!kernel || !n_panels)
        return weights;
    uint8_t *packed = qn_guarded(n_panels * QN_PANEL_ROWS * p->weights.row_bytes, 0);
    qn_matmul_pack(&p->weights, kernel->packing, 0, n_panels, packed);
    weights.packed = packed;
    return weights;
}

/* Fills all layouts. */
static void quantize_all(const qn_problem *p, const qn_matmul_kernels *kernels, qn_acts *acts, const float *x)
{
    qn_acts_select(acts, kernels, p->n_tokens);
    acts->skip_tiles = acts->skip_codes = false;
    qn_quantize_rows(kernels, acts, x, p->n_tokens);
}

/* Multiplies in ranges of panels, or of halves of them on matrix units. */
static void multiply(const qn_problem *p, const qn_matmul_kernels *kernels, const qn_packed_matrix *weights,
                     const qn_acts *acts, bool accumulate, float *out)
{
    const size_t n_rows = p->weights.n_rows;
    const size_t step = qn_matmul_uses_tiles(kernels, weights, acts, p->n_tokens) ? QN_PANEL_ROWS / 2 : QN_PANEL_ROWS;
    void *scratch = qn_guarded(qn_matmul_scratch(kernels, p->weights.n_cols), 0);
    for (size_t i = 0; accumulate && i < p->n_tokens * n_rows; i++)
        out[i] = (float)i;
    for (size_t begin = 0, end; begin < n_rows; begin = end) {
        end = begin + (1 + qn_random_below(3)) * step;
        end = end < n_rows ? end : n_rows;
        qn_matmul_rows(kernels, weights, acts, p->n_tokens, begin, end, accumulate, out, n_rows, scratch);
    }
}

/* The same from activations of which only tiles are filled: sums of groups and blocks are not read. */
static void multiply_only_tiles(const qn_problem *p, const qn_matmul_kernels *kernels, const qn_packed_matrix *weights,
                                qn_acts *acts, bool accumulate, float *out)
{
    const size_t groups = acts->max_rows * acts->n_super * QN_SUPER_GROUPS;
    acts->only_tiles = true;
    qn_acts_select(acts, kernels, p->n_tokens);
    qn_expect(acts->skip_codes && !acts->skip_tiles, "tiles are not filled alone");
    memset(acts->sum, 0x55, groups * sizeof *acts->sum);
    memset(acts->block_sum, 0x55, groups / QN_BLOCK_GROUPS * sizeof *acts->block_sum);
    for (size_t i = 0; i < qn_act_blocks(acts) * qn_act_token_tiles(acts); i++)
        memset(acts->block_tiles[i].codes, 0x55, sizeof acts->block_tiles[i].codes);
    qn_quantize_rows(kernels, acts, p->x, p->n_tokens);
    multiply(p, kernels, weights, acts, accumulate, out);
}

/* The matmul. Returns the activations that the kernels quantised. */
static qn_acts run(const qn_problem *p, const qn_matmul_kernels *kernels, bool packed, bool accumulate, float *out)
{
    const qn_packed_matrix weights = pack(p, packed ? qn_matmul_packed(kernels, p->type) : NULL);
    qn_acts acts;
    qn_acts_keep(&acts, p->n_tokens, p->weights.n_cols, qn_matmul_act_layouts(kernels, &weights, true), p->acts.hilo);
    if (acts.block_tiles) { /* what was there before, which has lo digits, must not matter */
        const size_t n = p->n_tokens * p->weights.n_cols;
        float *before = qn_floats_of(n, 1);
        for (size_t i = 0; i < n; i++)
            before[i] *= i / 32 % 3 ? 1e-2f : 1;
        quantize_all(p, kernels, &acts, before);
    }
    quantize_all(p, kernels, &acts, p->x);
    qn_expect(qn_matmul_panels_together(kernels, &weights, &acts, p->n_tokens) == 2, "a batch kernel would be used");
    float *only_tiles = NULL;
    if (qn_matmul_uses_tiles(kernels, &weights, &acts, p->n_tokens)) {
        only_tiles = qn_guarded_floats(p->n_tokens * p->weights.n_rows);
        multiply_only_tiles(p, kernels, &weights, &acts, accumulate, only_tiles);
        quantize_all(p, kernels, &acts, p->x);
    }
    multiply(p, kernels, &weights, &acts, accumulate, out);
    if (only_tiles)
        qn_expect_same(only_tiles, out, p->n_tokens * p->weights.n_rows, "element of tiles alone");
    return acts;
}

/* Groups of any magnitude: most blocks have factors. */
static void make_uneven(qn_problem *p)
{
    for (size_t i = 0; i < p->n_tokens * p->weights.n_cols; i++)
        p->x[i] *= i / 32 % 7 == 2 ? 0 : i / 32 % 3 ? 1e-2f : i / 128 % 3 ? 1e3f : 1;
}

static void check_problem(const qn_problem *p, bool accumulate)
{
    struct variant variants[MAX_VARIANTS];
    const size_t n = find_variants(variants), n_out = p->n_tokens * p->weights.n_rows;
    qn_acts expected_acts;
    float *expected = NULL;
    for (size_t v = 0; v < n; v++)
        for (int packed = 0; packed < 2; packed++) {
            const qn_packed_kernel *kernel = qn_matmul_packed(&variants[v].kernels, p->type);
            if (packed && (!kernel || (p->acts.hilo && !kernel->hilo)))
                continue;
            float *out = qn_guarded_floats(n_out);
            qn_case_begin("matmul", variants[v].name, "blocks %s rows %zu cols %zu tokens %zu%s%s%s", p->type->name,
                          p->weights.n_rows, p->weights.n_cols, p->n_tokens, p->acts.hilo ? " hi/lo" : "",
                          packed ? " packed" : "", accumulate ? " added" : "");
            const qn_acts acts = run(p, &variants[v].kernels, packed, accumulate, out);
            if (!expected) {
                expected = out;
                expected_acts = acts;
                check_codes(p, &acts);
                if (!accumulate)
                    check_against_float64(p, &acts, out);
                continue;
            }
            expect_same_scales(&acts, &expected_acts);
            qn_expect_same(out, expected, n_out, "element");
        }
    qn_release();
}

/* Largest sums: every weight at one end and activations of one sign, groups of equal and of different magnitudes. */
static void check_extremes(const qn_type_info *type, bool hilo)
{
    enum { ROWS = 64, COLS = 512, TOKENS = 4 };
    qn_problem p;
    qn_random_seed(3);
    qn_problem_new(&p, type, ROWS, COLS, TOKENS, hilo);
    for (size_t i = 0; i < TOKENS * COLS; i++)
        p.x[i] = (i / COLS % 2 ? -1.0f : 1.0f) * (i / COLS < 2 ? 1 : 1.0f / (float)(1 + i / QN_QUANT_GROUP % 4 * 20));
    for (size_t b = 0; b < ROWS * COLS / QN_BLOCK; b++) {
        static const uint8_t codes[] = { 0xff, 0x00, 0x55, 0xaa };
        const size_t scale_at = type->codes_at ? 0 : type->block_bytes - 2;
        uint8_t *block = p.data + b * type->block_bytes, scale[2];
        memcpy(scale, block + scale_at, sizeof scale);
        memset(block, codes[b % sizeof codes], type->block_bytes);
        memcpy(block + scale_at, scale, sizeof scale);
    }
    check_problem(&p, false);
}

/* A NaN or infinity stays in its token. */
static void check_not_finite(const qn_type_info *type)
{
    enum { ROWS = 70, COLS = 768, TOKENS = 18 };
    struct variant variants[MAX_VARIANTS];
    const size_t n = find_variants(variants);
    for (size_t v = 0; v < n; v++)
        for (int kind = 0; kind < 3; kind++) {
            qn_problem p;
            qn_random_seed(kind + 1);
            qn_problem_new(&p, type, ROWS, COLS, TOKENS, false);
            p.x[COLS + qn_random_below(COLS)] = kind == 0 ? NAN : kind == 1 ? INFINITY : -INFINITY;
            float *out = qn_guarded_floats(TOKENS * ROWS);
            qn_case_begin("matmul", variants[v].name, "blocks %s not finite", type->name);
            run(&p, &variants[v].kernels, true, false, out);
            for (size_t i = 0; i < TOKENS * ROWS; i++)
                qn_expect(isfinite(out[i]) == (i / ROWS != 1), "element %zu of token %zu is %g", i % ROWS, i / ROWS,
                          (double)out[i]);
            qn_release();
        }
}

/* Which blocks have factors: those in which one group is far larger than the others. */
static void check_factors(void)
{
    static const struct {
        float amax[QN_BLOCK_GROUPS];
        bool has_factors;
    } blocks[] = {
        { { 1, 1, 1, 1e-3f }, false },       { { 1, 1e-3f, 1, 1e-3f }, false }, { { 1, 0.2f, 0.2f, 0.2f }, false },
        { { 0.1f, 1, 0.1f, 0.1f }, true },   { { 0, 0, 3e4f, 0 }, false },      { { 0, 0, 1e-3f, 3e4f }, false },
        { { 0, 0, 0, 0 }, false },           { { 1e-31f, 0, 0, 0 }, false },    { { 1e-29f, 0, 0, 0 }, false },
        { { 1e-29f, 1e-30f, 0, 0 }, false }, { { 3e38f, 1, 1, 1 }, true },
    };
    for (size_t b = 0; b < QN_LENGTH(blocks); b++)
        for (int hilo = 0; hilo < 2; hilo++) {
            qn_group_scale scales[QN_BLOCK_GROUPS];
            int32_t factor[QN_BLOCK_GROUPS];
            const float scale = qn_block_scales(blocks[b].amax, hilo, scales);
            qn_case_begin("matmul", "ref", "factors of block %zu%s", b, hilo ? " hi/lo" : "");
            for (size_t g = 0; g < QN_BLOCK_GROUPS; g++)
                factor[g] = scales[g].factor;
            qn_expect(isfinite(scale), "the scale is %g", (double)scale);
            qn_expect(qn_block_has_hi(factor) == (blocks[b].has_factors && !hilo), "factors %d %d %d %d", factor[0],
                      factor[1], factor[2], factor[3]);
        }
}

/* A step of few tokens after one of many whose blocks have factors: hi digits of the tokens that are not there any more
 * are not multiplied. Those of the tokens that are there are set to what would show. */
static void check_flags_of_steps_before(void)
{
    static const size_t tokens[] = { 1, 4, 10, 16, 17, 31, 33, 40 };
    enum { MANY = 64, ROWS = 130, COLS = 4 * QN_BLOCK };
    struct variant variants[MAX_VARIANTS];
    const size_t n = find_variants(variants);
    for (size_t v = 0; v < n; v++)
        for (size_t i = 0; variants[v].kernels.gemm_blocks && i < QN_LENGTH(tokens); i++) {
            qn_problem p;
            const qn_matmul_kernels *kernels = &variants[v].kernels;
            qn_random_seed(5);
            qn_problem_new(&p, qn_type_find(QN_TYPE_Q1_0), ROWS, COLS, MANY, false);
            const qn_packed_matrix weights = { .stored = p.weights };
            float *expected = qn_guarded_floats(MANY * ROWS), *out = qn_guarded_floats(MANY * ROWS),
                  *before = qn_floats_of(MANY * COLS, 1);
            qn_acts acts;
            qn_acts_keep(&acts, MANY, COLS, qn_matmul_act_layouts(kernels, &weights, true), false);
            qn_case_begin("matmul", variants[v].name, "blocks of %zu tokens after %d with factors", tokens[i], MANY);
            p.n_tokens = tokens[i];
            quantize_all(&p, kernels, &acts, p.x);
            multiply(&p, kernels, &weights, &acts, false, expected);
            for (size_t k = 0; k < MANY * COLS; k++)
                before[k] *= k / QN_QUANT_GROUP % QN_BLOCK_GROUPS ? 1e-2f : 1;
            p.n_tokens = MANY;
            quantize_all(&p, kernels, &acts, before);
            p.n_tokens = tokens[i];
            quantize_all(&p, kernels, &acts, p.x);
            for (size_t tile = 0; tile < qn_act_blocks(&acts) * qn_act_token_tiles(&acts); tile++)
                memset(acts.block_tiles_hi[tile].codes, 1, sizeof acts.block_tiles_hi[tile].codes);
            multiply(&p, kernels, &weights, &acts, false, out);
            qn_expect_same(out, expected, p.n_tokens * ROWS, "element");
            qn_release();
        }
}

/* Returns the sum of squared errors of the elements, as float64 computes them from the values. */
static double squared_error(const qn_problem *p, const float *out)
{
    const size_t n_cols = p->weights.n_cols;
    float *weights = qn_floats(n_cols);
    double error = 0;
    for (size_t r = 0; r < p->weights.n_rows; r++) {
        p->type->to_float(p->weights.data + r * p->weights.row_bytes, n_cols / QN_BLOCK, weights);
        for (size_t t = 0; t < p->n_tokens; t++) {
            double sum = 0;
            for (size_t k = 0; k < n_cols; k++)
                sum += (double)weights[k] * (double)p->x[t * n_cols + k];
            const double difference = sum - (double)out[t * p->weights.n_rows + r];
            error += difference * difference;
        }
    }
    return error;
}

/* Values with outliers: one group of each block is 20 times as large as the others. Factors keep the error near that of
 * a scale for each group; one scale for the block has four times its square. */
static void check_outliers(void)
{
    enum { ROWS = 128, COLS = 8 * QN_BLOCK, TOKENS = 8 };
    qn_matmul_kernels blocks, groups;
    qn_problem p;
    qn_matmul_kernels_init(&groups, 0);
    blocks = groups;
    blocks.block_scales = true;
    qn_random_seed(8);
    qn_case_begin("matmul", "ref", "blocks with outliers");
    qn_problem_new(&p, qn_type_find(QN_TYPE_Q1_0), ROWS, COLS, TOKENS, false);
    for (size_t i = 0; i < TOKENS * COLS; i++)
        p.x[i] *= i / QN_QUANT_GROUP % QN_BLOCK_GROUPS == i / QN_BLOCK % QN_BLOCK_GROUPS ? 20 : 1;
    float *out = qn_guarded_floats(TOKENS * ROWS);
    run(&p, &blocks, false, false, out);
    const double with_factors = squared_error(&p, out);
    const qn_packed_matrix weights = { .stored = p.weights };
    qn_acts acts;
    qn_acts_keep(&acts, TOKENS, COLS, qn_matmul_act_layouts(&groups, &weights, false), false);
    qn_quantize_rows(&groups, &acts, p.x, TOKENS);
    multiply(&p, &groups, &weights, &acts, false, out);
    const double by_group = squared_error(&p, out);
    qn_expect(with_factors < 1.2 * by_group, "the squared error is %g, with a scale for each group %g", with_factors,
              by_group);
    qn_release();
}

/* From how many tokens on matrix units are used depends on who reads the activations. */
static void check_min_tokens(void)
{
    static const struct {
        unsigned more_layouts;
        qn_type type;
        size_t min;
    } readers[] = { { 0, QN_TYPE_PTQ1_0, 4 },
                    { 0, QN_TYPE_Q1_0, 10 },
                    { 0, QN_TYPE_PQ2_0, 10 },
                    { 1u << QN_ACT_LUT, QN_TYPE_PTQ1_0, 10 } };
    qn_matmul_kernels kernels;
    qn_matmul_kernels_init(&kernels, 0);
    qn_matmul_init_amx_ref(&kernels);
    kernels.min_block_tokens = 10;
    kernels.min_ternary_tokens = 4;
    for (size_t i = 0; i < QN_LENGTH(readers); i++) {
        const qn_packed_matrix weights = { .stored.type = qn_type_find(readers[i].type) };
        qn_acts acts;
        qn_case_begin("matmul", "amx-ref", "blocks from %zu tokens on", readers[i].min);
        qn_acts_keep(&acts, 10, QN_BLOCK, qn_matmul_act_layouts(&kernels, &weights, true) | readers[i].more_layouts,
                     false);
        for (size_t n = 1; n <= 10; n++) {
            qn_acts_select(&acts, &kernels, n);
            qn_expect(acts.skip_tiles == (n < readers[i].min), "%zu tokens: tiles are filled, or not", n);
            qn_expect(qn_matmul_uses_tiles(&kernels, &weights, &acts, n) == (n >= readers[i].min),
                      "%zu tokens: tiles are multiplied, or not", n);
        }
        qn_release();
    }
}

void qn_check_blocks(void)
{
    static const size_t rows[] = { 1, 16, 17, 64, 65, 128, 130 },
                        tokens[] = { 1, 2, 3, 4, 5, 8, 10, 15, 16, 17, 28, 31, 32, 33, 48, 64, 96 };
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    for (size_t t = 0; t < n_types; t++) {
        if (!qn_type_has_blocks(&types[t]))
            continue;
        for (size_t draw = 0; draw < 3 * QN_LENGTH(tokens); draw++) {
            qn_problem p;
            if (!qn_case_selected())
                continue;
            qn_random_seed(1000 * t + draw + 700);
            const size_t blocks = draw < 6 ? draw + 1 : 1 + qn_random_below(20);
            qn_problem_new(&p, &types[t], rows[draw % 7], blocks * QN_BLOCK, tokens[draw % QN_LENGTH(tokens)],
                           draw % 3 == 2);
            if (draw % 2)
                make_uneven(&p);
            check_problem(&p, draw % 4 == 3);
        }
        check_extremes(&types[t], false);
        check_extremes(&types[t], true);
        check_not_finite(&types[t]);
    }
    check_factors();
    check_flags_of_steps_before();
    check_outliers();
    check_min_tokens();
    qn_problem many; /* more tokens than a call of the GEMM takes, several panels, more blocks than fit a part */
    qn_problem_new(&many, qn_type_find(QN_TYPE_PTQ1_0), 130, 20 * QN_BLOCK, QN_TILE_MAX_TOKENS + 20, false);
    check_problem(&many, false);
    /* most blocks have factors */
    qn_problem_new(&many, qn_type_find(QN_TYPE_Q1_0), 128, 5 * QN_BLOCK, QN_TILE_MAX_TOKENS + QN_TILE, false);
    make_uneven(&many);
    check_problem(&many, false);
}
