/* What the files of the CUDA executor share: a model on the device, and a session's memory there. */
#ifndef QN_DEVICE_CUDA_MODEL_H
#define QN_DEVICE_CUDA_MODEL_H

#include "device/cuda/persistent.h"
#include "device/cuda/cuda.h"
#include "device/cuda/executor.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/sample/sample_cuda.h"

/* ---- The model ---- */

/* Matrices of an operation that share activations and a layout: one area of tiles, one launch. */
typedef struct qn_cuda_gemm {
    qn_tiled_matrix tiled_matrix; /* without addresses of outs */
    qn_cuda_buffer memory;
    size_t matrices[QN_MATMUL_OUTS]; /* of the operation, out by out */
    int acts;
} qn_cuda_gemm;

typedef struct qn_cuda_op {
    qn_cuda_gemm gemms[QN_OP_MATRICES];
    size_t n_gemms;
    uint64_t weight, weight2, weight3; /* the operation's vectors; 0 where there is none */
} qn_cuda_op;

enum { QN_CUDA_ACTS_LAYOUTS = 3 };

/* One plan_acts in the forms that any of its readers takes for some number of rows. */
typedef struct qn_cuda_acts {
    qn_matmul_acts layouts[QN_CUDA_ACTS_LAYOUTS];
    qn_cuda_buffer memory[QN_CUDA_ACTS_LAYOUTS], token_scale;
    uint64_t signs; /* of its rotation; 0 for none */
} qn_cuda_acts;

/* What a step says of itself: filled on the host. Room for max_rows positions, then as many tokens; and behind those, rows of
 * embeddings. */
typedef struct qn_cuda_inputs {
    uint64_t memory;        /* of the session's recurrent layers */
    uint32_t cu_seqlens[2]; /* 0, n_rows */
    qn_sample_params sampling;
    uint32_t positions[]; /* [n_rows] */
} qn_cuda_inputs;

/* The embedding table in tiles: the output matrix where a model has one for both. */
typedef struct qn_cuda_table {
    const qn_tiled_matrix *tiled_matrix; /* NULL: rows come from the host */
    size_t first_tile;
    uint64_t signs;
} qn_cuda_table;

typedef struct qn_cuda_model {
    qn_device base;
    const qn_plan *plan;
    qn_team *team;
    const qn_kernels *kernels;
    qn_cuda *cuda;
    qn_cuda_stream stream;
    qn_matmul_gpu matmul;
    qn_attention_gpu attention; /* of halves */
    qn_persistent_gpu persistent_gpu;
    bool launches_only; /* no chains */

    /* weights */
    qn_cuda_op *ops;        /* [plan->n_ops] */
    qn_cuda_buffer vectors; /* norms, convolutions, signs, frequencies of rope */
    uint64_t frequencies;
    qn_cuda_table table;
    qn_cuda_buffer staging; /* rows of the matrix that is being uploaded */

    /* steps; all of this is made anew when larger ones are reserved */
    uint32_t generation; /* how often */
    size_t max_rows, max_positions;
    size_t input_bytes;      /* in front of the rows */
    qn_cuda_buffer *buffers; /* [plan->n_buffers] */
    uint64_t inputs;         /* device address; the buffer of embeddings is right behind */
    qn_cuda_acts *acts;      /* [plan->n_acts] */
    qn_cuda_buffer scratch;  /* [max_rows][widest acts] floats on their way into activations */
    qn_cuda_buffer cosines, sines, partials, maxima, gates, records, logits;
    qn_cuda_buffer persistent_memory; /* what `chains` is in */
    qn_cuda_persistent_workspace persistent;
    qn_cuda_buffer recent, sample_state;
    uint8_t *host_inputs; /* page-locked: input_bytes, and max_rows embeddings where they come from the host */
    float *host_logits;   /* page-locked: [n_vocab] */
    struct qn_cuda_sample_output *sample_output; /* the token that was chosen */
    bool *is_recent;                             /* [n_vocab] false */
} qn_cuda_model;

/* qn_cuda_rows - where the rows of a buffer of the plan are. */
static inline uint64_t qn_cuda_rows(const qn_cuda_model *model, int buffer)
{
    return model->buffers[buffer].address + (buffer == model->plan->ops[0].out ? model->input_bytes : 0);
}

/* Rows whose logits are computed at a time. */
enum { QN_CUDA_LOGIT_ROWS = 64 };

/* Of the operations, those that only rows whose logits are wanted go through. */
static inline bool qn_cuda_is_logits(const qn_op *op)
{
    return op->kind == QN_OP_LOGIT_NORM || op->kind == QN_OP_LOGITS;
}

/* Whether weights lie alike. */
static inline bool qn_cuda_same_tiles(const qn_tile_layout *a, const qn_tile_layout *b)
{
    return a->bits == b->bits && a->n_scales == b->n_scales && a->has_offset == b->has_offset;
}

/* weights.c */
qn_status qn_cuda_weights_create(qn_cuda_model *model);
void qn_cuda_weights_free(qn_cuda_model *model);
qn_status qn_cuda_weights_upload(qn_cuda_model *model, const uint8_t *data, bool *taken);

/* buffers.c */
qn_status qn_cuda_buffers_reserve(qn_cuda_model *model, size_t max_rows, size_t max_positions);
void qn_cuda_buffers_free(qn_cuda_model *model);

/* ---- A session's memory ---- */

/* Where the cache of one attention layer lies in a memory, in bytes from the layer's own begin. */
typedef struct qn_cuda_kv_layout {
    size_t capacity;           /* positions, or codes: a multiple of 16 */
    size_t key_row, value_row; /* bytes of a position */
    size_t keys, values, key_scales, value_scales, f16_keys, f16_values, means;
    size_t f16_head;    /* bytes of a head's runs of halves */
    size_t layer_bytes; /* of all */
    uint32_t n_open_pages;
} qn_cuda_kv_layout;

/* A codec's tables on the device. */
typedef struct qn_cuda_codec {
    qn_aura_gpu_rotation rotation;
    qn_aura_gpu_levels levels;
    float gain;
} qn_cuda_codec;

typedef struct qn_cuda_memory {
    qn_memory base;
    qn_cuda_model *model;
    size_t n_ctx;
    qn_attention_gpu attention;
    qn_cuda_kv_layout kv;
    uint32_t *slots; /* [n_layers] a layer's number among those of its kind */
    size_t n_layers, n_slots, n_recurrent;
    qn_cuda_buffer cache, recurrent, tables;
    qn_cuda_codec codecs[2];         /* of keys, of values */
    size_t state_bytes, layer_bytes; /* of a recurrent layer: its state, and with the convolution's inputs behind it */
    uint32_t first_open_page;        /* the first run, but for run 0, whose halves are held; of a cache of codes */
    qn_cuda_stream stream;           /* of copies */
    qn_cuda_decode_plan decode_plan;
    qn_cuda_graph *graphs[QN_SAMPLE_MODES]; /* of a token that is decoded, and how the one after it is chosen */
    uint32_t generations[QN_SAMPLE_MODES];  /* of the buffers that they are for */
} qn_cuda_memory;

/* memory.c is the device's; this is session.c */
qn_status qn_cuda_session_new(qn_device *device, const qn_memory_params *params, qn_memory **out);

/* qn_cuda_session_cache - where a layer's cache lies; runs are there for a cache of codes alone. */
void qn_cuda_session_cache(const qn_cuda_memory *memory, size_t layer, qn_attention_gpu_cache *cache,
                           qn_attention_gpu_pages *runs);

/* ---- Steps ---- */

/* inputs.c: into host_inputs; then to the device, rows of embeddings with them. */
void qn_cuda_fill_inputs(qn_cuda_model *model, const qn_cuda_memory *memory, const qn_row *rows, size_t n);
qn_status qn_cuda_upload_inputs(qn_cuda_model *model, size_t n);

/* sampling.c: room for choices; how a step ends that has this one, or NULL; what it needs for that, into host_inputs and to the
 * device; its end, where model->logits is one row; and when all is done, the token. */
qn_status qn_cuda_sampling_alloc(qn_cuda_model *model);
void qn_cuda_sampling_free(qn_cuda_model *model);
qn_sample_mode qn_cuda_sampler_of(const qn_cuda_model *model, const qn_sample_request *request);
qn_status qn_cuda_upload_sampling(qn_cuda_model *model, const qn_sample_request *request);
qn_status qn_cuda_run_sampler(qn_cuda_model *model, qn_sample_mode sampler);
qn_status qn_cuda_finish_sampling(qn_cuda_model *model, qn_sample_mode sampler, qn_sample_request *request);

/* operations.c: into the model's stream. `first` is the position of the first of n rows. A single row's token is ready. */
qn_status qn_cuda_run_trunk(qn_cuda_model *model, const qn_cuda_memory *memory, size_t n, uint32_t first);

/* What a step of one row launches: found out, and brought to the device, where buffers have been placed anew. */
qn_status qn_cuda_prepare_decode(qn_cuda_model *model, qn_cuda_memory *memory);

/* Rows [row, row + n), n up to QN_CUDA_LOGIT_ROWS, into model->logits. */
qn_status qn_cuda_run_logits(qn_cuda_model *model, size_t row, size_t n);

/* Runs of a cache of codes that a step of n rows has completed, in all layers: what a step of one row leaves to do. */
qn_status qn_cuda_quantize_pages(qn_cuda_model *model, const qn_cuda_memory *memory, size_t n, uint32_t first);

#endif
