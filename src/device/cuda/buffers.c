/* What a step works in: the plan's buffers and activations on the device, the parts of attention, what is brought and taken. */
#include "device/cuda/model.h"

#include "base/memory.h"
#include "kernels/deltanet/deltanet_cuda.h"

#include <string.h>

enum { ALIGN = 256 };

static void release_acts(qn_cuda_model *model, qn_cuda_acts *acts)
{
    for (size_t form = 0; form < QN_CUDA_FORMS; form++)
        qn_cuda_release(model->cuda, &acts->memory[form]);
    qn_cuda_release(model->cuda, &acts->token_scale);
}

void qn_cuda_buffers_free(qn_cuda_model *model)
{
    qn_cuda_buffer *const all[] = { &model->scratch, &model->cosines, &model->sines,  &model->partials,    &model->maxima,
                                    &model->gates,   &model->records, &model->logits, &model->chain_memory };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        qn_cuda_release(model->cuda, all[i]);
    for (size_t i = 0; model->buffers && i < model->plan->n_buffers; i++)
        qn_cuda_release(model->cuda, &model->buffers[i]);
    for (size_t i = 0; model->acts && i < model->plan->n_acts; i++)
        release_acts(model, &model->acts[i]);
    qn_cuda_choice_free(model);
    qn_cuda_release_host(model->cuda, model->host_inputs);
    qn_cuda_release_host(model->cuda, model->host_logits);
    model->host_inputs = NULL;
    model->host_logits = NULL;
    model->max_rows = model->max_positions = 0;
}

static qn_status alloc_floats(qn_cuda_model *model, size_t rows, size_t width, qn_cuda_buffer *buffer)
{
    size_t count;
    if (!qn_mul_size(rows, width, &count))
        return qn_fail(QN_ERR_MEMORY, "step: %zu rows of %zu do not fit in memory", rows, width);
    return qn_cuda_alloc(model->cuda, count, sizeof(float), "step buffer on the GPU", buffer);
}

/* All forms that some number of rows needs. Some bytes of them nobody writes, and they have to be zeros. */
static qn_status place_acts(qn_cuda_model *model, size_t id, size_t max_rows)
{
    qn_cuda_acts *acts = &model->acts[id];
    const size_t columns = max_rows < QN_MATMUL_COLUMN_TOKENS ? max_rows : QN_MATMUL_COLUMN_TOKENS;
    const size_t capacities[QN_CUDA_FORMS] = { [QN_ACTS_ROW] = 1,
                                               [QN_ACTS_COLUMNS] = qn_round_up(columns, QN_ACTS_GROUP),
                                               [QN_ACTS_HALVES] = qn_round_up(max_rows, QN_PROMPT_TOKENS) };
    QN_TRY(alloc_floats(model, capacities[QN_ACTS_HALVES], 1, &acts->token_scale));
    for (int form = 0; form < QN_CUDA_FORMS; form++) {
        size_t bytes;
        qn_matmul_acts *to = &acts->forms[form];
        *to = (qn_matmul_acts){ .form = form, .n_cols = model->plan->acts[id].width, .capacity = capacities[form] };
        QN_TRY(qn_matmul_gpu_acts_bytes(form, to->n_cols, to->capacity, &bytes));
        QN_TRY(qn_cuda_alloc(model->cuda, bytes + 1024, 1, "activations on the GPU", &acts->memory[form]));
        QN_TRY(qn_cuda_fill(model->cuda, model->stream, acts->memory[form].address, 0, bytes + 1024));
        to->address = (acts->memory[form].address + 1023) / 1024 * 1024;
        to->token_scale = acts->token_scale.address;
    }
    return QN_OK;
}

/* The most parts of attention that steps of up to max_rows rows leave. */
static size_t most_parts(const qn_cuda_model *model, size_t max_rows, size_t max_positions)
{
    qn_attention_gpu with_runs = model->attention;
    size_t most = 0;
    with_runs.runs = true; /* one more */
    for (size_t rows = 1; rows <= max_rows; rows++) {
        const size_t parts = rows * qn_attention_gpu_splits(&with_runs, rows, max_positions);
        const size_t without = rows * qn_attention_gpu_splits(&model->attention, rows, max_positions);
        most = parts > most ? parts : most;
        most = without > most ? without : most;
    }
    return most;
}

static qn_status place_attention(qn_cuda_model *model, size_t max_rows, size_t max_positions)
{
    const qn_attention_shape *h = &model->plan->heads;
    const size_t parts = most_parts(model, max_rows, max_positions) * h->n_heads;
    QN_TRY(alloc_floats(model, parts, h->head_dim, &model->partials));
    QN_TRY(alloc_floats(model, parts, 2, &model->maxima));
    QN_TRY(alloc_floats(model, max_rows, h->n_rot / 2, &model->cosines));
    return alloc_floats(model, max_rows, h->n_rot / 2, &model->sines);
}

/* Embeddings that come from the host do so with what a step says of itself, in one copy. */
static qn_status place_inputs(qn_cuda_model *model, int embeddings, size_t max_rows)
{
    const size_t width = model->plan->buffers[embeddings].width;
    size_t bytes;
    model->input_bytes = qn_round_up(sizeof(qn_cuda_inputs) + 2 * max_rows * sizeof(uint32_t), ALIGN);
    if (!qn_mul_size(max_rows, width * sizeof(float), &bytes) || !qn_add_size(bytes, model->input_bytes, &bytes))
        return qn_fail(QN_ERR_MEMORY, "step: %zu rows of %zu do not fit in memory", max_rows, width);
    QN_TRY(qn_cuda_alloc(model->cuda, bytes, 1, "step buffer on the GPU", &model->buffers[embeddings]));
    QN_TRY(qn_cuda_alloc_host(model->cuda, model->table.area ? model->input_bytes : bytes, "step buffer",
                              (void **)&model->host_inputs));
    return qn_cuda_alloc_host(model->cuda, model->plan->n_vocab * sizeof(float), "logits", (void **)&model->host_logits);
}

/* Zeros, because chains meet by counting from there. */
static qn_status place_chains(qn_cuda_model *model)
{
    size_t bytes;
    model->chains = (qn_cuda_chain_room){ 0 };
    if (model->one_by_one)
        return QN_OK;
    QN_TRY(qn_cuda_chain_lay_out(model, 0, &model->chains, &bytes));
    if (!bytes)
        return QN_OK;
    QN_TRY(qn_cuda_alloc(model->cuda, bytes, 1, "step buffer on the GPU", &model->chain_memory));
    QN_TRY(qn_cuda_fill(model->cuda, model->stream, model->chain_memory.address, 0, bytes));
    return qn_cuda_chain_lay_out(model, model->chain_memory.address, &model->chains, &bytes);
}

static qn_status place(qn_cuda_model *model, size_t max_rows, size_t max_positions)
{
    const qn_plan *plan = model->plan;
    const qn_recurrent_shape *r = &plan->recurrent;
    size_t widest = 0;
    for (size_t i = 0; i < plan->n_buffers; i++) {
        if ((int)i == plan->ops[0].out)
            QN_TRY(place_inputs(model, (int)i, max_rows));
        else
            QN_TRY(alloc_floats(model, max_rows, plan->buffers[i].width, &model->buffers[i]));
    }
    for (size_t i = 0; i < plan->n_acts; i++) {
        QN_TRY(place_acts(model, i, max_rows > QN_CUDA_LOGIT_ROWS ? max_rows : QN_CUDA_LOGIT_ROWS));
        widest = plan->acts[i].width > widest ? plan->acts[i].width : widest;
    }
    QN_TRY(alloc_floats(model, max_rows > QN_CUDA_LOGIT_ROWS ? max_rows : QN_CUDA_LOGIT_ROWS, widest, &model->scratch));
    QN_TRY(alloc_floats(model, QN_CUDA_LOGIT_ROWS, plan->n_vocab, &model->logits));
    if (r->n_v_heads) {
        QN_TRY(alloc_floats(model, max_rows, 2 * r->n_v_heads, &model->gates));
        QN_TRY(qn_cuda_alloc(model->cuda, qn_gdn_gpu_record_bytes(max_rows, 1, r->n_v_heads), 1, "step buffer on the GPU",
                             &model->records));
    }
    QN_TRY(place_attention(model, max_rows, max_positions));
    QN_TRY(place_chains(model));
    QN_TRY(qn_cuda_choice_place(model));
    return qn_cuda_stream_wait(model->cuda, model->stream);
}

qn_status qn_cuda_buffers_reserve(qn_cuda_model *model, size_t max_rows, size_t max_positions)
{
    if (max_rows <= model->max_rows && max_positions <= model->max_positions)
        return QN_OK;
    max_rows = max_rows > model->max_rows ? max_rows : model->max_rows;
    max_positions = max_positions > model->max_positions ? max_positions : model->max_positions;
    qn_cuda_buffers_free(model);
    model->generation++;
    const qn_status status = place(model, max_rows, max_positions);
    if (status != QN_OK) {
        qn_cuda_buffers_free(model);
        return status;
    }
    model->inputs = model->buffers[model->plan->ops[0].out].address;
    model->max_rows = max_rows;
    model->max_positions = max_positions;
    return QN_OK;
}
