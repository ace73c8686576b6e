/* Gated DeltaNet over open chunks, for a few rows of each of some sequences: a step that verifies drafts. */
#ifndef QN_CUDA_KERNELS_DELTANET_OPEN_FEW_H
#define QN_CUDA_KERNELS_DELTANET_OPEN_FEW_H

#include "cuda/kernels/deltanet/deltanet.h"

/* qn_gdn_open_few - What qn_gdn_open_step computes, for at most QN_GDN_DROPPED_ROWS rows of each sequence, which fit
 * into its open chunk: nothing is folded. A sequence may have no rows. For heads of 128 by 128. Its arguments are
 * qn_gdn_open_args.
 *
 * QN_GDN_FEW_ROWS: rows of a sequence that a block of QN_GDN_ROW_THREADS processes together. QN_GDN_FEW_SM_BLOCKS:
 * blocks on an SM. Shared memory of a block: the open chunk and computed values, then inputs and weights of the
 * convolution. */
enum { QN_GDN_FEW_ROWS = 8, QN_GDN_FEW_SM_BLOCKS = 2 };
#define QN_GDN_FEW_FIXED_BYTES(head_k, head_v) (QN_GDN_CHUNK * 2 * ((head_k) + (head_v)) + 31744)
#define QN_GDN_FEW_BYTES(head_k, head_v, taps)                                                                         \
    (QN_GDN_FEW_FIXED_BYTES(head_k, head_v) + (2 * (taps)-1 + QN_GDN_FEW_ROWS) * (2 * (head_k) + (head_v)) * 4)

#ifndef __CUDACC__

/* qn_gdn_gpu_has_open_few - Returns whether qn_gdn_open_few supports such heads on this device. */
bool qn_gdn_gpu_has_open_few(size_t head_k, size_t head_v, const qn_gdn_gpu *gpu);

/* qn_gdn_gpu_open_few - Fills a launch of qn_gdn_open_few, if qn_gdn_gpu_has_open_few. Sets the layout of args; limits
 * and errors as for qn_gdn_gpu_open_step. */
qn_status qn_gdn_gpu_open_few(qn_gdn_open_args *args, const qn_gdn_gpu *gpu, qn_launch *launch);

#endif

#endif
