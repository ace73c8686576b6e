/* The CPU executor: each operation's share of work for each thread. What is computed, and in which order, is the kernels'
 * affair; here only who does it and when. Attention, products and Gated DeltaNet layers have files of their
 * own. */
#include "device/cpu/internal.h"

#include "base/memory.h"

#include <string.h>

/* The most that any operation of the plan asks of one thread's scratch. */
static size_t scratch_bytes(const qn_kernels *kernels, const qn_plan *plan)
{
    size_t bytes = qn_attention_scratch(plan->heads.head_dim);
    for (size_t i = 0; i < plan->n_acts; i++) {
        const size_t need = qn_matmul_scratch(&kernels->matmul, plan->acts[i].width);
        bytes = need > bytes ? need : bytes;
    }
    for (size_t i = 0; i < plan->n_ops; i++) {
        /* A unit's values, and behind them the head that attention merges, before and after it is rotated back. */
        const size_t need = (qn_unit_values(plan, &plan->ops[i]) + 2 * plan->heads.head_dim) * sizeof(float);
        bytes = need > bytes ? need : bytes;
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
    *executor = (qn_executor){ .team = team, .kernels = kernels, .plan = plan, .scratch_bytes = scratch_bytes(kernels, plan) };
    qn_status status = qn_alloc(&executor->scratch, (size_t)qn_team_size(team), executor->scratch_bytes, "thread scratch");
    if (status == QN_OK)
        status = qn_alloc(&executor->claims, plan->n_ops, sizeof *executor->claims, "executor");
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
    qn_free(executor->claims);
    qn_free(executor->zeros);
    qn_free(executor);
}

/* Blocks of [first, first + n) of a row, turned in place. */
static void rotate(const qn_executor *ex, const qn_plan_rotation *rotation, bool inverse, float *values, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i += rotation->block) {
        const float *signs = rotation->signs ? rotation->signs + first + i : NULL;
        ex->kernels->hadamard.block(values + i, rotation->block, inverse ? NULL : signs, inverse ? signs : NULL);
    }
}

size_t qn_unit_values(const qn_plan *plan, const qn_op *op)
{
    size_t values = QN_SUPER;
    for (size_t i = 0; i < op->n_acts; i++) {
        const size_t block = plan->acts[op->acts[i]].rotation.block;
        values = block > values ? block : values;
    }
    return values;
}

static size_t units_of_row(const qn_executor *ex, const qn_op *op)
{
    const size_t values = qn_unit_values(ex->plan, op);
    return (ex->plan->acts[op->acts[0]].width + values - 1) / values;
}

size_t qn_units_of(const qn_executor *ex, const qn_op *op, size_t n_rows)
{
    return n_rows * units_of_row(ex, op);
}

qn_unit qn_unit_at(const qn_executor *ex, const qn_op *op, size_t index, int thread)
{
    const size_t values = qn_unit_values(ex->plan, op), per_row = units_of_row(ex, op), first = index % per_row * values;
    const size_t left = ex->plan->acts[op->acts[0]].width - first;
    return (qn_unit){ .row = index / per_row,
                      .first = first,
                      .n = left < values ? left : values,
                      .values = (float *)qn_thread_scratch(ex, thread) };
}

void qn_unit_write(const qn_executor *ex, const qn_op *op, const qn_unit *unit)
{
    for (size_t a = 0; a < op->n_acts; a++) {
        /* The plan owns the buffers and is constant in shape; their contents are this step's. */
        qn_plan_acts *acts = &ex->plan->acts[op->acts[a]];
        if (acts->rotation.block)
            rotate(ex, &acts->rotation, false, unit->values, unit->first, unit->n);
        for (size_t i = 0; i < unit->n; i += QN_SUPER)
            ex->kernels->matmul.quantize(&acts->acts, unit->row, (unit->first + i) / QN_SUPER, unit->values + i,
                                         unit->n - i < QN_SUPER ? unit->n - i : QN_SUPER);
    }
}

static void run_embed(const qn_executor *ex, const qn_op *op, int thread)
{
    const qn_matrix *table = &op->matrices[0].weights;
    const size_t half = ex->plan->heads.n_rot / 2;
    size_t begin, end;
    qn_team_share(ex->step->n_rows, 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t row = begin; row < end; row++) {
        const qn_row *r = &ex->step->rows[row];
        float *x = qn_buffer_row(ex, op->out, row);
        table->type->decode(table->data + (size_t)r->token * table->row_bytes, table->n_cols / table->type->block_weights, x);
        if (op->inverse.block)
            rotate(ex, &op->inverse, true, x, 0, table->n_cols);
        qn_rope_angles(r->position, ex->plan->frequencies, ex->plan->attn_factor, ex->plan->heads.n_rot,
                       ex->plan->cosines + row * half, ex->plan->sines + row * half);
    }
}

/* Threads share the units of all rows; each finds the scale of the rows it has a part of for itself, which costs less than
 * waiting for another to find it. */
static void run_norm(const qn_executor *ex, const qn_op *op, size_t n_rows, const uint32_t *rows, int thread)
{
    size_t begin, end, scaled = SIZE_MAX;
    float scale = 0;
    qn_team_share(qn_units_of(ex, op, n_rows), 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t index = begin; index < end; index++) {
        const qn_unit unit = qn_unit_at(ex, op, index, thread);
        const float *x = qn_buffer_row(ex, op->in, rows ? rows[unit.row] : unit.row);
        if (unit.row != scaled)
            scale = qn_rms_scale(&ex->kernels->norm, x, ex->plan->buffers[op->in].width, op->eps);
        scaled = unit.row;
        ex->kernels->norm.scale(unit.values, x + unit.first, op->weight + unit.first, scale, unit.n);
        qn_unit_write(ex, op, &unit);
    }
}

static void run_swiglu(const qn_executor *ex, const qn_op *op, int thread)
{
    size_t begin, end;
    qn_team_share(qn_units_of(ex, op, ex->step->n_rows), 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t index = begin; index < end; index++) {
        const qn_unit unit = qn_unit_at(ex, op, index, thread);
        ex->kernels->elementwise.swiglu(unit.values, qn_buffer_row(ex, op->in, unit.row) + unit.first,
                                        qn_buffer_row(ex, op->in2, unit.row) + unit.first, unit.n);
        qn_unit_write(ex, op, &unit);
    }
}

static void walk(void *context, int thread)
{
    const qn_executor *ex = context;
    for (size_t i = 0; i < ex->plan->n_ops; i++) {
        const qn_op *op = &ex->plan->ops[i];
        switch (op->kind) {
        case QN_OP_EMBED: run_embed(ex, op, thread); break;
        case QN_OP_NORM: run_norm(ex, op, ex->step->n_rows, NULL, thread); break;
        case QN_OP_MATMUL:
        case QN_OP_LOGITS: qn_executor_multiply(ex, op, thread); break;
        case QN_OP_HEADS: qn_executor_heads(ex, op, thread); break;
        case QN_OP_ATTENTION: qn_executor_attention(ex, op, thread); break;
        case QN_OP_ATTENTION_OUT: qn_executor_attention_out(ex, op, thread); break;
        case QN_OP_SWIGLU: run_swiglu(ex, op, thread); break;
        case QN_OP_CONV: qn_executor_conv(ex, op, thread); break;
        case QN_OP_DELTA: qn_executor_delta(ex, op, thread); break;
        case QN_OP_DELTA_OUT: qn_executor_delta_out(ex, op, thread); break;
        case QN_OP_LOGIT_NORM: run_norm(ex, op, ex->step->n_logit_rows, ex->step->logit_rows, thread); break;
        }
        if (i + 1 < ex->plan->n_ops)
            qn_executor_ask_ahead(ex, op + 1, thread);
        qn_team_barrier(ex->team);
    }
}

void qn_executor_run(qn_executor *executor, const qn_step *step)
{
    executor->step = step;
    executor->split_keys = qn_executor_split_keys(executor);
    for (size_t i = 0; i < executor->plan->n_ops; i++)
        atomic_store_explicit(&executor->claims[i], 0, memory_order_relaxed);
    qn_team_run(executor->team, walk, executor);
    executor->step = NULL;
}
