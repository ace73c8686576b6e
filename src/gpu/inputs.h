/* A step's inputs: what kernels read about its rows and sequences. The layout, and their contents on the host, which
 * a backend copies to the device. Pure functions. */
#ifndef QN_GPU_INPUTS_H
#define QN_GPU_INPUTS_H

#include "gpu/memory.h"

#include <stddef.h>
#include <stdint.h>

/* Consecutive rows of one sequence in a step. */
typedef struct qn_gpu_piece {
    qn_gpu_memory *memory;
    uint32_t row, n, position; /* rows [row, row + n) of the step; position of the first */
    const qn_row *rows;        /* [n] of the caller, until the step ends; NULL: padding, without rows on the device */
} qn_gpu_piece;

/* Byte offsets of a step's input arrays from the start of the inputs, on the device and on the host. They depend only
 * on the numbers of rows, pieces and logit rows: steps with equal numbers have equal addresses, as graphs require. The
 * arrays are contiguous, so one copy transfers them. */
typedef struct qn_gpu_inputs {
    /* Per piece. A padding piece has no tables, no rows, and items 0. */
    size_t kv_tables, f16_tables;             /* u64 addresses of page tables */
    size_t state_from, state_to, open_chunks; /* u32 indices of pool items */
    size_t state_positions;                   /* u32 */
    size_t cu_seqlens;                        /* u32 [n_pieces + 1] */
    size_t first_positions;                   /* u32 */
    /* u32 per row. sequences: index of the row's piece, QN_GPU_NO_SEQUENCE for padding. */
    size_t tokens, positions, sequences;
    size_t sources;                /* u32 per row, qn_row.source */
    size_t logit_rows;             /* u32 per logit row: its row */
    size_t hidden_from, hidden_to; /* u64 per row, for a draft head (gpu/head_rows.h) */
    size_t ends;                   /* u32 per row, for a block drafter: the last position that the row attends to */
    size_t bytes;                  /* bytes of all arrays above */
    size_t sampling;               /* after these arrays: parameters of each sampled logit row */
} qn_gpu_inputs;

#define QN_GPU_NO_SEQUENCE UINT32_MAX

/* qn_gpu_inputs_of - returns the offsets for a step of n_rows rows, n_pieces pieces and n_logits logit rows. n_hidden:
 * n_rows if the plan has a draft head, else 0. */
qn_gpu_inputs qn_gpu_inputs_of(size_t n_rows, size_t n_pieces, size_t n_logits, size_t n_hidden);

/* qn_gpu_fill_hidden - fills hidden_from and hidden_to for pieces [n_pieces], and counts the step in their memories. */
void qn_gpu_fill_hidden(const qn_gpu_inputs *inputs, const qn_gpu_piece *pieces, size_t n_pieces, bool is_draft,
                        uint8_t *host);

/* qn_gpu_fill_ends - fills `ends` of a draft step, each of whose pieces is a block. is_causal: rows attend to positions
 * up to their own, else up to the block's last one. */
void qn_gpu_fill_ends(const qn_gpu_inputs *inputs, const qn_gpu_piece *pieces, size_t n_pieces, bool is_causal,
                      uint8_t *host);

/* qn_gpu_fill_inputs - fills the arrays at `host` for pieces [n_pieces], by ascending row, but for logit_rows, which
 * the caller fills, and those of a draft head. */
void qn_gpu_fill_inputs(const qn_gpu_inputs *inputs, const qn_gpu_piece *pieces, size_t n_pieces, uint8_t *host);

#endif
