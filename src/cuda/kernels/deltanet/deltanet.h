/* Gated DeltaNet on the GPU: the arguments of its kernels, and the functions that they compute. Shared by C and CUDA;
 * deltanet.c computes the launch geometry.
 *
 * Prefill takes two or four kernels, for 16-bit elements. qn_gdn_prepare computes everything that does not depend on
 * the state, for all chunks of 64 tokens in parallel: (I + A)^-1 with its columns scaled by beta, masked and gated
 * scores q.k, and factors of rows, in a record of QN_GDN_RECORD bytes for each chunk and value head. qn_gdn_advance
 * processes chunks in order, one block per 64 or 128 values of a value head, with the state in registers:
 *
 *     y  = v - e^gc k S^T
 *     v' = (I + A)^-1 beta y
 *     o  = scale (e^gc q S^T + scores v')
 *     S  = e^last S + (gated v')^T k
 *
 * MMA operands have the type of the elements, accumulators and the state are f32.
 *
 * All chunks are in one order, sequence by sequence, head by head, and can be divided into pieces of equal length, one
 * for each block that runs at a time. A block processes its piece in order: the rest of a head, perhaps whole heads,
 * and the beginning of another. The chunks of a piece that belong to one head are a span. A chunk maps the state by
 * S -> S M + B, and |M| <= 2^bound, where the bound of a chunk is its total log decay (plus the growth of tokens with
 * beta |k|^2 > 2) and is in its record. The state at the start of a piece that begins within a head comes from
 *
 *   - the chunks of the head before the piece, at most a piece's length or QN_GDN_MIN_WARM_UP if that is more, run from
 *     a state of zeros, if the sum of their bounds is at most QN_GDN_FORGOTTEN: at most 2^-40 of the state before them
 *     is left, which is neglected;
 *   - else all chunks of the head before the piece, run from the initial state, if there are at most
 *     QN_GDN_MIN_WARM_UP;
 *   - else two kernels before qn_gdn_advance: for each span that does not end its head, qn_gdn_span_effects computes B,
 *     and M from the identity in place of a state; qn_gdn_compose applies them in order.
 *
 * The choice depends on the decays and not on timing: results are the same from run to run. */
#ifndef QN_CUDA_KERNELS_DELTANET_DELTANET_H
#define QN_CUDA_KERNELS_DELTANET_DELTANET_H

#include "cuda/kernels/launch.h"
#include "gpu/recurrent_layout.h"
#include "plan/page.h"

/* Dimensions of the chunk kernels: chunks of 64 tokens, slices of 64 values, keys padded to tiles of 64 elements. Heads
 * of all kernels have at most QN_GDN_MAX_HEAD elements. With keys beyond QN_GDN_MAX_SPAN_KEY there are no pieces and a
 * block has one slice. */
enum { QN_GDN_SLICE = 64, QN_GDN_MAX_BLOCK_SLICES = 2, QN_GDN_MAX_HEAD = 256 };

/* Macros, because the preprocessor compares them. */
#define QN_GDN_MAX_SPAN_KEY 128
#define QN_GDN_PADDED(head_k) (((head_k) + 63) / 64 * 64)

/* log2 of the largest factor of an earlier state that is neglected. f32 rounds at 2^-24. */
#define QN_GDN_FORGOTTEN -40.0f

/* Chunks that are run again before a piece instead of composed, even if pieces are shorter. */
#define QN_GDN_MIN_WARM_UP 5

/* Layout of a record: two tiles of [64][64] elements in rows of 128 bytes, the 16-byte segment s of row r stored at
 * segment s ^ (r & 7); only their 16x16 blocks on and below the diagonal are written. Then factors, f32 [64] each, and
 * the decay and the bound of the chunk. */
enum {
    QN_GDN_TILE_BYTES = 8192,
    QN_GDN_RECORD_INVERSE = 0,
    QN_GDN_RECORD_SCORES = 8192,
    QN_GDN_RECORD_K_READ = 16384,   /* -e^gc_i / |k_i| */
    QN_GDN_RECORD_K_UPDATE = 16640, /* e^(gc_last - gc_i) / |k_i| */
    QN_GDN_RECORD_Q_READ = 16896,   /* scale e^gc_i / |q_i| */
    QN_GDN_RECORD_DECAY = 17152,    /* e^gc_last */
    QN_GDN_RECORD_BOUND = 17156,    /* log2 of a bound of the chunk's factor of the state */
    QN_GDN_RECORD = 17408
};

/* Threads and shared memory of a block of qn_gdn_prepare, qn_gdn_compose and qn_gdn_advance; qn_gdn_advance has 1 or 2
 * slices and a ring buffer of 1 to 3 chunks. */
enum {
    QN_GDN_PREPARE_THREADS = 128,
    QN_GDN_COMPOSE_THREADS = 128,
    QN_GDN_COMPOSE_ROWS = 16,   /* rows of the state of a block */
    QN_GDN_COMPOSE_BLOCKS = 128 /* about the number that runs at a time */
};

#define QN_GDN_PREPARE_BYTES(head_k) (2 * QN_GDN_PADDED(head_k) * 128 + 5120)
#define QN_GDN_COMPOSE_BYTES(head_k)                                                                                   \
    (4 * (2 * QN_GDN_PADDED(head_k) * QN_GDN_PADDED(head_k) + 2 * QN_GDN_COMPOSE_ROWS * (QN_GDN_PADDED(head_k) + 4)))

#define QN_GDN_ADVANCE_THREADS(slices) ((1 + (slices)) * 128)
/* Tiles of the rounded state in shared memory; with keys of at most two tiles the state is in registers. */
#define QN_GDN_STATE_TILES(head_k) (QN_GDN_PADDED(head_k) > QN_GDN_MAX_SPAN_KEY ? QN_GDN_PADDED(head_k) / 64 : 0)
#define QN_GDN_ADVANCE_BYTES(head_k, slices, stages)                                                                   \
    (((slices) + QN_GDN_STATE_TILES(head_k)) * QN_GDN_TILE_BYTES +                                                     \
     (stages) * ((2 * QN_GDN_PADDED(head_k) / 64 + (slices)) * QN_GDN_TILE_BYTES + QN_GDN_RECORD) + 512)

/* Type of states in memory. QN_GDN_STATE_PLANES: each state is the two fp16 planes of gpu/state_planes.h, as in a state
 * slot; not transposed, and not for qn_gdn_recurrent. */
typedef enum qn_gdn_state_type { QN_GDN_STATE_F32, QN_GDN_STATE_BF16, QN_GDN_STATE_PLANES } qn_gdn_state_type;

/* The index of a chunk among the chunks of all sequences: if each sequence has n chunks, chunk c of sequence s has
 * index s n + c. With cu_seqlens, which the host does not read, it has index t/64 + s + c, where t is the sequence's
 * first token; some indices are not used. A sequence without tokens has an index too. If the n chunks of a sequence
 * have indices from i on, the position of chunk c in head h is i v_heads + h n + c; a piece is an interval of
 * positions. */
typedef struct qn_gdn_chunk_args {
    QN_GPU_PTR(const void) q;    /* [tokens, k_heads, head_k], tokens q_stride elements apart */
    QN_GPU_PTR(const void) k;    /* [tokens, k_heads, head_k], k_stride */
    QN_GPU_PTR(const void) v;    /* [tokens, v_heads, head_v], v_stride */
    QN_GPU_PTR(const void) g;    /* [tokens, v_heads], g_stride: log decay, clamped to -256 <= g <= 0 */
    QN_GPU_PTR(const void) beta; /* [tokens, v_heads], beta_stride */
    /* [v_heads], or 0. With gate_factor, the log decay is softplus(g + gate_bias) * gate_factor; no gate_bias counts as
     * a bias of 0 */
    QN_GPU_PTR(const float) gate_factor;
    QN_GPU_PTR(const float) gate_bias;
    QN_GPU_PTR(const void)
    initial;                /* [states, v_heads, head_v, head_k] of state_type, or 0: initial states are zeros */
    QN_GPU_PTR(void) final; /* [states, v_heads, head_v, head_k], or 0: not written; may be initial */
    QN_GPU_PTR(const int32_t)
    state_indices; /* [sequences]: index of the sequence's state in initial and final, -1: the sequence is skipped; or
                      0: sequence i has state i */
    uint32_t state_type;               /* of initial and final, a qn_gdn_state_type */
    uint32_t transposed_states;        /* 1: initial and final are [states, v_heads, head_k, head_v] */
    QN_GPU_PTR(void) o;                /* [tokens, v_heads, head_v], o_stride */
    QN_GPU_PTR(unsigned char) records; /* [chunks, v_heads, QN_GDN_RECORD] */
    /* [2, pieces, head_v, padded head_k]: the state at the start of a piece that begins within a head; the initial
     * state of a head that begins in a piece and continues in the next */
    QN_GPU_PTR(float) states;
    QN_GPU_PTR(float) transitions; /* [pieces, padded head_k, padded head_k]: M of the span at the piece's start */
    QN_GPU_PTR(uint32_t) sources;  /* [pieces]: enum state_source in chunk.cuh */
    QN_GPU_PTR(const uint32_t) cu_seqlens; /* [sequences + 1], or 0: sequences of `tokens` tokens one after the other */
    uint32_t wide_seqlens;                 /* 1: cu_seqlens are 64-bit integers */
    uint32_t tokens, sequences;
    uint32_t chunks; /* number of indices */
    uint32_t pieces; /* 0: a block has one head of a sequence */
    uint32_t k_heads, v_heads, head_k, head_v;
    uint32_t dtype;               /* of q, k, v and o, a qn_dtype: f16 or bf16; f32 for qn_gdn_recurrent only */
    uint32_t g_dtype, beta_dtype; /* f32, f16 or bf16 */
    uint32_t q_stride, k_stride, v_stride, o_stride, g_stride, beta_stride;
    uint32_t tiled;        /* 1: value head h uses key head h mod k_heads; 0: h * k_heads / v_heads */
    uint32_t normalize;    /* q and k are divided by sqrt(sum of squares + 1e-6) */
    uint32_t sigmoid_beta; /* 1: beta is the sigmoid of the given values */
    float scale;
} qn_gdn_chunk_args;

/* ---- Kernels around the chunk kernels, and the token-by-token kernel: key and value dimensions are multiples of 16,
 * at most 256 ---- */

/* qn_gdn_recurrent - The same function as qn_gdn_prepare and qn_gdn_advance, token by token, for any number of tokens.
 * Its arguments are qn_gdn_chunk_args without records; q, k, v and o are f32, bf16 with QN_BF16, or f16 with QN_F16. */

enum { QN_GDN_ROW_LANES = 4, QN_GDN_RECURRENT_VALUES = 32, QN_GDN_CONV_ROWS = 16, QN_GDN_MAX_TAPS = 8 };

/* qn_gdn_conv - Convolution with SiLU, and gates, of several tokens of a sequence. width is the number of elements of q
 * and k of all key heads and of v of all value heads; value head h uses key head h mod k_heads. out is f32, bf16 with
 * QN_BF16, or f16 with QN_F16. */
typedef struct qn_gdn_conv_args {
    QN_GPU_PTR(const float) qkv;           /* [rows, width], qkv_stride */
    QN_GPU_PTR(const float) alpha;         /* [rows, v_heads], alpha_stride */
    QN_GPU_PTR(const float) beta_in;       /* [rows, v_heads], beta_stride: before the sigmoid */
    QN_GPU_PTR(const float) conv;          /* [taps, width] */
    QN_GPU_PTR(const float) bias;          /* [v_heads] */
    QN_GPU_PTR(const float) factor;        /* [v_heads] */
    QN_GPU_PTR(void) out;                  /* [rows, width], out_stride */
    QN_GPU_PTR(float) g;                   /* [rows, v_heads] */
    QN_GPU_PTR(float) beta;                /* [rows, v_heads] */
    QN_GPU_PTR(const float) history;       /* [taps-1, width]: inputs before the first row; or 0: zeros */
    QN_GPU_PTR(float) last;                /* [taps-1, width]: the last inputs; may be history */
    uint32_t rows, k_heads, v_heads, taps; /* rows: at least taps-1 */
    uint32_t qkv_stride, alpha_stride, beta_stride, out_stride;
} qn_gdn_conv_args;

/* qn_gdn_norm - RMS norm of each head times SiLU(gate). o has the type of qn_gdn_conv's out. */
typedef struct qn_gdn_norm_args {
    QN_GPU_PTR(const void) o;     /* [rows, v_heads, head_v], o_stride */
    QN_GPU_PTR(const float) gate; /* [rows, v_heads, head_v], gate_stride */
    QN_GPU_PTR(const float) norm; /* [head_v] */
    QN_GPU_PTR(float) out;        /* [rows, v_heads, head_v], out_stride */
    uint32_t rows, k_heads, v_heads;
    uint32_t o_stride, gate_stride, out_stride;
    uint32_t grouped; /* 1: head k*rep + r of out is value head r*k_heads + k, with rep = v_heads / k_heads; 0: the
                         order of o */
    float eps;
} qn_gdn_norm_args;

/* ---- The open chunk: decode of many sequences, with a state that is read once a launch and written once in 64 rows
 * ----
 *
 * For each recurrent layer, a sequence has the state at a multiple of 64 positions in a state slot, and the rows since
 * then, at most 64, in an open slot: the open chunk. Slots are items of a pool (cache/pool.h). With gc the sum of g
 * since the chunk's start, row i computes for each value head
 *
 *     a    = e^gc_i S k_i + sum over j < i of e^(gc_i - gc_j) (k_i.k_j) v'_j;     v'_i = beta_i (v_i - a)
 *     o_i  = scale (e^gc_i S q_i + sum over j <= i of e^(gc_i - gc_j) (q_i.k_j) v'_j)
 *
 * Rows are stored by their position modulo 64. The first row of the next chunk folds the 64 rows of a full chunk:
 * S = e^gc_last S + sum of e^(gc_last - gc_j) v'_j k_j^T. The caller gives the position of the state; at position 0 the
 * state is zeros, and no state slot is read. If the state's position is the position of the next row, the open chunk
 * has no rows.
 *
 * A state is stored with its history: the inputs of the convolution at the taps-1 positions before it. Inputs at later
 * positions are in the open slot. A sequence can therefore continue from a state and an empty open chunk.
 *
 * To truncate a sequence, the caller passes smaller positions from then on: rows below them are unchanged. There are
 * two limits. A fold cannot be undone: once the first row of a chunk was computed, neither that row nor the rows before
 * it can be dropped. And only QN_GDN_DROPPED_ROWS more inputs of the convolution than needed are stored: a sequence
 * cannot become shorter than its greatest length by more rows than that.
 *
 * gpu/recurrent_layout.h has the arrays of a layer's part of a state slot and of an open slot. Rows are computed from
 * the hi plane of S only (S = hi in the sums above); folds read and write both.
 *
 * All layers of a sequence have the same slot indices; a copy of the states in another type could use them too. */

enum { QN_GDN_OPEN_ROWS = 4 }; /* rows of a sequence that a block of qn_gdn_open_step processes together */

/* qn_gdn_open_step: threads of a block, which processes one value head of a sequence at a time, 16 values a warp;
 * blocks on an SM (in a fold the state takes half of the registers); shared memory of a block, whose second part holds
 * first the inputs of the convolution, then scores and S k. */
#define QN_GDN_OPEN_THREADS(head_v) ((head_v) <= 64 ? 128 : (head_v) >= 128 ? 256 : 2 * (head_v))
#define QN_GDN_OPEN_SM_BLOCKS(head_k, head_v) (((head_k) <= 128 ? 512 : 256) / QN_GDN_OPEN_THREADS(head_v))
#define QN_GDN_OPEN_FIXED_BYTES(head_k, head_v)                                                                        \
    (QN_GDN_CHUNK * (2 * ((head_k) + 8 + (head_v) + 8) + 4 * (2 + QN_GDN_SCALE_GROUPS(head_v))) +                      \
     4 * (QN_GDN_OPEN_ROWS * (2 * (head_k) + 4 * (head_v) + 2 * QN_GDN_OPEN_ROWS + 7) + (head_v)) + 224)
#define QN_GDN_OPEN_REUSED_BYTES(head_k, head_v, taps)                                                                 \
    (4 * QN_GDN_MAX((2 * (taps)-1 + QN_GDN_OPEN_ROWS) * (2 * (head_k) + (head_v)),                                     \
                    QN_GDN_OPEN_ROWS * (2 * QN_GDN_SCALE_GROUPS(head_v) * QN_GDN_CHUNK + (head_v))))
#define QN_GDN_MAX(x, y) ((x) > (y) ? (x) : (y))
#define QN_GDN_OPEN_BYTES(head_k, head_v, taps)                                                                        \
    (QN_GDN_OPEN_FIXED_BYTES(head_k, head_v) + QN_GDN_OPEN_REUSED_BYTES(head_k, head_v, taps))

/* qn_gdn_open_row: threads of a block, blocks on an SM; shared memory of a block: the open chunk and computed values,
 * then inputs and weights of the convolution. */
enum { QN_GDN_ROW_THREADS = 256, QN_GDN_ROW_SM_BLOCKS = 4 };
#define QN_GDN_ROW_FIXED_BYTES(head_k, head_v) (QN_GDN_CHUNK * 2 * ((head_k) + (head_v)) + 6144)
#define QN_GDN_ROW_BYTES(head_k, head_v, taps)                                                                         \
    (QN_GDN_ROW_FIXED_BYTES(head_k, head_v) + 2 * (taps) * (2 * (head_k) + (head_v)) * 4)

/* A sequence's positions and slots, and its rows in a launch. */
typedef struct qn_gdn_open_sequence {
    uint32_t position;             /* of its first row; for qn_gdn_open_fold, the length */
    uint32_t state_position;       /* a multiple of 64: position - 64 to position */
    uint32_t state_from, state_to; /* state slots: one is read, a folded state is written to the other; may be the
                                      same */
    uint32_t open_slot;
    uint32_t begin, end; /* rows [begin, end) of the launch */
} qn_gdn_open_sequence;

/* Arguments of four kernels, of which open_few.h has the last, qn_gdn_open_few:
 *
 * qn_gdn_open_step - Computes any number of consecutive rows of each of `sequences` sequences: everything between the
 * layer's input projections and its output projection, which is convolution with SiLU, l2 norms of q and k,
 * g = softplus(alpha + bias) * factor, beta = sigmoid, delta rule, and RMS norm of each head times SiLU(gate). Updates
 * open slots; updates a state if the first row of the next chunk is among the rows.
 *
 * qn_gdn_open_row - The same for at most one row of each sequence, whose open chunks are not full: nothing is folded.
 * For heads of 128 by 128.
 *
 * qn_gdn_open_fold - Writes the state at length positions[i], with all rows of the open chunk folded, to state_to[i];
 * zeros for length 0. Does not change open slots. Uses only the arrays from `states` on. One launch serves `layers`
 * layers whose parts of slots are contiguous. */
typedef struct qn_gdn_open_args {
    QN_GPU_PTR(const float)
    qkv; /* [rows, width], qkv_stride: before the convolution; rows of a sequence are contiguous */
    QN_GPU_PTR(const float) alpha;  /* [rows, v_heads], alpha_stride */
    QN_GPU_PTR(const float) beta;   /* [rows, v_heads], beta_stride */
    QN_GPU_PTR(const float) gate;   /* [rows, v_heads, head_v], gate_stride */
    QN_GPU_PTR(const float) conv;   /* [taps, width] */
    QN_GPU_PTR(const float) bias;   /* [v_heads] */
    QN_GPU_PTR(const float) factor; /* [v_heads], < 0 */
    QN_GPU_PTR(const float) norm;   /* [head_v] */
    QN_GPU_PTR(float) out;          /* [rows, v_heads, head_v], out_stride */
    QN_GPU_PTR(const uint32_t)
    cu_seqlens; /* [sequences + 1]; a sequence without rows is skipped; or 0: each sequence has one row */
    QN_GPU_PTR(uint32_t) arrivals;    /* [sequences, k_heads]: zeros before the first launch, and after each */
    QN_GPU_PTR(unsigned char) states; /* state slots, state_stride bytes apart */
    QN_GPU_PTR(unsigned char) open;   /* open slots, open_stride bytes apart */
    /* [sequences] each, as in qn_gdn_open_sequence; open slots are all different. positions 0: the only sequence is
     * `sequence` */
    QN_GPU_PTR(const uint32_t) positions;
    QN_GPU_PTR(const uint32_t) state_positions;
    QN_GPU_PTR(const uint32_t) state_from;
    QN_GPU_PTR(const uint32_t) state_to;
    QN_GPU_PTR(const uint32_t) open_slots;
    qn_gdn_open_sequence sequence;
    uint64_t state_stride, state_offset; /* of slots; of the layer's part in a slot */
    uint64_t open_stride, open_offset;
    qn_gdn_open_layout layout;
    uint32_t layers; /* of qn_gdn_open_fold */
    uint32_t sequences, k_heads, v_heads, taps;
    uint32_t qkv_stride, alpha_stride, beta_stride, gate_stride, out_stride;
    uint32_t grouped; /* as in qn_gdn_norm_args */
    float scale, eps;
} qn_gdn_open_args;

#ifndef __CUDACC__

#include "base/status.h"

#include <stddef.h>

/* The qn_gdn_gpu_* functions with a qn_launch fill it for the given arguments; the caller passes the same arguments
 * with the launch. They check sizes (QN_ERR_INVALID): dimensions as above, v_heads a multiple of k_heads, strides at
 * least a row, limits of the grid. All launches have pdl set. */

/* The division of all chunks into pieces, and of heads into slices. */
typedef struct qn_gdn_division {
    uint32_t pieces; /* 0: each head of a sequence is one span; else at most 65535. Some are empty if there are fewer
                        chunks */
    uint32_t slices; /* of a block: 1 or 2; 2 needs more time for a chunk and less in all */
} qn_gdn_division;

/* The properties of the device that divisions and launches depend on (fields of qn_cuda_info). */
typedef struct qn_gdn_gpu {
    uint32_t max_shared_bytes, n_sms; /* max_shared_bytes: the limit of a block */
} qn_gdn_gpu;

typedef struct qn_gdn_chunk_launches {
    qn_launch launches[4];
    size_t n;
} qn_gdn_chunk_launches;

/* qn_gdn_gpu_check_shape - Checks head sizes and the numbers of heads and sequences, as all launches of a delta rule
 * do. */
qn_status qn_gdn_gpu_check_shape(const qn_gdn_chunk_args *args);

/* qn_gdn_gpu_has_chunks - Returns whether qn_gdn_gpu_chunk supports such heads: they are full tiles, and a block's
 * shared memory is enough. */
bool qn_gdn_gpu_has_chunks(size_t head_k, size_t head_v, const qn_gdn_gpu *gpu);

/* qn_gdn_gpu_divide - Returns the division that takes the least time, from the shape alone.
 *
 *   longest   upper bound of the tokens of a sequence */
qn_gdn_division qn_gdn_gpu_divide(const qn_gdn_chunk_args *args, size_t longest, const qn_gdn_gpu *gpu);

/* qn_gdn_gpu_chunk - Fills the launches of a prefill in f16 or bf16, in order. Addresses are multiples of 16 bytes,
 * strides multiples of 8 elements. Sets the fields of args from `records` to `sources` to parts of the workspace, and
 * the fields that describe the division.
 *
 *   max_shared_bytes   the device's limit for a block; QN_ERR_UNSUPPORTED if it is too small for one pipeline stage
 *   workspace          qn_gdn_gpu_workspace_bytes bytes */
qn_status qn_gdn_gpu_chunk(qn_gdn_chunk_args *args, const qn_gdn_division *division, uint32_t max_shared_bytes,
                           uint64_t workspace, qn_gdn_chunk_launches *out);

/* qn_gdn_gpu_workspace_bytes - Returns the size of the workspace of qn_gdn_gpu_chunk for a division. */
size_t qn_gdn_gpu_workspace_bytes(const qn_gdn_chunk_args *args, const qn_gdn_division *division);

/* qn_gdn_gpu_max_workspace_bytes - Returns the largest size of the workspace for divisions of qn_gdn_gpu_divide of up
 * to the tokens and sequences of args. */
size_t qn_gdn_gpu_max_workspace_bytes(const qn_gdn_chunk_args *args, const qn_gdn_gpu *gpu);

/* qn_gdn_gpu_recurrent - Fills a launch of qn_gdn_recurrent. */
qn_status qn_gdn_gpu_recurrent(const qn_gdn_chunk_args *args, qn_launch *launch);

/* qn_gdn_gpu_open_step - Fills a launch of qn_gdn_open_step, and sets the layout of args. Addresses, strides and
 * offsets of slots are multiples of 16 bytes, and so are the addresses and strides of qkv and gate, and the addresses
 * of conv and norm. The kernel loads indices, states and open chunks, and writes folded states, before it waits for the
 * previous kernel: if a kernel that may still run writes or reads them, the caller must clear pdl. QN_ERR_UNSUPPORTED
 * if the device's shared memory is too small. */
qn_status qn_gdn_gpu_open_step(qn_gdn_open_args *args, size_t head_k, size_t head_v, const qn_gdn_gpu *gpu,
                               qn_launch *launch);

/* qn_gdn_gpu_has_open_row - Returns whether qn_gdn_open_row supports such heads on this device. */
bool qn_gdn_gpu_has_open_row(size_t head_k, size_t head_v, const qn_gdn_gpu *gpu);

/* qn_gdn_gpu_open_row - Fills a launch of qn_gdn_open_row, if qn_gdn_gpu_has_open_row. Sets the layout of args; limits
 * and errors as for qn_gdn_gpu_open_step. */
qn_status qn_gdn_gpu_open_row(qn_gdn_open_args *args, const qn_gdn_gpu *gpu, qn_launch *launch);

/* qn_gdn_gpu_open_fold - Fills a launch of qn_gdn_open_fold. Sets the layout of args; limits of slots and errors as for
 * qn_gdn_gpu_open_step. */
qn_status qn_gdn_gpu_open_fold(qn_gdn_open_args *args, size_t head_k, size_t head_v, const qn_gdn_gpu *gpu,
                               qn_launch *launch);

/* qn_gdn_gpu_conv - Fills a launch of qn_gdn_conv, to run before qn_gdn_gpu_chunk, with bf16 output. */
qn_status qn_gdn_gpu_conv(const qn_gdn_conv_args *args, size_t head_k, size_t head_v, qn_launch *launch);

/* qn_gdn_gpu_norm - Fills a launch of qn_gdn_norm, to run after qn_gdn_gpu_chunk, with bf16 input. */
qn_status qn_gdn_gpu_norm(const qn_gdn_norm_args *args, size_t head_k, size_t head_v, qn_launch *launch);

#endif

#endif
