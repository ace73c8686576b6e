/* Places the plan's buffers one after the other. */
#include "vulkan/executor/workspace.h"

#include "base/memory.h"
#include "gpu/buckets.h"
#include "plan/page.h"

enum { ALIGN = 256, MOST_PARTIAL_BYTES = 128 << 20 /* rows for which these do not suffice are computed in groups */ };

static qn_status does_not_fit(size_t max_rows)
{
    return qn_fail(QN_ERR_MEMORY, "step: %zu rows do not fit in memory", max_rows);
}

/* Adds rows of floats at *used; returns false on overflow. */
static bool place(size_t *used, size_t rows, size_t width, size_t *at)
{
    size_t bytes;
    *at = *used;
    return qn_mul_size(rows, width, &bytes) && qn_mul_size(bytes, sizeof(float), &bytes) &&
           qn_add_size(bytes, ALIGN - 1, &bytes) && qn_add_size(*used, bytes / ALIGN * ALIGN, used);
}

enum { FLOATS = 1, CODES = 2 };

/* Returns which rows of activations the plan's matmuls read. */
static unsigned readers_of(const qn_plan *plan, size_t acts)
{
    unsigned readers = 0;
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op_matrices *matrices = qn_op_matrices_of(&plan->ops[i]);
        for (size_t m = 0; matrices && m < matrices->n; m++)
            if ((size_t)matrices->at[m].acts == acts)
                readers |= qn_vk_is_f16(matrices->at[m].weights.type) ? FLOATS : CODES;
    }
    return readers;
}

/* Sets addresses from a base, and *bytes. */
static bool place_rows(qn_vk_workspace *w, size_t max_rows, uint64_t base, size_t *bytes)
{
    const qn_plan *plan = w->common->plan;
    size_t at;
    bool fits = true;
    *bytes = 0;
    for (size_t i = 0; i < plan->n_buffers; i++) {
        fits = fits && place(bytes, max_rows, plan->buffers[i].width, &at);
        w->buffers[i] = base + at;
    }
    for (size_t i = 0; i < plan->n_acts; i++) {
        const unsigned readers = readers_of(plan, i);
        const size_t words = qn_vk_act_row_bytes(plan->acts[i].width, qn_vk_act_planes(&plan->acts[i])) / sizeof(float);
        fits = fits && place(bytes, readers & FLOATS ? max_rows : 0, plan->acts[i].width, &at);
        w->acts[i] = readers & FLOATS ? base + at : 0;
        fits = fits && place(bytes, readers & CODES ? max_rows : 0, words, &at);
        w->codes[i] = readers & CODES ? base + at : 0;
        fits = fits && place(bytes, readers & CODES ? QN_VK_FEW_ROWS : 0, words, &at);
        w->next[i] = base + at;
    }
    fits = fits && place(bytes, max_rows, plan->recurrent.n_v_heads * QN_VK_ROW_SCORES, &at);
    w->row_scores = base + at;
    return fits;
}

static qn_status allocate_partials(qn_vk_workspace *w, size_t max_rows, size_t max_positions)
{
    const qn_attention_shape *h = &w->common->plan->heads;
    const size_t n_pages = max_positions / QN_PAGE + 1;
    size_t row;
    w->n_splits = n_pages < QN_VK_MAX_SPLITS ? n_pages : QN_VK_MAX_SPLITS;
    if (!qn_mul_size(h->n_heads * w->n_splits, (h->head_dim + QN_VK_PARTIAL_EXTRA) * sizeof(float), &row))
        return does_not_fit(max_rows);
    if (!row)
        return QN_OK;
    const size_t fitting = row < MOST_PARTIAL_BYTES ? MOST_PARTIAL_BYTES / row : 1;
    w->partial_rows = max_rows < fitting ? max_rows : fitting;
    return qn_vk_alloc(w->common->vk, w->partial_rows * row, QN_VK_ON_DEVICE, "partial results of attention",
                       &w->partials);
}

static size_t widest_acts(const qn_plan *plan)
{
    size_t most = 0;
    for (size_t i = 0; i < plan->n_acts; i++)
        most = plan->acts[i].width > most ? plan->acts[i].width : most;
    return most;
}

/* The bytes of the counters of a kernel: of each value head of each sequence, of units of rows of heads, or of blocks
 * of activations. */
static bool counters_of(const qn_plan *plan, size_t n_sequences, size_t *bytes)
{
    const size_t blocks = widest_acts(plan) / QN_QUANT_GROUP;
    size_t heads, rows = 0;
    if (!qn_mul_size(n_sequences, plan->recurrent.n_v_heads, &heads))
        return false;
    size_t most = heads > blocks ? heads : blocks;
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_attention_shape *h = qn_op_shape_of(&plan->ops[i]);
        if (h && !qn_mul_size(2 * (h->n_heads + h->n_kv_heads), h->head_dim, &rows))
            return false;
        most = rows / QN_VK_HEADS_UNIT > most ? rows / QN_VK_HEADS_UNIT : most;
    }
    return qn_mul_size(most, sizeof(uint32_t), bytes);
}

static qn_status allocate(qn_vk_workspace *w, size_t max_rows, size_t max_positions)
{
    const qn_plan *plan = w->common->plan;
    qn_vk *vk = w->common->vk;
    const size_t n_pieces = max_rows < QN_GPU_MAX_SEQUENCES ? max_rows : QN_GPU_MAX_SEQUENCES;
    size_t bytes, used = qn_round_up(qn_gpu_inputs_of(max_rows, n_pieces, max_rows, 0).bytes, ALIGN);
    if (!place_rows(w, max_rows, 0, &bytes))
        return does_not_fit(max_rows);
    QN_TRY(qn_vk_alloc(vk, bytes, QN_VK_ON_DEVICE, "step buffers", &w->rows));
    (void)place_rows(w, max_rows, w->rows.address, &bytes);
    if (!place(&used, max_rows, plan->heads.n_rot, &w->angles_at) ||
        !place(&used, n_pieces, sizeof(qn_vk_sequence) / sizeof(float), &w->sequences_at) ||
        !place(&used, qn_gpu_recurrent_index(plan, (int)plan->n_layers), sizeof(qn_vk_delta_layer) / sizeof(float),
               &w->layers_at) ||
        !place(&used, plan->n_layers, sizeof(qn_vk_heads) / sizeof(float), &w->heads_at) ||
        !place(&used, plan->n_layers, sizeof(qn_vk_combination) / sizeof(float), &w->combinations_at) ||
        !place(&used, plan->n_ops, sizeof(qn_vk_rotated) / sizeof(float), &w->rotated_at) ||
        !place(&used, w->embeds_on_host ? max_rows : 0, plan->buffers[plan->ops[0].embed.out].width, &w->embeddings_at))
        return does_not_fit(max_rows);
    for (size_t i = 0; i < QN_VK_BLOCKS; i++)
        QN_TRY(qn_vk_alloc(vk, used, QN_VK_SHARED, "inputs of a step", &w->block_inputs[i]));
    QN_TRY(qn_vk_alloc(vk, max_rows * sizeof(int32_t), QN_VK_ON_DEVICE, "tokens of a step", &w->tokens));
    QN_TRY(qn_vk_zero(vk, &w->tokens));
    if (!counters_of(plan, n_pieces, &bytes))
        return does_not_fit(max_rows);
    QN_TRY(qn_vk_alloc(vk, bytes, QN_VK_ON_DEVICE, "counters", &w->arrived));
    QN_TRY(qn_vk_zero(vk, &w->arrived));
    QN_TRY(qn_vk_alloc(vk, widest_acts(plan) * sizeof(float), QN_VK_ON_DEVICE, "activations", &w->unrotated));
    w->logit_rows = max_rows < QN_VK_LOGIT_ROWS ? max_rows : QN_VK_LOGIT_ROWS;
    if (!qn_mul_size(w->logit_rows, plan->n_vocab * sizeof(float), &bytes))
        return does_not_fit(w->logit_rows);
    QN_TRY(qn_vk_alloc(vk, bytes, QN_VK_ON_DEVICE, "logits", &w->logits));
    QN_TRY(qn_vk_alloc(vk, bytes, QN_VK_ON_HOST, "logits", &w->host_logits));
    QN_TRY(allocate_partials(w, max_rows, max_positions));
    w->max_rows = max_rows;
    w->max_positions = max_positions;
    return QN_OK;
}

static void release(qn_vk_workspace *w)
{
    qn_vk_free(w->common->vk, &w->rows);
    for (size_t i = 0; i < QN_VK_BLOCKS; i++)
        qn_vk_free(w->common->vk, &w->block_inputs[i]);
    qn_vk_free(w->common->vk, &w->tokens);
    qn_vk_free(w->common->vk, &w->arrived);
    qn_vk_free(w->common->vk, &w->unrotated);
    qn_vk_free(w->common->vk, &w->logits);
    qn_vk_free(w->common->vk, &w->host_logits);
    qn_vk_free(w->common->vk, &w->partials);
    w->max_rows = w->max_positions = 0;
}

qn_status qn_vk_workspace_reserve(qn_vk_workspace *w, size_t max_rows, size_t max_positions)
{
    release(w);
    const qn_status status = allocate(w, max_rows, max_positions);
    if (status != QN_OK)
        release(w);
    return status;
}

void qn_vk_workspace_select(qn_vk_workspace *w, size_t block)
{
    w->inputs = w->block_inputs[block];
}

qn_status qn_vk_workspace_init(const qn_vk_common *common, bool embeds_on_host, qn_vk_workspace *w)
{
    w->common = common;
    w->embeds_on_host = embeds_on_host;
    QN_TRY(qn_alloc(&w->buffers, common->plan->n_buffers, sizeof *w->buffers, "plan"));
    QN_TRY(qn_alloc(&w->acts, common->plan->n_acts, sizeof *w->acts, "plan"));
    QN_TRY(qn_alloc(&w->next, common->plan->n_acts, sizeof *w->next, "plan"));
    return qn_alloc(&w->codes, common->plan->n_acts, sizeof *w->codes, "plan");
}

void qn_vk_workspace_free(qn_vk_workspace *w)
{
    if (!w->common)
        return;
    release(w);
    qn_free(w->buffers);
    qn_free(w->acts);
    qn_free(w->codes);
    qn_free(w->next);
}
