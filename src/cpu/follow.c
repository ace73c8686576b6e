/* Which operations can follow which, and the counters of what has been written for them. */
#include "cpu/follow.h"

#include "cpu/acts.h"

/* Returns whether an operation writes all of a buffer by one of its matrices. */
static bool computes(const qn_plan *plan, const qn_op *op, int buffer)
{
    size_t n = 0;
    bool complete = true;
    for (size_t m = 0; m < op->matmul.matrices.n; m++) {
        const qn_op_matrix *matrix = &op->matmul.matrices.at[m];
        if (matrix->out != buffer)
            continue;
        complete = complete && !matrix->accumulate && matrix->weights.n_rows == plan->buffers[buffer].width;
        n++;
    }
    return n == 1 && complete;
}

static bool follows_matmul(const qn_plan *plan, const qn_op *matmul, const qn_op *op)
{
    int inputs[3];
    size_t n = 0;
    switch (op->kind) {
    case QN_OP_SWIGLU:
        inputs[n++] = op->swiglu.gate;
        inputs[n++] = op->swiglu.up;
        break;
    case QN_OP_QK_NORM_ROPE_STORE:
        inputs[n++] = op->qk_norm_rope_store.queries;
        inputs[n++] = op->qk_norm_rope_store.keys;
        inputs[n++] = op->qk_norm_rope_store.values;
        break;
    case QN_OP_CONV:
        inputs[n++] = op->conv.qkv;
        inputs[n++] = op->conv.alpha;
        inputs[n++] = op->conv.beta;
        break;
    default: return false;
    }
    for (size_t i = 0; i < n; i++) {
        if (!computes(plan, matmul, inputs[i]))
            return false;
        for (size_t before = 0; before < i; before++)
            if (inputs[before] == inputs[i])
                return false;
    }
    return true;
}

/* Returns whether each slice of activations has whole value heads, whose norms need all of their values. */
static bool has_whole_heads(const qn_plan *plan, const qn_op *op)
{
    const size_t slice = qn_act_slice_width(plan, &op->gated_norm.acts);
    return qn_plan_width(plan, op, QN_WIDTH_ACTS) <= slice || slice % plan->recurrent.head_v == 0;
}

bool qn_follow_can(const qn_plan *plan, size_t i)
{
    const qn_op *op = &plan->ops[i], *before = &plan->ops[i - 1];
    switch (before->kind) {
    case QN_OP_MATMUL: return follows_matmul(plan, before, op);
    case QN_OP_ATTENTION:
        return op->kind == QN_OP_ATTENTION_COMBINE && op->attention_combine.in == before->attention.out;
    case QN_OP_DELTA_RULE:
        return op->kind == QN_OP_GATED_NORM && op->gated_norm.in == before->delta_rule.out && has_whole_heads(plan, op);
    default: return false;
    }
}

static size_t max_of(size_t a, size_t b)
{
    return a > b ? a : b;
}

size_t qn_follow_counters(const qn_plan *plan)
{
    size_t n = 2 * plan->recurrent.n_k_heads + plan->recurrent.n_v_heads + 1;
    for (size_t i = 0; i < plan->n_ops; i++) {
        const qn_op_acts *acts = qn_op_acts_of(&plan->ops[i]);
        const qn_attention_shape *shape = qn_op_shape_of(&plan->ops[i]);
        if (acts)
            n = max_of(n, plan->acts[acts->at[0]].width / QN_SUPER + 1);
        if (shape)
            n = max_of(n, shape->n_heads + shape->n_kv_heads);
    }
    return n;
}

/* Parts of a row that are items of the follower: `unit` values each, the last one perhaps fewer. */
struct parts {
    size_t work, first_item, first_counter, unit, total;
    size_t times; /* how often each value is written */
};

static void arrive(const qn_executor *ex, const struct parts *parts, size_t first, size_t n, int thread)
{
    const qn_cpu_work *work = &ex->follower_works[parts->work];
    const size_t last = first + n;
    for (size_t i = first / parts->unit; first < last; i++) {
        const size_t begin = i * parts->unit, left = parts->total - begin,
                     length = left < parts->unit ? left : parts->unit,
                     end = last < begin + length ? last : begin + length;
        atomic_uint *counter = &ex->arrivals[(parts->first_counter + i) * QN_FOLLOW_STRIDE];
        const unsigned arrived = (unsigned)(end - first);
        const qn_cpu_range range = {
            .begin = parts->first_item + i, .end = parts->first_item + i + 1, .next = work->count, .thread = thread
        };
        first = end;
        if (atomic_fetch_add_explicit(counter, arrived, memory_order_acq_rel) + arrived != length * parts->times)
            continue;
        atomic_store_explicit(counter, 0, memory_order_relaxed); /* for a later phase */
        work->run(ex, work->op, &range);
    }
}

void qn_follow_acts(const qn_executor *ex, size_t first, size_t n, size_t times, int thread)
{
    if (!ex->follower)
        return;
    const qn_op_acts *acts = qn_op_acts_of(ex->follower);
    const struct parts slices = { .unit = qn_act_slice_width(ex->plan, acts),
                                  .total = ex->plan->acts[acts->at[0]].width,
                                  .times = times };
    arrive(ex, &slices, first, n, thread);
}

/* Works of QK_NORM_ROPE_STORE: query heads, KV heads. */
static void arrive_heads(const qn_executor *ex, int buffer, size_t first, size_t n, int thread)
{
    const qn_op *op = ex->follower;
    const qn_attention_shape *h = &op->qk_norm_rope_store.shape;
    const size_t query = h->head_dim * (h->gated ? 2 : 1);
    const struct parts queries = { .unit = query, .total = h->n_heads * query, .times = 1 }, stored = {
        .work = 1, .first_counter = h->n_heads, .unit = h->head_dim, .total = h->n_kv_heads * h->head_dim, .times = 2
    };
    if (buffer == op->qk_norm_rope_store.queries)
        arrive(ex, &queries, first, n, thread);
    else if (buffer == op->qk_norm_rope_store.keys || buffer == op->qk_norm_rope_store.values)
        arrive(ex, &stored, first, n, thread);
}

/* Works of CONV: heads of q, k and v; the gates of a row. */
static void arrive_conv(const qn_executor *ex, int buffer, size_t first, size_t n, int thread)
{
    const qn_op *op = ex->follower;
    const qn_recurrent_shape *shape = &ex->plan->recurrent;
    const size_t n_qk = 2 * shape->n_k_heads, qk_width = n_qk * shape->head_k;
    const struct parts qk = { .unit = shape->head_k, .total = qk_width, .times = 1 },
                       v = { .first_item = n_qk,
                             .first_counter = n_qk,
                             .unit = shape->head_v,
                             .total = shape->n_v_heads * shape->head_v,
                             .times = 1 },
                       gates = { .work = 1,
                                 .first_counter = n_qk + shape->n_v_heads,
                                 .unit = shape->n_v_heads,
                                 .total = shape->n_v_heads,
                                 .times = 2 };
    if (buffer == op->conv.alpha || buffer == op->conv.beta) {
        arrive(ex, &gates, first, n, thread);
    } else if (buffer == op->conv.qkv) {
        const size_t n_first = first >= qk_width ? 0 : n < qk_width - first ? n : qk_width - first;
        arrive(ex, &qk, first, n_first, thread);
        if (n > n_first)
            arrive(ex, &v, first + n_first - qk_width, n - n_first, thread);
    }
}

void qn_follow_buffer(const qn_executor *ex, int buffer, size_t first, size_t n, int thread)
{
    const qn_op *op = ex->follower;
    if (!op)
        return;
    if (op->kind == QN_OP_QK_NORM_ROPE_STORE)
        arrive_heads(ex, buffer, first, n, thread);
    else if (op->kind == QN_OP_CONV)
        arrive_conv(ex, buffer, first, n, thread);
    else if (buffer == op->swiglu.gate || buffer == op->swiglu.up)
        qn_follow_acts(ex, first, n, 2, thread);
}
