/* The workspace of steps is poisoned where nobody may read it any more (provoke.h): all of it before a step, what the parts of layers share
 * before each part, what the host writes and reads when a step has ended. Words that are zeros between launches stay. */
#include "cuda/executor/operations.h"
#include "cuda/runtime/provoke.h"

/* A quantisation of NaN: bytes that are padding stay zeros. */
static qn_status poison_acts(const qn_cuda_rows_step *s, size_t id, int copy)
{
    const qn_cuda_model *model = s->model;
    const qn_matmul_acts *acts = &model->acts[id].layouts[copy];
    const size_t n = s->n < acts->capacity ? s->n : acts->capacity;
    qn_matmul_launch quantize;
    QN_TRY(qn_matmul_gpu_quantize(acts, QN_ACTS_OP_NONE, model->scratch.address, 0, 0, 0, model->plan->acts[id].width, n,
                                  &quantize));
    return qn_cuda_step_launch(s, &quantize.launch, &quantize.args);
}

static qn_status poison_buffer(const qn_cuda_model *model, const qn_cuda_buffer *buffer, size_t from)
{
    return qn_cuda_poison(model->cuda, model->stream, buffer->address + from, buffer->bytes - from);
}

/* The GEMM before a norm may have written its activations: those in QN_CUDA_ACTS_FUSED stay. */
qn_status qn_cuda_poison_part(const qn_cuda_rows_step *s)
{
    const qn_cuda_model *model = s->model;
    if (!qn_cuda_poisons(model->cuda))
        return QN_OK;
    QN_TRY(poison_buffer(model, &model->shared, 0));
    QN_TRY(poison_buffer(model, &model->scratch, 0));
    QN_TRY(poison_buffer(model, &model->matmul_workspace, QN_MATMUL_COUNTERS_BYTES));
    for (size_t id = 0; id < model->plan->n_acts; id++)
        for (int copy = 0; copy < QN_CUDA_ACTS_LAYOUTS; copy++)
            QN_TRY(poison_acts(s, id, copy));
    return QN_OK;
}

/* Of the persistent decode kernel: sums, not its barrier, nor activations, which have padding. */
static qn_status poison_persistent(const qn_cuda_model *model)
{
    const qn_cuda_persistent_workspace *w = &model->persistent;
    const qn_cuda_buffer *memory = &model->persistent_memory;
    if (!memory->bytes)
        return QN_OK;
    QN_TRY(qn_cuda_poison(model->cuda, model->stream, w->x, w->acts - w->x));
    return poison_buffer(model, memory, w->gemv_partials[0].data - memory->address);
}

qn_status qn_cuda_poison_step(const qn_cuda_rows_step *s)
{
    const qn_cuda_model *model = s->model;
    if (!qn_cuda_poisons(model->cuda))
        return QN_OK;
    const qn_cuda_buffer *const all[] = { &model->kept, &model->cosines, &model->sines,
                                          &model->buffers[model->plan->ops[0].embed.out] };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        QN_TRY(poison_buffer(model, all[i], 0));
    QN_TRY(qn_cuda_poison_part(s));
    for (size_t id = 0; id < model->plan->n_acts; id++)
        QN_TRY(poison_acts(s, id, QN_CUDA_ACTS_FUSED));
    return poison_persistent(model);
}

void qn_cuda_poison_block(const qn_cuda_model *model)
{
    const size_t embeddings = model->plan->buffers[model->plan->ops[0].embed.out].width * model->max_rows * sizeof(float);
    qn_cuda_poison_host(model->cuda, model->host_inputs, model->input_bytes + (model->table.tiled_matrix ? 0 : embeddings));
    qn_cuda_poison_host(model->cuda, model->host_logits, model->plan->n_vocab * sizeof *model->host_logits);
    qn_cuda_poison_sampling(model);
}
