/* The division of a step into batches of rows that are executed together, and the order of a batch's rows. */
#ifndef QN_GPU_BATCH_H
#define QN_GPU_BATCH_H

#include "gpu/buckets.h"
#include "gpu/inputs.h"

/* Rows of up to QN_GPU_MAX_SEQUENCES sequences of one cache format: a part of the caller's step. They are not executed
 * in the caller's order: pieces of few rows come first. Single rows of a sequence (qn_row.is_single) are pieces. */
typedef struct qn_gpu_batch {
    const qn_row *rows;
    size_t n_rows, n_pieces;
    const uint32_t *logit_rows;  /* [n_logits] row numbers in the caller's step: `first` more than in `rows` */
    size_t first, n_logits;      /* first: index of rows[0] in the caller's step */
    float *logits;               /* [n_logits, n_vocab], or NULL */
    qn_sample_request *requests; /* [n_logits], or NULL */
} qn_gpu_batch;

/* How a device divides steps. */
typedef struct qn_gpu_batching {
    size_t n_vocab;
    bool deterministic; /* single rows in passes of 2 to same_rows rows, each other piece in a pass of its own */
    size_t same_rows;   /* with `deterministic`: the most rows of a pass that computes every row by the same operations
                           for any number of rows */
} qn_gpu_batching;

/* qn_gpu_batch_of - returns the batch of rows, from row `row` of the step on, that can be executed together. Its logit
 * rows start at index `logit` of the step's. */
qn_gpu_batch qn_gpu_batch_of(const qn_gpu_batching *batching, const qn_step *step, size_t row, size_t logit);

/* qn_gpu_is_decode - returns whether each piece of the batch is one row and the logits of all rows are computed. With
 * `deterministic` a single row is a decode step also without logits. */
bool qn_gpu_is_decode(const qn_gpu_batching *batching, const qn_gpu_batch *batch);

/* qn_gpu_padded_rows - returns the number of rows to execute for a decode step of n rows: a bucket. A single row gets a
 * second one if it must be computed as rows of larger steps are. */
size_t qn_gpu_padded_rows(const qn_gpu_batching *batching, size_t n);

/* The pieces of a batch in the order of their rows on the device. */
typedef struct qn_gpu_order {
    size_t n_pieces, n_rows;
    size_t n_few; /* rows [0, n_few) belong to pieces of few rows */
} qn_gpu_order;

/* qn_gpu_order_pieces - orders a batch's pieces: those of few rows, then those of many, each in the caller's order.
 *
 *   has_many     whether a piece counts as one of many rows
 *   pieces       [batch->n_pieces] written
 *   logit_rows   [batch->n_logits] written: for each of the batch's logits, its row in the new order; NULL: not
 *                needed */
qn_gpu_order qn_gpu_order_pieces(const qn_gpu_batch *batch, bool (*has_many)(const qn_gpu_piece *piece),
                                 qn_gpu_piece *pieces, uint32_t *logit_rows);

/* qn_gpu_has_turns - returns whether consecutive pieces are of one sequence. */
bool qn_gpu_has_turns(const qn_gpu_piece *pieces, size_t n);

/* qn_gpu_pad - appends pieces of padding, one row each, to a decode step: up to n_rows rows, all of which are of pieces
 * of few rows. `pieces` has room for them. */
void qn_gpu_pad(qn_gpu_order *order, size_t n_rows, qn_gpu_piece *pieces);

#endif
