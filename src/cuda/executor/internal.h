/* The data that all parts of the executor share: the plan, the stream of the device's work, and the device properties
 * that kernel launches depend on. A part refers to the parts that it reads, in one direction:
 *
 *   weights     tiles and vectors of the model                                    weights.h
 *   workspace   buffers of a step, on the device and pinned                       workspace.h (reads weights)
 *   sampler     samples from the workspace's logits                               sampling.h
 *   caches      the pool, and the cache formats of sequences                      caches.h
 *   memory      what sequences need of the device: page tables, copies of items   memory.h
 *   step        rows that are executed together; the argument of the parts below  step.h
 *   inputs, attention, recurrent, persistent (phases of one row or several), executor (all operations), graphs
 *   flights     steps that were launched and have not finished                    model.h, steps.h
 *
 * Threads. One thread at a time makes the calls of qn_device_vtable (the model's lock); it alone uses the workspace,
 * the sampler, the graphs and the flights. It holds stream_lock while it queues work, so that memories, which other
 * threads create, copy and free, can queue work in between. "Queues" and "launches" of a function mean that its caller
 * holds stream_lock. */
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

/* Constant after the device was created, but for the lock. */
typedef struct qn_cuda_common {
    const qn_plan *plan;
    qn_team *team;
    qn_hadamard_kernels hadamard; /* of the host, as is `sample` */
    qn_sample_kernels sample;
    qn_cuda *cuda;
    qn_cuda_stream stream;
    /* Held while any thread queues work in `stream`, and for the whole of a capture, but not while the device computes
     * a step. Other threads may therefore queue work after a step in flight. That work must not change the memories of
     * the step's rows. */
    pthread_mutex_t stream_lock;
    qn_matmul_gpu matmul;
    qn_attention_gpu attention;       /* for fp16 caches */
    qn_attention_gpu block_attention; /* of a block drafter's layers; zeros without one */
    qn_persistent_gpu persistent_gpu;
    qn_gdn_gpu gdn;
    bool launches_only;    /* do not use the persistent decode kernel */
    bool in_phases;        /* use it where launches are faster, too */
    bool deterministic;    /* single rows in passes of 2 to same_rows rows, each other piece in a pass of its own */
    uint64_t memory_limit; /* most bytes that memories may take; 0: free memory less a reserve */
    double memory_share;   /* the part of this that is used; 0: all of it */
} qn_cuda_common;

/* The most rows of one pass of the logits, and of one launch of the decode kernel of attention: the size of their
 * buffers. */
enum { QN_CUDA_LOGIT_ROWS = 256, QN_CUDA_ATTENTION_ROWS = 256 };

/* The most rows of a step that verifies a draft as a graph. */
enum { QN_CUDA_VERIFIED_ROWS = 16 };

/* The most steps in flight. Each step has its own block of host memory for inputs and results, so that the host can
 * prepare a step while the previous one is in flight. On the device all steps share one workspace, which the next step
 * overwrites: only sampled tokens pass from one step to the next. */
enum { QN_CUDA_BLOCKS = 2 };

#endif
