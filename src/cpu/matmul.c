/* Matmuls on the CPU: distribution of the matrices' rows over the threads, and prefetch of weights. */
#include "cpu/operations.h"

#include "base/memory.h"
#include "kernels/matmul/packed.h"

/* Seven eighths of each matrix's rows are distributed statically, in long contiguous ranges that suit the hardware
 * prefetcher. Threads that are done claim the remaining rows of all matrices in chunks, so that a slower or interrupted
 * core delays the others only a little. A row's result does not depend on the thread that computes it. */
enum { CHUNK_ROWS = QN_PANEL_ROWS };

/* Bytes prefetched from the start of a range while the previous range, or the previous operation, is computed: the
 * prefetch distance of the kernels themselves. */
enum { PREFETCH_BYTES = 9216 };

struct row_range {
    size_t matrix, begin, end;
};

/* Iterates over the row ranges that a thread computes in an operation. On the thread's stack. */
struct work_iter {
    const qn_executor *ex;
    const qn_op *op;
    int thread;
    size_t matrix; /* matrix of the next static range; n_matrices: only dynamic chunks remain */
};

static size_t static_rows(const qn_executor *ex, const qn_op *op, size_t matrix)
{
    const size_t n_rows = op->matmul.matrices.at[matrix].weights.n_rows;
    return qn_team_size(ex->team) == 1 ? n_rows : n_rows * 7 / 8 / CHUNK_ROWS * CHUNK_ROWS;
}

static bool next_static_range(struct work_iter *work_iter, struct row_range *row_range)
{
    for (; work_iter->matrix < work_iter->op->matmul.matrices.n; work_iter->matrix++) {
        qn_team_range(static_rows(work_iter->ex, work_iter->op, work_iter->matrix), CHUNK_ROWS, work_iter->thread,
                      qn_team_size(work_iter->ex->team), &row_range->begin, &row_range->end);
        if (row_range->begin < row_range->end) {
            row_range->matrix = work_iter->matrix++;
            return true;
        }
    }
    return false;
}

/* Claims a chunk; chunks are numbered consecutively over all matrices of the operation. */
static bool next_dynamic_range(const struct work_iter *work_iter, struct row_range *row_range)
{
    atomic_uint *chunk_counters = &work_iter->ex->chunk_counters[work_iter->op - work_iter->ex->plan->ops];
    size_t chunk = atomic_fetch_add_explicit(chunk_counters, 1, memory_order_relaxed);
    for (size_t m = 0; m < work_iter->op->matmul.matrices.n; m++) {
        const size_t n_rows = work_iter->op->matmul.matrices.at[m].weights.n_rows,
                     first = static_rows(work_iter->ex, work_iter->op, m);
        const size_t n_chunks = (n_rows - first + CHUNK_ROWS - 1) / CHUNK_ROWS;
        if (chunk < n_chunks) {
            *row_range = (struct row_range){ .matrix = m, .begin = first + chunk * CHUNK_ROWS };
            row_range->end = n_rows - row_range->begin < CHUNK_ROWS ? n_rows : row_range->begin + CHUNK_ROWS;
            return true;
        }
        chunk -= n_chunks;
    }
    return false;
}

static const qn_packed_matrix *matrix_of(const qn_executor *ex, const qn_op *op, size_t matrix)
{
    return &ex->weights.at[op - ex->plan->ops][matrix];
}

static void prefetch_range(const qn_executor *ex, const qn_op *op, const struct row_range *row_range)
{
    const qn_packed_matrix *weights = matrix_of(ex, op, row_range->matrix);
    const size_t row_bytes = weights->stored.row_bytes, bytes = (row_range->end - row_range->begin) * row_bytes;
    const uint8_t *rows = (weights->packed ? weights->packed : weights->stored.data) + row_range->begin * row_bytes;
    for (size_t at = 0; at < bytes && at < PREFETCH_BYTES; at += QN_ALIGN)
        __builtin_prefetch(rows + at, 0, 2); /* into L2 */
}

void qn_executor_prefetch_weights(const qn_executor *ex, const qn_op *op, int thread)
{
    struct work_iter work_iter = { .ex = ex, .op = op, .thread = thread };
    struct row_range row_range;
    if (qn_op_matrices_of(op) && next_static_range(&work_iter, &row_range))
        prefetch_range(ex, op, &row_range);
}

static void run_range(const qn_executor *ex, const qn_op *op, const struct row_range *row_range, int thread)
{
    const qn_op_matrix *m = &op->matmul.matrices.at[row_range->matrix];
    const bool logits = qn_op_is_logits(op);
    const size_t n_tokens = logits ? ex->step->n_logit_rows : ex->step->n_rows;
    float *out = logits ? ex->step->logits : qn_buffer_row(ex, m->out, 0);
    qn_matmul_rows(&ex->kernels->matmul, matrix_of(ex, op, row_range->matrix), &ex->workspace.acts[m->acts], n_tokens,
                   row_range->begin, row_range->end, m->accumulate, out,
                   logits ? ex->plan->n_vocab : ex->plan->buffers[m->out].width, qn_thread_scratch(ex, thread));
}

void qn_executor_matmul(const qn_executor *ex, const qn_op *op, int thread)
{
    struct work_iter work_iter = { .ex = ex, .op = op, .thread = thread };
    struct row_range row_range, next;
    bool more = next_static_range(&work_iter, &row_range) || next_dynamic_range(&work_iter, &row_range);
    while (more) {
        more = next_static_range(&work_iter, &next) || next_dynamic_range(&work_iter, &next);
        if (more)
            prefetch_range(ex, op, &next);
        run_range(ex, op, &row_range, thread);
        row_range = next;
    }
}

/* Computes the logits: a matmul whose rows and results are the step's logits (run_range). */
void qn_executor_logits(const qn_executor *ex, const qn_op *op, int thread)
{
    qn_executor_matmul(ex, op, thread);
}
