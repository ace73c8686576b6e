/* The plan: a model as a flat array of fused operations over preallocated buffers.
 *
 * model/ builds a plan once after loading; a device (device.h) executes it over a batch of rows. A row is one token of one
 * session at one position; the rows of a session are contiguous, with ascending positions. A step allocates nothing.
 *
 * Buffers hold floats [max_rows, width]; activations (kernels/matmul/matmul.h) hold the quantised operands of the matmuls.
 * Operations refer to both by index. */
#ifndef QN_DEVICE_PLAN_H
#define QN_DEVICE_PLAN_H

#include "base/status.h"
#include "kernels/aura/aura.h"
#include "kernels/deltanet/deltanet.h"
#include "kernels/matmul/matmul.h"
#include "kernels/rope/rope.h"
#include "kernels/sample/sample.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Positions of a page: the unit in which an AURA cache is quantised. */
enum { QN_KV_PAGE = 64 };

/* A session's KV cache, as the operations read and write it.
 *
 * Memory is ordered by blocks of QN_KEY_BLOCK positions, and within a block by layer, so that it fills from the front and
 * huge pages waste little of it. Within a block each head has its keys and its values, in the layout of
 * kernels/attention/attention.h (fp16) or of kernels/aura/aura.h (AURA codes, if there are codecs).
 *
 * Quantisation error matters most at the positions that queries attend to most: the first and the newest. An AURA cache is
 * therefore divided into pages; page r is positions [r, r+1) * QN_KV_PAGE. The rows of a page are stored in fp16 first,
 * in the codecs' rotated basis; a complete page is quantised, except page 0. A query at a position of page r reads fp16
 * rows of pages 0 and r, and codes of the pages between them, however the tokens were split into steps. Because page 0
 * has no codes, the codes of position p are stored at position p - QN_KV_PAGE. The mean of page 0's keys is subtracted
 * from keys before they are quantised: much of a key is common to all keys of a head, and a term common to all scores of
 * a query does not change its softmax. docs/lab/2026-11-aura.md has the measured gain of each of these. */
typedef struct qn_kv_view {
    uint8_t *memory;               /* [blocks][n_kv_layers]: keys [n_heads][key_bytes], values [n_heads][value_bytes] */
    const uint32_t *kv_index;      /* [n_layers]: a layer's index among the attention layers */
    size_t n_kv_layers, n_heads;   /* attention layers; KV heads of each */
    size_t key_bytes, value_bytes; /* of one head in one block; multiples of 64 */
    const qn_aura_codec *key_codec, *value_codec; /* both NULL: an fp16 cache, without the fields below */
    uint16_t
        *f16_pages; /* [1 + n_open_pages][n_kv_layers][n_heads]: QN_KV_PAGE keys, then QN_KV_PAGE values. Slot 0 holds page 0,
                       slot 1 + (r-1) % n_open_pages page r */
    size_t n_open_pages; /* pages that one step can write to, plus one */
    float *means;        /* [n_kv_layers][n_heads][head_dim]: mean keys of page 0, in the rotated basis */
} qn_kv_view;

/* qn_kv_keys, qn_kv_values - the keys or values of a head in a block: fp16 rows or codes. */
static inline void *qn_kv_keys(const qn_kv_view *view, size_t layer, size_t block, size_t head)
{
    return view->memory +
           (block * view->n_kv_layers + view->kv_index[layer]) * view->n_heads * (view->key_bytes + view->value_bytes) +
           head * view->key_bytes;
}

static inline void *qn_kv_values(const qn_kv_view *view, size_t layer, size_t block, size_t head)
{
    return (uint8_t *)qn_kv_keys(view, layer, block, 0) + view->n_heads * view->key_bytes + head * view->value_bytes;
}

/* qn_kv_f16_keys, qn_kv_f16_values - the fp16 keys or values of a head in a page of an AURA cache. */
static inline uint16_t *qn_kv_f16_keys(const qn_kv_view *view, size_t layer, size_t page, size_t head)
{
    const size_t slot = page ? 1 + (page - 1) % view->n_open_pages : 0;
    return view->f16_pages +
           ((slot * view->n_kv_layers + view->kv_index[layer]) * view->n_heads + head) * 2 * QN_KV_PAGE * view->key_codec->dim;
}

static inline uint16_t *qn_kv_f16_values(const qn_kv_view *view, size_t layer, size_t page, size_t head)
{
    return qn_kv_f16_keys(view, layer, page, head) + QN_KV_PAGE * view->key_codec->dim;
}

/* qn_kv_key_mean - the mean key [head_dim] of a head of an AURA cache. */
static inline float *qn_kv_key_mean(const qn_kv_view *view, size_t layer, size_t head)
{
    return view->means + (view->kv_index[layer] * view->n_heads + head) * view->key_codec->dim;
}

/* The sizes of the Gated DeltaNet layers, which are the same in all of them. */
typedef struct qn_recurrent_shape {
    size_t n_k_heads, n_v_heads; /* value head h uses key head h mod n_k_heads */
    size_t head_k, head_v;       /* key and value dimension of a head */
    size_t taps;                 /* of the causal convolution */
} qn_recurrent_shape;

/* qn_recurrent_width - the channels of the convolution: q, k and v of all heads. */
static inline size_t qn_recurrent_width(const qn_recurrent_shape *shape)
{
    return 2 * shape->n_k_heads * shape->head_k + shape->n_v_heads * shape->head_v;
}

/* The state of a Gated DeltaNet layer of a session with `length` tokens (kernels/deltanet/deltanet.h). The open chunk
 * holds the tokens at positions >= c0 = (length-1) / QN_GDN_CHUNK * QN_GDN_CHUNK, none when length is 0. A session can
 * therefore be truncated to any length above c0 by dropping rows of the open chunk. */
typedef struct qn_recurrent_layer {
    float *state;       /* [n_v_heads][head_k][head_v]: the state before position c0 */
    float *v_new;       /* [n_v_heads][QN_GDN_CHUNK][head_v]: corrected values v' of the open chunk */
    float *keys;        /* [n_k_heads][head_k][QN_GDN_CHUNK]: keys of the open chunk, one token a column */
    float *log_decay;   /* [n_v_heads][QN_GDN_CHUNK]: g of the open chunk */
    float *conv_inputs; /* [taps-1 + QN_GDN_CHUNK][qn_recurrent_width]: inputs q, k, v of the convolution at positions
                           >= c0-(taps-1); zeros before position 0 */
} qn_recurrent_layer;

/* qn_recurrent_open_tokens - tokens in the open chunk of a session of `length` tokens: 1 to QN_GDN_CHUNK, 0 when length is 0.
 * It is also the number of lengths, `length` included, that the session can be truncated to by dropping rows. */
static inline size_t qn_recurrent_open_tokens(size_t length)
{
    return length ? (length - 1) % QN_GDN_CHUNK + 1 : 0;
}

typedef struct qn_row {
    int32_t token;
    uint32_t position;
    const qn_kv_view *cache;
    const qn_recurrent_layer *recurrent; /* [n_layers], or NULL where the model has no such layers */
    struct qn_memory *memory;            /* the session's memory (device.h); devices other than the CPU use only this */
} qn_row;

/* One execution of the plan. The caller has checked tokens and positions. */
typedef struct qn_step {
    const qn_row *rows;
    size_t n_rows;
    const uint32_t *logit_rows; /* [n_logit_rows] indices of the rows whose logits are computed, ascending */
    size_t n_logit_rows;
    float *logits;              /* [n_logit_rows, n_vocab] */
    qn_sample_request *request; /* NULL, or: sample a token from the logits of the one logit row (n_logit_rows is 1; logits may
                                   be NULL) */
} qn_step;

/* The shape of an attention layer. Queries, keys and values are buffers [rows, heads*head_dim]. */
typedef struct qn_attention_shape {
    size_t n_heads, n_kv_heads, head_dim, n_rot;
    qn_rope_type rope;
    float scale; /* of the scores; queries are multiplied by it after rope */
    bool gated;  /* each head's query is followed by head_dim gate values, whose sigmoid multiplies the head's output */
} qn_attention_shape;

/* A Hadamard transform of blocks of values, x' = H (S x), or its inverse (kernels/hadamard/hadamard.h). */
typedef struct qn_plan_rotation {
    size_t block;       /* 0: none */
    const float *signs; /* S: [width] of +-1, or NULL for all +1 */
} qn_plan_rotation;

typedef enum qn_op_kind {
    QN_OP_EMBED,              /* embedding rows of the tokens into a buffer; sines and cosines of the positions for rope */
    QN_OP_NORM,               /* RMS norm of a buffer into activations */
    QN_OP_MATMUL,             /* activations times up to QN_OP_MATRICES matrices; each result is stored or added to a buffer */
    QN_OP_QK_NORM_ROPE_STORE, /* q and k norm per head, rope, scale; kv_store into the cache. With an AURA cache, queries are
                                 rotated and quantised; the result overwrites the floats: [head_dim] int16, then their scale */
    QN_OP_ATTENTION,          /* attention over the cache: final outputs, or split-KV partials */
    QN_OP_ATTENTION_COMBINE,  /* combine of the split-KV partials, inverse rotation, output gates; into activations */
    QN_OP_SWIGLU,             /* silu(gate) * up into activations */
    QN_OP_CONV,       /* causal convolution over time and SiLU; l2 norm of q and k heads; g and beta from their inputs */
    QN_OP_DELTA_RULE, /* delta rule: outputs; updates states and corrected values of the layer */
    QN_OP_GATED_NORM, /* RMS norm per head times silu(gate) into activations; appends keys, decays and convolution inputs to
                         the open chunk, which no head reads any more in this step */
    QN_OP_LOGIT_NORM, /* RMS norm of the logit rows into activations */
    QN_OP_LOGITS      /* logit rows times the output matrix, into the step's logits */
} qn_op_kind;

enum { QN_OP_MATRICES = 4, QN_OP_ACTS = 2 };

typedef struct qn_op {
    qn_op_kind kind;
    int layer;
    /* Buffers:
     *   EMBED                out: embeddings
     *   NORM, LOGIT_NORM     in: input
     *   QK_NORM_ROPE_STORE   in: q (with gates); in2: k; in3: v; out: q without gates, may be `in` if not gated
     *   ATTENTION            in: q; out: output
     *   ATTENTION_COMBINE    in: attention output; in2: q with gates
     *   SWIGLU               in: gate; in2: up
     *   CONV                 in: q k v; out: q k v; in2: alpha, overwritten with g; in3: beta, overwritten with its sigmoid
     *   DELTA_RULE           in: q k v; in2: g; in3: beta; out: output
     *   GATED_NORM           in: output of DELTA_RULE; in2: gate; in3, in4: q k v before and after the convolution; in5: g */
    int in, in2, in3, in4, in5, out;
    int acts[QN_OP_ACTS]; /* outputs of NORM, ATTENTION_COMBINE, SWIGLU, GATED_NORM, LOGIT_NORM; the rotated ones last */
    size_t n_acts;
    const float *weight, *weight2, *weight3; /* NORM, LOGIT_NORM, GATED_NORM: weight. QK_NORM_ROPE_STORE: weights of q and k
                                                norm, or NULL. CONV: taps [taps][width]; bias and factor of g [n_v_heads] */
    float eps;
    qn_attention_shape heads; /* QK_NORM_ROPE_STORE, ATTENTION, ATTENTION_COMBINE */
    qn_plan_rotation inverse; /* EMBED: inverse transform of the table rows */
    bool grouped;             /* GATED_NORM: head k*rep + r of the activations is value head r*n_k_heads + k */
    struct qn_op_matrix {
        qn_matrix weights;
        int acts, out;
        bool accumulate;
    } matrices[QN_OP_MATRICES]; /* MATMUL; EMBED and LOGITS use the first */
    size_t n_matrices;
} qn_op;

/* Activations of one width, in the layouts that the matmuls read them in; rotated before quantisation if rotation.block
 * is set. */
typedef struct qn_plan_acts {
    qn_acts acts;
    size_t width;
    bool hilo;
    qn_plan_rotation rotation;
} qn_plan_acts;

typedef struct qn_plan_buffer {
    float *data;
    size_t width;
} qn_plan_buffer;

typedef struct qn_plan {
    qn_op *ops;
    size_t n_ops, cap_ops;
    qn_plan_buffer *buffers;
    size_t n_buffers, cap_buffers;
    qn_plan_acts *acts;
    size_t n_acts, cap_acts;
    size_t n_vocab;
    qn_attention_shape heads;     /* the same in every layer; sizes the attention scratch */
    qn_recurrent_shape recurrent; /* n_v_heads 0: no layer is recurrent */
    bool *is_recurrent;           /* [n_layers], or NULL where no layer is */
    float **owned_floats;         /* [n_owned_floats] arrays that operations point to and that the model file does not hold */
    size_t n_owned_floats, cap_owned_floats;
    double *frequencies;                    /* [n_rot/2] of rope */
    double attn_factor;                     /* of rope: cosines and sines are multiplied by it */
    float *cosines, *sines;                 /* [max_rows, n_rot/2] for the step's rows */
    float *partial, *partial_m, *partial_l; /* split-KV partials: outputs [n_partials, head_dim], max and sum [n_partials] */
    size_t n_partials;
    size_t max_rows;      /* 0 until reserved */
    size_t max_positions; /* of the longest session */
} qn_plan;

/* qn_plan_buffer_new - add a buffer of this width, without memory until qn_plan_reserve; *id is its index. */
qn_status qn_plan_buffer_new(qn_plan *plan, size_t width, int *id);

/* qn_plan_acts_for - the index of activations with this width, hi/lo split and rotation block; created on the first call and
 * shared by all operations that pass the same. Rotated activations of one width all have the same signs; the plan copies
 * them. */
qn_status qn_plan_acts_for(qn_plan *plan, size_t width, bool hilo, qn_plan_rotation rotation, int *id);

/* qn_plan_alloc_floats - a zeroed array that the plan owns and frees. */
qn_status qn_plan_alloc_floats(qn_plan *plan, size_t count, float **out);

/* qn_plan_add - append a copy of an operation. */
qn_status qn_plan_add(qn_plan *plan, const qn_op *op);

/* qn_plan_reserve - allocate all buffers for steps of up to max_rows rows over sessions of up to max_positions positions.
 * Activations get the layouts that `kernels` read; every call passes the same kernels. Sizes only grow; a call that needs no
 * growth costs nothing. After QN_ERR_MEMORY the plan has no buffers, and the caller reserves again before it runs a step. */
qn_status qn_plan_reserve(qn_plan *plan, const qn_matmul_kernels *kernels, size_t max_rows, size_t max_positions);

/* qn_plan_free - free everything that the plan owns, which excludes the weights. Accepts a zeroed plan. */
void qn_plan_free(qn_plan *plan);

/* qn_plan_weight_bytes - bytes of weights that a step of one row reads. */
uint64_t qn_plan_weight_bytes(const qn_plan *plan);

#endif
