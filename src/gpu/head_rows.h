/* The hidden states that a sequence keeps for a draft head (plan/plan.h) on a GPU: of its last rows, of which the next
 * step's first row reads one, and the head's own of the draft step before. They are an item of the pool:
 *
 *     kept    f32 [2][QN_GPU_HEAD_KEPT][width]   normed hidden states of the last rows of a step, in two halves: a step
 *                                                appends to the half from which it reads, or writes the other one. So
 *                                                rows that a step appends in several batches are all kept
 *     draft   f32 [width]                        the head's own, of the last draft step
 *
 * Pure functions, which only count positions. The host counts them when it queues a step, in the order of the device's
 * work. After the contents of a sequence were replaced, rows may be of others: drafts are then worse. */
#ifndef QN_GPU_HEAD_ROWS_H
#define QN_GPU_HEAD_ROWS_H

#include "plan/plan.h"

/* A draft is taken back by at most one row less. */
enum { QN_GPU_HEAD_KEPT = 16, QN_GPU_HEAD_ROWS = 2 * QN_GPU_HEAD_KEPT + 1 };

/* Instead of the address of a row: that of the row before, in the same step, before its norm. */
enum { QN_GPU_ROW_BEFORE = 1 };

/* Positions of the rows. A zeroed struct has none. */
typedef struct qn_gpu_head_rows {
    uint64_t address; /* of the item */
    struct {
        uint32_t begin, n; /* positions [begin, begin + n) */
    } halves[2];
    uint32_t draft_end; /* the position after that of `draft`; 0: none */
} qn_gpu_head_rows;

/* qn_gpu_head_width - returns the width of the rows of a plan; 0 without a draft head, and for a block drafter. */
size_t qn_gpu_head_width(const qn_plan *plan);

/* qn_gpu_head_rows_step - counts a step of n > 0 rows of a sequence from `position` on.
 *
 *   width    of a row
 *   from     [n] where each row reads the hidden state of the row before it: an address, QN_GPU_ROW_BEFORE, or 0 if it
 *            is not known
 *   to       [n] where each row's own is kept; 0: it is not */
void qn_gpu_head_rows_step(qn_gpu_head_rows *rows, size_t width, uint32_t position, uint32_t n, uint64_t *from,
                           uint64_t *to);

/* qn_gpu_head_rows_draft - counts the row of a draft step. length: of the sequence, without drafts. */
void qn_gpu_head_rows_draft(qn_gpu_head_rows *rows, size_t width, uint32_t position, uint32_t length, uint64_t *from,
                            uint64_t *to);

#endif
