/* What all parts of the executor share: the plan, the queue of the device's work, and what of the device its kernels'
 * launches depend on. Parts refer to the parts that they read, in one direction:
 *
 *   weights     tiles and vectors of the model                                    weights.h
 *   workspace   buffers of a step, on the device and pinned                       workspace.h (reads weights)
 *   sampler     what samples from the workspace's logits                          sampling.h
 *   caches      pool and formats of what sequences keep; page tables              caches.h, page_tables.h
 *   step        rows that are executed together, of which those below are launched  step.h
 *   inputs, attention, recurrent, persistent (phases of one row or several), executor (all operations), graphs
 *   flights     steps that were launched and not finished                         model.h, steps.h */
#ifndef QN_CUDA_EXECUTOR_INTERNAL_H
#define QN_CUDA_EXECUTOR_INTERNAL_H

#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/deltanet/deltanet.h"
#include "cuda/kernels/matmul/matmul.h"
#include "cuda/kernels/persistent/persistent.h"
#include "cuda/runtime/runtime.h"
#include "device/device.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/sample/sample.h"

#include <pthread.h>

typedef struct qn_cuda_common {
    const qn_plan *plan;
    qn_team *team;
    qn_hadamard_kernels hadamard; /* of the host, as is `sample` */
    qn_sample_kernels sample;
    qn_cuda *cuda;
    qn_cuda_stream stream;
    /* Held while work is queued in `stream`, also by memories from other threads, and from beginning to end of a
     * capture; not while a step is computed. Work of other threads may then be queued behind a step that is in
     * flight: it must not change what that step uses, which is what its rows' memories hold. */
    pthread_mutex_t stream_lock;
    qn_matmul_gpu matmul;
    qn_attention_gpu attention; /* for fp16 caches */
    qn_persistent_gpu persistent_gpu;
    qn_gdn_gpu gdn;
    bool launches_only;    /* do not use the persistent decode kernel */
    bool deterministic;    /* single rows in passes of 2 to same_rows rows, each other piece in one of its own */
    uint64_t memory_limit; /* bytes that memories may take; 0: what is left */
} qn_cuda_common;

/* The most rows whose logits are computed in one pass, and whose attention by the decode kernel is: there are buffers
 * for as many. */
enum { QN_CUDA_LOGIT_ROWS = 256, QN_CUDA_ATTENTION_ROWS = 256 };

/* Steps that can be in flight. What the host writes for a step and reads of it is in a block of its own: the host
 * prepares a step while the one before is in flight. On the device steps share one workspace, which the next step
 * overwrites: only sampled tokens go from one to the next. */
enum { QN_CUDA_BLOCKS = 2 };

#endif
