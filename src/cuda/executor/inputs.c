/* A step's inputs (gpu/inputs.h), and embeddings. Embeddings are dequantised on the device, or on the host if no kernel
 * reads the table's type. */
#include "cuda/executor/inputs.h"

#include "cuda/kernels/matmul/embed.h"
#include "gpu/embeddings.h"

#include <stddef.h>

_Static_assert(QN_GPU_NO_SEQUENCE == QN_ATTENTION_NO_SESSION, "the kernels read the inputs");

/* ---- Embeddings on the device ---- */

static size_t used_bytes(const qn_cuda_rows_step *s)
{
    return s->inputs.bytes + s->n_samples * sizeof(qn_sample_params);
}

/* Launches the embedding kernel, to this buffer of the plan. copies_inputs: the step's first launch; for one row the
 * kernel then reads the token from pinned host memory and copies the inputs to the device: no separate copy is
 * queued. */
static qn_status embed_on_device(const qn_cuda_rows_step *s, int out, bool copies_inputs)
{
    const qn_op *op = &s->common->plan->ops[0];
    const uint64_t host = (uint64_t)(uintptr_t)s->workspace->block_inputs[s->block];
    const bool from_host = copies_inputs && s->n == 1;
    const uint64_t inputs = from_host ? host : s->workspace->inputs;
    qn_launch config;
    qn_matmul_embed_args args;
    QN_TRY(qn_matmul_gpu_embed(s->weights->table.tiled_matrix, s->weights->table.first_tile, inputs + s->inputs.tokens,
                               s->weights->table.signs, op->embed.inverse.block, s->n, qn_cuda_rows(s->workspace, out),
                               &config, &args));
    args.sources = inputs + s->inputs.sources;
    args.sampled = qn_cuda_sampled_tokens(s->sampler);
    if (from_host) {
        args.from = host;
        args.to = s->workspace->inputs;
        args.n_words = (uint32_t)(used_bytes(s) / sizeof(uint32_t));
    }
    return qn_cuda_step_launch(s, &config, &args);
}

/* ---- Embeddings from the host ---- */

static const uint8_t *host_embeddings(const qn_cuda_rows_step *s)
{
    return s->workspace->block_inputs[s->block] + s->workspace->input_bytes;
}

static size_t embedding_bytes(const qn_cuda_rows_step *s)
{
    return s->n * s->common->plan->ops[0].embed.table.n_cols * sizeof(float);
}

/* ---- Steps ---- */

void qn_cuda_fill_inputs(const qn_cuda_rows_step *s)
{
    uint8_t *host = s->workspace->block_inputs[s->block];
    qn_gpu_fill_inputs(&s->inputs, s->pieces, s->n_pieces, host);
    if (qn_gpu_head_width(s->common->plan))
        qn_gpu_fill_hidden(&s->inputs, s->pieces, s->n_pieces, s->is_draft, host);
    if (s->common->plan->head.block && s->is_draft)
        qn_gpu_fill_ends(&s->inputs, s->pieces, s->n_pieces, s->common->plan->head.is_causal, host);
    if (!s->weights->table.tiled_matrix)
        qn_gpu_embed_rows(s->common->plan, &s->common->hadamard, s->common->team,
                          (const int32_t *)qn_cuda_host_input(s, s->inputs.tokens), s->n,
                          (float *)(void *)(host + s->workspace->input_bytes));
}

/* The buffer of the embeddings with which a step begins. */
static int first_buffer(const qn_cuda_rows_step *s)
{
    const qn_plan *plan = s->common->plan;
    const qn_op *first = &plan->ops[s->is_draft ? plan->head.draft : 0];
    return first->kind == QN_OP_PAIR ? first->pair.embedding : first->embed.out;
}

/* The inputs, and the embeddings after them in the buffer of the trunk's. */
static qn_status upload_embeddings(const qn_cuda_rows_step *s)
{
    const size_t bytes = s->is_draft ? used_bytes(s) : s->workspace->input_bytes + embedding_bytes(s);
    QN_TRY(qn_cuda_copy_h2d(s->common->cuda, s->common->stream, s->workspace->inputs,
                            s->workspace->block_inputs[s->block], bytes));
    return s->is_draft ? qn_cuda_embed_again(s, first_buffer(s)) : QN_OK;
}

qn_status qn_cuda_embed_again(const qn_cuda_rows_step *s, int out)
{
    if (s->weights->table.tiled_matrix)
        return embed_on_device(s, out, false);
    return qn_cuda_copy_h2d(s->common->cuda, s->common->stream, qn_cuda_rows(s->workspace, out), host_embeddings(s),
                            embedding_bytes(s));
}

qn_status qn_cuda_upload_inputs(const qn_cuda_rows_step *s)
{
    if (!s->weights->table.tiled_matrix)
        return upload_embeddings(s);
    if (s->n > 1)
        QN_TRY(qn_cuda_copy_h2d(s->common->cuda, s->common->stream, s->workspace->inputs,
                                s->workspace->block_inputs[s->block], used_bytes(s)));
    return embed_on_device(s, first_buffer(s), true);
}
