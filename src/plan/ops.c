/* The table of operations, and functions over the fields of an operation. */
#include "plan/ops.h"

/* clang-format off */
#define FIELD(op, name, kind, access, width) { #name, kind, access, width, offsetof(qn_op, op.name) },
#define ROW(name, rows, order, reads, writes, phase, ...) { #name, rows, order, reads, writes, phase, { __VA_ARGS__ } },

static const qn_op_desc descs[] = {
#define OP(KIND, name, rows, order, reads, writes, phase, fields) \
    [QN_OP_##KIND] = ROW(name, rows, order, reads, writes, phase, fields)
#define LIKE(KIND, name, rows, order, reads, writes, phase, fields) \
    [QN_OP_##KIND] = ROW(name, rows, order, reads, writes, phase, fields)
#define READ(op, name, width) FIELD(op, name, QN_FIELD_BUFFER, QN_READS, QN_WIDTH_##width)
#define WRITE(op, name, width) FIELD(op, name, QN_FIELD_BUFFER, QN_WRITES, QN_WIDTH_##width)
#define UPDATE(op, name, width) FIELD(op, name, QN_FIELD_BUFFER, QN_READS | QN_WRITES, QN_WIDTH_##width)
#define READ_GATES(op, name, width) FIELD(op, name, QN_FIELD_GATES, QN_READS, QN_WIDTH_##width)
#define ACTS(op, name) FIELD(op, name, QN_FIELD_ACTS, QN_WRITES, QN_WIDTH_ACTS)
#define MATRICES(op, name) FIELD(op, name, QN_FIELD_MATRICES, 0, 0)
#define TABLE(op, name) FIELD(op, name, QN_FIELD_TABLE, 0, QN_WIDTH_TABLE)
#define VECTOR(op, name, width) FIELD(op, name, QN_FIELD_VECTOR, 0, QN_WIDTH_##width)
#define ROTATION(op, name) FIELD(op, name, QN_FIELD_ROTATION, 0, QN_WIDTH_TABLE)
#define SHAPE(op, name) FIELD(op, name, QN_FIELD_SHAPE, 0, 0)
#include "plan/operations.def"
};
/* clang-format on */

_Static_assert(sizeof descs / sizeof *descs == QN_OP_KINDS, "a row for each kind");

const qn_op_desc *qn_op_desc_of(qn_op_kind kind)
{
    return &descs[kind];
}

/* Returns the operation's field of this kind, NULL if it has none. A row has at most one field of each kind looked up
 * here. */
static void *field_of(const qn_op *op, qn_op_field_kind kind)
{
    const qn_op_desc *desc = qn_op_desc_of(op->kind);
    for (size_t i = 0; i < QN_OP_FIELDS && desc->fields[i].kind; i++)
        if (desc->fields[i].kind == kind)
            return (char *)op + desc->fields[i].offset;
    return NULL;
}

qn_op_acts *qn_op_acts_of(const qn_op *op)
{
    return field_of(op, QN_FIELD_ACTS);
}

qn_op_matrices *qn_op_matrices_of(const qn_op *op)
{
    return field_of(op, QN_FIELD_MATRICES);
}

const qn_matrix *qn_op_table_of(const qn_op *op)
{
    return field_of(op, QN_FIELD_TABLE);
}

const qn_attention_shape *qn_op_shape_of(const qn_op *op)
{
    return field_of(op, QN_FIELD_SHAPE);
}

static size_t matrix_operands(const qn_op_matrices *matrices, const char *name, qn_op_operand *operands)
{
    size_t n = 0;
    for (size_t i = 0; i < matrices->n; i++) {
        const qn_op_matrix *m = &matrices->at[i];
        operands[n++] = (qn_op_operand){ name, true, m->acts, QN_READS };
        if (m->out >= 0)
            operands[n++] = (qn_op_operand){ name, false, m->out, m->accumulate ? QN_READS | QN_WRITES : QN_WRITES };
    }
    return n;
}

size_t qn_op_operands(const qn_op *op, qn_op_operand operands[QN_OP_OPERANDS])
{
    const qn_op_desc *desc = qn_op_desc_of(op->kind);
    size_t n = 0;
    for (size_t i = 0; i < QN_OP_FIELDS; i++) {
        const qn_op_field *field = &desc->fields[i];
        const void *at = (const char *)op + field->offset;
        switch (field->kind) {
        case QN_FIELD_GATES:
            if (!qn_op_shape_of(op)->gated)
                break;
            /* fall through */
        case QN_FIELD_BUFFER:
            operands[n++] = (qn_op_operand){ field->name, false, *(const int *)at, field->access };
            break;
        case QN_FIELD_ACTS:
            for (size_t a = 0; a < ((const qn_op_acts *)at)->n; a++)
                operands[n++] = (qn_op_operand){ field->name, true, ((const qn_op_acts *)at)->at[a], field->access };
            break;
        case QN_FIELD_MATRICES: n += matrix_operands(at, field->name, operands + n); break;
        case QN_FIELD_TABLE:
        case QN_FIELD_VECTOR:
        case QN_FIELD_ROTATION:
        case QN_FIELD_SHAPE: break;
        case QN_FIELD_END: return n;
        }
    }
    return n;
}

unsigned qn_op_access(const qn_op *op, int buffer)
{
    qn_op_operand operands[QN_OP_OPERANDS];
    const size_t n = qn_op_operands(op, operands);
    unsigned access = 0;
    for (size_t i = 0; i < n; i++)
        if (!operands[i].is_acts && operands[i].index == buffer)
            access |= operands[i].access;
    return access;
}
