/* Divides a step into batches of rows that are executed together, and sets their order. */
#include "gpu/batch.h"

static qn_gpu_memory *memory_of(const qn_row *row)
{
    return (qn_gpu_memory *)row->memory;
}

/* Returns the number of rows of the first piece. Each single row is one. */
static size_t first_piece(const qn_row *rows, size_t n_rows)
{
    size_t n = 1;
    while (n < n_rows && rows[n].memory == rows->memory && !rows->is_single)
        n++;
    return n;
}

/* Returns whether logit row `logit` is this row, as for all rows of a decode step. */
static bool has_logits(const qn_step *step, size_t row, size_t logit)
{
    return logit < step->n_logit_rows && step->logit_rows[logit] == row;
}

/* Returns whether the piece of n rows after batch b can be executed with it, with `deterministic`. In passes of up to
 * same_rows rows, a row is computed by the same operations for any number of rows; larger pieces share no pass with
 * other sequences. */
static bool may_join(const qn_gpu_batching *batching, const qn_gpu_batch *b, const qn_step *step, size_t n,
                     size_t logit)
{
    const size_t row = b->first + b->n_rows;
    return !b->n_rows || (n == 1 && b->n_rows == b->n_pieces && b->n_rows < batching->same_rows &&
                          has_logits(step, row - 1, logit + b->n_rows - 1) && has_logits(step, row, logit + b->n_rows));
}

qn_gpu_batch qn_gpu_batch_of(const qn_gpu_batching *batching, const qn_step *step, size_t row, size_t logit)
{
    const qn_row *rows = step->rows + row;
    qn_gpu_batch b = { .rows = rows,
                       .logit_rows = step->logit_rows + logit,
                       .first = row,
                       .logits = step->logits ? step->logits + logit * batching->n_vocab : NULL,
                       .requests = step->requests ? step->requests + logit : NULL };
    while (row + b.n_rows < step->n_rows && b.n_pieces < QN_GPU_MAX_SEQUENCES &&
           qn_gpu_same_cache(memory_of(&rows[b.n_rows])->format, memory_of(rows)->format)) {
        const size_t n = first_piece(rows + b.n_rows, step->n_rows - row - b.n_rows);
        if (batching->deterministic && !may_join(batching, &b, step, n, logit))
            break;
        b.n_rows += n;
        b.n_pieces++;
    }
    while (logit + b.n_logits < step->n_logit_rows && step->logit_rows[logit + b.n_logits] < row + b.n_rows)
        b.n_logits++;
    b.requests = b.n_logits ? b.requests : NULL;
    return b;
}

bool qn_gpu_is_decode(const qn_gpu_batching *batching, const qn_gpu_batch *b)
{
    return b->n_pieces == b->n_rows && (b->n_logits == b->n_rows || (b->n_rows == 1 && batching->deterministic));
}

size_t qn_gpu_padded_rows(const qn_gpu_batching *batching, size_t n)
{
    return qn_gpu_bucket(n == 1 && batching->deterministic ? 2 : n);
}

/* Adds the pieces of few rows, or those of many, and finds the rows of their logits. */
static void add_pieces(const qn_gpu_batch *b, bool (*has_many)(const qn_gpu_piece *piece), bool many,
                       qn_gpu_order *order, qn_gpu_piece *pieces, uint32_t *logit_rows)
{
    for (size_t row = 0, n, logit = 0; row < b->n_rows; row += n) {
        const qn_row *rows = b->rows + row;
        n = first_piece(rows, b->n_rows - row);
        const qn_gpu_piece piece = { .memory = memory_of(rows),
                                     .row = (uint32_t)order->n_rows,
                                     .n = (uint32_t)n,
                                     .position = rows->position,
                                     .rows = rows };
        const bool add = has_many(&piece) == many;
        for (; logit < b->n_logits && b->logit_rows[logit] < b->first + row + n; logit++)
            if (add && logit_rows)
                logit_rows[logit] = (uint32_t)(order->n_rows + b->logit_rows[logit] - b->first - row);
        if (!add)
            continue;
        pieces[order->n_pieces++] = piece;
        order->n_rows += n;
    }
}

qn_gpu_order qn_gpu_order_pieces(const qn_gpu_batch *b, bool (*has_many)(const qn_gpu_piece *piece),
                                 qn_gpu_piece *pieces, uint32_t *logit_rows)
{
    qn_gpu_order order = { 0 };
    add_pieces(b, has_many, false, &order, pieces, logit_rows);
    order.n_few = order.n_rows;
    add_pieces(b, has_many, true, &order, pieces, logit_rows);
    return order;
}

bool qn_gpu_has_turns(const qn_gpu_piece *pieces, size_t n)
{
    for (size_t i = 1; i < n; i++)
        if (pieces[i].rows && pieces[i].memory == pieces[i - 1].memory)
            return true;
    return false;
}

void qn_gpu_pad(qn_gpu_order *order, size_t n_rows, qn_gpu_piece *pieces)
{
    for (; order->n_rows < n_rows; order->n_rows++)
        pieces[order->n_pieces++] = (qn_gpu_piece){ .memory = pieces->memory, .row = (uint32_t)order->n_rows, .n = 1 };
    order->n_few = order->n_rows;
}
