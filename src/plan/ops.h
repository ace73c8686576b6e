/* The operations of a plan: types expanded from plan/operations.def, the only table of operations, and functions over
 * the table. The table is constant.
 *
 * An operation refers to its plan's buffers and activations by index. An operand added to a row of the table appears in
 * qn_op and in qn_op_operands. A row without a function in an executor does not compile. */
#ifndef QN_PLAN_OPS_H
#define QN_PLAN_OPS_H

#include "plan/rope.h"
#include "quant/matrix.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The shape of an attention layer. Queries, keys and values are buffers [rows, heads*head_dim]. */
typedef struct qn_attention_shape {
    size_t n_heads, n_kv_heads, head_dim, n_rot;
    qn_rope_type rope;
    float scale;   /* scale of the attention scores; queries are multiplied by it after rope */
    size_t window; /* positions that a row attends to, its own and those before it; 0: all */
    bool gated; /* each head's query is followed by head_dim gate values, whose sigmoid multiplies the head's output */
} qn_attention_shape;

/* A Hadamard transform of blocks of values, x' = H (S x), or its inverse (kernels/hadamard/hadamard.h). */
typedef struct qn_plan_rotation {
    size_t block;       /* 0: none */
    const float *signs; /* S: [width] of +-1, or NULL for all +1 */
} qn_plan_rotation;

enum { QN_OP_MATRICES = 4, QN_OP_ACTS = 2, QN_OP_VECTORS = 5, QN_OP_FIELDS = 10, QN_OP_OPERANDS = 2 * QN_OP_MATRICES };

/* The activations that an operation writes; rotated ones last. */
typedef struct qn_op_acts {
    int at[QN_OP_ACTS];
    size_t n;
} qn_op_acts;

typedef struct qn_op_matrix {
    qn_matrix weights;
    int acts, out; /* out: -1 for the step's logits */
    bool accumulate;
} qn_op_matrix;

typedef struct qn_op_matrices {
    qn_op_matrix at[QN_OP_MATRICES];
    size_t n;
} qn_op_matrices;

typedef enum qn_op_kind {
#define OP(KIND, name, rows, order, reads, writes, phase, fields) QN_OP_##KIND,
#include "plan/operations.def"
} qn_op_kind;

enum {
    QN_OP_KINDS = 0
#define OP(KIND, name, rows, order, reads, writes, phase, fields) +1
#include "plan/operations.def"
};

/* clang-format off */
typedef struct qn_op {
    qn_op_kind kind;
    int layer; /* index of the layer; -1: none */
    union {
#define OP(KIND, name, rows, order, reads, writes, phase, fields) struct { fields } name;
#define LIKE(KIND, name, rows, order, reads, writes, phase, fields)
#define READ(op, name, width) int name;
#define WRITE(op, name, width) int name;
#define UPDATE(op, name, width) int name;
#define READ_GATES(op, name, width) int name;
#define ACTS(op, name) qn_op_acts name;
#define MATRICES(op, name) qn_op_matrices name;
#define TABLE(op, name) qn_matrix name;
#define VECTOR(op, name, width) const float *name;
#define ROTATION(op, name) qn_plan_rotation name;
#define SHAPE(op, name) qn_attention_shape name;
#define PARAM(op, type, name) type name;
#include "plan/operations.def"
    };
} qn_op;

/* Device addresses of an operation's vectors and of its rotation's signs; 0 if absent. */
typedef union qn_op_addresses {
    uint64_t at[QN_OP_VECTORS]; /* in the order of the table's row */
#define OP(KIND, name, rows, order, reads, writes, phase, fields) struct { fields uint64_t unused; } name;
#define VECTOR(op, name, width) uint64_t name;
#define ROTATION(op, name) uint64_t name;
#include "plan/operations.def"
} qn_op_addresses;
/* clang-format on */

/* ---- The table ---- */

typedef enum qn_op_rows { QN_ROWS_ALL, QN_ROWS_LOGITS } qn_op_rows;
typedef enum qn_op_order { QN_ORDER_NONE, QN_ORDER_SEQUENCE } qn_op_order;
typedef enum qn_op_phase {
    QN_PHASE_OF_NONE, /* not part of the persistent decode kernel */
    QN_PHASE_OF_PROLOGUE,
    QN_PHASE_OF_GEMV,
    QN_PHASE_OF_ATTENTION,
    QN_PHASE_OF_DELTA
} qn_op_phase;

/* What operations use besides their fields: their layer's KV cache and recurrent state, rope's sines and cosines, the
 * step's logits, and the hidden states that memories keep for the draft head. */
enum { QN_USES_KV = 1, QN_USES_STATE = 2, QN_USES_ANGLES = 4, QN_USES_LOGITS = 8, QN_USES_HIDDEN = 16 };

enum { QN_READS = 1, QN_WRITES = 2 };

/* The width of an operand, computed from the operation and its plan. */
typedef enum qn_op_width {
    QN_WIDTH_ACTS,     /* of the activations that the operation writes */
    QN_WIDTH_HALF,     /* half of that */
    QN_WIDTH_TABLE,    /* of a row of the operation's table */
    QN_WIDTH_INPUT,    /* of the embeddings that rows have: input.width */
    QN_WIDTH_PART,     /* of a captured hidden state: capture.width */
    QN_WIDTH_PARTS,    /* of all of them: capture.n_parts times that */
    QN_WIDTH_HEADS,    /* all query heads */
    QN_WIDTH_QUERIES,  /* all query heads, and their gates if the attention is gated */
    QN_WIDTH_KV_HEADS, /* all KV heads */
    QN_WIDTH_HEAD_DIM,
    QN_WIDTH_QKV,  /* q, k and v of a recurrent layer: qn_recurrent_width */
    QN_WIDTH_TAPS, /* QN_WIDTH_QKV times the taps */
    QN_WIDTH_V_HEADS,
    QN_WIDTH_VALUES, /* all value heads */
    QN_WIDTH_HEAD_V
} qn_op_width;

typedef enum qn_op_field_kind {
    QN_FIELD_END, /* end of the fields of a row */
    QN_FIELD_BUFFER,
    QN_FIELD_GATES, /* a buffer, read only if the attention is gated */
    QN_FIELD_ACTS,
    QN_FIELD_MATRICES,
    QN_FIELD_TABLE,
    QN_FIELD_VECTOR,
    QN_FIELD_ROTATION,
    QN_FIELD_SHAPE
} qn_op_field_kind;

typedef struct qn_op_field {
    const char *name;
    qn_op_field_kind kind;
    unsigned access; /* QN_READS | QN_WRITES */
    qn_op_width width;
    size_t offset; /* in qn_op */
} qn_op_field;

typedef struct qn_op_desc {
    const char *name;
    qn_op_rows rows;
    qn_op_order order;
    unsigned reads, writes; /* QN_USES_* */
    qn_op_phase phase;
    qn_op_field fields[QN_OP_FIELDS]; /* ended by QN_FIELD_END */
} qn_op_desc;

/* qn_op_desc_of - returns the table's row for a kind. */
const qn_op_desc *qn_op_desc_of(qn_op_kind kind);

/* ---- The fields of an operation ---- */

/* qn_op_acts_of - returns the operation's activations, NULL if it writes none. The caller may write through the pointer
 * if the operation is writable. */
qn_op_acts *qn_op_acts_of(const qn_op *op);

/* qn_op_matrices_of - returns the operation's matrices, NULL if it has none. The caller may write through the pointer
 * if the operation is writable. */
qn_op_matrices *qn_op_matrices_of(const qn_op *op);

/* qn_op_table_of - returns the operation's table, NULL if it has none. */
const qn_matrix *qn_op_table_of(const qn_op *op);

/* qn_op_shape_of - returns the operation's attention shape, NULL if it has none. */
const qn_attention_shape *qn_op_shape_of(const qn_op *op);

/* Returns whether the operation applies to the step's logit rows only. */
static inline bool qn_op_is_logits(const qn_op *op)
{
    return qn_op_desc_of(op->kind)->rows == QN_ROWS_LOGITS;
}

/* A buffer or activations that an operation uses. */
typedef struct qn_op_operand {
    const char *name;
    bool is_acts;
    int index;
    unsigned access; /* QN_READS | QN_WRITES */
} qn_op_operand;

/* qn_op_operands - lists all operands of an operation, including those of its matrices, in the order of the table's
 * row. Returns their number. A buffer can appear more than once. */
size_t qn_op_operands(const qn_op *op, qn_op_operand operands[QN_OP_OPERANDS]);

/* qn_op_access - returns how an operation uses a buffer: QN_READS | QN_WRITES, 0 if it does not use it. */
unsigned qn_op_access(const qn_op *op, int buffer);

#endif
