/* Matmuls on the CPU: the rows of an operation's matrices as items of work, and prefetch of weights. */
#include "cpu/operations.h"

#include "base/memory.h"
#include "kernels/matmul/packed.h"

/* An item is a panel of rows; the items of an operation's matrices are numbered consecutively. */
enum { ITEM_ROWS = QN_PANEL_ROWS };

/* What is prefetched of the next range while a range, or the operation before it, is computed: the beginnings of the
 * panels that a kernel computes at once, as far as it prefetches itself later. */
enum { PREFETCH_BYTES = 2304, PREFETCH_PANELS = 2 };

static size_t items_of(const qn_op *op, size_t matrix)
{
    return (op->matmul.matrices.at[matrix].weights.n_rows + ITEM_ROWS - 1) / ITEM_ROWS;
}

static const qn_packed_matrix *matrix_of(const qn_executor *ex, const qn_op *op, size_t matrix)
{
    return &ex->weights.at[op - ex->plan->ops][matrix];
}

void qn_executor_prefetch_rows(const qn_executor *ex, const qn_op *op, size_t item)
{
    size_t matrix = 0;
    while (matrix < op->matmul.matrices.n && item >= items_of(op, matrix))
        item -= items_of(op, matrix++);
    if (matrix == op->matmul.matrices.n)
        return;
    const qn_packed_matrix *weights = matrix_of(ex, op, matrix);
    const size_t row_bytes = weights->stored.row_bytes, n_rows = weights->stored.n_rows;
    const uint8_t *rows = weights->packed ? weights->packed : weights->stored.data;
    for (size_t row = item * ITEM_ROWS, n = 0; row < n_rows && n < PREFETCH_PANELS; row += ITEM_ROWS, n++)
        for (size_t at = 0; at < (n_rows - row) * row_bytes && at < PREFETCH_BYTES; at += QN_ALIGN)
            __builtin_prefetch(rows + row * row_bytes + at, 0, 2); /* into L2 */
}

/* Rows [begin, end) of one matrix. */
static void run_rows(const qn_executor *ex, const qn_op *op, size_t matrix, size_t begin, size_t end, int thread)
{
    const qn_op_matrix *m = &op->matmul.matrices.at[matrix];
    const bool logits = qn_op_is_logits(op);
    const size_t n_tokens = logits ? ex->step->n_logit_rows : ex->step->n_rows;
    float *out = logits ? ex->step->logits : qn_buffer_row(ex, m->out, 0);
    qn_matmul_rows(&ex->kernels->matmul, matrix_of(ex, op, matrix), &ex->workspace.acts[m->acts], n_tokens, begin, end,
                   m->accumulate, out, logits ? ex->plan->n_vocab : ex->plan->buffers[m->out].width,
                   qn_thread_scratch(ex, thread));
}

static void run_items(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    size_t first = 0;              /* item of the matrix */
    if (range->next != range->end) /* else the kernel prefetches on */
        qn_executor_prefetch_rows(ex, op, range->next);
    for (size_t m = 0; m < op->matmul.matrices.n && first < range->end; first += items_of(op, m++)) {
        const size_t n_rows = op->matmul.matrices.at[m].weights.n_rows;
        const size_t begin = range->begin > first ? (range->begin - first) * ITEM_ROWS : 0,
                     end = (range->end - first) * ITEM_ROWS;
        if (begin < n_rows)
            run_rows(ex, op, m, begin, end < n_rows ? end : n_rows, range->thread);
    }
}

size_t qn_executor_matmul(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    const size_t n_tokens = qn_op_is_logits(op) ? ex->step->n_logit_rows : ex->step->n_rows;
    size_t count = 0, bytes = 0;
    for (size_t m = 0; m < op->matmul.matrices.n; m++) {
        const qn_matrix *weights = &op->matmul.matrices.at[m].weights;
        count += items_of(op, m);
        bytes += weights->n_rows * weights->row_bytes;
    }
    works[0] = (qn_cpu_work){ .run = run_items, .count = n_tokens ? count : 0, .item_bytes = bytes / count * n_tokens };
    return 1;
}

/* In this operation rows and results are the step's logits: see run_rows. */
size_t qn_executor_logits(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    return qn_executor_matmul(ex, op, works);
}
