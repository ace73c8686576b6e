/* Test problems of matmuls: random blocks with finite weights, activations, memory. */
#include "problem.h"

#include "kernels/matmul/tiles.h"

/* Random bits may be NaN, infinite or too large in f16 and f32 fields: such a block is generated again. */
void qn_random_blocks(const qn_type_info *type, uint8_t *blocks, size_t n_blocks, float largest)
{
    float weights[256];
    for (size_t b = 0; b < n_blocks; b++) {
        uint8_t *block = blocks + b * type->block_bytes;
        bool valid;
        do {
            for (size_t i = 0; i < type->block_bytes; i++)
                block[i] = (uint8_t)qn_random();
            valid = type->find_nonfinite(block, 1) == 1;
            if (valid)
                type->to_float(block, 1, weights);
            for (size_t i = 0; valid && i < type->block_weights; i++)
                valid = fabsf(weights[i]) < largest;
        } while (!valid);
    }
}

void qn_quantize_rows(const qn_matmul_kernels *kernels, qn_acts *acts, const float *x, size_t n_rows)
{
    for (size_t row = 0; row < n_rows; row++)
        for (size_t s = 0; s < acts->n_super; s++) {
            const size_t n = acts->n_cols - s * QN_SUPER < QN_SUPER ? acts->n_cols - s * QN_SUPER : QN_SUPER;
            kernels->quantize(acts, row, s, x + row * acts->n_cols + s * QN_SUPER, n);
        }
}

static void release_acts(void *acts)
{
    qn_acts_free(acts);
    free(acts);
}

void qn_acts_keep(qn_acts *acts, size_t n_rows, size_t n_cols, unsigned layouts, bool hilo)
{
    qn_acts *kept = malloc(sizeof *kept);
    if (!kept)
        qn_assert_ok(qn_fail(QN_ERR_MEMORY, "no memory for activations"));
    qn_assert_ok(qn_acts_create(acts, n_rows, n_cols, layouts, hilo));
    *kept = *acts;
    qn_own(kept, 0, NULL, release_acts);
}

void qn_problem_new(qn_problem *p, const qn_type_info *type, size_t n_rows, size_t n_cols, size_t n_tokens, bool hilo)
{
    qn_matmul_kernels ref;
    qn_matmul_kernels_init(&ref, 0);
    p->type = type;
    p->n_tokens = n_tokens;
    p->weights = (qn_matrix){ .type = type, .n_rows = n_rows, .n_cols = n_cols };
    if (!qn_row_bytes(type, n_cols, &p->weights.row_bytes))
        exit(1);
    /* Block sizes are even but for MXFP4, so in files blocks have any even alignment; f32 is aligned to 4 bytes. */
    const size_t shift = type->type == QN_TYPE_F32 ? 4 * qn_random_below(16) : 2 * qn_random_below(32);
    p->weights.data = p->data = qn_guarded(n_rows * p->weights.row_bytes, shift);
    qn_random_blocks(type, p->data, n_rows * n_cols / type->block_weights, 1e6f);
    const unsigned codes = ((1u << QN_ACT_INT8_LAYOUTS) - 1) | (qn_tiles_multiply_type(type) ? 1u << QN_ACT_TILES : 0),
                   forms = qn_act_layout_of(type) == QN_ACT_F32 ? 1u << QN_ACT_F32 : codes;
    qn_acts_keep(&p->acts, n_tokens, n_cols, forms, hilo);
    p->x = qn_floats_of(n_tokens * n_cols, 1);
    qn_quantize_rows(&ref, &p->acts, p->x, n_tokens);
}

void qn_problem_run(const qn_matmul_kernels *kernels, const qn_problem *p, size_t begin, size_t end, bool accumulate,
                    float *out)
{
    const qn_packed_matrix weights = { .stored = p->weights };
    const unsigned layouts = qn_matmul_act_layouts(kernels, &weights, false);
    qn_acts acts = p->acts;
    for (int layout = 0; layout < QN_ACT_INT8_LAYOUTS; layout++)
        if (!(layouts & 1u << layout)) /* one that the kernels did not ask for is not there */
            acts.codes[layout] = acts.codes_lo[layout] = NULL;
    void *scratch = qn_new(qn_matmul_scratch(kernels, p->weights.n_cols), 1);
    qn_matmul_rows(kernels, &weights, &acts, p->n_tokens, begin, end, accumulate, out, p->weights.n_rows, scratch);
}
