/* Types and functions shared by the files of the CUDA executor: a model on the device, and a session's memory on the
 * device. */
#ifndef QN_CUDA_EXECUTOR_MODEL_H
#define QN_CUDA_EXECUTOR_MODEL_H

#include "cuda/executor/persistent.h"
#include "cuda/executor/caches.h"
#include "cuda/runtime/runtime.h"
#include "cuda/executor/device.h"
#include "cuda/executor/page_tables.h"
#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/deltanet/deltanet.h"
#include "cuda/kernels/matmul/matmul.h"
#include "cuda/kernels/sample/sample.h"
#include "kernels/hadamard/hadamard.h"
#include "kernels/sample/sample.h"

#include <pthread.h>

/* ---- The model ---- */

/* Matrices of an operation with the same activations and tile layout: concatenated in one buffer, multiplied in one
 * launch. */
typedef struct qn_cuda_gemm {
    qn_tiled_matrix tiled_matrix; /* without the addresses of outs */
    qn_cuda_buffer memory;
    size_t matrices[QN_MATMUL_OUTS]; /* for each out, the index of its matrix in the operation */
    int acts;
    /* The launch for the number of rows that was launched last: to find one takes longer than to launch it. */
    qn_matmul_launch launch;
    size_t launch_rows;         /* 0: none */
    bool launch_in_phases;      /* qn_cuda_rows_step.in_phases */
    uint32_t launch_generation; /* of the buffers whose addresses it has */
} qn_cuda_gemm;

typedef struct qn_cuda_op {
    qn_cuda_gemm gemms[QN_OP_MATRICES];
    size_t n_gemms;
    qn_op_addresses vectors;
    bool fuses_next; /* for 2 to QN_FEW_MAX_TOKENS rows its GEMM computes the activations of the next operation */
    int next_acts;   /* if it does: which */
} qn_cuda_op;

/* Activations are in one of three layouts; those of GEMMs' epilogues are a copy of their own in QN_ACTS_HILO, because the
 * GEMM that writes them may read activations of the same width. */
enum { QN_CUDA_ACTS_LAYOUTS = 3, QN_CUDA_ACTS_FUSED = QN_CUDA_ACTS_LAYOUTS, QN_CUDA_ACTS_COPIES };

/* A qn_plan_acts on the device, in every layout that its matmuls read for some number of rows. */
typedef struct qn_cuda_acts {
    qn_matmul_acts layouts[QN_CUDA_ACTS_COPIES];
    qn_cuda_buffer memory[QN_CUDA_ACTS_COPIES], scale[QN_CUDA_ACTS_COPIES];
    uint64_t signs; /* of its rotation; 0: none */
} qn_cuda_acts;

/* Where the inputs of a step are: offsets in bytes of arrays, from model->inputs on the device and from model->host_inputs.
 * They follow from numbers alone: all steps of as many rows and pieces have the same addresses, as graphs require. The
 * arrays are contiguous, so that they are one copy. */
typedef struct qn_cuda_inputs {
    /* By piece. One of padding has no tables, no rows, and items 0. */
    size_t kv_tables, f16_tables;             /* u64 addresses of page tables */
    size_t state_from, state_to, open_chunks; /* u32 items of pools */
    size_t state_positions;                   /* u32 */
    size_t cu_seqlens;                        /* u32 [n_pieces + 1] */
    size_t first_positions;                   /* u32 */
    /* u32 by row. sequences: index of the row's piece, QN_ATTENTION_NO_SESSION for padding. */
    size_t tokens, positions, sequences;
    size_t sources;    /* u32 by row, qn_row.source */
    size_t logit_rows; /* u32 by logit row: its row */
    size_t bytes;      /* of all these */
    size_t sampling;   /* behind them: qn_sample_params by logit row that is sampled */
} qn_cuda_inputs;

/* The embedding table in tiles; with tied embeddings, the output matrix. */
typedef struct qn_cuda_table {
    const qn_tiled_matrix *tiled_matrix; /* NULL: the host dequantises the rows */
    size_t first_tile;
    uint64_t signs;
} qn_cuda_table;

/* What a step samples: its launches depend on nothing else. */
typedef struct qn_cuda_sampling {
    qn_sample_mode mode; /* the most general one that a row needs; QN_SAMPLE_NONE: no token is sampled */
    size_t first, n;     /* rows that are sampled together, of the step's */
    size_t params;       /* offset of the step's parameters in its inputs */
} qn_cuda_sampling;

/* Work that is queued, and what becomes of its results. What the host writes for it and reads of it is in a block of its own
 * (qn_cuda_use_block): the host prepares a step while the one before is in flight. On the device steps share one workspace,
 * which the next step overwrites: only `tokens` goes from one to the next. */
typedef struct qn_cuda_flight {
    float *logits;               /* receives those of the only row, from host_logits; NULL: none */
    qn_sample_request *requests; /* of the step, of which `sampling` are to be finished; NULL: none */
    qn_cuda_sampling sampling;
    bool is_queued;
    bool awaits_sampling; /* `requests` are to be prepared and sampled (qn_device_vtable.sample) */
} qn_cuda_flight;

/* Steps that can be in flight. */
enum { QN_CUDA_BLOCKS = 2 };

/* A step that was launched. */
typedef struct qn_cuda_launched {
    qn_cuda_event started, computed; /* before and after its work */
    size_t block;
    bool is_timed; /* started is recorded */
} qn_cuda_launched;

typedef struct qn_cuda_graphs qn_cuda_graphs;
typedef struct qn_cuda_sampler qn_cuda_sampler; /* sampling.c */
typedef struct qn_cuda_piece qn_cuda_piece;

typedef struct qn_cuda_model {
    qn_device base;
    const qn_plan *plan;
    qn_team *team;
    qn_hadamard_kernels hadamard; /* of the host, as is `sample` */
    qn_sample_kernels sample;
    qn_cuda *cuda;
    qn_cuda_stream stream;
    /* Held while work is queued in `stream`, also by memories from other threads, and from beginning to end of a capture; not
     * while a step is computed. Work of other threads may then be queued behind a step that is in flight: it must not change
     * what that step uses, which is what its rows' memories hold. */
    pthread_mutex_t stream_lock;
    qn_matmul_gpu matmul;
    qn_attention_gpu attention; /* for fp16 caches */
    qn_persistent_gpu persistent_gpu;
    qn_gdn_gpu gdn;
    bool launches_only;    /* do not use the persistent decode kernel */
    bool deterministic;    /* single rows in passes of 2 to same_rows rows, each other piece in one of its own */
    uint64_t memory_limit; /* bytes that memories may take; 0: what is left */
    qn_cuda_caches *caches;
    qn_cuda_kept_tables kept_tables;
    qn_cuda_graphs *graphs; /* of the cache formats of the steps so far: a list */

    /* weights */
    qn_cuda_op *ops;        /* [plan->n_ops] */
    size_t same_rows;       /* the most rows of a pass in which the matmuls compute each row by the same operations */
    qn_cuda_buffer vectors; /* norm weights, convolution taps, signs, frequencies of rope */
    uint64_t frequencies;
    qn_cuda_table table;
    qn_cuda_buffer staging; /* rows of the matrix that is being uploaded, before they are packed into tiles */

    /* workspace of steps; reserving more frees and reallocates all of it */
    uint32_t generation; /* incremented by every reallocation: graphs and phases of older generations hold stale addresses */
    size_t max_rows, max_positions;
    size_t input_bytes;      /* of the inputs of the largest step */
    qn_cuda_buffer *buffers; /* [plan->n_buffers] */
    uint64_t inputs;         /* on the device: at the start of the embedding buffer, before its rows */
    qn_cuda_acts *acts;      /* [plan->n_acts] */
    qn_cuda_buffer scratch;  /* [max_rows][widest acts] floats that are quantised into activations next */
    qn_cuda_buffer cosines, sines, matmul_workspace;
    /* Where most of `buffers` are, and the next ones: in `shared` those of one part of a layer have the addresses of those of
     * another part, and of the logits. */
    qn_cuda_buffer shared, kept;
    qn_cuda_buffer partials, maxima, gates, delta_workspace;
    qn_cuda_buffer gathered, logits;   /* [logit_rows]: rows of the last layer's output; logits */
    size_t logit_rows;                 /* up to QN_CUDA_LOGIT_ROWS */
    qn_cuda_buffer attention_counters; /* of qn_attention_decode: zeros between launches */
    qn_cuda_buffer arrivals;           /* [max_rows][n_k_heads] of recurrent layers: zeros between launches */
    qn_cuda_buffer persistent_memory;  /* backs `persistent` */
    qn_cuda_persistent_workspace persistent;
    uint8_t *host_inputs;  /* of the current block. Pinned: input_bytes, and max_rows embeddings if the host dequantises */
    qn_cuda_piece *pieces; /* [QN_CUDA_MAX_SEQUENCES] of the current step */
    float *host_logits;    /* pinned: [n_vocab]. Of a step behind which no other is launched */
    qn_cuda_sampler *sampler;

    /* steps in flight */
    size_t block;                                  /* the current one */
    uint8_t *block_inputs[QN_CUDA_BLOCKS];         /* host_inputs of each */
    qn_cuda_flight flights[QN_CUDA_BLOCKS];        /* of each: the last batch of the step that was launched */
    qn_cuda_launched launched[QN_CUDA_BLOCKS + 1]; /* step i at i % (QN_CUDA_BLOCKS + 1): the one before is measured too */
    uint64_t n_launched, n_finished;               /* steps */
} qn_cuda_model;

/* qn_cuda_use_block - makes a block the current one, with its host_inputs and, in the sampler, its results and lists. */
static inline void qn_cuda_use_block(qn_cuda_model *model, size_t block)
{
    model->block = block;
    model->host_inputs = model->block_inputs[block];
}

/* qn_cuda_rows - the address of the first row of a buffer of the plan. */
static inline uint64_t qn_cuda_rows(const qn_cuda_model *model, int buffer)
{
    return model->buffers[buffer].address + (buffer == model->plan->ops[0].embed.out ? model->input_bytes : 0);
}

/* The most rows whose logits are computed in one pass, and whose attention by the decode kernel is: there are buffers for
 * as many. */
enum { QN_CUDA_LOGIT_ROWS = 256, QN_CUDA_ATTENTION_ROWS = 256 };

/* The most sequences of a step on the device. */
enum { QN_CUDA_MAX_SEQUENCES = 256 };

/* Whether two matrices have the same tile layout. */
static inline bool qn_cuda_same_tiles(const qn_tile_layout *a, const qn_tile_layout *b)
{
    return a->bits == b->bits && a->n_scales == b->n_scales && a->has_offset == b->has_offset;
}

/* weights.c:
 *   qn_cuda_reads_rows      whether a matmul of 2 to QN_FEW_MAX_TOKENS rows reads no activations but the input of the norm that
 *                           would write them (qn_matmul_gemv_norm)
 *   qn_cuda_weights_upload  implements qn_device_vtable.upload, *taken is its *uploaded */
bool qn_cuda_reads_rows(const qn_cuda_model *model, const qn_op *writer, const qn_cuda_gemm *gemm);
qn_status qn_cuda_weights_create(qn_cuda_model *model);
void qn_cuda_weights_free(qn_cuda_model *model);
qn_status qn_cuda_weights_upload(qn_cuda_model *model, const uint8_t *data, bool *taken);

/* buffers.c */
qn_status qn_cuda_buffers_reserve(qn_cuda_model *model, size_t max_rows, size_t max_positions);
void qn_cuda_buffers_free(qn_cuda_model *model);

/* ---- A session's memory ---- */

typedef struct qn_cuda_memory {
    qn_memory base;
    qn_cuda_model *model;
    const qn_cuda_format *format;
    qn_sequence sequence;
    size_t n_ctx;
    qn_cuda_page_tables *tables;
    uint64_t kv_table, f16_table; /* device addresses of the tables; f16_table: 0 if the format has no codes */
} qn_cuda_memory;

/* session_memory.c: qn_device_vtable.memory_new */
qn_status qn_cuda_memory_new(qn_device *device, const qn_memory_params *params, qn_memory **out);

/* session_file.c: as in qn_memory_vtable */
qn_status qn_cuda_memory_serialize(const qn_memory *memory, qn_memory_region_fn region, void *context);
qn_status qn_cuda_memory_deserialize(qn_memory *memory, const qn_extent *extent, qn_memory_region_fn region, void *context);

/* ---- Steps ---- */

/* Consecutive rows of one sequence in a step. */
struct qn_cuda_piece {
    qn_cuda_memory *memory;
    uint32_t row, n, position; /* rows [row, row + n) of the step; position of the first */
    const qn_row *rows;        /* [n] of the caller; NULL: padding, on the device a piece without rows */
};

/* sampling.c: the tokens of rows from their logits. */

/* qn_cuda_sampling_alloc - the sampler's buffers, for steps of up to max_rows rows, of which logit_rows are sampled
 * together. */
qn_status qn_cuda_sampling_alloc(qn_cuda_model *model, size_t max_rows, size_t logit_rows);
void qn_cuda_sampling_free(qn_cuda_model *model);

/* qn_cuda_fill_sampling - the parameters of requests [n] into host_inputs, at offset `params`; the step's inputs are uploaded
 * afterwards. Masks, bias and penalties, if there are any, by one copy that is queued in the stream. Not during a capture, and
 * not before the step that used them last has ended. Sets *what. */
qn_status qn_cuda_fill_sampling(qn_cuda_model *model, const qn_sample_request *requests, size_t n, size_t params,
                                qn_cuda_sampling *what);

/* qn_cuda_fill_sampling_later - the same when the step's inputs were uploaded: the parameters are copied too. */
qn_status qn_cuda_fill_sampling_later(qn_cuda_model *model, const qn_sample_request *requests, size_t n, size_t params,
                                      qn_cuda_sampling *what);

/* qn_cuda_prepare_requests - calls `prepare` of the requests that have it, on the team's threads. */
void qn_cuda_prepare_requests(const qn_cuda_model *model, qn_sample_request *requests, size_t n);

/* qn_cuda_run_sampler - launches: sample from the first what->n rows of model->logits, to which mask, bias and penalties are
 * applied in place. */
qn_status qn_cuda_run_sampler(qn_cuda_model *model, const qn_cuda_sampling *what);

/* qn_cuda_finish_sampling - after the stream is synchronised: sets the results of requests [n] of a step, those from
 * what->first on. Rows with filters of qn_sample_is_on_host are sampled on the host, from model->logits: no step follows them. */
qn_status qn_cuda_finish_sampling(qn_cuda_model *model, const qn_cuda_sampling *what, qn_sample_request *requests);

/* qn_cuda_poison_sampling - lists and results of the current block, whose step was finished (provoke.h). */
void qn_cuda_poison_sampling(const qn_cuda_model *model);

/* qn_cuda_sampled_tokens - device address of the tokens [max_rows] of the last step that sampled, by request; -1: not
 * sampled. */
uint64_t qn_cuda_sampled_tokens(const qn_cuda_model *model);

#endif
