/* A step's inputs: tokens, positions, what kernels need of each sequence, and embeddings. Embeddings are dequantised on the
 * device, or on the host if no kernel reads the table's type. */
#include "cuda/executor/operations.h"

#include "base/memory.h"
#include "cuda/kernels/matmul/embed.h"

#include <stddef.h>

enum { MIN_PARALLEL_ROWS = 8, /* with fewer, one host thread dequantises them */ ALIGN = 16 };

/* ---- Where they are ---- */

static void add(size_t *used, size_t count, size_t size, size_t *at)
{
    *at = *used;
    *used = qn_round_up(*used + count * size, ALIGN);
}

qn_cuda_inputs qn_cuda_inputs_of(size_t n_rows, size_t n_pieces, size_t n_logits)
{
    qn_cuda_inputs in = { 0 };
    add(&in.bytes, n_pieces, sizeof(uint64_t), &in.kv_tables);
    add(&in.bytes, n_pieces, sizeof(uint64_t), &in.f16_tables);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.state_from);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.state_to);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.open_chunks);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.state_positions);
    add(&in.bytes, n_pieces + 1, sizeof(uint32_t), &in.cu_seqlens);
    add(&in.bytes, n_pieces, sizeof(uint32_t), &in.first_positions);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.tokens);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.sources);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.positions);
    add(&in.bytes, n_rows, sizeof(uint32_t), &in.sequences);
    add(&in.bytes, n_logits, sizeof(uint32_t), &in.logit_rows);
    in.sampling = in.bytes;
    return in;
}

/* ---- Embeddings on the host ---- */

struct embeddings {
    const qn_cuda_model *model;
    const int32_t *tokens;
    size_t n;
    float *out;
};

static void embed(const struct embeddings *e, size_t row)
{
    const qn_op *op = &e->model->plan->ops[0];
    const qn_matrix *table = &op->embed.table;
    float *x = e->out + row * table->n_cols;
    table->type->to_float(table->data + (size_t)e->tokens[row] * table->row_bytes, table->n_cols / table->type->block_weights,
                          x);
    for (size_t i = 0; op->embed.inverse.block && i < table->n_cols; i += op->embed.inverse.block)
        e->model->hadamard.block(x + i, op->embed.inverse.block, NULL,
                                 op->embed.inverse.signs ? op->embed.inverse.signs + i : NULL);
}

static void embed_range(void *context, int thread)
{
    const struct embeddings *e = context;
    size_t begin, end;
    qn_team_range(e->n, 1, thread, qn_team_size(e->model->team), &begin, &end);
    for (size_t row = begin; row < end; row++)
        embed(e, row);
}

static void embed_rows(const qn_cuda_model *model, const int32_t *tokens, size_t n)
{
    struct embeddings e = { model, tokens, n, (float *)(void *)(model->host_inputs + model->input_bytes) };
    if (n >= MIN_PARALLEL_ROWS)
        qn_team_run(model->team, embed_range, &e);
    for (size_t i = 0; n < MIN_PARALLEL_ROWS && i < n; i++)
        embed(&e, i);
}

/* ---- Embeddings on the device ---- */

static size_t used_bytes(const qn_cuda_rows_step *s)
{
    return s->inputs.bytes + s->n_samples * sizeof(qn_sample_params);
}

/* For one row the embedding kernel reads the token from pinned host memory and copies the inputs to the device: no separate
 * copy is queued. */
static qn_status embed_on_device(const qn_cuda_rows_step *s)
{
    const qn_cuda_model *model = s->model;
    const qn_op *op = &model->plan->ops[0];
    const uint64_t host = (uint64_t)(uintptr_t)model->host_inputs;
    const uint64_t inputs = s->n == 1 ? host : model->inputs;
    qn_launch config;
    qn_matmul_embed_args args;
    QN_TRY(qn_matmul_gpu_embed(model->table.tiled_matrix, model->table.first_tile, inputs + s->inputs.tokens,
                               model->table.signs, op->embed.inverse.block, s->n, qn_cuda_rows(model, op->embed.out), &config,
                               &args));
    args.sources = inputs + s->inputs.sources;
    args.sampled = qn_cuda_sampled_tokens(model);
    if (s->n == 1) {
        args.from = host;
        args.to = model->inputs;
        args.n_words = (uint32_t)(used_bytes(s) / sizeof(uint32_t));
    }
    return qn_cuda_step_launch(s, &config, &args);
}

/* ---- Steps ---- */

static uint64_t *addresses_at(const qn_cuda_rows_step *s, size_t offset)
{
    return (uint64_t *)(void *)(s->model->host_inputs + offset);
}

static void fill_sequence(const qn_cuda_rows_step *s, size_t i)
{
    const qn_cuda_piece *piece = &s->pieces[i];
    const qn_cuda_inputs *in = &s->inputs;
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
    const qn_cuda_inputs *in = &s->inputs;
    uint32_t *begins = qn_cuda_host_input(s, in->cu_seqlens);
    begins[i + 1] = begins[i] + (piece->rows ? piece->n : 0);
    for (uint32_t row = 0; row < piece->n; row++) {
        const uint32_t at = piece->row + row;
        qn_cuda_host_input(s, in->tokens)[at] = piece->rows ? (uint32_t)piece->rows[row].token : 0;
        qn_cuda_host_input(s, in->sources)[at] = piece->rows ? piece->rows[row].source : 0;
        qn_cuda_host_input(s, in->positions)[at] = piece->position + row;
        qn_cuda_host_input(s, in->sequences)[at] = piece->rows ? (uint32_t)i : QN_ATTENTION_NO_SESSION;
    }
}

void qn_cuda_fill_inputs(const qn_cuda_rows_step *s)
{
    qn_cuda_host_input(s, s->inputs.cu_seqlens)[0] = 0;
    for (size_t i = 0; i < s->n_pieces; i++) {
        fill_sequence(s, i);
        fill_rows(s, i);
    }
    if (!s->model->table.tiled_matrix)
        embed_rows(s->model, (const int32_t *)qn_cuda_host_input(s, s->inputs.tokens), s->n);
}

qn_status qn_cuda_upload_inputs(const qn_cuda_rows_step *s)
{
    qn_cuda_model *model = s->model;
    const bool on_device = model->table.tiled_matrix != NULL;
    const size_t rows = s->n * model->plan->ops[0].embed.table.n_cols * sizeof(float);
    const size_t bytes = on_device ? used_bytes(s) : model->input_bytes + rows;
    if (!on_device || s->n > 1)
        QN_TRY(qn_cuda_copy_h2d(model->cuda, model->stream, model->inputs, model->host_inputs, bytes));
    return on_device ? embed_on_device(s) : QN_OK;
}
