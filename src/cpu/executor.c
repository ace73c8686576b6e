/* The CPU executor. The kernels define the arithmetic and its order; no result depends on the thread that computes it.
 * The operations are in inputs.c, norms.c, attention.c, matmul.c and recurrent.c; phases.c divides their work. */
#include "cpu/executor.h"

#include "base/memory.h"
#include "cpu/acts.h"
#include "cpu/phases.h"
#include "kernels/attention/attention.h"
#include "plan/limits.h"

#include <string.h>

_Static_assert((int)QN_PLAN_HEAD_UNIT == (int)QN_HEAD_UNIT && (int)QN_PLAN_DELTA_UNIT == (int)QN_GDN_UNIT &&
                   (int)QN_PLAN_DELTA_DIM == (int)QN_GDN_MAX_DIM && (int)QN_PLAN_CONV_TAPS == (int)QN_CONV_MAX_TAPS &&
                   (int)QN_PLAN_ROTATION_BLOCK == (int)QN_HADAMARD_MAX_BLOCK,
               "the kernels support all plans");

/* Returns the largest scratch size that any operation of the plan needs per thread. */
static size_t scratch_bytes(const qn_kernels *kernels, const qn_plan *plan)
{
    size_t bytes = 0;
    for (size_t i = 0; i < plan->n_acts; i++) {
        const size_t need = qn_matmul_scratch(&kernels->matmul, plan->acts[i].width);
        bytes = need > bytes ? need : bytes;
    }
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op_acts *acts = qn_op_acts_of(&plan->ops[i]);
        const qn_attention_shape *h = qn_op_shape_of(&plan->ops[i]);
        const size_t attention = h ? qn_attention_scratch(h->head_dim) : 0;
        /* A slice's values, then two heads for the attention combine: before and after the inverse rotation. */
        const size_t slice = acts ? (qn_act_slice_width(plan, acts) + (h ? 2 * h->head_dim : 0)) * sizeof(float) : 0;
        bytes = attention > bytes ? attention : bytes;
        bytes = slice > bytes ? slice : bytes;
    }
    const size_t delta = plan->recurrent.n_v_heads ? qn_gdn_scratch(plan->recurrent.head_k) : 0;
    return qn_round_up(delta > bytes ? delta : bytes, QN_ALIGN);
}

qn_status qn_executor_create(qn_team *team, const qn_kernels *kernels, const qn_plan *plan, qn_executor **out)
{
    const qn_recurrent_shape *shape = &plan->recurrent;
    qn_executor *executor;
    *out = NULL;
    QN_TRY(qn_alloc(&executor, 1, sizeof *executor, "executor"));
    *executor =
        (qn_executor){ .team = team, .kernels = kernels, .plan = plan, .scratch_bytes = scratch_bytes(kernels, plan) };
    qn_status status =
        qn_alloc(&executor->scratch, (size_t)qn_team_size(team), executor->scratch_bytes, "thread scratch");
    if (status == QN_OK)
        status = qn_phases_create(executor);
    if (status == QN_OK)
        status = qn_cpu_weights_create(plan, &executor->weights);
    if (status == QN_OK)
        status = qn_cpu_workspace_create(plan, &executor->workspace);
    if (status == QN_OK && shape->n_v_heads)
        status = qn_alloc(&executor->zeros, 2 * shape->n_k_heads * shape->head_k + shape->n_v_heads * shape->head_v,
                          sizeof *executor->zeros, "executor");
    if (status != QN_OK) {
        qn_executor_free(executor);
        return status;
    }
    *out = executor;
    return QN_OK;
}

void qn_executor_free(qn_executor *executor)
{
    if (!executor)
        return;
    qn_free(executor->scratch);
    qn_phases_free(executor);
    qn_free(executor->zeros);
    qn_cpu_workspace_free(executor->plan, &executor->workspace);
    qn_cpu_weights_free(&executor->weights);
    qn_free(executor);
}

qn_status qn_executor_pack(qn_executor *executor, const uint8_t *data, bool *packed)
{
    return qn_cpu_weights_pack(&executor->weights, executor->plan, &executor->kernels->matmul, executor->team, data,
                               packed);
}

qn_status qn_executor_reserve(qn_executor *executor, size_t max_rows, size_t max_positions)
{
    return qn_cpu_workspace_reserve(executor->plan, &executor->kernels->matmul, &executor->weights, max_rows,
                                    max_positions, &executor->workspace);
}

void qn_executor_run(qn_executor *executor, const qn_step *step)
{
    const size_t draft = executor->draft_phase, chain = executor->chain_phase,
                 first = step->is_chain   ? chain
                         : step->is_draft ? draft
                                          : 0,
                 end = step->is_chain   ? executor->n_phases
                       : step->is_draft ? chain
                                        : draft;
    const size_t kind = step->is_chain   ? SIZE_MAX / 2 - step->n_rows
                        : step->is_draft ? SIZE_MAX - step->n_rows
                                         : step->n_rows;
    const qn_team_job job = { .n_phases = end - first,
                              .kind = executor->shares_team ? 0 : kind,
                              .pieces = qn_phases_open,
                              .work = qn_phases_work,
                              .context = executor };
    executor->step = step;
    executor->first_phase = first;
    executor->split_kv = qn_executor_split_kv(executor);
    qn_team_do(executor->team, &job);
    if (executor->profile)
        qn_cpu_profile_close(executor->profile);
    executor->step = NULL;
}
