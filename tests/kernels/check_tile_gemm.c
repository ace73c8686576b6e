/* The GEMM on matrix units (kernels/matmul/tiles.h) of every type that it multiplies, compared bit for bit with the
 * reference: on the CPU's units, if it has any, and amx-ref, which emulates them in C and runs everywhere. A part of
 * operation matmul. */
#include "problem.h"

#include "kernels/matmul/packed.h"
#include "kernels/matmul/tiles.h"

/* The kernels that are compared: amx-ref, then the CPU's if it has matrix units. */
struct variant {
    const char *name;
    qn_matmul_kernels kernels;
};

static size_t find_variants(struct variant variants[2])
{
    size_t n = 1;
    variants[0].name = "amx-ref";
    qn_matmul_kernels_init(&variants[0].kernels, 0);
    qn_matmul_init_amx_ref(&variants[0].kernels);
    for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
        struct variant *variant = &variants[1];
        qn_matmul_kernels_init(&variant->kernels, level->features);
        if (!variant->kernels.gemm_tiles)
            continue;
        variant->name = level->name;
        variant->kernels.min_tile_tokens = 1;
        n = 2;
    }
    return n;
}

/* The matmul in up to three ranges of rows. */
static void check_problem(const qn_problem *p, bool accumulate)
{
    const size_t n_rows = p->weights.n_rows, n_out = p->n_tokens * n_rows;
    struct variant variants[2];
    qn_matmul_kernels ref;
    float *expected = qn_floats(n_out);
    qn_matmul_kernels_init(&ref, 0);
    for (size_t i = 0; accumulate && i < n_out; i++)
        expected[i] = (float)i;
    qn_problem_run(&ref, p, 0, n_rows, accumulate, expected);
    const size_t n_variants = find_variants(variants);
    for (size_t v = 0; v < n_variants; v++) {
        const size_t mark = qn_mark();
        float *y = qn_guarded_floats(n_out);
        qn_case_begin("matmul", variants[v].name, "tiles %s rows %zu cols %zu tokens %zu%s%s", p->type->name, n_rows,
                      p->weights.n_cols, p->n_tokens, p->acts.hilo ? " hi/lo" : "", accumulate ? " added" : "");
        for (size_t i = 0; accumulate && i < n_out; i++)
            y[i] = (float)i;
        for (size_t begin = 0, end; begin < n_rows; begin = end) {
            end = begin + 1 + qn_random_below(n_rows);
            end = end < n_rows ? end : n_rows;
            qn_problem_run(&variants[v].kernels, p, begin, end, accumulate, y);
        }
        qn_expect_same(y, expected, n_out, "element");
        qn_release_to(mark);
    }
    qn_release();
}

void qn_check_tile_gemm(void)
{
    static const size_t rows[] = { 1, 16, 17, 33, 64, 65, 100 }, tokens[] = { 1, 15, 16, 17, 32, 33, 50 };
    size_t n_types;
    const qn_type_info *types = qn_types(&n_types);
    for (size_t t = 0; t < n_types; t++) {
        const size_t block = types[t].block_weights;
        if (!qn_tiles_multiply_type(&types[t]))
            continue;
        for (size_t draw = 0; draw < 14; draw++) {
            qn_random_seed(1000 * t + draw + 500);
            const size_t blocks = draw < 4 ? draw + 1 : 1 + qn_random_below(4200 / block);
            qn_problem p;
            if (!qn_case_selected())
                continue;
            qn_problem_new(&p, &types[t], rows[draw % 7], blocks * block, tokens[draw * 3 % 7], draw % 3 == 2);
            check_problem(&p, draw % 4 == 3);
        }
    }
    static const qn_type long_types[] = { QN_TYPE_Q8_0, QN_TYPE_Q4_1, QN_TYPE_PTQ1_0 };
    for (size_t i = 0; i < 3; i++) { /* lanes of two and three chunks, the last group of super-block 13 or 27 */
        qn_problem p;
        qn_problem_new(&p, qn_type_find(long_types[i]), 20, (i % 2 ? 27 : 13) * QN_SUPER - 384, 35, i == 0);
        check_problem(&p, false);
    }
    qn_problem many; /* more tokens than a call of the GEMM takes, and than fit in L2 */
    qn_problem_new(&many, qn_type_find(QN_TYPE_PTQ1_0), 20, 2 * QN_SUPER, QN_TILE_MAX_TOKENS + 20, false);
    check_problem(&many, false);
}
