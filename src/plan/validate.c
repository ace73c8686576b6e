/* Checks a finished plan, and finds the barriers between its operations. */
#include "plan/plan.h"

#include "base/memory.h"

#include <string.h>

static qn_status wrong(const qn_plan *plan, const qn_op *op, const char *operand, const char *what, long long found,
                       long long expected)
{
    return qn_fail(QN_ERR_INVALID, "plan: operation %zu, %s: %s: %s %lld, expected %lld", (size_t)(op - plan->ops),
                   qn_op_desc_of(op->kind)->name, operand, what, found, expected);
}

static qn_status check_index(const qn_plan *plan, const qn_op *op, const qn_op_operand *operand)
{
    const size_t n = operand->is_acts ? plan->n_acts : plan->n_buffers;
    if (operand->index < 0 || (size_t)operand->index >= n)
        return qn_fail(QN_ERR_INVALID, "plan: operation %zu, %s: %s: %s %d, expected 0 to %lld",
                       (size_t)(op - plan->ops), qn_op_desc_of(op->kind)->name, operand->name,
                       operand->is_acts ? "activations" : "buffer", operand->index, (long long)n - 1);
    return QN_OK;
}

/* Checks the layer of an operation. All attention layers of a section use the same KV cache layout, and angles of the
 * same n_rot. */
static qn_status check_layer(const qn_plan *plan, const qn_op *op)
{
    const qn_op_desc *desc = qn_op_desc_of(op->kind);
    const qn_attention_shape *h = qn_op_shape_of(op), *all = qn_plan_heads(plan, op->layer < 0 ? 0 : (size_t)op->layer);
    const unsigned uses = desc->reads | desc->writes;
    if (uses & (QN_USES_KV | QN_USES_STATE)) {
        if (op->layer < 0 || (size_t)op->layer >= plan->n_layers)
            return wrong(plan, op, "layer", "is", op->layer, (long long)plan->n_layers - 1);
        const bool recurrent = plan->is_recurrent && plan->is_recurrent[op->layer];
        if (recurrent != ((uses & QN_USES_STATE) != 0))
            return wrong(plan, op, "layer", "recurrent:", recurrent, !recurrent);
    }
    if (h && (h->n_kv_heads != all->n_kv_heads || h->head_dim != all->head_dim || h->n_rot != all->n_rot))
        return wrong(plan, op, "shape", "head dimension", (long long)h->head_dim, (long long)all->head_dim);
    return QN_OK;
}

static qn_status check_matrix(const qn_plan *plan, const qn_op *op, const qn_op_matrix *m)
{
    const bool logits = qn_op_is_logits(op);
    if (plan->acts[m->acts].width != m->weights.n_cols)
        return wrong(plan, op, "matrices", "width of activations", (long long)plan->acts[m->acts].width,
                     (long long)m->weights.n_cols);
    if (logits != (m->out < 0))
        return wrong(plan, op, "matrices", "out", m->out, -1);
    const size_t width = logits ? plan->n_vocab : plan->buffers[m->out].width;
    if (width != m->weights.n_rows)
        return wrong(plan, op, "matrices", "width", (long long)width, (long long)m->weights.n_rows);
    return QN_OK;
}

static qn_status check_width(const qn_plan *plan, const qn_op *op, const qn_op_field *field, int buffer)
{
    const size_t found = plan->buffers[buffer].width, expected = qn_plan_width(plan, op, field->width);
    return found == expected ? QN_OK : wrong(plan, op, field->name, "width", (long long)found, (long long)expected);
}

static qn_status check_field(const qn_plan *plan, const qn_op *op, const qn_op_field *field)
{
    const void *at = (const char *)op + field->offset;
    const qn_op_matrices *matrices = at;
    const qn_op_acts *acts = at;
    switch (field->kind) {
    case QN_FIELD_GATES: return qn_op_shape_of(op)->gated ? check_width(plan, op, field, *(const int *)at) : QN_OK;
    case QN_FIELD_BUFFER: return check_width(plan, op, field, *(const int *)at);
    case QN_FIELD_ACTS:
        for (size_t i = 1; i < acts->n; i++)
            if (plan->acts[acts->at[i]].width != plan->acts[acts->at[0]].width)
                return wrong(plan, op, field->name, "width", (long long)plan->acts[acts->at[i]].width,
                             (long long)plan->acts[acts->at[0]].width);
        return QN_OK;
    case QN_FIELD_MATRICES:
        for (size_t i = 0; i < matrices->n; i++)
            QN_TRY(check_matrix(plan, op, &matrices->at[i]));
        return QN_OK;
    case QN_FIELD_TABLE:
    case QN_FIELD_VECTOR:
    case QN_FIELD_ROTATION:
    case QN_FIELD_SHAPE:
    case QN_FIELD_END: break;
    }
    return QN_OK;
}

/* Checks the numbers of activations and matrices first, before other checks index them. */
static qn_status check_counts(const qn_plan *plan, const qn_op *op)
{
    const qn_op_acts *acts = qn_op_acts_of(op);
    const qn_op_matrices *matrices = qn_op_matrices_of(op);
    if (acts && (!acts->n || acts->n > QN_OP_ACTS))
        return wrong(plan, op, "acts", "number", (long long)acts->n, 1);
    if (matrices && (!matrices->n || matrices->n > QN_OP_MATRICES))
        return wrong(plan, op, "matrices", "number", (long long)matrices->n, 1);
    return QN_OK;
}

/* Checks an operation. written: for each of the plan's buffers, then for its activations, whether an earlier operation
 * has written them. */
static qn_status check_op(const qn_plan *plan, const qn_op *op, bool *written)
{
    qn_op_operand operands[QN_OP_OPERANDS];
    if ((unsigned)op->kind >= QN_OP_KINDS)
        return qn_fail(QN_ERR_INVALID, "plan: operation %zu is of kind %d", (size_t)(op - plan->ops), (int)op->kind);
    const qn_op_desc *desc = qn_op_desc_of(op->kind);
    QN_TRY(check_counts(plan, op));
    const size_t n = qn_op_operands(op, operands);
    for (size_t i = 0; i < n; i++)
        QN_TRY(check_index(plan, op, &operands[i]));
    for (size_t i = 0; i < QN_OP_FIELDS && desc->fields[i].kind; i++)
        QN_TRY(check_field(plan, op, &desc->fields[i]));
    QN_TRY(check_layer(plan, op));
    for (size_t i = 0; i < n; i++)
        if (operands[i].access & QN_READS &&
            !written[(operands[i].is_acts ? plan->n_buffers : 0) + (size_t)operands[i].index])
            return qn_fail(QN_ERR_INVALID, "plan: operation %zu, %s: %s: %s %d is read before it is written",
                           (size_t)(op - plan->ops), desc->name, operands[i].name,
                           operands[i].is_acts ? "activations" : "buffer", operands[i].index);
    for (size_t i = 0; i < n; i++)
        if (operands[i].access & QN_WRITES)
            written[(operands[i].is_acts ? plan->n_buffers : 0) + (size_t)operands[i].index] = true;
    return QN_OK;
}

/* Checks the order of operations. The first is embed or input, which write the angles too: all others read a buffer. A
 * device quantises activations in the layout that the next operation reads. */
static qn_status check_sequence(const qn_plan *plan)
{
    if (!plan->n_ops)
        return qn_fail(QN_ERR_INVALID, "plan: it has no operations");
    for (size_t i = 0; i < plan->n_ops; i++) {
        const bool writer = qn_op_acts_of(&plan->ops[i]) != NULL;
        const bool reader = i + 1 < plan->n_ops && qn_op_matrices_of(&plan->ops[i + 1]);
        if (writer != reader)
            return qn_fail(QN_ERR_INVALID,
                           "plan: operation %zu, %s: a matmul follows exactly the operations that write activations", i,
                           qn_op_desc_of(plan->ops[i].kind)->name);
    }
    return QN_OK;
}

/* Whether an operation may stand at the beginning of a section, and only there: those of the draft head begin with a
 * pair; of a block drafter, the pairs with a fuse, the draft step with an embed, and the chain with an embed and a
 * fuse. */
static bool is_at_its_place(const qn_plan *plan, size_t i)
{
    const qn_plan_head *head = &plan->head;
    const bool is_pairs = head->draft && i == head->pairs, is_draft = head->draft && i == head->draft,
               is_chain = head->chain && i == head->chain, is_linked = head->chain && i == head->chain + 1;
    const qn_op_kind kind = plan->ops[i].kind;
    if (!head->block)
        return (kind == QN_OP_PAIR) == (is_pairs || is_draft) && kind != QN_OP_FUSE;
    return kind != QN_OP_PAIR && (kind == QN_OP_FUSE) == (is_pairs || is_linked) &&
           (!i || (kind == QN_OP_EMBED) == (is_draft || is_chain));
}

static qn_status check_head(const qn_plan *plan)
{
    const qn_plan_head *head = &plan->head;
    for (size_t i = 0; i < plan->n_ops; i++)
        if ((unsigned)plan->ops[i].kind < QN_OP_KINDS && !is_at_its_place(plan, i))
            return qn_fail(QN_ERR_INVALID, "plan: operation %zu, %s: a section of the draft head begins with %s", i,
                           qn_op_desc_of(plan->ops[i].kind)->name, head->block ? "fuse or embed" : "a pair");
    if (head->block && !head->rope.frequencies)
        return qn_fail(QN_ERR_INVALID, "plan: a block drafter without a rope");
    if (head->pairs > head->draft || (head->draft && head->draft >= plan->n_ops) ||
        (head->chain && (!head->block || head->chain <= head->draft || head->chain >= plan->n_ops)))
        return qn_fail(QN_ERR_INVALID, "plan: sections of the draft head from %zu and %zu on, of %zu operations",
                       head->pairs, head->draft, plan->n_ops);
    return QN_OK;
}

qn_status qn_plan_validate(const qn_plan *plan)
{
    bool *written;
    QN_TRY(check_head(plan));
    QN_TRY(qn_alloc(&written, plan->n_buffers + plan->n_acts, sizeof *written, "plan"));
    qn_status status = QN_OK;
    for (size_t i = 0; i < plan->n_ops && status == QN_OK; i++)
        status = check_op(plan, &plan->ops[i], written);
    qn_free(written);
    return status == QN_OK ? check_sequence(plan) : status;
}

/* ---- Barriers ---- */

/* Returns whether two operations cannot run at the same time: one writes something that the other uses. */
static bool conflict(const qn_op *a, const qn_op *b)
{
    const qn_op_desc *x = qn_op_desc_of(a->kind), *y = qn_op_desc_of(b->kind);
    qn_op_operand of_a[QN_OP_OPERANDS], of_b[QN_OP_OPERANDS];
    const size_t n_a = qn_op_operands(a, of_a), n_b = qn_op_operands(b, of_b);
    if (x->writes & (y->reads | y->writes) || y->writes & x->reads)
        return true;
    for (size_t i = 0; i < n_a; i++)
        for (size_t k = 0; k < n_b; k++)
            if (of_a[i].is_acts == of_b[k].is_acts && of_a[i].index == of_b[k].index &&
                (of_a[i].access | of_b[k].access) & QN_WRITES)
                return true;
    return false;
}

void qn_plan_find_barriers(const qn_plan *plan, bool *barriers)
{
    for (size_t i = 0, since = 0; i < plan->n_ops; i++) {
        barriers[i] = false;
        for (size_t k = since; k <= i && i + 1 < plan->n_ops && !barriers[i]; k++)
            barriers[i] = conflict(&plan->ops[k], &plan->ops[i + 1]);
        barriers[i] = barriers[i] || (plan->head.draft && i + 1 == plan->head.draft) ||
                      (plan->head.chain && i + 1 == plan->head.chain);
        since = barriers[i] ? i + 1 : since;
    }
}
