/* The workspace of steps: the plan's buffers and activations on the device, attention partials, pinned buffers for inputs and
 * logits. Buffers that are never in use at the same time share memory. */
#include "cuda/executor/operations.h"

#include "base/memory.h"
#include "cuda/kernels/deltanet/deltanet.h"

#include <string.h>

enum { ALIGN = 256 };

/* ---- Memory that is shared ---- */

/* What uses a buffer: one part of a layer, or the logits. A part begins when the one before it has ended, because its input is
 * the residual stream that the one before has added to. So the buffers of one part share their memory with those of the
 * others. */
enum user { NO_USER, ATTENTION, RECURRENT, FFN, LOGITS, USERS, MANY_USERS = USERS };

static enum user user_of_op(qn_op_kind kind)
{
    switch (kind) {
    case QN_OP_QK_NORM_ROPE_STORE:
    case QN_OP_ATTENTION:
    case QN_OP_ATTENTION_COMBINE: return ATTENTION;
    case QN_OP_CONV:
    case QN_OP_DELTA_RULE:
    case QN_OP_GATED_NORM: return RECURRENT;
    case QN_OP_SWIGLU: return FFN;
    default: return MANY_USERS;
    }
}

/* GEMMs write for the operations that read what they write. */
static enum user user_of(const qn_plan *plan, int buffer)
{
    enum user user = NO_USER;
    for (size_t i = 0; i < plan->n_ops; i++) {
        if (plan->ops[i].kind == QN_OP_MATMUL || !qn_op_access(&plan->ops[i], buffer))
            continue;
        const enum user other = user_of_op(plan->ops[i].kind);
        user = user == NO_USER || user == other ? other : MANY_USERS;
    }
    return user == NO_USER ? MANY_USERS : user;
}

/* Places buffers one after the other. */
struct layout {
    uint64_t base;
    size_t used, most;
    bool overflows;
};

static void place(struct layout *l, size_t rows, size_t width, qn_cuda_buffer *buffer)
{
    size_t bytes;
    *buffer = (qn_cuda_buffer){ .address = l->base + l->used };
    if (!qn_mul_size(rows, width, &bytes) || !qn_mul_size(bytes, sizeof(float), &bytes) ||
        !qn_add_size(bytes, ALIGN - 1, &bytes) || !qn_add_size(l->used, bytes / ALIGN * ALIGN, &l->used))
        l->overflows = true;
    buffer->bytes = bytes / ALIGN * ALIGN;
    l->most = l->used > l->most ? l->used : l->most;
}

static void place_buffers(qn_cuda_model *model, enum user user, size_t max_rows, struct layout *l)
{
    for (size_t i = 0; i < model->plan->n_buffers; i++)
        if ((int)i != model->plan->ops[0].embed.out && user_of(model->plan, (int)i) == user)
            place(l, max_rows, model->plan->buffers[i].width, &model->buffers[i]);
}

static void place_attention(qn_cuda_model *model, size_t max_rows, size_t max_positions, struct layout *l)
{
    const qn_attention_shape *h = &model->plan->heads;
    qn_attention_gpu gpu = model->attention;
    gpu.pages = true; /* one more split */
    const size_t rows = max_rows < QN_CUDA_ATTENTION_ROWS ? max_rows : QN_CUDA_ATTENTION_ROWS,
                 n_partials = rows * h->n_heads * qn_attention_gpu_splits(&gpu, max_positions).n;
    place_buffers(model, ATTENTION, max_rows, l);
    place(l, n_partials, h->head_dim, &model->partials);
    place(l, n_partials, 2, &model->maxima);
}

static void place_recurrent(qn_cuda_model *model, size_t max_rows, struct layout *l)
{
    const qn_recurrent_shape *r = &model->plan->recurrent;
    if (!r->n_v_heads)
        return;
    const qn_gdn_chunk_args longest = { .tokens = (uint32_t)max_rows,
                                        .sequences = (uint32_t)(max_rows / QN_GDN_CHUNK_TOKENS + 1), /* with complete chunks */
                                        .cu_seqlens = model->inputs,
                                        .v_heads = (uint32_t)r->n_v_heads,
                                        .head_k = (uint32_t)r->head_k,
                                        .head_v = (uint32_t)r->head_v };
    const size_t bytes = qn_gdn_gpu_max_workspace_bytes(&longest, &model->gdn);
    place_buffers(model, RECURRENT, max_rows, l);
    place(l, max_rows, 2 * r->n_v_heads, &model->gates);
    place(l, bytes / sizeof(float) + 1, 1, &model->delta_workspace);
}

static void place_shared(qn_cuda_model *model, size_t max_rows, size_t max_positions, struct layout *l)
{
    place_attention(model, max_rows, max_positions, l);
    l->used = 0;
    place_recurrent(model, max_rows, l);
    l->used = 0;
    place_buffers(model, FFN, max_rows, l);
    l->used = 0;
    place(l, model->logit_rows, model->plan->buffers[model->plan->ops[0].embed.out].width, &model->gathered);
    place(l, model->logit_rows, model->plan->n_vocab, &model->logits);
}

/* All buffers that are places in larger ones: those of the parts of layers and of logits, and those that several parts use. */
static qn_status alloc_places(qn_cuda_model *model, size_t max_rows, size_t max_positions)
{
    struct layout shared = { 0 }, kept = { 0 };
    place_shared(model, max_rows, max_positions, &shared);
    place_buffers(model, MANY_USERS, max_rows, &kept);
    if (shared.overflows || kept.overflows)
        return qn_fail(QN_ERR_MEMORY, "step: %zu rows do not fit in memory", max_rows);
    QN_TRY(qn_cuda_alloc(model->cuda, shared.most, 1, "step buffers on the GPU", &model->shared));
    QN_TRY(qn_cuda_alloc(model->cuda, kept.most, 1, "step buffers on the GPU", &model->kept));
    shared = (struct layout){ .base = model->shared.address };
    kept = (struct layout){ .base = model->kept.address };
    place_shared(model, max_rows, max_positions, &shared);
    place_buffers(model, MANY_USERS, max_rows, &kept);
    return QN_OK;
}

/* ---- Memory of its own ---- */

static void release_acts(qn_cuda_model *model, qn_cuda_acts *acts)
{
    for (size_t copy = 0; copy < QN_CUDA_ACTS_COPIES; copy++) {
        qn_cuda_free(model->cuda, &acts->memory[copy]);
        qn_cuda_free(model->cuda, &acts->scale[copy]);
    }
}

void qn_cuda_buffers_free(qn_cuda_model *model)
{
    qn_cuda_buffer *const all[] = { &model->scratch,          &model->cosines,  &model->sines,
                                    &model->shared,           &model->kept,     &model->persistent_memory,
                                    &model->matmul_workspace, &model->arrivals, &model->attention_counters };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        qn_cuda_free(model->cuda, all[i]);
    if (model->buffers)
        qn_cuda_free(model->cuda, &model->buffers[model->plan->ops[0].embed.out]);
    for (size_t i = 0; model->acts && i < model->plan->n_acts; i++)
        release_acts(model, &model->acts[i]);
    qn_cuda_sampling_free(model);
    for (size_t i = 0; i < QN_CUDA_BLOCKS; i++) {
        qn_cuda_free_host(model->cuda, model->block_inputs[i]);
        model->block_inputs[i] = NULL;
    }
    qn_cuda_use_block(model, 0);
    qn_cuda_free_host(model->cuda, model->host_logits);
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

/* Activations in every layout that some number of rows needs. Padding that no kernel writes must be zero. */
static qn_status alloc_acts(qn_cuda_model *model, size_t id, size_t max_rows)
{
    qn_cuda_acts *acts = &model->acts[id];
    const size_t capacities[QN_CUDA_ACTS_LAYOUTS] = { [QN_ACTS_HILO_N1] = 1,
                                                      [QN_ACTS_F16] = qn_round_up(max_rows, QN_GEMM_TILE_N),
                                                      [QN_ACTS_HILO] = qn_round_up(QN_FEW_MAX_TOKENS, QN_GEMM_TILE_N) };
    for (int copy = 0; copy < QN_CUDA_ACTS_COPIES; copy++) {
        const int layout = copy == QN_CUDA_ACTS_FUSED ? QN_ACTS_HILO : copy;
        size_t bytes;
        qn_matmul_acts *to = &acts->layouts[copy];
        *to = (qn_matmul_acts){ .layout = layout,
                                .workspace = model->matmul_workspace.address,
                                .n_cols = model->plan->acts[id].width,
                                .capacity = capacities[layout] };
        QN_TRY(qn_matmul_gpu_acts_bytes(layout, to->n_cols, to->capacity, &bytes));
        QN_TRY(qn_cuda_alloc(model->cuda, bytes + 1024, 1, "activations on the GPU", &acts->memory[copy]));
        QN_TRY(qn_cuda_memset(model->cuda, model->stream, acts->memory[copy].address, 0, bytes + 1024));
        to->address = (acts->memory[copy].address + 1023) / 1024 * 1024;
        bytes = qn_matmul_gpu_scale_bytes(layout, to->n_cols, to->capacity);
        if (bytes)
            QN_TRY(qn_cuda_alloc(model->cuda, bytes, 1, "activations on the GPU", &acts->scale[copy]));
        to->scale = acts->scale[copy].address;
    }
    return QN_OK;
}

/* Words that are zeros between launches. */
static qn_status alloc_zeros(qn_cuda_model *model, size_t rows, size_t width, qn_cuda_buffer *buffer)
{
    QN_TRY(alloc_floats(model, rows, width, buffer));
    return qn_cuda_memset(model->cuda, model->stream, buffer->address, 0, buffer->bytes);
}

/* The step's inputs precede the embedding rows in one buffer, so that embeddings from the host need only one copy. */
static qn_status alloc_inputs(qn_cuda_model *model, int embeddings, size_t max_rows)
{
    const size_t width = model->plan->buffers[embeddings].width;
    size_t bytes;
    const size_t n_pieces = max_rows < QN_CUDA_MAX_SEQUENCES ? max_rows : QN_CUDA_MAX_SEQUENCES;
    if (!qn_mul_size(max_rows, sizeof(qn_sample_params), &bytes) ||
        !qn_add_size(bytes, qn_cuda_inputs_of(max_rows, n_pieces, max_rows).sampling + ALIGN - 1, &bytes))
        return qn_fail(QN_ERR_MEMORY, "step: %zu rows do not fit in memory", max_rows);
    model->input_bytes = bytes / ALIGN * ALIGN;
    if (!qn_mul_size(max_rows, width * sizeof(float), &bytes) || !qn_add_size(bytes, model->input_bytes, &bytes))
        return qn_fail(QN_ERR_MEMORY, "step: %zu rows of %zu do not fit in memory", max_rows, width);
    QN_TRY(qn_cuda_alloc(model->cuda, bytes, 1, "step buffer on the GPU", &model->buffers[embeddings]));
    model->inputs = model->buffers[embeddings].address;
    for (size_t i = 0; i < QN_CUDA_BLOCKS; i++)
        QN_TRY(qn_cuda_alloc_host(model->cuda, model->table.tiled_matrix ? model->input_bytes : bytes, "step buffer",
                                  (void **)&model->block_inputs[i]));
    qn_cuda_use_block(model, 0);
    return qn_cuda_alloc_host(model->cuda, model->plan->n_vocab * sizeof(float), "logits", (void **)&model->host_logits);
}

/* Zeroed, because the grid barrier of the persistent decode kernel counts from zero. */
static qn_status alloc_persistent(qn_cuda_model *model)
{
    size_t bytes;
    model->persistent = (qn_cuda_persistent_workspace){ 0 };
    if (model->launches_only)
        return QN_OK;
    QN_TRY(qn_cuda_persistent_lay_out(model, 0, &model->persistent, &bytes));
    if (!bytes)
        return QN_OK;
    QN_TRY(qn_cuda_alloc(model->cuda, bytes, 1, "step buffer on the GPU", &model->persistent_memory));
    QN_TRY(qn_cuda_memset(model->cuda, model->stream, model->persistent_memory.address, 0, bytes));
    return qn_cuda_persistent_lay_out(model, model->persistent_memory.address, &model->persistent, &bytes);
}

static qn_status alloc_buffers(qn_cuda_model *model, size_t max_rows, size_t max_positions)
{
    const qn_plan *plan = model->plan;
    const qn_recurrent_shape *r = &plan->recurrent;
    size_t widest = 0;
    model->logit_rows = max_rows < QN_CUDA_LOGIT_ROWS ? max_rows : QN_CUDA_LOGIT_ROWS;
    QN_TRY(alloc_inputs(model, plan->ops[0].embed.out, max_rows));
    QN_TRY(alloc_places(model, max_rows, max_positions));
    QN_TRY(qn_cuda_alloc(model->cuda, qn_matmul_gpu_workspace_bytes(&model->matmul), 1, "step buffer on the GPU",
                         &model->matmul_workspace));
    QN_TRY(qn_cuda_memset(model->cuda, model->stream, model->matmul_workspace.address, 0, QN_MATMUL_COUNTERS_BYTES));
    for (size_t i = 0; i < plan->n_acts; i++) {
        QN_TRY(alloc_acts(model, i, max_rows));
        widest = plan->acts[i].width > widest ? plan->acts[i].width : widest;
    }
    QN_TRY(alloc_floats(model, max_rows, widest, &model->scratch));
    QN_TRY(alloc_floats(model, max_rows, plan->heads.n_rot / 2, &model->cosines));
    QN_TRY(alloc_floats(model, max_rows, plan->heads.n_rot / 2, &model->sines));
    if (r->n_v_heads)
        QN_TRY(alloc_zeros(model, max_rows, r->n_k_heads, &model->arrivals));
    QN_TRY(alloc_zeros(model, max_rows < QN_CUDA_ATTENTION_ROWS ? max_rows : QN_CUDA_ATTENTION_ROWS, plan->heads.n_heads,
                       &model->attention_counters));
    QN_TRY(alloc_persistent(model));
    QN_TRY(qn_cuda_sampling_alloc(model, max_rows, QN_CUDA_LOGIT_ROWS));
    return qn_cuda_stream_synchronize(model->cuda, model->stream);
}

qn_status qn_cuda_buffers_reserve(qn_cuda_model *model, size_t max_rows, size_t max_positions)
{
    if (max_rows <= model->max_rows && max_positions <= model->max_positions)
        return QN_OK;
    max_rows = qn_cuda_bucket(max_rows > model->max_rows ? max_rows : model->max_rows);
    max_positions = max_positions > model->max_positions ? max_positions : model->max_positions;
    qn_cuda_buffers_free(model);
    qn_cuda_free(model->cuda, &model->staging); /* all weights are on the device */
    model->generation++;
    const qn_status status = alloc_buffers(model, max_rows, max_positions);
    if (status != QN_OK) {
        qn_cuda_buffers_free(model);
        return status;
    }
    model->max_rows = max_rows;
    model->max_positions = max_positions;
    return QN_OK;
}
