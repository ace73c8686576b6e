/* The stages of the chunked delta rule one by one on the GPU, as in include/quern/kernels.h: arguments and launches.
 * Shared by C and CUDA. qn_gdn_prepare and qn_gdn_advance compute the same without storing the stages' results.
 *
 * Elements (D) are f16 or bf16; matrices of a chunk are f32. Sums of a stage are f32. Where gc increases within a
 * chunk, its running minimum is used. */
#ifndef QN_CUDA_KERNELS_DELTANET_STAGES_H
#define QN_CUDA_KERNELS_DELTANET_STAGES_H

#include "cuda/kernels/deltanet/deltanet.h"

/* The arguments of all stages; the list of stages below names the arguments of each. Rows of tokens are `..._stride`
 * elements apart. */
typedef struct qn_gdn_stage_args {
    qn_gdn_chunk_args rule;    /* q, k, v, g, beta, o, initial, final, their strides, and the shape; `chunks` */
    QN_GPU_PTR(float) gc;      /* [tokens, v_heads] */
    QN_GPU_PTR(float) a;       /* [tokens, v_heads, 64] */
    QN_GPU_PTR(float) inverse; /* [tokens, v_heads, 64] */
    QN_GPU_PTR(void) w;        /* [tokens, v_heads, head_k] D */
    QN_GPU_PTR(void) u;        /* [tokens, v_heads, head_v] D */
    QN_GPU_PTR(void) v_new;    /* [tokens, v_heads, head_v] D */
    QN_GPU_PTR(void) h;        /* [chunks of all sequences, v_heads, head_v, head_k] D */
    uint32_t gc_stride, a_stride, inverse_stride, w_stride, u_stride, v_new_stride;
} qn_gdn_stage_args;

/* qn_gdn_cumsum            g -> gc; sums in double. Grid: blocks of 128 v_heads of chunks.
 * qn_gdn_kkt               k, beta, gc -> a. Grid: k_heads of chunks.
 * qn_gdn_tril_inverse      a -> inverse; may be in place. Grid: v_heads of chunks.
 * qn_gdn_recompute_w_u     k, v, beta, gc, inverse -> w, u. The inverse, with its columns multiplied by beta e^gc or by
 *                          beta, is rounded to D. Grid: v_heads of chunks.
 * qn_gdn_state_pass        k, w, u, gc, initial -> h, v_new, final. Grid: slices of 64 values, v_heads, sequences.
 * qn_gdn_chunk_output      q, k, v_new, h, gc -> o. Grid: v_heads of chunks. */
enum {
    QN_GDN_STAGE_THREADS = 128,
    QN_GDN_INVERSE_THREADS = 64,
    QN_GDN_INVERSE_ROW = 68,
    QN_GDN_STATE_PASS_THREADS = 256
};

/* Shared memory of a block; qn_gdn_state_pass with a ring buffer of 1 to 3 chunks. */
#define QN_GDN_KKT_BYTES(head_k) (QN_GDN_PADDED(head_k) / 64 * QN_GDN_TILE_BYTES + 1024)
#define QN_GDN_W_U_BYTES(head_k, head_v)                                                                               \
    ((QN_GDN_PADDED(head_k) + QN_GDN_PADDED(head_v)) / 64 * QN_GDN_TILE_BYTES + 1024)
#define QN_GDN_OUTPUT_BYTES(head_k) ((4 * QN_GDN_PADDED(head_k) / 64 + 2) * QN_GDN_TILE_BYTES + 1024)
#define QN_GDN_STATE_PASS_BYTES(head_k, stages)                                                                        \
    ((QN_GDN_PADDED(head_k) / 64 + 1) * QN_GDN_TILE_BYTES +                                                            \
     (stages) * ((2 * QN_GDN_PADDED(head_k) / 64 + 1) * QN_GDN_TILE_BYTES + 1024) + 2048)

#ifndef __CUDACC__

/* Each function below fills the launch of its stage and sets rule.chunks; the caller passes the arguments with the
 * launch. Shape (args->rule), strides and addresses are checked (QN_ERR_INVALID); rule.dtype is D. max_shared_bytes is
 * the device's limit for a block; QN_ERR_UNSUPPORTED if it is too small. */

/* qn_gdn_gpu_cumsum - Fills a launch of qn_gdn_cumsum. */
qn_status qn_gdn_gpu_cumsum(qn_gdn_stage_args *args, qn_launch *out);

/* qn_gdn_gpu_kkt - Fills a launch of qn_gdn_kkt. */
qn_status qn_gdn_gpu_kkt(qn_gdn_stage_args *args, qn_launch *out);

/* qn_gdn_gpu_tril_inverse - Fills a launch of qn_gdn_tril_inverse. */
qn_status qn_gdn_gpu_tril_inverse(qn_gdn_stage_args *args, qn_launch *out);

/* qn_gdn_gpu_recompute_w_u - Fills a launch of qn_gdn_recompute_w_u. */
qn_status qn_gdn_gpu_recompute_w_u(qn_gdn_stage_args *args, uint32_t max_shared_bytes, qn_launch *out);

/* qn_gdn_gpu_state_pass - Fills a launch of qn_gdn_state_pass. */
qn_status qn_gdn_gpu_state_pass(qn_gdn_stage_args *args, uint32_t max_shared_bytes, qn_launch *out);

/* qn_gdn_gpu_chunk_output - Fills a launch of qn_gdn_chunk_output. */
qn_status qn_gdn_gpu_chunk_output(qn_gdn_stage_args *args, uint32_t max_shared_bytes, qn_launch *out);

#endif
#endif
