/* The layout of a step's inputs, the same in every GPU backend, which fills and copies them itself (for CUDA:
 * cuda/executor/inputs.h). Pure functions. */
#ifndef QN_GPU_INPUTS_H
#define QN_GPU_INPUTS_H

#include <stddef.h>
#include <stdint.h>

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
    size_t sources;    /* u32 per row, qn_row.source */
    size_t logit_rows; /* u32 per logit row: its row */
    size_t bytes;      /* bytes of all arrays above */
    size_t sampling;   /* after these arrays: parameters of each sampled logit row */
} qn_gpu_inputs;

#define QN_GPU_NO_SEQUENCE UINT32_MAX

/* qn_gpu_inputs_of - returns the offsets for a step of n_rows rows, n_pieces pieces and n_logits logit rows. */
qn_gpu_inputs qn_gpu_inputs_of(size_t n_rows, size_t n_pieces, size_t n_logits);

#endif
