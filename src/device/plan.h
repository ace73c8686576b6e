/* The plan: a model as a flat array of fused operations over buffers that are already placed.
 *
 * model/ builds a plan once after loading; a device (device.h) runs it over a batch of rows. A row is
 * one token of one session at one position; rows of a session stand together, in rising positions. Nothing is allocated while
 * it runs.
 *
 * Buffers hold floats [max_rows, width]; activations (kernels/matmul/matmul.h) hold what products read. Both are named by
 * index. */
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

/* In a cache of codes, the positions that become codes together. */
enum { QN_KV_PAGE = 64 };

/* What an operation needs to know of a session's key-value cache.
 *
 * Blocks of QN_KEY_BLOCK positions follow one another, and within a block the layers, so that memory fills from the front and
 * large pages waste little of it; a head's part of a block is in the layout of kernels/attention/attention.h, or of
 * kernels/aura/aura.h where there are codecs.
 *
 * Codes lose most where queries look most: at the first positions and at the newest. So in a cache of codes, run r, which is
 * positions [r, r+1) * QN_KV_PAGE, is at first halves, rotated as codes are; when it is complete, its codes are made too. A
 * query of run r reads halves of run 0 and of its own run, and codes of the runs between them, whatever step it comes with.
 * Run 0 has no codes, and those of position p are at p - QN_KV_PAGE. The mean of run 0's keys is taken from keys before they are
 * encoded, because much of a key is common to all keys of a head, and what is common to all scores of a query changes no
 * weight. docs/aura.md has what each of this is worth. */
typedef struct qn_kv_view {
    uint8_t *memory;          /* [blocks][n_kv_layers]: keys [n_heads][key_bytes], values [n_heads][value_bytes] */
    const uint32_t *kv_index; /* [n_layers]: a layer's number among those with attention */
    size_t n_kv_layers, n_heads;
    size_t key_bytes, value_bytes;                /* of a head's part of a block: multiples of 64 */
    const qn_aura_codec *key_codec, *value_codec; /* both NULL: f16, and what follows is not there */
    uint16_t
        *f16_pages; /* [1 + n_open_pages][n_kv_layers][n_heads]: keys, values, QN_KV_PAGE positions of each; run 0, and run r at
                         1 + (r-1) % n_open_pages */
    size_t n_open_pages; /* runs of one step, and one more */
    float *means;        /* [n_kv_layers][n_heads][head_dim], rotated */
} qn_kv_view;

/* qn_kv_keys, qn_kv_values - a head's part of a block of positions, or of codes. */
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

/* qn_kv_f16_keys, qn_kv_f16_values - a head's part of a run of halves. */
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

static inline float *qn_kv_key_mean(const qn_kv_view *view, size_t layer, size_t head)
{
    return view->means + (view->kv_index[layer] * view->n_heads + head) * view->key_codec->dim;
}

/* The sizes of Gated DeltaNet layers, the same in every one. */
typedef struct qn_recurrent_shape {
    size_t n_k_heads, n_v_heads; /* value head h reads key head h mod n_k_heads */
    size_t head_k, head_v;
    size_t taps; /* of the causal convolution */
} qn_recurrent_shape;

/* qn_recurrent_width - q, k and v of all heads: the channels of the convolution. */
static inline size_t qn_recurrent_width(const qn_recurrent_shape *shape)
{
    return 2 * shape->n_k_heads * shape->head_k + shape->n_v_heads * shape->head_v;
}

/* What a Gated DeltaNet layer remembers of a session that holds `length` tokens (kernels/deltanet/deltanet.h). The open chunk
 * holds the tokens from position c0 = (length-1) / QN_GDN_CHUNK * QN_GDN_CHUNK on, none when length is 0; so going back to any
 * length above c0 is forgetting rows. */
typedef struct qn_recurrent_layer {
    float *state;     /* [n_v_heads][head_k][head_v] at c0 */
    float *v_new;     /* [n_v_heads][QN_GDN_CHUNK][head_v] */
    float *keys;      /* [n_k_heads][head_k][QN_GDN_CHUNK] */
    float *log_decay; /* [n_v_heads][QN_GDN_CHUNK] */
    float
        *conv_inputs; /* [taps-1 + QN_GDN_CHUNK][qn_recurrent_width]: the convolution's inputs q, k, v at positions c0-(taps-1)
                         on; zeros before position 0 */
} qn_recurrent_layer;

/* qn_recurrent_open_tokens - the tokens in the open chunk of a session of `length` tokens, and so how many of its last lengths it can
 * go back to by forgetting rows: 1 to QN_GDN_CHUNK, 0 when length is 0. */
static inline size_t qn_recurrent_open_tokens(size_t length)
{
    return length ? (length - 1) % QN_GDN_CHUNK + 1 : 0;
}

typedef struct qn_row {
    int32_t token;
    uint32_t position;
    const qn_kv_view *cache;
    const qn_recurrent_layer *recurrent; /* [n_layers], or NULL where the model has no such layers */
    struct qn_memory *memory;            /* what both are of (device.h): a device other than the CPU has only this */
} qn_row;

/* One run of the plan. The caller has checked tokens and positions. */
typedef struct qn_step {
    const qn_row *rows;
    size_t n_rows;
    const uint32_t *logit_rows; /* rows whose logits are wanted, rising */
    size_t n_logit_rows;
    float *logits;              /* [n_logit_rows, n_vocab] */
    qn_sample_request *request; /* NULL, or what is wanted in their place: n_logit_rows is 1, logits may be NULL, and a token is
                                 chosen from that row's */
} qn_step;

/* The attention of a layer. Queries, keys and values are buffers [rows, heads*head_dim]. */
typedef struct qn_attention_shape {
    size_t n_heads, n_kv_heads, head_dim, n_rot;
    qn_rope_type rope;
    float scale; /* of scores; goes into the query after rope */
    bool gated;  /* each head's query is followed by head_dim values whose sigmoid multiplies the head's result */
} qn_attention_shape;

/* A transform of blocks of values, x' = H (S x), or its inverse (kernels/hadamard/hadamard.h). */
typedef struct qn_plan_rotation {
    size_t block;       /* 0: none */
    const float *signs; /* [width] of +-1, or NULL for ones */
} qn_plan_rotation;

typedef enum qn_op_kind {
    QN_OP_EMBED,              /* table rows of the tokens into a buffer; angles of the positions for rope */
    QN_OP_NORM,               /* RMS norm of a buffer into activations */
    QN_OP_MATMUL,             /* activations by some matrices, each into a buffer, stored or added */
    QN_OP_QK_NORM_ROPE_STORE, /* q and k norm per head, rope, scale; keys and values into the cache; queries of a cache of codes
                            become whole numbers in its rotated basis, and lie in the place of the floats: [head_dim] int16 and
                            their scale */
    QN_OP_ATTENTION,          /* queries against the cache: whole results or partial ones, block by block */
    QN_OP_ATTENTION_COMBINE,  /* partial results merged and rotated back, gates; into activations */
    QN_OP_SWIGLU,             /* silu(gate) * up into activations */
    QN_OP_CONV,               /* causal convolution over time and SiLU; l2 norm of q and k heads; alpha and beta into gates */
    QN_OP_DELTA_RULE,         /* delta rule: states and corrected values of a layer brought up to date */
    QN_OP_GATED_NORM, /* RMS norm per head times silu(gate) into activations; the rest of the layer's memory brought up to
                            date, every head having read it */
    QN_OP_LOGIT_NORM, /* RMS norm of the rows whose logits are wanted */
    QN_OP_LOGITS      /* those rows by the output matrix, into the step's logits */
} qn_op_kind;

enum { QN_OP_MATRICES = 4, QN_OP_ACTS = 2 };

typedef struct qn_op {
    qn_op_kind kind;
    int layer;
    /* Buffers:
     *   NORM           in
     *   HEADS          in q (with gates), in2 k, in3 v; out q without gates, which may be `in` where there are none
     *   ATTENTION      in q; out
     *   ATTENTION_OUT  in, in2 q with gates
     *   SWIGLU         in gate, in2 up
     *   CONV           in q k v; out; in2 alpha, which becomes g; in3 beta
     *   DELTA          in q k v, in2 g, in3 beta; out
     *   DELTA_OUT      in, in2 gate; in3 q k v before and in4 after the convolution, in5 g
     *   EMBED          out */
    int in, in2, in3, in4, in5, out;
    int acts[QN_OP_ACTS]; /* what NORM, ATTENTION_OUT, SWIGLU, DELTA_OUT, LOGIT_NORM write; rotated ones last */
    size_t n_acts;
    const float *weight, *weight2, *weight3; /* NORM, LOGIT_NORM, DELTA_OUT; HEADS: q and k norm or NULL; CONV: [taps][width],
                                                bias and factor of g */
    float eps;
    qn_attention_shape heads; /* HEADS, ATTENTION, ATTENTION_OUT */
    qn_plan_rotation inverse; /* EMBED: of table rows */
    bool grouped;             /* DELTA_OUT: head k*rep + r of the activations is value head r*n_k_heads + k */
    struct qn_op_matrix {
        qn_matrix weights;
        int acts, out;
        bool accumulate;
    } matrices[QN_OP_MATRICES]; /* MATMUL; EMBED and LOGITS use the first */
    size_t n_matrices;
} qn_op;

/* Values of one width in the forms that products read; rotated first where there is a rotation. */
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
    float **owned_floats;         /* [n_owned_floats] arrays that operations point to and that lie in no file */
    size_t n_owned_floats, cap_owned_floats;
    double *frequencies;                    /* [n_rot/2] of rope */
    double attn_factor;                     /* of rope: cosines and sines are multiplied by it */
    float *cosines, *sines;                 /* [max_rows, n_rot/2] of the step's rows */
    float *partial, *partial_m, *partial_l; /* [n_partials, head_dim], [n_partials], [n_partials]: attention by blocks */
    size_t n_partials;
    size_t max_rows;      /* 0 until reserved */
    size_t max_positions; /* of any session */
} qn_plan;

/* qn_plan_buffer_new - a buffer of this width. */
qn_status qn_plan_buffer_new(qn_plan *plan, size_t width, int *id);

/* qn_plan_acts_for - the activations of this width, shared by every operation that asks for the same; activations of one width
 * are rotated by the same signs, which are copied, or not at all. */
qn_status qn_plan_acts_for(qn_plan *plan, size_t width, bool hilo, qn_plan_rotation rotation, int *id);

/* qn_plan_alloc_floats - an array of zeros that lives as long as the plan. */
qn_status qn_plan_alloc_floats(qn_plan *plan, size_t count, float **out);

/* qn_plan_add - append an operation. */
qn_status qn_plan_add(qn_plan *plan, const qn_op *op);

/* qn_plan_reserve - place all buffers for steps of up to max_rows rows over sessions of up to max_positions positions;
 * activations get the forms that `kernels` read, which are the same for every call. Sizes only grow, and a call for no more
 * than there is costs nothing. On failure the plan has no buffers: whoever is going to run it reserves again first. */
qn_status qn_plan_reserve(qn_plan *plan, const qn_matmul_kernels *kernels, size_t max_rows, size_t max_positions);

/* qn_plan_free - everything that the plan owns; weights are not. Takes a zeroed plan too. */
void qn_plan_free(qn_plan *plan);

/* qn_plan_weight_bytes - bytes of weights that a step of one row reads. */
uint64_t qn_plan_weight_bytes(const qn_plan *plan);

#endif
