/* A step's inputs: tokens, positions and embeddings. Embeddings are dequantised on the device, or on the host if no
 * kernel reads the table's type. */
#include "device/cuda/model.h"

#include "kernels/matmul/embed_cuda.h"

#include <stddef.h>

enum { MIN_PARALLEL_ROWS = 8 }; /* with fewer, one host thread dequantises them */

/* ---- Embeddings on the host ---- */

struct embeddings {
    const qn_cuda_model *model;
    const qn_row *rows;
    size_t n;
    float *out;
};

static void embed(const struct embeddings *e, size_t row)
{
    const qn_op *op = &e->model->plan->ops[0];
    const qn_matrix *table = &op->embed.table;
    float *x = e->out + row * table->n_cols;
    table->type->to_float(table->data + (size_t)e->rows[row].token * table->row_bytes,
                          table->n_cols / table->type->block_weights, x);
    for (size_t i = 0; op->embed.inverse.block && i < table->n_cols; i += op->embed.inverse.block)
        e->model->kernels->hadamard.block(x + i, op->embed.inverse.block, NULL,
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

static void embed_rows(qn_cuda_model *model, const qn_row *rows, size_t n)
{
    struct embeddings e = { model, rows, n, (float *)(void *)(model->host_inputs + model->input_bytes) };
    if (n >= MIN_PARALLEL_ROWS)
        qn_team_run(model->team, embed_range, &e);
    for (size_t i = 0; n < MIN_PARALLEL_ROWS && i < n; i++)
        embed(&e, i);
}

/* ---- Embeddings on the device ---- */

/* Offset of the tokens, after the positions, in the inputs on the device and in host_inputs. */
static size_t tokens_at(const qn_cuda_model *model)
{
    return offsetof(qn_cuda_inputs, positions) + model->max_rows * sizeof(uint32_t);
}

/* For one row the embedding kernel reads token and position from pinned host memory and copies the inputs to the device: no
 * separate copy is queued. */
static qn_status embed_on_device(qn_cuda_model *model, size_t n)
{
    const qn_op *op = &model->plan->ops[0];
    const uint64_t host = (uint64_t)(uintptr_t)model->host_inputs;
    const uint64_t tokens = (n == 1 ? host : model->inputs) + tokens_at(model);
    qn_launch config;
    qn_matmul_embed_args args;
    QN_TRY(qn_matmul_gpu_embed(model->table.tiled_matrix, model->table.first_tile, tokens, model->table.signs,
                               op->embed.inverse.block, n, qn_cuda_rows(model, op->embed.out), &config, &args));
    if (n == 1) {
        args.from = host;
        args.to = model->inputs;
        args.n_words = (uint32_t)((offsetof(qn_cuda_inputs, positions) + sizeof(uint32_t)) / sizeof(uint32_t));
    }
    return qn_cuda_launch(model->cuda, model->stream, &config, &args);
}

/* ---- Steps ---- */

void qn_cuda_fill_inputs(qn_cuda_model *model, const qn_cuda_memory *memory, const qn_row *rows, size_t n)
{
    qn_cuda_inputs *inputs = (qn_cuda_inputs *)(void *)model->host_inputs;
    int32_t *tokens = (int32_t *)(void *)(model->host_inputs + tokens_at(model));
    const qn_sequence *sequence = memory->base.sequence;
    inputs->cu_seqlens[0] = 0;
    inputs->cu_seqlens[1] = (uint32_t)n;
    inputs->first_positions[0] = rows->position;
    inputs->state_from[0] = sequence ? sequence->state : 0;
    inputs->state_to[0] = sequence ? sequence->state_to : 0;
    inputs->open_chunks[0] = sequence ? sequence->open_chunk : 0;
    inputs->state_positions[0] = sequence ? sequence->state_position : 0;
    for (size_t i = 0; i < n; i++) {
        inputs->positions[i] = rows[i].position;
        tokens[i] = rows[i].token;
    }
    if (!model->table.tiled_matrix)
        embed_rows(model, rows, n);
}

qn_status qn_cuda_upload_inputs(qn_cuda_model *model, size_t n)
{
    const size_t width = model->plan->ops[0].embed.table.n_cols;
    const size_t rows = model->table.tiled_matrix ? 0 : n * width * sizeof(float);
    if (!model->table.tiled_matrix || n > 1)
        QN_TRY(qn_cuda_copy_h2d(model->cuda, model->stream, model->inputs, model->host_inputs, model->input_bytes + rows));
    return model->table.tiled_matrix ? embed_on_device(model, n) : QN_OK;
}
