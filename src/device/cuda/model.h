/* Types and functions shared by the files of the CUDA executor: a model on the device, and a session's memory on the
 * device. */
#ifndef QN_DEVICE_CUDA_MODEL_H
#define QN_DEVICE_CUDA_MODEL_H

#include "device/cuda/persistent.h"
#include "device/cuda/cuda.h"
#include "device/cuda/executor.h"
#include "kernels/attention/attention_cuda.h"
#include "kernels/deltanet/deltanet_cuda.h"
#include "kernels/matmul/matmul_cuda.h"
#include "kernels/sample/sample_cuda.h"

#include <stdatomic.h>

/* ---- The model ---- */

/* Matrices of an operation with the same activations and tile layout: concatenated in one buffer, multiplied in one
 * launch. */
typedef struct qn_cuda_gemm {
    qn_tiled_matrix tiled_matrix; /* without the addresses of outs */
    qn_cuda_buffer memory;
    size_t matrices[QN_MATMUL_OUTS]; /* for each out, the index of its matrix in the operation */
    int acts;
} qn_cuda_gemm;

typedef struct qn_cuda_op {
    qn_cuda_gemm gemms[QN_OP_MATRICES];
    size_t n_gemms;
    qn_op_addresses vectors;
} qn_cuda_op;

enum { QN_CUDA_ACTS_LAYOUTS = 3 };

/* A qn_plan_acts on the device, in every layout that its matmuls read for some number of rows. */
typedef struct qn_cuda_acts {
    qn_matmul_acts layouts[QN_CUDA_ACTS_LAYOUTS];
    qn_cuda_buffer memory[QN_CUDA_ACTS_LAYOUTS], token_scale;
    uint64_t signs; /* of its rotation; 0: none */
} qn_cuda_acts;

/* The inputs of a step, filled on the host. max_rows positions are followed by max_rows tokens, then by the rows of the
 * embedding buffer. */
typedef struct qn_cuda_inputs {
    uint64_t memory;        /* address of the session's recurrent state */
    uint32_t cu_seqlens[2]; /* 0, n_rows */
    qn_sample_params sampling;
    uint32_t positions[]; /* [n_rows] */
} qn_cuda_inputs;

/* The embedding table in tiles; with tied embeddings, the output matrix. */
typedef struct qn_cuda_table {
    const qn_tiled_matrix *tiled_matrix; /* NULL: the host dequantises the rows */
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
    qn_attention_gpu attention; /* for fp16 caches */
    qn_persistent_gpu persistent_gpu;
    qn_gdn_gpu gdn;
    bool launches_only;          /* do not use the persistent decode kernel */
    uint64_t memory_limit;       /* bytes that memories may take; 0: no limit */
    atomic_uint_fast64_t memory; /* that they have taken */

    /* weights */
    qn_cuda_op *ops;        /* [plan->n_ops] */
    qn_cuda_buffer vectors; /* norm weights, convolution taps, signs, frequencies of rope */
    uint64_t frequencies;
    qn_cuda_table table;
    qn_cuda_buffer staging; /* rows of the matrix that is being uploaded, before they are packed into tiles */

    /* workspace of steps; reserving more frees and reallocates all of it */
    uint32_t generation; /* incremented by every reallocation: graphs and phases of older generations hold stale addresses */
    size_t max_rows, max_positions;
    size_t input_bytes;      /* of qn_cuda_inputs with positions and tokens, padded */
    qn_cuda_buffer *buffers; /* [plan->n_buffers] */
    uint64_t inputs;         /* qn_cuda_inputs on the device: at the start of the embedding buffer, before its rows */
    qn_cuda_acts *acts;      /* [plan->n_acts] */
    qn_cuda_buffer scratch;  /* [max_rows][widest acts] floats that are quantised into activations next */
    qn_cuda_buffer cosines, sines, partials, maxima, gates, delta_workspace, logits;
    qn_cuda_buffer persistent_memory; /* backs `persistent` */
    qn_cuda_persistent_workspace persistent;
    qn_cuda_buffer recent, sample_state;
    uint8_t *host_inputs;                        /* pinned: input_bytes, and max_rows embeddings if the host dequantises */
    float *host_logits;                          /* pinned: [n_vocab] */
    struct qn_cuda_sample_output *sample_output; /* pinned: the sampled token */
    bool *is_recent;                             /* [n_vocab]; all false between calls */
} qn_cuda_model;

/* qn_cuda_rows - the address of the first row of a buffer of the plan. */
static inline uint64_t qn_cuda_rows(const qn_cuda_model *model, int buffer)
{
    return model->buffers[buffer].address + (buffer == model->plan->ops[0].embed.out ? model->input_bytes : 0);
}

/* The most rows whose logits are computed in one pass, and whose attention is: there are buffers for as many. */
enum { QN_CUDA_LOGIT_ROWS = 64, QN_CUDA_ATTENTION_ROWS = 256 };

/* Whether two matrices have the same tile layout. */
static inline bool qn_cuda_same_tiles(const qn_tile_layout *a, const qn_tile_layout *b)
{
    return a->bits == b->bits && a->n_scales == b->n_scales && a->has_offset == b->has_offset;
}

/* weights.c; qn_cuda_weights_upload implements qn_device_vtable.upload, *taken is its *uploaded */
qn_status qn_cuda_weights_create(qn_cuda_model *model);
void qn_cuda_weights_free(qn_cuda_model *model);
qn_status qn_cuda_weights_upload(qn_cuda_model *model, const uint8_t *data, bool *taken);

/* buffers.c */
qn_status qn_cuda_buffers_reserve(qn_cuda_model *model, size_t max_rows, size_t max_positions);
void qn_cuda_buffers_free(qn_cuda_model *model);

/* ---- A session's memory ---- */

/* Layout of one attention layer's cache. */
typedef struct qn_cuda_kv_layout {
    size_t capacity;           /* positions: a multiple of QN_KV_PAGE */
    size_t key_row, value_row; /* bytes of one position of a head */
    /* offsets in bytes from the start of the layer; those after `values` only in AURA caches */
    size_t keys, values, key_scales, value_scales, f16_keys, f16_values, means;
    size_t f16_head;    /* bytes of a head's fp16 pages, of keys or of values */
    size_t layer_bytes; /* of one layer */
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
    uint32_t *slots; /* [n_layers]: a layer's index among the attention layers, or among the recurrent layers */
    size_t n_layers, n_slots, n_recurrent; /* n_slots: attention layers */
    qn_cuda_buffer cache, recurrent, tables;
    qn_cuda_codec codecs[2];         /* of keys, of values */
    size_t state_bytes, layer_bytes; /* of a recurrent layer: state; state and convolution inputs, padded */
    uint64_t bytes;                  /* counted in qn_cuda_model.memory */
    uint32_t first_open_page;        /* AURA: the first page after page 0 whose fp16 rows are still stored */
    qn_cuda_stream stream;           /* for copies */
    qn_cuda_decode_plan decode_plan;
    qn_cuda_graph *graphs[QN_SAMPLE_MODES]; /* one decode step with this sampler; NULL until captured */
    uint32_t generations[QN_SAMPLE_MODES];  /* qn_cuda_model.generation at capture */
} qn_cuda_memory;

/* session.c: qn_device_vtable.memory_new */
qn_status qn_cuda_session_new(qn_device *device, const qn_memory_params *params, qn_memory **out);

/* qn_cuda_session_cache - device addresses of a layer's cache; *runs (fp16 pages) is zeroed unless the cache is AURA. */
void qn_cuda_session_cache(const qn_cuda_memory *memory, size_t layer, qn_attention_gpu_cache *cache,
                           qn_attention_gpu_pages *runs);

/* ---- Steps ---- */

/* inputs.c: fill host_inputs; copy them to the device, and embeddings from the host or from the table on the device. */
void qn_cuda_fill_inputs(qn_cuda_model *model, const qn_cuda_memory *memory, const qn_row *rows, size_t n);
qn_status qn_cuda_upload_inputs(qn_cuda_model *model, size_t n);

/* sampling.c:
 *   qn_cuda_sampling_alloc   the sampler's buffers
 *   qn_cuda_sampler_of       the sampler of a request; QN_SAMPLE_HOST for NULL (logits are copied to the host) and for
 *                            requests that the kernels do not support
 *   qn_cuda_upload_sampling  the request's parameters into host_inputs, its recent tokens to the device
 *   qn_cuda_run_sampler      launches: sample from the one row in model->logits, or copy the row to the host
 *   qn_cuda_finish_sampling  after the stream is synchronised: sets request->best and request->token */
qn_status qn_cuda_sampling_alloc(qn_cuda_model *model);
void qn_cuda_sampling_free(qn_cuda_model *model);
qn_sample_mode qn_cuda_sampler_of(const qn_cuda_model *model, const qn_sample_request *request);
qn_status qn_cuda_upload_sampling(qn_cuda_model *model, const qn_sample_request *request);
qn_status qn_cuda_run_sampler(qn_cuda_model *model, qn_sample_mode sampler);
qn_status qn_cuda_finish_sampling(qn_cuda_model *model, qn_sample_mode sampler, qn_sample_request *request);

/* operations.c: launches in the model's stream. */

/* qn_cuda_run_trunk - all operations before the logits, for n rows from position `first`. n == 1: after
 * qn_cuda_prepare_decode. */
qn_status qn_cuda_run_trunk(qn_cuda_model *model, const qn_cuda_memory *memory, size_t n, uint32_t first);

/* qn_cuda_prepare_decode - plan the launches of a decode step and upload its phases; again after every reallocation of
 * buffers. */
qn_status qn_cuda_prepare_decode(qn_cuda_model *model, qn_cuda_memory *memory);

/* qn_cuda_run_logits - logits of rows [row, row + n), n <= QN_CUDA_LOGIT_ROWS, into model->logits. */
qn_status qn_cuda_run_logits(qn_cuda_model *model, size_t row, size_t n);

/* qn_cuda_quantize_pages - AURA: quantise, in all layers, the pages that n rows from position `first` have completed.
 * Steps of one row need this call; larger steps quantise pages layer by layer in qn_cuda_run_trunk. */
qn_status qn_cuda_quantize_pages(qn_cuda_model *model, const qn_cuda_memory *memory, size_t n, uint32_t first);

#endif
