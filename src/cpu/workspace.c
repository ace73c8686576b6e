/* Allocation of the CPU's workspace. */
#include "cpu/workspace.h"

#include "base/address_space.h"
#include "base/memory.h"
#include "kernels/attention/attention.h"
#include "kernels/matmul/blocks.h"
#include "kernels/matmul/packed.h"

static void free_buffers(const qn_plan *plan, qn_cpu_workspace *ws)
{
    for (size_t i = 0; ws->buffers && i < plan->n_buffers; i++) {
        qn_free(ws->buffers[i]);
        ws->buffers[i] = NULL;
    }
    for (size_t i = 0; ws->acts && i < plan->n_acts; i++)
        qn_acts_free(&ws->acts[i]);
    float **const owned[] = { &ws->cosines, &ws->sines, &ws->partial, &ws->partial_m, &ws->partial_l };
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++) {
        qn_free(*owned[i]);
        *owned[i] = NULL;
    }
    ws->max_rows = ws->max_positions = ws->max_splits = 0;
}

/* Returns whether the types of all quantised matrices that read activations `id` are such. */
static bool all_readers(const qn_plan *plan, const qn_cpu_weights *weights, size_t id,
                        bool (*is_such)(const qn_type_info *type))
{
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op_matrices *matrices = qn_op_matrices_of(&plan->ops[i]);
        for (size_t m = 0; matrices && m < matrices->n; m++) {
            const qn_type_info *type = weights->at[i][m].stored.type;
            if ((size_t)matrices->at[m].acts == id && type->unpack && !is_such(type))
                return false;
        }
    }
    return true;
}

/* Returns the layouts in which the matmuls read activations `id`, as bits 1 << layout. */
static unsigned layouts_needed(const qn_plan *plan, const qn_matmul_kernels *kernels, const qn_cpu_weights *weights,
                               size_t id)
{
    const bool blocks = all_readers(plan, weights, id, qn_type_has_blocks);
    unsigned layouts = 0;
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op_matrices *matrices = qn_op_matrices_of(&plan->ops[i]);
        for (size_t m = 0; matrices && m < matrices->n; m++)
            if ((size_t)matrices->at[m].acts == id)
                layouts |= qn_matmul_act_layouts(kernels, &weights->at[i][m], blocks);
    }
    return layouts;
}

/* Returns a shape with the largest sizes of all attention layers. It starts from the plan's own, for models without
 * attention layers. */
static qn_attention_shape largest_shape(const qn_plan *plan)
{
    qn_attention_shape largest = plan->heads;
    if (plan->head.block && plan->head.heads.n_rot > largest.n_rot)
        largest.n_rot = plan->head.heads.n_rot;
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_attention_shape *h = qn_op_shape_of(&plan->ops[i]);
        largest.n_heads = h && h->n_heads > largest.n_heads ? h->n_heads : largest.n_heads;
        largest.head_dim = h && h->head_dim > largest.head_dim ? h->head_dim : largest.head_dim;
    }
    return largest;
}

/* Prompts read and write the whole workspace in each layer, so huge pages make them faster. Where an array fills a few
 * of them at most, they would only take memory. */
static void advise(void *memory, size_t bytes)
{
    if (memory && bytes >= 2 * (size_t)QN_COMMIT_GRANULE)
        qn_advise_huge(memory, bytes);
}

static void advise_acts(const qn_acts *acts)
{
    const size_t groups = acts->max_rows * acts->n_super * QN_SUPER_GROUPS;
    for (size_t layout = 0; layout < QN_ACT_INT8_LAYOUTS; layout++) {
        advise(acts->codes[layout], groups * QN_QUANT_GROUP);
        advise(acts->codes_lo[layout], groups * QN_QUANT_GROUP);
    }
    advise(acts->block_tiles, qn_act_token_tiles(acts) * qn_act_blocks(acts) * sizeof(qn_act_block_tile));
    advise(acts->lut, groups * QN_GROUP_LUT_BYTES);
    advise(acts->lut_lo, groups * QN_GROUP_LUT_BYTES);
}

static qn_status alloc_buffers(const qn_plan *plan, const qn_matmul_kernels *kernels, const qn_cpu_weights *weights,
                               size_t max_rows, size_t max_positions, qn_cpu_workspace *ws)
{
    for (size_t i = 0; i < plan->n_buffers; i++) {
        size_t count;
        if (!qn_mul_size(max_rows, plan->buffers[i].width, &count))
            return qn_fail(QN_ERR_MEMORY, "plan: %zu rows of %zu do not fit in memory", max_rows,
                           plan->buffers[i].width);
        QN_TRY(qn_alloc(&ws->buffers[i], count, sizeof(float), "step buffer"));
        advise(ws->buffers[i], count * sizeof(float));
    }
    for (size_t i = 0; i < plan->n_acts; i++) {
        QN_TRY(qn_acts_create(&ws->acts[i], max_rows, plan->acts[i].width, layouts_needed(plan, kernels, weights, i),
                              plan->acts[i].hilo));
        advise_acts(&ws->acts[i]);
        ws->acts[i].only_tiles = all_readers(plan, weights, i, qn_tiles_multiply_type);
    }
    const qn_attention_shape h = largest_shape(plan);
    const size_t angles = max_rows * (h.n_rot / 2);
    QN_TRY(qn_alloc(&ws->cosines, angles, sizeof(float), "rope angles"));
    QN_TRY(qn_alloc(&ws->sines, angles, sizeof(float), "rope angles"));
    /* Split-KV partials: key blocks, and two fp16 pages of an AURA cache. */
    ws->max_splits = (max_positions + QN_KEY_BLOCK - 1) / QN_KEY_BLOCK + 2;
    const size_t n_partials = h.n_heads * ws->max_splits;
    QN_TRY(qn_alloc(&ws->partial, n_partials, h.head_dim * sizeof(float), "attention partials"));
    QN_TRY(qn_alloc(&ws->partial_m, n_partials, sizeof(float), "attention partials"));
    return qn_alloc(&ws->partial_l, n_partials, sizeof(float), "attention partials");
}

qn_status qn_cpu_workspace_create(const qn_plan *plan, qn_cpu_workspace *ws)
{
    *ws = (qn_cpu_workspace){ 0 };
    QN_TRY(qn_alloc(&ws->buffers, plan->n_buffers, sizeof *ws->buffers, "executor"));
    return qn_alloc(&ws->acts, plan->n_acts, sizeof *ws->acts, "executor");
}

void qn_cpu_workspace_free(const qn_plan *plan, qn_cpu_workspace *ws)
{
    free_buffers(plan, ws);
    qn_free(ws->buffers);
    qn_free(ws->acts);
    *ws = (qn_cpu_workspace){ 0 };
}

qn_status qn_cpu_workspace_reserve(const qn_plan *plan, const qn_matmul_kernels *kernels, const qn_cpu_weights *weights,
                                   size_t max_rows, size_t max_positions, qn_cpu_workspace *ws)
{
    if (max_rows <= ws->max_rows && max_positions <= ws->max_positions)
        return QN_OK;
    max_rows = max_rows > ws->max_rows ? max_rows : ws->max_rows;
    max_positions = max_positions > ws->max_positions ? max_positions : ws->max_positions;
    free_buffers(plan, ws);
    const qn_status status = alloc_buffers(plan, kernels, weights, max_rows, max_positions, ws);
    if (status != QN_OK) {
        free_buffers(plan, ws);
        return status;
    }
    ws->max_rows = max_rows;
    ws->max_positions = max_positions;
    return QN_OK;
}
