/* Matmuls on the CPU: the rows of an operation's matrices as items of work, and prefetch of weights. */
#include "cpu/follow.h"

#include "base/memory.h"
#include "kernels/matmul/packed.h"
#include "kernels/matmul/tiles.h"

/* An item is a panel of rows, or half of one; the items of an operation's matrices are numbered consecutively. A matrix
 * that is smaller than a panel has items of few rows, if it is not multiplied on matrix units: alpha and beta of a
 * recurrent layer, often in fp16, come last, and a thread that multiplied all of one would let the others wait. */
enum { ITEM_ROWS = QN_PANEL_ROWS, FEW_ROWS = 4 };

/* With fewer tokens an item is a panel. */
enum { HALVED_TOKENS = 64 };

/* What is prefetched of the next range while a range, or the operation before it, is computed: the beginnings of the
 * panels that a kernel computes at once, as far as it prefetches itself later. */
enum { PREFETCH_BYTES = 2304, PREFETCH_PANELS = 2 };

static size_t tokens_of(const qn_executor *ex, const qn_op *op)
{
    return qn_op_is_logits(op) ? ex->step->n_logit_rows : ex->step->n_rows;
}

static const qn_packed_matrix *matrix_of(const qn_executor *ex, const qn_op *op, size_t matrix)
{
    return &ex->weights.at[op - ex->plan->ops][matrix];
}

static bool uses_tiles(const qn_executor *ex, const qn_op *op, size_t matrix)
{
    return qn_matmul_uses_tiles(&ex->kernels->matmul, matrix_of(ex, op, matrix),
                                &ex->workspace.acts[op->matmul.matrices.at[matrix].acts], tokens_of(ex, op));
}

static size_t rows_per_item(const qn_executor *ex, const qn_op *op, size_t matrix)
{
    return op->matmul.matrices.at[matrix].weights.n_rows >= ITEM_ROWS || uses_tiles(ex, op, matrix) ? ITEM_ROWS
                                                                                                    : FEW_ROWS;
}

static size_t items_of(const qn_executor *ex, const qn_op *op, size_t matrix)
{
    const size_t rows = rows_per_item(ex, op, matrix);
    return (op->matmul.matrices.at[matrix].weights.n_rows + rows - 1) / rows;
}

/* Returns the number of items of a panel. Many tokens on matrix units have halves, so that the last threads to end have
 * smaller pieces. */
static size_t parts_of(const qn_executor *ex, const qn_op *op)
{
    bool tiles = tokens_of(ex, op) >= HALVED_TOKENS;
    for (size_t m = 0; tiles && m < op->matmul.matrices.n; m++)
        tiles = uses_tiles(ex, op, m);
    return tiles ? 2 : 1;
}

void qn_executor_prefetch_rows(const qn_executor *ex, const qn_op *op, size_t item)
{
    size_t matrix = 0;
    item /= parts_of(ex, op);
    while (matrix < op->matmul.matrices.n && item >= items_of(ex, op, matrix))
        item -= items_of(ex, op, matrix++);
    if (matrix == op->matmul.matrices.n)
        return;
    const qn_packed_matrix *weights = matrix_of(ex, op, matrix);
    const size_t row_bytes = weights->stored.row_bytes, n_rows = weights->stored.n_rows;
    const uint8_t *rows = weights->packed ? weights->packed : weights->stored.data;
    for (size_t row = item * rows_per_item(ex, op, matrix), n = 0; row < n_rows && n < PREFETCH_PANELS;
         row += ITEM_ROWS, n++)
        for (size_t at = 0; at < (n_rows - row) * row_bytes && at < PREFETCH_BYTES; at += QN_ALIGN)
            __builtin_prefetch(rows + row * row_bytes + at, 0, 2); /* into L2 */
}

/* Rows [begin, end) of one matrix. */
static void run_rows(const qn_executor *ex, const qn_op *op, size_t matrix, size_t begin, size_t end, int thread)
{
    const qn_op_matrix *m = &op->matmul.matrices.at[matrix];
    const qn_packed_matrix *weights = matrix_of(ex, op, matrix);
    const bool logits = qn_op_is_logits(op);
    const size_t stride = logits ? ex->plan->n_vocab : ex->plan->buffers[m->out].width;
    float *out = logits ? ex->step->logits : qn_buffer_row(ex, m->out, 0);
    end = end < weights->stored.n_rows ? end : weights->stored.n_rows;
    if (begin < end)
        qn_matmul_rows(&ex->kernels->matmul, weights, &ex->workspace.acts[m->acts], tokens_of(ex, op), begin, end,
                       m->accumulate, out, stride, qn_thread_scratch(ex, thread));
}

/* For the operation that follows a matmul of one row: rows [begin, end) of a matrix are computed. */
static void arrive_rows(const qn_executor *ex, const qn_op_matrix *matrix, size_t begin, size_t end, int thread)
{
    end = end < matrix->weights.n_rows ? end : matrix->weights.n_rows;
    qn_follow_buffer(ex, matrix->out, begin, end - begin, thread);
}

static void run_items(const qn_executor *ex, const qn_op *op, const qn_cpu_range *range)
{
    const size_t parts = parts_of(ex, op);
    size_t first = 0;              /* item of the matrix */
    if (range->next != range->end) /* else the kernel prefetches on */
        qn_executor_prefetch_rows(ex, op, range->next);
    for (size_t m = 0, n; m < op->matmul.matrices.n && first < range->end; first += n, m++) {
        const size_t rows = rows_per_item(ex, op, m);
        n = items_of(ex, op, m) * parts;
        const size_t begin = range->begin > first ? range->begin - first : 0,
                     end = range->end - first < n ? range->end - first : n;
        if (begin >= end)
            continue;
        run_rows(ex, op, m, begin * rows / parts, end * rows / parts, range->thread);
        arrive_rows(ex, &op->matmul.matrices.at[m], begin / parts * rows, end / parts * rows, range->thread);
    }
}

/* Items of one matrix that are computed best at once: on matrix units two panels, which share parts of the activations
 * in L2. */
static size_t items_together(const qn_executor *ex, const qn_op *op, size_t parts)
{
    const size_t n_tokens = tokens_of(ex, op);
    size_t together = SIZE_MAX;
    for (size_t m = 0; m < op->matmul.matrices.n; m++) {
        const size_t n = qn_matmul_panels_together(&ex->kernels->matmul, matrix_of(ex, op, m),
                                                   &ex->workspace.acts[op->matmul.matrices.at[m].acts], n_tokens);
        together = n < together ? n : together;
    }
    return parts > 1 ? 2 * parts : together;
}

size_t qn_executor_matmul(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    const size_t n_tokens = tokens_of(ex, op), parts = parts_of(ex, op);
    size_t count = 0, bytes = 0;
    for (size_t m = 0; m < op->matmul.matrices.n; m++) {
        const qn_matrix *weights = &op->matmul.matrices.at[m].weights;
        count += items_of(ex, op, m) * parts;
        bytes += weights->n_rows * weights->row_bytes;
    }
    works[0] = (qn_cpu_work){ .run = run_items,
                              .count = n_tokens ? count : 0,
                              .spread = parts > 1 ? QN_SPREAD_GUIDED : QN_SPREAD_EVEN,
                              .item_bytes = bytes / count * n_tokens,
                              .together = items_together(ex, op, parts) };
    return 1;
}

/* In this operation rows and results are the step's logits: see run_rows. */
size_t qn_executor_logits(const qn_executor *ex, const qn_op *op, qn_cpu_work *works)
{
    return qn_executor_matmul(ex, op, works);
}
