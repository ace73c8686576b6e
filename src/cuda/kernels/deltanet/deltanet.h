/* Gated DeltaNet on the GPU: the arguments of its kernels, and what they compute. Included by C and by CUDA; deltanet.c
 * computes the launch geometry.
 *
 * Prefill takes two or four kernels, for 16-bit elements. qn_gdn_prepare computes everything that does not depend on
 * the state, for all chunks of 64 tokens in parallel: (I + A)^-1 with its columns scaled by beta, masked and gated
 * scores q.k, and factors of rows, in a record of QN_GDN_RECORD bytes for each chunk and value head. qn_gdn_advance
 * processes chunks in order, one block per 64 or 128 values of a value head, with the state in registers:
 *
 *     y = v - e^gc k S^T;   v' = (I + A)^-1 beta y;   o = scale (e^gc q S^T + scores v');   S = e^last S + (gated v')^T
 *                           k
 *
 * MMA operands have the type of the elements, accumulators and the state are f32.
 *
 * All chunks are in one order, sequence by sequence, head by head, and can be divided into pieces of equal length, one
 * for each block that runs at a time. A block processes its piece in order: the rest of a head, perhaps whole heads,
 * and the beginning of another. The chunks of one head among them are a span. A chunk maps the state by S -> S M + B,
 * and |M| <= 2^bound, where the bound of a chunk is its total log decay (plus the growth of tokens with beta |k|^2 > 2)
 * and is in its record. The state at the start of a piece that begins within a head comes from
 *
 *   - the chunks of the head before the piece, run from a state of zeros, if the sum of the bounds of up to a piece's
 *     length of them (at least QN_GDN_MIN_WARM_UP) is at most QN_GDN_FORGOTTEN: of the state before them at most 2^-40
 *     is left, which is neglected;
 *   - else all chunks of the head before the piece, run from the initial state, if there are at most
 *     QN_GDN_MIN_WARM_UP;
 *   - else from two kernels before qn_gdn_advance: qn_gdn_span_effects computes, of each span after which its head goes
 *     on, B and, from the identity in place of a state, M; qn_gdn_compose applies them in order.
 *
 * Which of them applies depends on the decays and not on timing: results are the same from run to run. */
#ifndef QN_CUDA_KERNELS_DELTANET_DELTANET_H
#define QN_CUDA_KERNELS_DELTANET_DELTANET_H

#include "cuda/kernels/launch.h"

/* Dimensions of the chunk kernels: chunks of 64 tokens, slices of 64 values, keys padded to tiles of 64 elements. Heads
 * of all kernels have at most QN_GDN_MAX_HEAD elements. With keys beyond QN_GDN_MAX_SPAN_KEY there are no pieces and a
 * block has one slice. */
enum { QN_GDN_CHUNK_TOKENS = 64, QN_GDN_SLICE = 64, QN_GDN_MAX_BLOCK_SLICES = 2, QN_GDN_MAX_HEAD = 256 };

/* Macros, which the preprocessor compares. */
#define QN_GDN_MAX_SPAN_KEY 128
#define QN_GDN_PADDED(head_k) (((head_k) + 63) / 64 * 64)

/* log2 of the part of a state that is neglected, relative to the state that it was. f32 rounds at 2^-24. */
#define QN_GDN_FORGOTTEN -40.0f

/* Chunks that are run again before a piece rather than composed, however short pieces are. */
#define QN_GDN_MIN_WARM_UP 5

/* Layout of a record: two tiles of [64][64] elements in rows of 128 bytes, the 16-byte segment s of row r stored at
 * segment s ^ (r & 7). Of their 16x16 blocks only those on and below the diagonal are written. Then factors, f32 [64]
 * each, and the decay of the chunk. */
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

/* Threads and shared memory of a block: of qn_gdn_prepare and of qn_gdn_compose; of qn_gdn_advance, with 1 or 2 slices
 * and a ring buffer of 1 to 3 chunks. */
enum {
    QN_GDN_PREPARE_THREADS = 128,
    QN_GDN_COMPOSE_THREADS = 128,
    QN_GDN_COMPOSE_ROWS = 16,   /* rows of the state of a block */
    QN_GDN_COMPOSE_BLOCKS = 128 /* about as many as run at a time */
};

#define QN_GDN_PREPARE_BYTES(head_k) (2 * QN_GDN_PADDED(head_k) * 128 + 5120)
#define QN_GDN_COMPOSE_BYTES(head_k)                                                                                   \
    (4 * (2 * QN_GDN_PADDED(head_k) * QN_GDN_PADDED(head_k) + 2 * QN_GDN_COMPOSE_ROWS * (QN_GDN_PADDED(head_k) + 4)))

#define QN_GDN_ADVANCE_THREADS(slices) ((1 + (slices)) * 128)
/* Of the rounded state, which is in registers with keys of two tiles at most. */
#define QN_GDN_STATE_TILES(head_k) (QN_GDN_PADDED(head_k) > QN_GDN_MAX_SPAN_KEY ? QN_GDN_PADDED(head_k) / 64 : 0)
#define QN_GDN_ADVANCE_BYTES(head_k, slices, stages)                                                                   \
    (((slices) + QN_GDN_STATE_TILES(head_k)) * QN_GDN_TILE_BYTES +                                                     \
     (stages) * ((2 * QN_GDN_PADDED(head_k) / 64 + (slices)) * QN_GDN_TILE_BYTES + QN_GDN_RECORD) + 512)

/* States in memory. QN_GDN_STATE_PLANES: for each state the two fp16 planes of state_planes.h, as in a state slot; not
 * transposed, and not for qn_gdn_recurrent. */
typedef enum qn_gdn_state_type { QN_GDN_STATE_F32, QN_GDN_STATE_BF16, QN_GDN_STATE_PLANES } qn_gdn_state_type;

/* The index of a chunk among those of all sequences: c of sequence s has s n + c, if each sequence has n chunks. With
 * cu_seqlens, which the host does not read, it has t/64 + s + c, t being the sequence's first token; some indices are
 * not used. A sequence without tokens has an index too. The position of chunk c of a sequence of n chunks from index i
 * on, in head h, is i v_heads + h n + c; a piece is an interval of positions. */
typedef struct qn_gdn_chunk_args {
    QN_GPU_PTR(const void) q;    /* [tokens, k_heads, head_k], tokens q_stride elements apart */
    QN_GPU_PTR(const void) k;    /* [tokens, k_heads, head_k], k_stride */
    QN_GPU_PTR(const void) v;    /* [tokens, v_heads, head_v], v_stride */
    QN_GPU_PTR(const void) g;    /* [tokens, v_heads], g_stride: log decay, clamped to -256 <= g <= 0 */
    QN_GPU_PTR(const void) beta; /* [tokens, v_heads], beta_stride */
    /* [v_heads], or 0. If given, the log decay is softplus(g + gate_bias) * gate_factor; without gate_bias, of 0 */
    QN_GPU_PTR(const float) gate_factor;
    QN_GPU_PTR(const float) gate_bias;
    QN_GPU_PTR(const void)
    initial;                /* [states, v_heads, head_v, head_k] of state_type, or 0: initial states are zeros */
    QN_GPU_PTR(void) final; /* [states, v_heads, head_v, head_k], or 0: not written; may be initial */
    QN_GPU_PTR(const int32_t)
    state_indices; /* [sequences]: of a sequence's state in initial and final, -1: the sequence is skipped; or 0: state
                      i */
    uint32_t state_type;               /* of initial and final, a qn_gdn_state_type */
    uint32_t transposed_states;        /* 1: initial and final are [states, v_heads, head_k, head_v] */
    QN_GPU_PTR(void) o;                /* [tokens, v_heads, head_v], o_stride */
    QN_GPU_PTR(unsigned char) records; /* [chunks, v_heads, QN_GDN_RECORD] */
    /* [2, pieces, head_v, padded head_k]: the state at the start of a piece that begins within a head; the initial
     * state of the head that begins in a piece and goes on in the next */
    QN_GPU_PTR(float) states;
    QN_GPU_PTR(float) transitions; /* [pieces, padded head_k, padded head_k]: M of the span at the piece's start */
    QN_GPU_PTR(uint32_t) sources;  /* [pieces]: enum state_source in chunk.cuh */
    QN_GPU_PTR(const uint32_t) cu_seqlens; /* [sequences + 1], or 0: sequences of `tokens` tokens one after the other */
    uint32_t wide_seqlens;                 /* 1: cu_seqlens are 64-bit integers */
    uint32_t tokens, sequences;
    uint32_t chunks; /* number of indices */
    uint32_t pieces; /* 0: a block has one head of a sequence */
    uint32_t k_heads, v_heads, head_k, head_v;
    uint32_t dtype;               /* of q, k, v and o, a qn_dtype: f32 for qn_gdn_recurrent alone, else f16 or bf16 */
    uint32_t g_dtype, beta_dtype; /* f32, f16 or bf16 */
    uint32_t q_stride, k_stride, v_stride, o_stride, g_stride, beta_stride;
    uint32_t tiled;        /* 1: value head h uses key head h mod k_heads; 0: h * k_heads / v_heads */
    uint32_t normalize;    /* q and k are divided by sqrt(sum of squares + 1e-6) */
    uint32_t sigmoid_beta; /* 1: beta is the sigmoid of what is given */
    float scale;
} qn_gdn_chunk_args;

/* ---- Around the chunk kernels, and token by token: any key and value dimensions that are multiples of 16, at most 256
 * ---- */

/* qn_gdn_recurrent - the same function as prepare and advance, token by token, for any number of tokens: its arguments
 * are qn_gdn_chunk_args without records; q, k, v and o are f32, bf16 with QN_BF16, or f16 with QN_F16. */

enum { QN_GDN_ROW_LANES = 4, QN_GDN_RECURRENT_VALUES = 32, QN_GDN_CONV_ROWS = 16, QN_GDN_MAX_TAPS = 8 };

/* qn_gdn_conv - several tokens of a sequence: convolution with SiLU, and gates. width is the elements of q and k of all
 * key heads and of v of all value heads; value head h uses key head h mod k_heads. out is f32, bf16 with QN_BF16, or
 * f16 with QN_F16. */
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

/* qn_gdn_norm - RMS norm of each head times SiLU(gate); o is of the type of qn_gdn_conv's out. */
typedef struct qn_gdn_norm_args {
    QN_GPU_PTR(const void) o;     /* [rows, v_heads, head_v], o_stride */
    QN_GPU_PTR(const float) gate; /* [rows, v_heads, head_v], gate_stride */
    QN_GPU_PTR(const float) norm; /* [head_v] */
    QN_GPU_PTR(float) out;        /* [rows, v_heads, head_v], out_stride */
    uint32_t rows, k_heads, v_heads;
    uint32_t o_stride, gate_stride, out_stride;
    uint32_t grouped; /* 1: head k*rep + r of out is value head r*k_heads + k, with rep = v_heads / k_heads; 0: same
                         order */
    float eps;
} qn_gdn_norm_args;

/* ---- The open chunk: decode of many sequences, with a state that is read once a launch and written once in 64 rows
 * ----
 *
 * A sequence has, for each recurrent layer, the state at a multiple of 64 positions in a state slot, and in an open
 * slot the rows since then, at most 64: the open chunk. Slots are items of a pool (cache/pool.h). With gc the sum of g
 * since the chunk's start, row i computes for each value head
 *
 *     a    = e^gc_i S k_i + sum over j < i of e^(gc_i - gc_j) (k_i.k_j) v'_j;     v'_i = beta_i (v_i - a)
 *     o_i  = scale (e^gc_i S q_i + sum over j <= i of e^(gc_i - gc_j) (q_i.k_j) v'_j)
 *
 * Rows are stored by their position modulo 64. The first row of the next chunk folds the 64 rows of a full one:
 * S = e^gc_last S + sum of e^(gc_last - gc_j) v'_j k_j^T. The caller gives the position of the state; at position 0 it
 * is zeros, and no state slot is read. If it is the position of the next row, the open chunk has no rows.
 *
 * With a state are stored the inputs of the convolution at the taps-1 positions before it, its history. Inputs at later
 * positions are in the open slot: a state and an empty open chunk are all that a sequence needs to continue.
 *
 * A sequence is truncated by passing smaller positions from then on: rows below them are as they were. There are two
 * limits. A fold cannot be undone: once the first row of a chunk was computed, neither it nor the rows before it can be
 * refused. And of the inputs of the convolution QN_GDN_DROPPED_ROWS more than needed are stored: a sequence can be that
 * much shorter than it ever was.
 *
 * A layer's part of a state slot is, in this order:
 *
 *     S        two planes of f16 [v_heads, head_v, head_k], hi and lo (state_planes.h): rows are computed from hi
 *              alone, S = hi in the sums above; folds read and write both
 *     history  f32 [taps-1, width]                    in the order of positions
 *
 * Its part of an open slot:
 *
 *     keys     f16 [k_heads, 64, head_k]              k_j, normalised
 *     values   f16 [v_heads, 64, head_v]              v'_j / scale_j
 *     scales   f32 [v_heads, groups, 64]              powers of two, one for QN_GDN_SCALE_VALUES values of a row: the
 *              largest
 *                                                     |v'_j| / scale_j of them is in [2^14, 2^15]
 *     decays   f32 [v_heads, 64]                      g_j
 *     inputs   f32 [QN_GDN_INPUT_ROWS(taps), width]   of the convolution, by position modulo the number of rows
 *
 * All layers of a sequence have the same slot indices, and a copy of the states in another type could be found by them
 * too. */

enum {
    QN_GDN_DROPPED_ROWS = 5,  /* rows that a sequence can be truncated by */
    QN_GDN_SCALE_VALUES = 64, /* a head's last group may have fewer */
    QN_GDN_OPEN_ROWS = 4      /* rows of a sequence that a block of qn_gdn_open_step processes together */
};

#define QN_GDN_SCALE_GROUPS(head_v) (((head_v) + QN_GDN_SCALE_VALUES - 1) / QN_GDN_SCALE_VALUES)
#define QN_GDN_INPUT_ROWS(taps) ((taps)-1 + QN_GDN_DROPPED_ROWS)

/* Threads of a block, one value head of a sequence at a time; a warp has 16 values. Blocks on an SM: in a fold the
 * state takes half of the registers. Shared memory of a block, the second part for the inputs of the convolution, or
 * then scores and S k. */
#define QN_GDN_OPEN_THREADS(head_v) ((head_v) <= 64 ? 128 : (head_v) >= 128 ? 256 : 2 * (head_v))
#define QN_GDN_OPEN_SM_BLOCKS(head_k, head_v) (((head_k) <= 128 ? 512 : 256) / QN_GDN_OPEN_THREADS(head_v))
#define QN_GDN_OPEN_FIXED_BYTES(head_k, head_v)                                                                        \
    (QN_GDN_CHUNK_TOKENS * (2 * ((head_k) + 8 + (head_v) + 8) + 4 * (2 + QN_GDN_SCALE_GROUPS(head_v))) +               \
     4 * (QN_GDN_OPEN_ROWS * (2 * (head_k) + 4 * (head_v) + 2 * QN_GDN_OPEN_ROWS + 7) + (head_v)) + 224)
#define QN_GDN_OPEN_REUSED_BYTES(head_k, head_v, taps)                                                                 \
    (4 * QN_GDN_MAX((2 * (taps)-1 + QN_GDN_OPEN_ROWS) * (2 * (head_k) + (head_v)),                                     \
                    QN_GDN_OPEN_ROWS * (2 * QN_GDN_SCALE_GROUPS(head_v) * QN_GDN_CHUNK_TOKENS + (head_v))))
#define QN_GDN_MAX(x, y) ((x) > (y) ? (x) : (y))
#define QN_GDN_OPEN_BYTES(head_k, head_v, taps)                                                                        \
    (QN_GDN_OPEN_FIXED_BYTES(head_k, head_v) + QN_GDN_OPEN_REUSED_BYTES(head_k, head_v, taps))

/* qn_gdn_open_row: threads of a block, blocks on an SM; shared memory of a block, the open chunk with what is computed,
 * then inputs and weights of the convolution. */
enum { QN_GDN_ROW_THREADS = 256, QN_GDN_ROW_SM_BLOCKS = 4 };
#define QN_GDN_ROW_FIXED_BYTES(head_k, head_v) (QN_GDN_CHUNK_TOKENS * 2 * ((head_k) + (head_v)) + 6144)
#define QN_GDN_ROW_BYTES(head_k, head_v, taps)                                                                         \
    (QN_GDN_ROW_FIXED_BYTES(head_k, head_v) + 2 * (taps) * (2 * (head_k) + (head_v)) * 4)

typedef struct qn_gdn_open_layout {
    uint64_t keys, values, scales, decays, inputs; /* bytes from the start of the layer's part */
    uint64_t bytes;                                /* of a layer's part */
} qn_gdn_open_layout;

/* Where a sequence is, and its rows in a launch. */
typedef struct qn_gdn_open_sequence {
    uint32_t position;             /* of its first row; for qn_gdn_open_fold, the length */
    uint32_t state_position;       /* a multiple of 64: position - 64 to position */
    uint32_t state_from, state_to; /* the state slot that is read; the one that a folded state is written to; may be the
                                      same */
    uint32_t open_slot;
    uint32_t begin, end; /* rows [begin, end) of the launch */
} qn_gdn_open_sequence;

/* qn_gdn_open_step - any number of consecutive rows of each of `sequences` sequences, everything between the layer's
 * input projections and its output projection: convolution with SiLU, l2 norms of q and k, g = softplus(alpha + bias) *
 * factor, beta = sigmoid, delta rule, and RMS norm of each head times SiLU(gate). Open slots are updated, and states
 * where the first row of the next chunk is among the rows.
 *
 * qn_gdn_open_row - the same for at most one row of each sequence, whose open chunks are not full: nothing is folded.
 * For heads of 128 by 128.
 *
 * qn_gdn_open_fold - the state at length positions[i], with all rows of the open chunk, to state_to[i]; zeros for
 * length 0. Open slots are not changed. Of the arrays it uses those from `states` on. It is one launch for `layers`
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
    /* [sequences] each, as in qn_gdn_open_sequence; open slots are all different. positions 0: one sequence, which is
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

/* The qn_gdn_gpu_* functions fill a launch for the given arguments; the caller passes the same arguments with the
 * launch. Sizes are checked (QN_ERR_INVALID): dimensions as above, v_heads a multiple of k_heads, strides at least a
 * row, limits of the grid. All launches have pdl set. */

/* How all chunks are divided into pieces, and heads into slices. */
typedef struct qn_gdn_division {
    uint32_t pieces; /* 0: each head of a sequence is one span; else at most 65535. Some are empty if there are fewer
                        chunks */
    uint32_t slices; /* of a block: 1, or 2, which needs more time for a chunk and less in all */
} qn_gdn_division;

/* What the division depends on of the device (qn_cuda_info). */
typedef struct qn_gdn_gpu {
    uint32_t max_shared_bytes, n_sms; /* max_shared_bytes: the limit of a block */
} qn_gdn_gpu;

typedef struct qn_gdn_chunk_launches {
    qn_launch launches[4];
    size_t n;
} qn_gdn_chunk_launches;

/* qn_gdn_gpu_check_shape - the checks that all launches of a delta rule make of head sizes, numbers of heads and of
 * sequences. */
qn_status qn_gdn_gpu_check_shape(const qn_gdn_chunk_args *args);

/* qn_gdn_gpu_has_chunks - whether heads are full tiles and a block's shared memory is enough for qn_gdn_gpu_chunk. */
bool qn_gdn_gpu_has_chunks(size_t head_k, size_t head_v, const qn_gdn_gpu *gpu);

/* qn_gdn_gpu_divide - the division that takes the least time, from the shape alone. longest: a bound of the tokens of a
 * sequence. */
qn_gdn_division qn_gdn_gpu_divide(const qn_gdn_chunk_args *args, size_t longest, const qn_gdn_gpu *gpu);

/* qn_gdn_gpu_chunk - the launches of a prefill in f16 or bf16, in order. Addresses are multiples of 16 bytes, strides
 * of 8 elements. Sets the fields of args from `records` to `sources` to parts of the workspace, and
 * those that describe the division. max_shared_bytes: the limit of a block of the device; QN_ERR_UNSUPPORTED if it is
 * too small for one pipeline stage. */
qn_status qn_gdn_gpu_chunk(qn_gdn_chunk_args *args, const qn_gdn_division *division, uint32_t max_shared_bytes,
                           uint64_t workspace, qn_gdn_chunk_launches *out);

/* qn_gdn_gpu_workspace_bytes - size of the workspace of qn_gdn_gpu_chunk. qn_gdn_gpu_max_workspace_bytes - for the
 * divisions of qn_gdn_gpu_divide of up to so many tokens and sequences. */
size_t qn_gdn_gpu_workspace_bytes(const qn_gdn_chunk_args *args, const qn_gdn_division *division);
size_t qn_gdn_gpu_max_workspace_bytes(const qn_gdn_chunk_args *args, const qn_gdn_gpu *gpu);

qn_status qn_gdn_gpu_recurrent(const qn_gdn_chunk_args *args, qn_launch *launch);

/* qn_gdn_gpu_state_bytes - the size of a layer's part of a state slot. qn_gdn_gpu_history - the offset of its
 * history. */
size_t qn_gdn_gpu_state_bytes(size_t k_heads, size_t v_heads, size_t head_k, size_t head_v, size_t taps);
size_t qn_gdn_gpu_history(size_t v_heads, size_t head_k, size_t head_v);

/* qn_gdn_gpu_open_layout - the layout of a layer's part of an open slot. */
qn_gdn_open_layout qn_gdn_gpu_open_layout(size_t k_heads, size_t v_heads, size_t head_k, size_t head_v, size_t taps);

/* qn_gdn_gpu_open_step, qn_gdn_gpu_open_fold - set the layout of args. Addresses, strides and offsets of slots are
 * multiples of 16 bytes, and so are the addresses and strides of qkv and gate, and the addresses of conv and norm.
 * qn_gdn_open_step loads indices, states and open chunks, and writes folded states, before it waits for the previous
 * kernel: if a kernel that may still run writes or reads them, the caller must clear pdl. QN_ERR_UNSUPPORTED if the
 * device's shared memory is too small. qn_gdn_gpu_open_row is for heads and devices of which qn_gdn_gpu_has_open_row is
 * true. */
qn_status qn_gdn_gpu_open_step(qn_gdn_open_args *args, size_t head_k, size_t head_v, const qn_gdn_gpu *gpu,
                               qn_launch *launch);
bool qn_gdn_gpu_has_open_row(size_t head_k, size_t head_v, const qn_gdn_gpu *gpu);
qn_status qn_gdn_gpu_open_row(qn_gdn_open_args *args, const qn_gdn_gpu *gpu, qn_launch *launch);
qn_status qn_gdn_gpu_open_fold(qn_gdn_open_args *args, size_t head_k, size_t head_v, const qn_gdn_gpu *gpu,
                               qn_launch *launch);

/* qn_gdn_gpu_conv, qn_gdn_gpu_norm - before and after qn_gdn_gpu_chunk, in bf16. */
qn_status qn_gdn_gpu_conv(const qn_gdn_conv_args *args, size_t head_k, size_t head_v, qn_launch *launch);
qn_status qn_gdn_gpu_norm(const qn_gdn_norm_args *args, size_t head_k, size_t head_v, qn_launch *launch);

#endif

#endif
