/* The workspace of steps: the plan's buffers and activations on the device, attention partials, pinned buffers for
 * inputs and logits. Buffers that are never in use at the same time share memory. */
#include "cuda/executor/workspace.h"

#include "base/memory.h"
#include "cuda/kernels/sample/sample.h"
#include "gpu/buckets.h"
#include "gpu/inputs.h"

#include <string.h>

enum { ALIGN = 256 };

/* ---- Memory that is shared ---- */

/* The user of a buffer: one part of a layer, or the logits. A part begins when the previous part has ended, because its
 * input is the residual stream to which the previous part has added. So the buffers of different parts share their
 * memory. */
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

/* A GEMM's output belongs to the operations that read it. */
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

/* Whether a buffer has no place: embeddings have memory of their own, and hidden states of a draft head are activations
 * at once (executor.c). */
static bool has_no_place(const qn_plan *plan, int buffer)
{
    return buffer == plan->ops[0].embed.out ||
           (plan->head.draft && !plan->head.block && buffer == plan->ops[plan->head.pairs].pair.hidden);
}

static void place_buffers(qn_cuda_workspace *workspace, enum user user, size_t max_rows, struct layout *l)
{
    const qn_plan *plan = workspace->common->plan;
    for (size_t i = 0; i < plan->n_buffers; i++)
        if (!has_no_place(plan, (int)i) && user_of(plan, (int)i) == user)
            place(l, max_rows, plan->buffers[i].width, &workspace->buffers[i]);
}

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* The partials of a row of attention; 0 without heads. */
static size_t partials_of(const qn_attention_gpu *attention, size_t max_positions)
{
    qn_attention_gpu gpu = *attention;
    gpu.pages = true; /* one more split */
    return gpu.n_heads ? gpu.n_heads * qn_attention_gpu_splits(&gpu, max_positions).n : 0;
}

static void place_attention(qn_cuda_workspace *workspace, size_t max_rows, size_t max_positions, struct layout *l)
{
    const qn_cuda_common *common = workspace->common;
    const size_t rows = max_rows < QN_CUDA_ATTENTION_ROWS ? max_rows : QN_CUDA_ATTENTION_ROWS,
                 of_model = partials_of(&common->attention, max_positions),
                 of_block = partials_of(&common->block_attention, max_positions);
    place_buffers(workspace, ATTENTION, max_rows, l);
    place(l, rows, larger(of_model * common->attention.head_dim, of_block * common->block_attention.head_dim),
          &workspace->partials);
    place(l, rows * larger(of_model, of_block), 2, &workspace->maxima);
}

static void place_recurrent(qn_cuda_workspace *workspace, size_t max_rows, struct layout *l)
{
    const qn_recurrent_shape *r = &workspace->common->plan->recurrent;
    if (!r->n_v_heads)
        return;
    const qn_gdn_chunk_args longest = { .tokens = (uint32_t)max_rows,
                                        .sequences = (uint32_t)(max_rows / QN_GDN_CHUNK + 1), /* with complete
                                                                                                        chunks */
                                        .cu_seqlens = workspace->inputs,
                                        .v_heads = (uint32_t)r->n_v_heads,
                                        .head_k = (uint32_t)r->head_k,
                                        .head_v = (uint32_t)r->head_v };
    const size_t bytes = qn_gdn_gpu_max_workspace_bytes(&longest, &workspace->common->gdn);
    place_buffers(workspace, RECURRENT, max_rows, l);
    place(l, max_rows, 2 * r->n_v_heads, &workspace->gates);
    place(l, bytes / sizeof(float) + 1, 1, &workspace->delta_workspace);
}

static void place_shared(qn_cuda_workspace *workspace, size_t max_rows, size_t max_positions, struct layout *l)
{
    place_attention(workspace, max_rows, max_positions, l);
    l->used = 0;
    place_recurrent(workspace, max_rows, l);
    l->used = 0;
    place_buffers(workspace, FFN, max_rows, l);
    l->used = 0;
    place(l, workspace->logit_rows, workspace->common->plan->buffers[workspace->common->plan->ops[0].embed.out].width,
          &workspace->gathered);
    place(l, workspace->logit_rows, workspace->common->plan->n_vocab, &workspace->logits);
}

/* Places all buffers that are parts of `shared` (parts of layers, logits) and of `kept` (used by several parts). */
static qn_status alloc_places(qn_cuda_workspace *workspace, size_t max_rows, size_t max_positions)
{
    struct layout shared = { 0 }, kept = { 0 };
    place_shared(workspace, max_rows, max_positions, &shared);
    place_buffers(workspace, MANY_USERS, max_rows, &kept);
    if (shared.overflows || kept.overflows)
        return qn_fail(QN_ERR_MEMORY, "step: %zu rows do not fit in memory", max_rows);
    QN_TRY(qn_cuda_alloc(workspace->common->cuda, shared.most, 1, "step buffers on the GPU", &workspace->shared));
    QN_TRY(qn_cuda_alloc(workspace->common->cuda, kept.most, 1, "step buffers on the GPU", &workspace->kept));
    shared = (struct layout){ .base = workspace->shared.address };
    kept = (struct layout){ .base = workspace->kept.address };
    place_shared(workspace, max_rows, max_positions, &shared);
    place_buffers(workspace, MANY_USERS, max_rows, &kept);
    return QN_OK;
}

/* ---- Memory of its own ---- */

static void release_acts(qn_cuda_workspace *workspace, qn_cuda_acts *acts)
{
    for (size_t copy = 0; copy < QN_CUDA_ACTS_COPIES; copy++) {
        qn_cuda_free(workspace->common->cuda, &acts->memory[copy]);
        qn_cuda_free(workspace->common->cuda, &acts->scale[copy]);
    }
}

void qn_cuda_workspace_release(qn_cuda_workspace *workspace)
{
    qn_cuda_buffer *const all[] = {
        &workspace->scratch,          &workspace->cosines,  &workspace->sines,
        &workspace->shared,           &workspace->kept,     &workspace->persistent_memory,
        &workspace->matmul_workspace, &workspace->arrivals, &workspace->attention_counters
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        qn_cuda_free(workspace->common->cuda, all[i]);
    if (workspace->buffers)
        qn_cuda_free(workspace->common->cuda, &workspace->buffers[workspace->common->plan->ops[0].embed.out]);
    for (size_t i = 0; workspace->acts && i < workspace->common->plan->n_acts; i++)
        release_acts(workspace, &workspace->acts[i]);
    for (size_t i = 0; i < QN_CUDA_BLOCKS; i++) {
        qn_cuda_free_host(workspace->common->cuda, workspace->block_inputs[i]);
        workspace->block_inputs[i] = NULL;
    }
    qn_cuda_free_host(workspace->common->cuda, workspace->host_logits);
    workspace->host_logits = NULL;
    workspace->max_rows = workspace->max_positions = 0;
}

static qn_status alloc_floats(qn_cuda_workspace *workspace, size_t rows, size_t width, qn_cuda_buffer *buffer)
{
    size_t count;
    if (!qn_mul_size(rows, width, &count))
        return qn_fail(QN_ERR_MEMORY, "step: %zu rows of %zu do not fit in memory", rows, width);
    return qn_cuda_alloc(workspace->common->cuda, count, sizeof(float), "step buffer on the GPU", buffer);
}

/* Activations in every layout that some number of rows needs. Padding that no kernel writes must be zero. */
static qn_status alloc_acts(qn_cuda_workspace *workspace, size_t id, size_t max_rows)
{
    qn_cuda_acts *acts = &workspace->acts[id];
    acts->signs = workspace->weights->signs[id];
    const size_t capacities[QN_CUDA_ACTS_LAYOUTS] = { [QN_ACTS_HILO_N1] = 1,
                                                      [QN_ACTS_F16] = qn_round_up(max_rows, QN_GEMM_TILE_N),
                                                      [QN_ACTS_HILO] = qn_round_up(QN_FEW_MAX_TOKENS, QN_GEMM_TILE_N) };
    for (int copy = 0; copy < QN_CUDA_ACTS_COPIES; copy++) {
        const int layout = copy == QN_CUDA_ACTS_FUSED ? QN_ACTS_HILO : copy;
        size_t bytes;
        qn_matmul_acts *to = &acts->layouts[copy];
        *to = (qn_matmul_acts){ .layout = layout,
                                .workspace = workspace->matmul_workspace.address,
                                .n_cols = workspace->common->plan->acts[id].width,
                                .capacity = capacities[layout] };
        QN_TRY(qn_matmul_gpu_acts_bytes(layout, to->n_cols, to->capacity, &bytes));
        QN_TRY(qn_cuda_alloc(workspace->common->cuda, bytes + 1024, 1, "activations on the GPU", &acts->memory[copy]));
        QN_TRY(qn_cuda_memset(workspace->common->cuda, workspace->common->stream, acts->memory[copy].address, 0,
                              bytes + 1024));
        to->address = (acts->memory[copy].address + 1023) / 1024 * 1024;
        bytes = qn_matmul_gpu_scale_bytes(layout, to->n_cols, to->capacity);
        if (bytes)
            QN_TRY(qn_cuda_alloc(workspace->common->cuda, bytes, 1, "activations on the GPU", &acts->scale[copy]));
        to->scale = acts->scale[copy].address;
    }
    return QN_OK;
}

/* Allocates words that are zeros between launches. */
static qn_status alloc_zeros(qn_cuda_workspace *workspace, size_t rows, size_t width, qn_cuda_buffer *buffer)
{
    QN_TRY(alloc_floats(workspace, rows, width, buffer));
    return qn_cuda_memset(workspace->common->cuda, workspace->common->stream, buffer->address, 0, buffer->bytes);
}

/* Allocates the buffers of inputs. The step's inputs precede the embedding rows in one buffer, so that embeddings from
 * the host need only one copy. */
static qn_status alloc_inputs(qn_cuda_workspace *workspace, int embeddings, size_t max_rows)
{
    const size_t width = workspace->common->plan->buffers[embeddings].width;
    size_t bytes;
    const size_t n_pieces = max_rows < QN_GPU_MAX_SEQUENCES ? max_rows : QN_GPU_MAX_SEQUENCES,
                 n_hidden = workspace->common->plan->head.draft ? max_rows : 0;
    if (!qn_mul_size(max_rows, sizeof(qn_sample_params), &bytes) ||
        !qn_add_size(bytes, qn_gpu_inputs_of(max_rows, n_pieces, max_rows, n_hidden).sampling + ALIGN - 1, &bytes))
        return qn_fail(QN_ERR_MEMORY, "step: %zu rows do not fit in memory", max_rows);
    workspace->input_bytes = bytes / ALIGN * ALIGN;
    if (!qn_mul_size(max_rows, width * sizeof(float), &bytes) || !qn_add_size(bytes, workspace->input_bytes, &bytes))
        return qn_fail(QN_ERR_MEMORY, "step: %zu rows of %zu do not fit in memory", max_rows, width);
    QN_TRY(qn_cuda_alloc(workspace->common->cuda, bytes, 1, "step buffer on the GPU", &workspace->buffers[embeddings]));
    workspace->inputs = workspace->buffers[embeddings].address;
    for (size_t i = 0; i < QN_CUDA_BLOCKS; i++)
        QN_TRY(qn_cuda_alloc_host(workspace->common->cuda,
                                  workspace->weights->table.tiled_matrix ? workspace->input_bytes : bytes,
                                  "step buffer", (void **)&workspace->block_inputs[i]));
    return qn_cuda_alloc_host(workspace->common->cuda, workspace->common->plan->n_vocab * sizeof(float), "logits",
                              (void **)&workspace->host_logits);
}

/* Allocates the memory of the persistent decode kernel. It is zeroed, because the grid barrier of the persistent decode
 * kernel counts from zero. */
static qn_status alloc_persistent(qn_cuda_workspace *workspace)
{
    size_t bytes;
    workspace->persistent = (qn_cuda_persistent_workspace){ 0 };
    if (workspace->common->launches_only)
        return QN_OK;
    QN_TRY(qn_cuda_persistent_lay_out(workspace->weights, 0, &workspace->persistent, &bytes));
    if (!bytes)
        return QN_OK;
    QN_TRY(qn_cuda_alloc(workspace->common->cuda, bytes, 1, "step buffer on the GPU", &workspace->persistent_memory));
    QN_TRY(qn_cuda_memset(workspace->common->cuda, workspace->common->stream, workspace->persistent_memory.address, 0,
                          bytes));
    return qn_cuda_persistent_lay_out(workspace->weights, workspace->persistent_memory.address, &workspace->persistent,
                                      &bytes);
}

static qn_status alloc_buffers(qn_cuda_workspace *workspace, size_t max_rows, size_t max_positions)
{
    const qn_plan *plan = workspace->common->plan;
    const qn_recurrent_shape *r = &plan->recurrent;
    size_t widest = 0;
    workspace->logit_rows = max_rows < QN_CUDA_LOGIT_ROWS ? max_rows : QN_CUDA_LOGIT_ROWS;
    QN_TRY(alloc_inputs(workspace, plan->ops[0].embed.out, max_rows));
    QN_TRY(alloc_places(workspace, max_rows, max_positions));
    QN_TRY(qn_cuda_alloc(workspace->common->cuda, qn_matmul_gpu_workspace_bytes(&workspace->common->matmul), 1,
                         "step buffer on the GPU", &workspace->matmul_workspace));
    QN_TRY(qn_cuda_memset(workspace->common->cuda, workspace->common->stream, workspace->matmul_workspace.address, 0,
                          QN_MATMUL_COUNTERS_BYTES));
    QN_TRY(qn_cuda_memset(workspace->common->cuda, workspace->common->stream,
                          workspace->matmul_workspace.address + QN_MATMUL_COUNTERS_BYTES, QN_MATMUL_EMPTY_BYTE,
                          qn_matmul_gpu_slot_bytes(&workspace->common->matmul)));
    for (size_t i = 0; i < plan->n_acts; i++) {
        QN_TRY(alloc_acts(workspace, i, max_rows));
        widest = plan->acts[i].width > widest ? plan->acts[i].width : widest;
    }
    QN_TRY(alloc_floats(workspace, max_rows, widest, &workspace->scratch));
    const size_t n_angles = larger(plan->heads.n_rot, plan->head.heads.n_rot) / 2;
    QN_TRY(alloc_floats(workspace, max_rows, n_angles, &workspace->cosines));
    QN_TRY(alloc_floats(workspace, max_rows, n_angles, &workspace->sines));
    if (r->n_v_heads)
        QN_TRY(alloc_zeros(workspace, max_rows, r->n_k_heads, &workspace->arrivals));
    QN_TRY(alloc_zeros(workspace, max_rows < QN_CUDA_ATTENTION_ROWS ? max_rows : QN_CUDA_ATTENTION_ROWS,
                       larger(plan->heads.n_heads, workspace->common->block_attention.n_heads),
                       &workspace->attention_counters));
    QN_TRY(alloc_persistent(workspace));
    return qn_cuda_stream_synchronize(workspace->common->cuda, workspace->common->stream);
}

qn_status qn_cuda_workspace_reserve(qn_cuda_workspace *workspace, size_t max_rows, size_t max_positions)
{
    qn_cuda_workspace_release(workspace);
    workspace->generation++;
    const qn_status status = alloc_buffers(workspace, max_rows, max_positions);
    if (status != QN_OK) {
        qn_cuda_workspace_release(workspace);
        return status;
    }
    workspace->max_rows = max_rows;
    workspace->max_positions = max_positions;
    return QN_OK;
}

/* ---- Creation ---- */

qn_status qn_cuda_workspace_init(qn_cuda_common *common, qn_cuda_weights *weights, qn_cuda_workspace *workspace)
{
    workspace->common = common;
    workspace->weights = weights;
    QN_TRY(qn_alloc(&workspace->buffers, common->plan->n_buffers, sizeof *workspace->buffers, "plan"));
    return qn_alloc(&workspace->acts, common->plan->n_acts, sizeof *workspace->acts, "plan");
}

void qn_cuda_workspace_free(qn_cuda_workspace *workspace)
{
    if (workspace->common)
        qn_cuda_workspace_release(workspace);
    qn_free(workspace->buffers);
    qn_free(workspace->acts);
}
