/* The layout of states and open chunks of the recurrent layers on a GPU. Shared by C and CUDA: kernels read it too, and
 * the including CUDA file defines the fixed-width integers.
 *
 * A sequence has the state at a multiple of 64 positions, and the rows since then, at most 64, in its open chunk. A row
 * is stored by its position modulo 64. A layer's part of a state is, in this order:
 *
 *     S        two planes of f16 [v_heads, head_v, head_k], hi and lo (gpu/state_planes.h)
 *     history  f32 [taps-1, width]                    the inputs of the convolution at the positions before the state,
 *                                                     in the order of positions
 *
 * Its part of an open chunk:
 *
 *     keys     f16 [k_heads, 64, head_k]              k_j, normalised
 *     values   f16 [v_heads, 64, head_v]              v'_j / scale_j
 *     scales   f32 [v_heads, groups, 64]              powers of two, one for QN_GDN_SCALE_VALUES values of a row, whose
 *                                                     largest |v'_j| / scale_j is in [2^14, 2^15]
 *     decays   f32 [v_heads, 64]                      g_j
 *     inputs   f32 [QN_GDN_INPUT_ROWS(taps), width]   of the convolution, by position modulo the number of rows */
#ifndef QN_GPU_RECURRENT_LAYOUT_H
#define QN_GPU_RECURRENT_LAYOUT_H

#ifndef __CUDACC__
#include "plan/plan.h"
#endif

enum {
    QN_GDN_DROPPED_ROWS = 15, /* the most rows by which a sequence can be truncated */
    QN_GDN_SCALE_VALUES = 64  /* values of a scale; a head's last group may have fewer */
};

#define QN_GDN_SCALE_GROUPS(head_v) (((head_v) + QN_GDN_SCALE_VALUES - 1) / QN_GDN_SCALE_VALUES)
#define QN_GDN_INPUT_ROWS(taps) ((taps)-1 + QN_GDN_DROPPED_ROWS)

typedef struct qn_gdn_open_layout {
    uint64_t keys, values, scales, decays, inputs; /* bytes from the start of the layer's part */
    uint64_t bytes;                                /* of a layer's part */
} qn_gdn_open_layout;

#ifndef __CUDACC__

/* The layers' parts of an item are contiguous. S is at the start of a layer's part of a state. */
typedef struct qn_gpu_recurrent_layout {
    size_t history;           /* offset in a layer's part of a state, in bytes */
    size_t state_layer_bytes; /* of a layer's part of a state */
    qn_gdn_open_layout open;  /* in an open chunk: open.bytes for each layer */
} qn_gpu_recurrent_layout;

/* qn_gpu_recurrent_layout_of - returns the layout for recurrent layers of this shape. */
qn_gpu_recurrent_layout qn_gpu_recurrent_layout_of(const qn_recurrent_shape *shape);

/* qn_gpu_recurrent_index - returns the number of recurrent layers before `layer`, which is the index of a recurrent
 * layer among them. */
size_t qn_gpu_recurrent_index(const qn_plan *plan, int layer);

/* qn_gpu_state_offset - returns the offset of a recurrent layer's part of a state, in bytes. */
uint64_t qn_gpu_state_offset(const qn_plan *plan, int layer);

/* qn_gpu_open_layout - returns the layout of a recurrent layer's part of an open chunk. Offsets are from the start of
 * the item. */
qn_gdn_open_layout qn_gpu_open_layout(const qn_plan *plan, int layer);

#endif
#endif
