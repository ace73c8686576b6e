/* The inputs of a step that every GPU backend gives to its kernels: where they are. */
#ifndef QN_GPU_INPUTS_H
#define QN_GPU_INPUTS_H

#include <stddef.h>
#include <stdint.h>

/* Where the inputs of a step are: offsets in bytes of arrays, from the start of the inputs on the device and on the
 * host. They follow from numbers alone: all steps of as many rows and pieces have the same addresses, as graphs
 * require. The arrays are contiguous, so that they are one copy. */
typedef struct qn_gpu_inputs {
    /* By piece. One of padding has no tables, no rows, and items 0. */
    size_t kv_tables, f16_tables;             /* u64 addresses of page tables */
    size_t state_from, state_to, open_chunks; /* u32 items of pools */
    size_t state_positions;                   /* u32 */
    size_t cu_seqlens;                        /* u32 [n_pieces + 1] */
    size_t first_positions;                   /* u32 */
    /* u32 by row. sequences: index of the row's piece, QN_GPU_NO_SEQUENCE for padding. */
    size_t tokens, positions, sequences;
    size_t sources;    /* u32 by row, qn_row.source */
    size_t logit_rows; /* u32 by logit row: its row */
    size_t bytes;      /* of all these */
    size_t sampling;   /* after them: parameters by logit row that is sampled */
} qn_gpu_inputs;

#define QN_GPU_NO_SEQUENCE UINT32_MAX

/* qn_gpu_inputs_of - where the inputs of a step of n_rows rows, n_pieces pieces and n_logits logit rows are. */
qn_gpu_inputs qn_gpu_inputs_of(size_t n_rows, size_t n_pieces, size_t n_logits);

#endif
