/* The kernels: their arguments, as the shaders declare them, and their launches. Addresses are those of the device; 0
 * is none where a comment says so. Rows are contiguous unless a stride is an argument. */
#ifndef QN_VULKAN_KERNELS_KERNELS_H
#define QN_VULKAN_KERNELS_KERNELS_H

#include "quant/quant.h"
#include "vulkan/runtime/runtime.h"

enum {
    QN_VK_TILE_ROWS = 4,   /* weight rows of a workgroup of matmul */
    QN_VK_MATMUL_OUTS = 4, /* matrices of a launch */
    QN_VK_SQUARE = 32,     /* rows of weights and of activations of a square of matmul_tiles */
    QN_VK_BLOCK = 128,     /* columns of a block of weights and activations */
    QN_VK_MAX_HEAD = 512,  /* values of a head */
    QN_VK_F16_BITS = 16,
    QN_VK_MAX_SPLITS = 256,         /* of the pages of a row, for attention */
    QN_VK_PARTIAL_EXTRA = 4,        /* floats of a partial after its sums */
    QN_VK_HEAD_UNIT = 16,           /* heads have a multiple of it: they are read as 16 bytes of fp16 */
    QN_VK_MAX_RECURRENT_HEAD = 256, /* values of a head of a recurrent layer, or keys */
    QN_VK_DELTA_SHARED = 32 << 10,  /* bytes of shared memory that a workgroup of delta may have */
    QN_VK_ROW_SCORES = 2 * 64,      /* floats: a row's key, and query, with the rows of a chunk */
    QN_VK_MAX_PIECE = 4096          /* values of a workgroup of prepare: the largest block of a Hadamard transform */
};

/* The rotation of heads for caches of codes (kernels/aura/aura.h). Without one, all is 0. */
typedef struct qn_vk_rotation {
    uint64_t signs;            /* [dim] of +-1 before a Walsh-Hadamard transform; or 0 */
    uint64_t forward, inverse; /* else [dim][dim]: the transposed matrix, and the matrix */
    float factor;              /* 1/sqrt(dim), of the transform */
} qn_vk_rotation;

/* Bits of codes; both 16: fp16. */
typedef struct qn_vk_codes {
    uint32_t key_bits, value_bits;
} qn_vk_codes;

/* Levels of the codes of keys, and of values. */
typedef struct qn_vk_levels {
    struct {
        float boundaries[256], codebook[256];
    } keys, values;
} qn_vk_levels;

/* Rows of the embedding table: y [rows][width], in pieces of a multiple of 32 values, or blocks of the table's
 * rotation. The token of a row is inputs[row], or sampled[sources[row] - 1]. */
typedef struct qn_vk_embed_args {
    uint64_t codes, scales, y;
    uint64_t inputs, sources, sampled;
    uint64_t signs; /* [width] of +-1 after the transform; 0: none */
    uint32_t width, piece;
    float factor; /* 1/sqrt(piece), of the transform */
    uint32_t unused;
} qn_vk_embed_args;

/* Rows of heads: x [rows][heads][stride] to y [rows][heads][dim], with bias [heads][dim] (0: none), RMS norm of weight
 * [dim] (0: none), rope by angles [rows]: cosines [n_rot/2], sines [n_rot/2]; then times scale, then rotated. y may be
 * x.
 *
 * y 0: the result is stored as fp16, in the page of the row's position: page tables of the step's sequences, the
 * granules of the pool (vulkan/runtime/pool_memory.h), the offset of the layer's rows in a page. Values of the cache
 * have n_rot 0. */
typedef struct qn_vk_rope_args {
    uint64_t x, y, bias, weight, angles;
    uint64_t signs, matrix; /* matrix: forward */
    uint64_t tables, positions, sequences, granules;
    uint32_t shift, at;
    uint32_t stride, dim, n_rot, is_interleaved;
    float eps, scale, factor;
} qn_vk_rope_args;

/* Quantises the pages that a step has completed, after their rows were stored (qn_vk_quantize). */
typedef struct qn_vk_quantize_args {
    uint64_t tables, f16_tables, first_positions, row_begins; /* gpu/inputs.h; row_begins: cu_seqlens */
    uint64_t granules;
    uint64_t levels; /* qn_vk_levels */
    uint32_t shift;
    uint32_t dim;
    uint32_t key_at, value_at, key_scales_at, value_scales_at; /* of the layer in a page of codes */
    uint32_t f16_key_at, f16_value_at, means_at;               /* of the layer in an fp16 page */
    uint32_t layer_bytes, f16_layer_bytes;                     /* to the same of the next layer */
    uint32_t n_pieces; /* 0: each piece completes one page or none, and is looked at by itself */
} qn_vk_quantize_args;

/* Attention of rows, in splits of the pages up to a row's own: partials of rows from `row` on are
 * [rows][heads][n_splits][dim + QN_VK_PARTIAL_EXTRA]. Or of a piece's rows, without splits. A row has the same bits
 * either way. In a cache of codes all is in the rotated basis. */
typedef struct qn_vk_attention_args {
    uint64_t queries, y;           /* [rows][heads][dim]; y: results, or partials */
    uint64_t tables, f16_tables;   /* of the step; without codes both are the same */
    uint64_t positions, sequences; /* of the step, with splits */
    uint64_t granules;
    uint64_t levels; /* qn_vk_levels */
    uint32_t shift;
    uint32_t heads_per_kv, n_heads;
    uint32_t key_at, value_at, key_scales_at, value_scales_at; /* of the layer in a page of codes */
    uint32_t f16_key_at, f16_value_at, means_at;               /* of the layer in an fp16 page, or without codes */
    uint32_t row;                                              /* the first */
    /* Of the piece, without splits. With splits that are combined position and sequence are the address of
     * qn_vk_combination, low word first. */
    uint32_t n_rows, position, sequence;
    uint32_t n_splits;
} qn_vk_attention_args;

/* Merges partials in the order of splits, and rotates results back. partials 0: rotates y. With codes, these results,
 * times the sigmoid of their gates, are also written as integers (acts.glsl); dim is a multiple of 32 then. */
typedef struct qn_vk_combine_args {
    uint64_t partials, y; /* y: [rows][heads][dim] */
    uint64_t positions, sequences;
    uint64_t signs, matrix; /* matrix: inverse */
    uint64_t codes, gates;  /* codes 0: none; gates [rows][heads]: [dim] queries, [dim] gates; 0: none */
    uint32_t planes;
    uint32_t row;
    uint32_t dim, n_splits;
    float factor;
} qn_vk_combine_args;

/* What the last workgroup of the splits of a tile of queries needs to combine them, of a single row: `arrived` has a
 * u32 for each query head, which are 0; the rest is of qn_vk_combine_args. */
typedef struct qn_vk_combination {
    uint64_t arrived;
    uint64_t signs, matrix;
    uint64_t codes, gates;
    uint32_t planes;
    float factor;
} qn_vk_combination;

/* What a matmul computes of its results: activations of the next one (matmul.comp). NORM: of an RMS norm of the only
 * matrix's results. SWIGLU: of the results of two matrices, which are not stored. HEADS: rope of queries, keys and
 * values, which are stored; for one row of activations alone, dimensions of heads being multiples of
 * QN_VK_HEADS_UNIT (gemv.comp). */
typedef enum qn_vk_epilogue {
    QN_VK_EPILOGUE_NONE,
    QN_VK_EPILOGUE_NORM,
    QN_VK_EPILOGUE_SWIGLU,
    QN_VK_EPILOGUE_HEADS
} qn_vk_epilogue;

/* Of three matrices: queries, keys, values. arrived: a u32 for each QN_VK_HEADS_UNIT rows of them, which are 0. */
typedef struct qn_vk_heads {
    qn_vk_rope_args of[3];
    uint64_t arrived;
} qn_vk_heads;

/* For activations of rotated weights: a row of floats for the results before the transform, +-1 before it (0: none),
 * 1/sqrt(block) after it. arrived: a u32 for each block, which are 0. */
typedef struct qn_vk_rotated {
    uint64_t arrived;
    uint64_t y, signs;
    float factor;
    uint32_t unused;
} qn_vk_rotated;

/* Indices in outs: qn_vk_rotated; the activations that an epilogue writes, integers; the weight of the norm;
 * qn_vk_heads. */
enum {
    QN_VK_OUT_ROTATED = 1,
    QN_VK_OUT_ACTS = 2,
    QN_VK_OUT_WEIGHT = 3,
    QN_VK_OUT_HEADS = 3,
    QN_VK_HEADS_UNIT = 32,
    QN_VK_MAX_ROTATED = 1024, /* values of a transform in an epilogue */
    QN_VK_FEW_ROWS = 8        /* the most, of a matmul with an epilogue */
};

/* Weights of up to four matrices of one format and one input, in tiles of rows. Each matrix begins with a tile. */
typedef struct qn_vk_matmul_args {
    uint64_t codes, scales, acts; /* acts: rows of integers (acts.glsl), or of floats for fp16 weights */
    uint64_t outs[QN_VK_MATMUL_OUTS];
    uint32_t first_tiles[QN_VK_MATMUL_OUTS]; /* UINT32_MAX after the last matrix */
    uint32_t n_rows[QN_VK_MATMUL_OUTS], strides[QN_VK_MATMUL_OUTS];
    uint32_t n_cols, n_tokens, n_tiles;
    uint32_t accumulate; /* bit i: adds to out i */
    float eps;           /* of the RMS norm of the activations */
} qn_vk_matmul_args;

/* Which matmul it is, apart from its sizes: constants of the kernel. */
typedef struct qn_vk_matmul_kind {
    qn_vk_epilogue epilogue;
    bool is_normed;               /* the activations are those of an RMS norm, in integers */
    uint32_t planes, next_planes; /* of the activations, and of those that the epilogue writes */
    uint32_t rotated; /* values of a Hadamard transform of the latter, of a row alone: a multiple of 32; 0: none */
} qn_vk_matmul_kind;

/* ---- The activations of a matmul: rows of floats, or of integers of one plane or two (acts.glsl) ---- */

/* qn_vk_act_row_bytes - returns the bytes of a row of integers. */
size_t qn_vk_act_row_bytes(size_t width, size_t planes);

/* The operation before: RMS norm; silu(x) * x2; x times the sigmoid of the gates that follow each head's queries in x2
 * (0: of nothing); RMS norm of each head, times silu(x2). */
typedef enum qn_vk_prepare_op {
    QN_VK_PREPARE_NORM,
    QN_VK_PREPARE_SWIGLU,
    QN_VK_PREPARE_GATE,
    QN_VK_PREPARE_GATED_NORM
} qn_vk_prepare_op;

/* Rows of `width` values, in pieces: blocks of the Hadamard transform if there is one. */
typedef struct qn_vk_prepare_args {
    uint64_t x, x2, weight; /* weight: of the norm [width], or [dim] of each head */
    uint64_t signs;         /* [width] of +-1 before the transform; 0: none */
    uint64_t y, codes;      /* rows of floats, 0: none; of integers, 0: none */
    uint64_t rows;          /* u32 indices of the rows of x to read, 0: all */
    uint32_t width, piece;  /* piece: a multiple of 32 */
    uint32_t dim, repeats;  /* of a head; GATED_NORM: value heads of a key head if these are consecutive in y, else 1 */
    float eps, factor;      /* factor: 1/sqrt(piece), of the transform */
    uint32_t planes;        /* of the integers */
} qn_vk_prepare_args;

/* ---- Recurrent layers (gpu/recurrent_layout.h) ---- */

/* Rows [begin, end) of a sequence: the pool's addresses of its items, and the positions of its state, and of the first
 * row. Without rows: padding. */
typedef struct qn_vk_sequence {
    uint64_t from, to, open; /* the state before the step and after it, the open chunk */
    uint32_t state_position, position, begin, end;
} qn_vk_sequence;

/* Convolution, SiLU, l2 norms, gates: y [rows][width] has q, k and v; alpha becomes g, beta its sigmoid. */
typedef struct qn_vk_conv_args {
    uint64_t qkv, y, alpha, beta;
    uint64_t weights, bias, factor; /* [taps][width]; [v_heads], 0: none; [v_heads] */
    uint64_t sequence_of;           /* [rows]: index of the row's sequence (gpu/inputs.h) */
    uint64_t sequences, granules;
    uint32_t shift;
    uint32_t history_at, inputs_at; /* of the layer, in a state and in an open chunk */
    uint32_t k_heads, v_heads, head_k, head_v;
} qn_vk_conv_args;

/* The delta rule: y [rows][v_heads][head_v]; states, and values and scales of open chunks. row_scores [rows][v_heads]
 * [QN_VK_ROW_SCORES]: what qn_vk_delta_scores computes for qn_vk_delta. */
typedef struct qn_vk_delta_args {
    uint64_t qkv, decays, betas, y; /* qkv: y of qn_vk_conv_args */
    uint64_t row_scores;
    uint64_t sequences, granules;
    uint32_t shift;
    uint32_t state_at, keys_at, values_at, scales_at, decays_at;
    uint32_t k_heads, v_heads, head_k, head_v;
    float scale;
} qn_vk_delta_args;

/* What the kernel of single rows also reads of a layer: bias and factor of qn_vk_conv_args; of the gated norm the gate
 * (0: it is not computed), its weight [head_v], rows of integers for its results, [rows][v_heads] u32 that are 0; of a
 * Hadamard transform of each head the signs (0: none) and the factor (0: no transform). */
typedef struct qn_vk_delta_layer {
    uint64_t bias, factor;
    uint64_t gate, norm, codes, arrived, signs;
    float transform_factor;
    uint32_t unused;
} qn_vk_delta_layer;

/* The same of single rows. With `convolved`, which is y of qn_vk_conv_args, the kernel computes the convolution and the
 * gates, too: qkv, decays and betas are then its inputs, and it writes the keys alone; and the gated norm. */
typedef struct qn_vk_delta_row_args {
    uint64_t qkv, decays, betas, y, convolved;
    uint64_t weights, layer; /* layer: qn_vk_delta_layer */
    uint64_t sequences, granules;
    uint32_t shift;
    uint32_t state_at, history_at, keys_at, values_at, scales_at, decays_at, inputs_at;
    uint32_t heads, dims; /* of keys, and of values times 2^16: their numbers and sizes */
    float scale;
    float eps;        /* of the gated norm, */
    uint32_t results; /* and: planes of its integers, and `repeats` of qn_vk_prepare_args times 2^16 */
} qn_vk_delta_row_args;

/* qn_vk_delta_row_args_of - returns the arguments from those of the kernels that it stands for, but for the layer; conv
 * NULL: it reads what that kernel has written. norm: of the gated norm, NULL: none. */
qn_vk_delta_row_args qn_vk_delta_row_args_of(const qn_vk_conv_args *conv, const qn_vk_delta_args *delta,
                                             const qn_vk_prepare_args *norm);

/* qn_vk_delta_layer_of - returns the layer of the same arguments, without `arrived`. is_rotated: a piece of the norm is
 * a head, and is transformed. */
qn_vk_delta_layer qn_vk_delta_layer_of(const qn_vk_conv_args *conv, const qn_vk_prepare_args *norm, bool is_rotated);

/* Keys, decays and inputs of open chunks, and the history of states. With `factor` decays are alpha of
 * qn_vk_conv_args, and it has their gates. */
typedef struct qn_vk_append_args {
    uint64_t qkv, convolved, decays; /* qkv and y of qn_vk_conv_args */
    uint64_t bias, factor;
    uint64_t sequences, granules;
    uint32_t shift;
    uint32_t history_at, keys_at, decays_at, inputs_at;
    uint32_t k_heads, v_heads, head_k, head_v, taps;
} qn_vk_append_args;

/* The format of weights on a device: codes of up to 8 bits, weight = scale * (code - zero point), or fp16.
 *
 * A row of codes is [bits][blocks] of 16 bytes: a block is 128 columns, the last one filled with zeros. Each of its
 * words has 32/bits columns; column 4i + k of a word is in byte k, from bit i * bits on. So a shift and a mask give
 * four columns as bytes. Codes of 8 bits are signed, without zero point. A row of scales is fp16, two in a word, each
 * of 2^group_shift weights. A row of fp16 weights is words of two, without scales. */
typedef struct qn_vk_format {
    uint32_t bits; /* 1, 2, 4, 8, 16 */
    uint32_t group_shift;
} qn_vk_format;

/* qn_vk_format_of - returns the format for a type: fp16 for types that have no other. */
qn_vk_format qn_vk_format_of(const qn_type_info *type);

/* qn_vk_is_f16 - returns whether weights of a type are fp16 on the device: their activations are floats. */
bool qn_vk_is_f16(const qn_type_info *type);

/* qn_vk_code_words, qn_vk_scale_words - return the words of a row of n_cols weights. */
size_t qn_vk_code_words(const qn_vk_format *format, size_t n_cols);
size_t qn_vk_scale_words(const qn_vk_format *format, size_t n_cols);

/* qn_vk_pack_row - packs a row of a matrix of a type. scratch: [n_cols] floats. */
void qn_vk_pack_row(const qn_type_info *type, const uint8_t *row, size_t n_cols, float *scratch, uint32_t *codes,
                    uint32_t *scales);

/* The launches. n_rows > 0, and n_tiles of qn_vk_matmul > 0. */
qn_vk_launch qn_vk_embed(const qn_vk_format *format, bool is_rotated, size_t n_rows, size_t width, size_t piece);
qn_vk_launch qn_vk_rope(size_t n_rows, size_t n_heads);
qn_vk_launch qn_vk_quantize(const qn_vk_codes *codes, size_t n_pages, size_t n_kv_heads, size_t n_layers);
qn_vk_launch qn_vk_attention_splits(const qn_vk_codes *codes, size_t dim, size_t n_rows, size_t n_heads,
                                    size_t n_kv_heads, size_t n_splits, bool combines);
qn_vk_launch qn_vk_attention_rows(const qn_vk_codes *codes, size_t dim, size_t position, size_t n_rows, size_t n_heads,
                                  size_t n_kv_heads);
qn_vk_launch qn_vk_combine(size_t n_rows, size_t n_heads);

/* kind: without meaning for fp16 weights. Results do not depend on the features. With an epilogue the rows of a matrix
 * are a multiple of 128. */
qn_vk_launch qn_vk_matmul(const qn_vk_format *format, const qn_vk_features *features, const qn_vk_matmul_kind *kind,
                          const qn_vk_matmul_args *args);

/* Bytes of shared memory of a workgroup, or a few more: of a launch of qn_vk_matmul, but for fp16 weights, which has
 * what the features say; of prepare and attention, which may have more than a device has. Others fit in every device,
 * but for delta (QN_VK_DELTA_SHARED). */
size_t qn_vk_matmul_shared(const qn_vk_launch *launch);
size_t qn_vk_prepare_shared(size_t piece);
size_t qn_vk_attention_shared(size_t dim);

qn_vk_launch qn_vk_prepare(qn_vk_prepare_op op, bool is_rotated, size_t n_rows, size_t width, size_t piece);
qn_vk_launch qn_vk_conv(size_t n_rows, size_t n_k_heads, size_t n_v_heads, size_t taps);
/* The delta rule of the sequences with one row, and of those with more, after its scores; neither needs the other's
 * results. n_rows: of all sequences. */
qn_vk_launch qn_vk_delta_row(size_t n_sequences, size_t n_v_heads, size_t head_v, size_t taps);
qn_vk_launch qn_vk_delta_scores(size_t n_rows, size_t n_sequences, size_t n_k_heads, const qn_vk_features *features);
qn_vk_launch qn_vk_delta(size_t n_sequences, size_t n_v_heads, size_t head_v, const qn_vk_features *features);

qn_vk_launch qn_vk_append(size_t n_sequences, size_t width, size_t n_k_heads, size_t n_v_heads);

/* qn_vk_kernel - returns the i-th shader; NULL after the last. */
const qn_vk_shader *qn_vk_kernel(size_t i);

#endif
