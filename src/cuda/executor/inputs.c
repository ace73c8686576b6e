/* A step's inputs: tokens, positions, the slots and page tables of each sequence, and embeddings. Embeddings are
 * dequantised on the device, or on the host if no kernel reads the table's type. */
#include "cuda/executor/inputs.h"

#include "cuda/kernels/matmul/embed.h"

#include <stddef.h>

_Static_assert(QN_GPU_NO_SEQUENCE == QN_ATTENTION_NO_SESSION, "the kernels read the inputs");

enum { MIN_PARALLEL_ROWS = 8 /* with fewer, one host thread dequantises them */ };

/* ---- Embeddings on the host ---- */

struct embeddings {
    const qn_cuda_common *common;
    const int32_t *tokens;
    size_t n;
    float *out;
};

static void embed(const struct embeddings *e, size_t row)
{
    const qn_op *op = &e->common->plan->ops[0];
    const qn_matrix *table = &op->embed.table;
    float *x = e->out + row * table->n_cols;
    table->type->to_float(table->data + (size_t)e->tokens[row] * table->row_bytes,
                          table->n_cols / table->type->block_weights, x);
    for (size_t i = 0; op->embed.inverse.block && i < table->n_cols; i += op->embed.inverse.block)
        e->common->hadamard.block(x + i, op->embed.inverse.block, NULL,
                                  op->embed.inverse.signs ? op->embed.inverse.signs + i : NULL);
}

static void embed_range(void *context, size_t begin, size_t end, int thread)
{
    const struct embeddings *e = context;
    (void)thread;
    for (size_t row = begin; row < end; row++)
        embed(e, row);
}

static void embed_rows(const qn_cuda_rows_step *s)
{
    const size_t n = s->n;
    struct embeddings e = { .common = s->common,
                            .tokens = (const int32_t *)qn_cuda_host_input(s, s->inputs.tokens),
                            .out =
                                (float *)(void *)(s->workspace->block_inputs[s->block] + s->workspace->input_bytes) };
    if (n >= MIN_PARALLEL_ROWS)
        qn_team_divide(s->common->team, n, 1, embed_range, &e);
    for (size_t i = 0; n < MIN_PARALLEL_ROWS && i < n; i++)
        embed(&e, i);
}

/* ---- Embeddings on the device ---- */

static size_t used_bytes(const qn_cuda_rows_step *s)
{
    return s->inputs.bytes + s->n_samples * sizeof(qn_sample_params);
}

/* Launches the embedding kernel. For one row the kernel reads the token from pinned host memory and copies the inputs
 * to the device: no separate copy is queued. */
static qn_status embed_on_device(const qn_cuda_rows_step *s)
{
    const qn_op *op = &s->common->plan->ops[0];
    const uint64_t host = (uint64_t)(uintptr_t)s->workspace->block_inputs[s->block];
    const uint64_t inputs = s->n == 1 ? host : s->workspace->inputs;
    qn_launch config;
    qn_matmul_embed_args args;
    QN_TRY(qn_matmul_gpu_embed(s->weights->table.tiled_matrix, s->weights->table.first_tile, inputs + s->inputs.tokens,
                               s->weights->table.signs, op->embed.inverse.block, s->n,
                               qn_cuda_rows(s->workspace, op->embed.out), &config, &args));
    args.sources = inputs + s->inputs.sources;
    args.sampled = qn_cuda_sampled_tokens(s->sampler);
    if (s->n == 1) {
        args.from = host;
        args.to = s->workspace->inputs;
        args.n_words = (uint32_t)(used_bytes(s) / sizeof(uint32_t));
    }
    return qn_cuda_step_launch(s, &config, &args);
}

/* ---- Steps ---- */

static uint64_t *addresses_at(const qn_cuda_rows_step *s, size_t offset)
{
    return (uint64_t *)(void *)(s->workspace->block_inputs[s->block] + offset);
}

static void fill_sequence(const qn_cuda_rows_step *s, size_t i)
{
    const qn_cuda_piece *piece = &s->pieces[i];
    const qn_gpu_inputs *in = &s->inputs;
    const qn_sequence none = { 0 }, *sequence = piece->rows ? piece->memory->base.sequence : &none;
    addresses_at(s, in->kv_tables)[i] = piece->rows ? piece->memory->kv_table : 0;
    addresses_at(s, in->f16_tables)[i] = piece->rows ? piece->memory->f16_table : 0;
    qn_cuda_host_input(s, in->state_from)[i] = sequence->state;
    qn_cuda_host_input(s, in->state_to)[i] = sequence->state_to;
    qn_cuda_host_input(s, in->open_chunks)[i] = sequence->open_chunk;
    qn_cuda_host_input(s, in->state_positions)[i] = sequence->state_position;
    qn_cuda_host_input(s, in->first_positions)[i] = piece->position;
}

static void fill_rows(const qn_cuda_rows_step *s, size_t i)
{
    const qn_cuda_piece *piece = &s->pieces[i];
    const qn_gpu_inputs *in = &s->inputs;
    uint32_t *begins = qn_cuda_host_input(s, in->cu_seqlens);
    begins[i + 1] = begins[i] + (piece->rows ? piece->n : 0);
    for (uint32_t row = 0; row < piece->n; row++) {
        const uint32_t at = piece->row + row;
        qn_cuda_host_input(s, in->tokens)[at] = piece->rows ? (uint32_t)piece->rows[row].token : 0;
        qn_cuda_host_input(s, in->sources)[at] = piece->rows ? piece->rows[row].source : 0;
        qn_cuda_host_input(s, in->positions)[at] = piece->position + row;
        qn_cuda_host_input(s, in->sequences)[at] = piece->rows ? (uint32_t)i : QN_GPU_NO_SEQUENCE;
    }
}

void qn_cuda_fill_inputs(const qn_cuda_rows_step *s)
{
    qn_cuda_host_input(s, s->inputs.cu_seqlens)[0] = 0;
    for (size_t i = 0; i < s->n_pieces; i++) {
        fill_sequence(s, i);
        fill_rows(s, i);
    }
    if (!s->weights->table.tiled_matrix)
        embed_rows(s);
}

qn_status qn_cuda_upload_inputs(const qn_cuda_rows_step *s)
{
    const bool on_device = s->weights->table.tiled_matrix != NULL;
    const size_t rows = s->n * s->common->plan->ops[0].embed.table.n_cols * sizeof(float);
    const size_t bytes = on_device ? used_bytes(s) : s->workspace->input_bytes + rows;
    if (!on_device || s->n > 1)
        QN_TRY(qn_cuda_copy_h2d(s->common->cuda, s->common->stream, s->workspace->inputs,
                                s->workspace->block_inputs[s->block], bytes));
    return on_device ? embed_on_device(s) : QN_OK;
}
