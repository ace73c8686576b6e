/* Dequantises rows of the embedding table, and transforms them back where the table is rotated. */
#include "gpu/embeddings.h"

enum { MIN_PARALLEL_ROWS = 8 /* with fewer, one thread dequantises them */ };

struct embeddings {
    const qn_op *op;
    const qn_hadamard_kernels *hadamard;
    const int32_t *tokens;
    float *out;
};

static void embed(const struct embeddings *e, size_t row)
{
    const qn_matrix *table = &e->op->embed.table;
    const qn_plan_rotation *inverse = &e->op->embed.inverse;
    float *x = e->out + row * table->n_cols;
    table->type->to_float(table->data + (size_t)e->tokens[row] * table->row_bytes,
                          table->n_cols / table->type->block_weights, x);
    for (size_t i = 0; inverse->block && i < table->n_cols; i += inverse->block)
        e->hadamard->block(x + i, inverse->block, NULL, inverse->signs ? inverse->signs + i : NULL);
}

static void embed_range(void *context, size_t begin, size_t end, int thread)
{
    const struct embeddings *e = context;
    (void)thread;
    for (size_t row = begin; row < end; row++)
        embed(e, row);
}

void qn_gpu_embed_rows(const qn_plan *plan, const qn_hadamard_kernels *hadamard, qn_team *team, const int32_t *tokens,
                       size_t n, float *out)
{
    struct embeddings e = { .op = &plan->ops[0], .hadamard = hadamard, .tokens = tokens, .out = out };
    if (n >= MIN_PARALLEL_ROWS)
        qn_team_divide(team, n, 1, embed_range, &e);
    for (size_t i = 0; n < MIN_PARALLEL_ROWS && i < n; i++)
        embed(&e, i);
}
