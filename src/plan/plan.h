/* The plan: a model as a flat array of fused operations over buffers that are allocated in advance.
 *
 * model/ builds a plan once after loading; a device (device/device.h) executes it over a batch of rows. A row is one
 * token or embedding of one session at one position; the rows of a session are contiguous, with ascending positions. A
 * plan for tokens begins with EMBED, a plan whose rows are all embeddings with INPUT.
 *
 * The draft head. A plan may have two more sections of operations, which compute a block that predicts the token after
 * the next one from a token and the hidden state of the token before it (multi-token prediction). Its attention is the
 * plan's last layer, whose keys and values are in the same pages as those of the other layers: position q holds what
 * comes of token q and of the hidden state of token q - 1. So position 0 has nothing and is not attended to. A step of
 * the model runs the trunk and the pairs: operations that store these keys and values. It may leave the pairs out:
 * then its positions get zeros. A draft step runs the rest: its
 * rows are tokens that follow a sequence, and their logits are proposals for the tokens after them. It stores keys and
 * values beyond the sequence's end, which the model's next step overwrites.
 *
 * Or the draft head is a block drafter (DFlash): the layers after the model's, whose keys and values of a position come
 * of the hidden states that CAPTURE has kept of some of the model's layers. The pairs compute them. A draft step has a
 * block of rows of each sequence: its last token, then mask tokens, which attend to the sequence and to each other. The
 * logits of a mask token's row are proposals for the token at its position.
 *
 * A block drafter may have a chain (DSpark's Markov head): operations of one token, whose logits are added to those of
 * the block for the token after it. So a block's tokens are chosen one after another.
 *
 * Buffers hold floats [rows, width]; activations (kernels/matmul/matmul.h) hold the quantised operands of the matmuls.
 * Operations (plan/ops.h) refer to both by index. The device owns their memory. One thread builds a plan; afterwards it
 * is constant, and any thread may read it. */
#ifndef QN_PLAN_PLAN_H
#define QN_PLAN_PLAN_H

#include "base/team.h"
#include "base/status.h"
#include "plan/ops.h"

/* The sizes of the Gated DeltaNet layers, the same in all of them. */
typedef struct qn_recurrent_shape {
    size_t n_k_heads, n_v_heads; /* value head h uses key head h mod n_k_heads */
    size_t head_k, head_v;       /* key and value dimension of a head */
    size_t taps;                 /* taps of the causal convolution */
} qn_recurrent_shape;

/* qn_recurrent_width - returns the number of channels of the convolution: q, k and v of all heads. */
static inline size_t qn_recurrent_width(const qn_recurrent_shape *shape)
{
    return 2 * shape->n_k_heads * shape->head_k + shape->n_v_heads * shape->head_v;
}

/* Activations of one width, in the layouts that the matmuls read. They are rotated before quantisation if
 * rotation.block is not 0. */
typedef struct qn_plan_acts {
    size_t width;
    bool hilo;
    qn_plan_rotation rotation;
} qn_plan_acts;

/* The size of the biases of a layer's queries, keys and values: norms of heads, relative to the norms expected without
 * a bias (model/kv_bias.h). */
typedef struct qn_kv_bias {
    float ratios[3];
} qn_kv_bias;

/* A matrix of NVFP4, whose tensor has a scale: operations point to what the file stores until qn_plan_load_scaled. */
typedef struct qn_scaled_matrix {
    const void *tensor; /* of the file: one that two operations use is one matrix here */
    const uint8_t *stored;
    size_t n_rows, n_cols;
    float scale;
    uint8_t *loaded; /* of NVFP4_L, owned by the plan; NULL before */
} qn_scaled_matrix;

/* The rope of a block drafter. */
typedef struct qn_plan_rope {
    double *frequencies; /* [n_rot/2], owned by the plan */
    double attn_factor;  /* factor of cosines and sines */
} qn_plan_rope;

/* The draft head of a plan. The sections are the trunk's operations, the pairs from `pairs` on, the draft's from
 * `draft` on, and a block drafter's chain. Zeros: the plan has the trunk alone. */
typedef struct qn_plan_head {
    size_t pairs, draft;
    size_t chain;             /* first operation of the Markov head of a block drafter; 0: there is none */
    size_t n_layers;          /* the last ones of the plan */
    qn_attention_shape heads; /* n_kv_heads, head_dim and n_rot are the same in all of these layers */
    size_t block;             /* of a block drafter: most rows of a sequence in a draft step; else 0 */
    int32_t mask_token;       /* of a block's rows after the first */
    bool is_causal;           /* a block's rows do not attend to those after them */
    bool from_anchor;         /* each row of a block proposes the token after it; else each mask token's row its own */
    qn_plan_rope rope;        /* of a block drafter */
} qn_plan_head;

typedef struct qn_plan_buffer {
    size_t width;
} qn_plan_buffer;

typedef struct qn_plan {
    qn_op *ops;
    size_t n_ops, cap_ops;
    qn_plan_buffer *buffers;
    size_t n_buffers, cap_buffers;
    qn_plan_acts *acts;
    size_t n_acts, cap_acts;
    qn_plan_head head;
    size_t n_vocab, n_layers;     /* n_layers: of the trunk and of the draft head */
    qn_attention_shape heads;     /* n_kv_heads, head_dim and n_rot are the same in all layers of the trunk */
    qn_recurrent_shape recurrent; /* n_v_heads is 0 if no layer is recurrent */
    bool *is_recurrent;           /* [n_layers], or NULL where no layer is */
    qn_kv_bias *kv_bias;          /* [n_layers], or NULL if no layer has biases that an AURA cache would contain */
    float **owned_floats; /* [n_owned_floats] arrays that operations point to and that are not in the model file */
    size_t n_owned_floats, cap_owned_floats;
    qn_scaled_matrix *scaled;
    size_t n_scaled, cap_scaled;
    qn_matrix rank_head;      /* of a model that ranks documents, one row a label, which the engine multiplies with the
                                 normed hidden state; without rows if there is none */
    double *frequencies;      /* [n_rot/2] frequencies of rope */
    double attn_factor;       /* factor of rope's cosines and sines */
    uint8_t *rope_components; /* [n_rot/2] component of a row's position that rotates each pair (plan/rope.h); NULL: all
                                 pairs have component 0. Not read by devices whose rows have positions of one component
                                 (QN_ROW_POSITION) */
} qn_plan;

/* qn_plan_buffer_new - adds a buffer of this width and returns its index in *id. */
qn_status qn_plan_buffer_new(qn_plan *plan, size_t width, int *id);

/* qn_plan_acts_for - returns in *id the index of activations with this width, hi/lo split and rotation block. The first
 * call creates them; later calls with the same values return the same index. All rotated activations of one width have
 * the same signs; the plan copies the signs. */
qn_status qn_plan_acts_for(qn_plan *plan, size_t width, bool hilo, qn_plan_rotation rotation, int *id);

/* qn_plan_alloc_floats - allocates a zeroed array that the plan owns, until qn_plan_free. */
qn_status qn_plan_alloc_floats(qn_plan *plan, size_t count, float **out);

/* qn_plan_add_scaled - adds a matrix of NVFP4, and the scale of its tensor, unless the plan has it already. Sets
 * matrix->scaled, by which its copies are found again. tensor: its address identifies the tensor; not read. */
qn_status qn_plan_add_scaled(qn_plan *plan, const void *tensor, float scale, qn_matrix *matrix);

/* qn_plan_scale_of - the scale of a matrix: 1 if it has none of its own. */
float qn_plan_scale_of(const qn_plan *plan, const qn_matrix *matrix);

/* qn_plan_load_scaled - converts all matrices of NVFP4 to NVFP4_L, on all threads, and lets the operations point to
 * them. Call it before the plan is given to a device. */
qn_status qn_plan_load_scaled(qn_plan *plan, qn_team *team);

/* qn_plan_add - appends a copy of an operation. Its weights and vectors are not copied: they must outlive the plan. */
qn_status qn_plan_add(qn_plan *plan, const qn_op *op);

/* qn_plan_insert - inserts a copy of an operation before operation `at`, in a plan without sections. */
qn_status qn_plan_insert(qn_plan *plan, size_t at, const qn_op *op);

/* qn_plan_drop_after - drops what was added to a plan since `before` was copied from it. */
void qn_plan_drop_after(qn_plan *plan, const qn_plan *before);

/* qn_plan_free - frees everything that the plan owns; it does not own the weights. No device may use it any more.
 * Accepts a zeroed plan. */
void qn_plan_free(qn_plan *plan);

/* qn_plan_width - returns a width of an operation. The operation must have a field of this width. */
size_t qn_plan_width(const qn_plan *plan, const qn_op *op, qn_op_width width);

/* qn_plan_validate - checks a finished plan against the table of operations: indices in range, widths, layers, and that
 * no buffer or activations are read before they are written. QN_ERR_INVALID, naming operation and operand. */
qn_status qn_plan_validate(const qn_plan *plan);

/* qn_plan_find_barriers - sets barriers[i], for each operation i, to whether its threads need a barrier before
 * operation i+1. They do if operation i+1 uses something that operation i, or an earlier one since the last barrier,
 * has written, or writes something that one of these has used; or if operation i+1 begins the draft's section. */
void qn_plan_find_barriers(const qn_plan *plan, bool *barriers);

/* Returns the number of operations of the trunk. */
static inline size_t qn_plan_trunk_ops(const qn_plan *plan)
{
    return plan->head.draft ? plan->head.pairs : plan->n_ops;
}

/* Returns the number of operations of a step of the model; the others are those of a draft step. */
static inline size_t qn_plan_step_ops(const qn_plan *plan)
{
    return plan->head.draft ? plan->head.draft : plan->n_ops;
}

/* Returns the number of layers of the trunk: those of the draft head follow. */
static inline size_t qn_plan_trunk_layers(const qn_plan *plan)
{
    return plan->n_layers - plan->head.n_layers;
}

/* Returns the shape of a layer's keys and values. */
static inline const qn_attention_shape *qn_plan_heads(const qn_plan *plan, size_t layer)
{
    return layer < qn_plan_trunk_layers(plan) ? &plan->heads : &plan->head.heads;
}

/* qn_plan_op_bytes - returns the bytes of weights that an operation reads in a step of one row. */
uint64_t qn_plan_op_bytes(const qn_plan *plan, const qn_op *op);

/* qn_plan_weight_bytes - returns the sum of qn_plan_op_bytes over the operations of a step of the model. */
uint64_t qn_plan_weight_bytes(const qn_plan *plan);

/* qn_plan_draft_bytes - returns that sum over the operations of a draft step; qn_plan_pair_bytes, over the pairs. 0
 * without a draft head. */
uint64_t qn_plan_draft_bytes(const qn_plan *plan);
uint64_t qn_plan_pair_bytes(const qn_plan *plan);

/* qn_plan_position_bytes - returns the bytes of the fp16 keys and values of one position in all attention layers. */
uint64_t qn_plan_position_bytes(const qn_plan *plan);

/* qn_plan_state_bytes - returns the bytes of the f32 states of all recurrent layers. Every token reads them. */
uint64_t qn_plan_state_bytes(const qn_plan *plan);

#endif
