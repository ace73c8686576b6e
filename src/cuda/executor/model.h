/* A model on the device: the struct that owns all parts of the executor. */
#ifndef QN_CUDA_EXECUTOR_MODEL_H
#define QN_CUDA_EXECUTOR_MODEL_H

#include "cuda/executor/graphs.h"
#include "cuda/executor/step.h"

/* A queued batch, and the destinations of its results, which are the caller's until the step has finished. */
typedef struct qn_cuda_flight {
    float *logits;               /* receives the logits of the only row, from host_logits; NULL: none */
    qn_sample_request *requests; /* of the step; those in `sampling` are to be finished; NULL: none */
    qn_cuda_sampling sampling;
    const qn_row *rows; /* [n_rows] that have hidden states; NULL: none has */
    size_t n_rows;
    bool is_queued;
    bool awaits_sampling; /* `requests` are to be prepared and sampled (qn_device_vtable.sample) */
} qn_cuda_flight;

/* A step that was launched. */
typedef struct qn_cuda_launched {
    qn_cuda_event started, computed; /* before and after its work */
    size_t block;
    bool is_timed; /* started is recorded */
} qn_cuda_launched;

/* Steps that were launched and have not finished. Used by the thread that makes the device's calls. */
typedef struct qn_cuda_flights {
    size_t block;                                  /* the current one */
    qn_cuda_flight of_block[QN_CUDA_BLOCKS];       /* for each block: the last batch of its launched step */
    qn_cuda_launched launched[QN_CUDA_BLOCKS + 1]; /* step i at i % (QN_CUDA_BLOCKS + 1): one more, for the time of the
                                                      previous step */
    uint64_t n_launched, n_finished;               /* steps */
    qn_gpu_piece *pieces;                          /* [QN_GPU_MAX_SEQUENCES] of the current step */
} qn_cuda_flights;

/* One thread at a time uses it, but for `caches` and kept_tables, which have locks of their own. */
typedef struct qn_cuda_model {
    qn_device base;
    qn_cuda_common common;
    qn_cuda_weights weights;
    qn_cuda_workspace workspace;
    qn_cuda_sampler *sampler; /* of the workspace; NULL without one */
    qn_cuda_caches *caches;
    qn_gpu_kept_tables kept_tables;
    qn_cuda_graphs *graphs; /* of the cache formats of the steps so far: a list */
    qn_cuda_flights flights;
} qn_cuda_model;

#endif
