/* Poisons the parts of the workspace that no later work may read (provoke.h): all of it before a step, the buffers
 * shared by parts of layers before each part, and the host's inputs and results after a step. Words that are zeros
 * between launches stay. */
#include "cuda/executor/poison.h"

#include "cuda/runtime/provoke.h"

/* Activations as if quantised from NaN: bytes that are padding stay zeros. */
static qn_status poison_acts(const qn_cuda_rows_step *s, size_t id, int copy)
{
    const qn_cuda_workspace *workspace = s->workspace;
    const qn_matmul_acts *acts = &workspace->acts[id].layouts[copy];
    const size_t n = s->n < acts->capacity ? s->n : acts->capacity;
    qn_matmul_launch quantize;
    QN_TRY(qn_matmul_gpu_quantize(acts, QN_ACTS_OP_NONE, workspace->scratch.address, 0, 0, 0,
                                  workspace->common->plan->acts[id].width, n, &quantize));
    return qn_cuda_step_launch(s, &quantize.launch, &quantize.args);
}

static qn_status poison_buffer(const qn_cuda_workspace *workspace, const qn_cuda_buffer *buffer, size_t from)
{
    return qn_cuda_poison(workspace->common->cuda, workspace->common->stream, buffer->address + from,
                          buffer->bytes - from);
}

/* Poisons the buffers that the parts of a layer share. The activations in QN_CUDA_ACTS_FUSED stay: the GEMM before a
 * norm may have written them. */
qn_status qn_cuda_poison_part(const qn_cuda_rows_step *s)
{
    const qn_cuda_workspace *workspace = s->workspace;
    if (!qn_cuda_poisons(workspace->common->cuda))
        return QN_OK;
    QN_TRY(poison_buffer(workspace, &workspace->shared, 0));
    QN_TRY(poison_buffer(workspace, &workspace->scratch, 0));
    QN_TRY(poison_buffer(workspace, &workspace->matmul_workspace,
                         QN_MATMUL_COUNTERS_BYTES + qn_matmul_gpu_slot_bytes(&workspace->common->matmul)));
    for (size_t id = 0; id < workspace->common->plan->n_acts; id++)
        for (int copy = 0; copy < QN_CUDA_ACTS_LAYOUTS; copy++)
            QN_TRY(poison_acts(s, id, copy));
    return QN_OK;
}

/* Poisons the sums of the persistent decode kernel; not its barrier, and not its activations, which have padding. */
static qn_status poison_persistent(const qn_cuda_workspace *workspace)
{
    const qn_cuda_persistent_workspace *w = &workspace->persistent;
    const qn_cuda_buffer *memory = &workspace->persistent_memory;
    if (!memory->bytes)
        return QN_OK;
    QN_TRY(qn_cuda_poison(workspace->common->cuda, workspace->common->stream, w->x, w->acts - w->x));
    return poison_buffer(workspace, memory, w->gemv_partials[0].data - memory->address);
}

qn_status qn_cuda_poison_step(const qn_cuda_rows_step *s)
{
    const qn_cuda_workspace *workspace = s->workspace;
    if (!qn_cuda_poisons(workspace->common->cuda))
        return QN_OK;
    const qn_cuda_buffer *const all[] = { &workspace->kept, &workspace->cosines, &workspace->sines,
                                          &workspace->buffers[workspace->common->plan->ops[0].embed.out] };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        QN_TRY(poison_buffer(workspace, all[i], 0));
    QN_TRY(qn_cuda_poison_part(s));
    for (size_t id = 0; id < workspace->common->plan->n_acts; id++)
        QN_TRY(poison_acts(s, id, QN_CUDA_ACTS_FUSED));
    return poison_persistent(workspace);
}

void qn_cuda_poison_block(const qn_cuda_workspace *workspace, const qn_cuda_sampler *sampler, size_t block)
{
    const size_t embeddings = workspace->common->plan->buffers[workspace->common->plan->ops[0].embed.out].width *
                              workspace->max_rows * sizeof(float);
    qn_cuda_poison_host(workspace->common->cuda, workspace->block_inputs[block],
                        workspace->input_bytes + (workspace->weights->table.tiled_matrix ? 0 : embeddings));
    qn_cuda_poison_host(workspace->common->cuda, workspace->host_logits,
                        workspace->common->plan->n_vocab * sizeof *workspace->host_logits);
    qn_cuda_poison_sampling(sampler, block);
}
