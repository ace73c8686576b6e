/* Matrix products on the CPU: which rows of an operation's matrices each thread takes, and when memory is asked for them. */
#include "device/cpu/internal.h"

#include "base/memory.h"
#include "kernels/matmul/packed.h"

/* Of each matrix's rows seven eighths are shared out beforehand, in long runs that memory likes; the rest of all of them goes
 * in chunks to whoever is done, so that nobody waits long for a slower core or one that was interrupted. Who computes a row
 * never changes its result. */
enum { CHUNK_ROWS = QN_PACK_ROWS };

/* Bytes at a piece's beginning that are asked for while the piece before it, or the operation before, is in work: what products
 * ask for ahead themselves. */
enum { FIRST_BYTES = 9216 };

struct piece {
    size_t matrix, begin, end;
};

/* A thread's way through the pieces of an operation. */
struct way {
    const qn_executor *ex;
    const qn_op *op;
    int thread;
    size_t matrix; /* whose share comes next; n_matrices when the claims have begun */
};

static size_t rows_shared(const qn_executor *ex, const qn_op *op, size_t matrix)
{
    const size_t n_rows = op->matrices[matrix].weights.n_rows;
    return qn_team_size(ex->team) == 1 ? n_rows : n_rows * 7 / 8 / CHUNK_ROWS * CHUNK_ROWS;
}

static bool next_share(struct way *way, struct piece *piece)
{
    for (; way->matrix < way->op->n_matrices; way->matrix++) {
        qn_team_share(rows_shared(way->ex, way->op, way->matrix), CHUNK_ROWS, way->thread, qn_team_size(way->ex->team),
                      &piece->begin, &piece->end);
        if (piece->begin < piece->end) {
            piece->matrix = way->matrix++;
            return true;
        }
    }
    return false;
}

/* Chunks are numbered through all matrices of the operation. */
static bool next_chunk(const struct way *way, struct piece *piece)
{
    atomic_uint *claims = &way->ex->claims[way->op - way->ex->plan->ops];
    size_t chunk = atomic_fetch_add_explicit(claims, 1, memory_order_relaxed);
    for (size_t m = 0; m < way->op->n_matrices; m++) {
        const size_t n_rows = way->op->matrices[m].weights.n_rows, first = rows_shared(way->ex, way->op, m);
        const size_t n_chunks = (n_rows - first + CHUNK_ROWS - 1) / CHUNK_ROWS;
        if (chunk < n_chunks) {
            *piece = (struct piece){ .matrix = m, .begin = first + chunk * CHUNK_ROWS };
            piece->end = n_rows - piece->begin < CHUNK_ROWS ? n_rows : piece->begin + CHUNK_ROWS;
            return true;
        }
        chunk -= n_chunks;
    }
    return false;
}

static void ask_for(const qn_op *op, const struct piece *piece)
{
    const qn_matrix *weights = &op->matrices[piece->matrix].weights;
    const uint8_t *rows = (weights->packed ? weights->packed : weights->data) + piece->begin * weights->row_bytes;
    const size_t bytes = (piece->end - piece->begin) * weights->row_bytes;
    for (size_t at = 0; at < bytes && at < FIRST_BYTES; at += QN_ALIGN)
        __builtin_prefetch(rows + at, 0, 2); /* into the second cache */
}

void qn_executor_ask_ahead(const qn_executor *ex, const qn_op *op, int thread)
{
    struct way way = { .ex = ex, .op = op, .thread = thread };
    struct piece piece;
    if ((op->kind == QN_OP_MATMUL || op->kind == QN_OP_LOGITS) && next_share(&way, &piece))
        ask_for(op, &piece);
}

static void run_piece(const qn_executor *ex, const qn_op *op, const struct piece *piece, int thread)
{
    const struct qn_op_matrix *m = &op->matrices[piece->matrix];
    const bool logits = op->kind == QN_OP_LOGITS;
    const size_t n_tokens = logits ? ex->step->n_logit_rows : ex->step->n_rows;
    float *out = logits ? ex->step->logits : qn_buffer_row(ex, m->out, 0);
    qn_matmul_rows(&ex->kernels->matmul, &m->weights, &ex->plan->acts[m->acts].acts, n_tokens, piece->begin, piece->end,
                   m->accumulate, out, logits ? ex->plan->n_vocab : ex->plan->buffers[m->out].width,
                   qn_thread_scratch(ex, thread));
}

void qn_executor_multiply(const qn_executor *ex, const qn_op *op, int thread)
{
    struct way way = { .ex = ex, .op = op, .thread = thread };
    struct piece piece, next;
    bool more = next_share(&way, &piece) || next_chunk(&way, &piece);
    while (more) {
        more = next_share(&way, &next) || next_chunk(&way, &next);
        if (more)
            ask_for(op, &next);
        run_piece(ex, op, &piece, thread);
        piece = next;
    }
}
