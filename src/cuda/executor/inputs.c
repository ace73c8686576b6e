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

void qn_cuda_fill_inputs(const qn_cuda_rows_step *s)
{
    qn_gpu_fill_inputs(&s->inputs, s->pieces, s->n_pieces, s->workspace->block_inputs[s->block]);
    if (!s->weights->table.tiled_matrix)
        qn_gpu_embed_rows(s->common->plan, &s->common->hadamard, s->common->team,
                          (const int32_t *)qn_cuda_host_input(s, s->inputs.tokens), s->n,
                          (float *)(void *)(s->workspace->block_inputs[s->block] + s->workspace->input_bytes));
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
