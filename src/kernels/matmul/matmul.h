/* Matrix products: activations [n_tokens, n_cols] times the transpose of weights [n_rows, n_cols] stored row by row.
 *
 * Quantised weights meet activations quantised to int8 with one scale for every run of 32 values; F32, F16 and BF16 weights
 * meet float activations. With isum the exact integer product of run r of a weight row and of a token,
 *
 *     partial[r mod 16] += isum_r * (weight_scale_r * act_scale_r)        one fused multiply-add, r rising
 *     partial[r mod 16] += act_sum_r * (weight_offset_r * act_scale_r)    where the type has an offset, right after
 *
 * and the element is the canonical sum of the sixteen partials (kernels/canon.h). Float weights: term k is one multiply-add
 * into partial k mod 16. No other order occurs anywhere, so an element's bits depend on its row and its token alone.
 *
 * Integers are summed in any order, which lets each type keep its own arrangement of activation codes (qn_act_layout): sixteen
 * runs make a super-block of 512 values, whose codes are placed so that one 64-byte vector holds four codes of each run. */
#ifndef QN_KERNELS_MATMUL_MATMUL_H
#define QN_KERNELS_MATMUL_MATMUL_H

#include "quant/quant.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QN_SUPER = 512, QN_SUPER_GROUPS = QN_SUPER / QN_QUANT_GROUP };

/* Where value i of run `lane` lies in a super-block: byte 64*vector + 4*lane + byte, with
 *   QN_ACT_INTERLEAVED   vector i/4, byte i%4                              types unpacked value by value
 *   QN_ACT_1BIT    vector i%8, byte i/8                              Q1_0: bit v of a stored byte is in vector v
 *   QN_ACT_2BIT   vector 4*(i/16) + i%4, byte i%16/4                Q2_0, PQ2_0: 2-bit field j of a byte is in vector j or 4+j
 *   QN_ACT_TERNARY   not by lanes: value e of each 128 is in vector e/16; 128s side by side     PTQ1_0 a token at a time
 *   QN_ACT_PLAIN   not by lanes: in rising order
 *   QN_ACT_F32   no codes: the values themselves                   F32, F16, BF16
 *   QN_ACT_LUT  no codes: sums of every choice out of four values (packed.h)                         packed Q1_0 */
typedef enum qn_act_layout {
    QN_ACT_INTERLEAVED,
    QN_ACT_1BIT,
    QN_ACT_2BIT,
    QN_ACT_TERNARY,
    QN_ACT_PLAIN,
    QN_ACT_F32,
    QN_ACT_LUT
} qn_act_layout;
enum { QN_ACT_INT8_LAYOUTS = 5 };

/* qn_act_index - where value i (0..511) of a super-block lies in an integer form. */
size_t qn_act_index(qn_act_layout layout, size_t i);

/* qn_act_layout_of - the form that tiles of this type read. */
qn_act_layout qn_act_layout_of(const qn_type_info *type);

/* A batch of activation rows in every form that its readers want. Rows of codes are n_super*512 bytes, padded with zeros; rows
 * of scale, sum and sum_upper are n_super*16, padded with zeros. sum is the sum of a run's codes, sum_upper that of its last 16.
 *
 * A fine batch keeps a second int8 term: its code is QN_HILO_BASE * codes + codes_lo, nearly 16 bits, at twice the integer work.
 * Types with factors refuse fine batches: 32 bits would not hold their sums. */
enum { QN_HILO_BASE = 254 };

typedef struct qn_acts {
    size_t n_cols, n_super, max_rows;
    int8_t *codes[QN_ACT_INT8_LAYOUTS];    /* NULL for a form that nobody reads */
    int8_t *codes_lo[QN_ACT_INT8_LAYOUTS]; /* NULL also where the batch is not fine */
    bool hilo;
    float *scale;
    int32_t *sum, *sum_upper;
    float *values;         /* [max_rows, n_cols], or NULL */
    uint8_t *lut, *lut_lo; /* [max_rows, n_super*16][QN_GROUP_LUT_BYTES], or NULL; fine ones of fine batches alone */
} qn_acts;

/* A run below this magnitude is quantised as zeros: 127 divided by it would overflow. A run that holds an infinity or NaN gets
 * codes and sums of zero and a scale of NaN, so that every product with it is NaN. */
#define QN_MIN_GROUP_ABSMAX 1e-30f

/* qn_acts_create - room for max_rows rows of n_cols in the forms whose bits (1 << form) are set. Free with qn_acts_free, which
 * takes a zeroed struct too. */
qn_status qn_acts_create(qn_acts *acts, size_t max_rows, size_t n_cols, unsigned layouts, bool hilo);
void qn_acts_free(qn_acts *acts);

/* One super-block of one weight row, unpacked: codes in the form of its type. factor_* only for types that have factors. */
typedef struct qn_super_block {
    _Alignas(64) uint8_t codes[QN_SUPER];
    float scale[QN_SUPER_GROUPS], offset[QN_SUPER_GROUPS];
    int32_t factor_lower[QN_SUPER_GROUPS], factor_upper[QN_SUPER_GROUPS];
} qn_super_block;

typedef struct qn_matrix {
    const qn_type_info *type;
    const uint8_t *data; /* [n_rows] rows of row_bytes, in the file's layout, any alignment */
    size_t n_rows, n_cols, row_bytes;
    const uint8_t *packed; /* the same rows as qn_matmul_pack arranged them for these kernels, or NULL */
} qn_matrix;

/* One token against rows [row_begin, row_end), codes read as they are stored: out[row] is stored, or added to. */
typedef void (*qn_gemv_fn)(const qn_matrix *weights, size_t row_begin, size_t row_end, const qn_acts *acts, size_t token,
                           bool accumulate, float *out);

/* The same for packed rows, n_rows of them from `row` on, both multiples of QN_PANEL_ROWS, and tokens [first, first+n_tokens):
 * out[token*out_stride + row]. The acts are not fine unless its kind takes such. */
typedef void (*qn_packed_gemm_fn)(const qn_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first,
                                  size_t n_tokens, bool accumulate, float *out, size_t out_stride);

/* How rows stand in a packed matrix (packed.h), and its product. */
typedef enum qn_packing { QN_PACKING_WORDS, QN_PACKING_BYTES } qn_packing;
typedef struct qn_packed_kernel {
    qn_packing packing;
    qn_act_layout layout;
    qn_packed_gemm_fn gemm_packed;
    size_t max_tokens; /* with more, rows are brought back into the stored layout and taken by tiles */
    bool hilo;         /* whether the product takes fine batches */
} qn_packed_kernel;

/* The variants. All take whole tiles' worth of pointers and write exactly what they are told. */
typedef struct qn_matmul_kernels {
    size_t tile_rows, tile_tokens; /* the largest tile that dot and gemm_float take */
    /* Values [n], n <= 512, of super-block `super` of row `row` into every form that acts holds. */
    void (*quantize)(qn_acts *acts, size_t row, size_t super, const float *values, size_t n);
    /* n_blocks (possibly short of a super-block) of a type with an integer form; what is missing gets scale and offset 0. */
    void (*unpack)(const qn_type_info *type, const uint8_t *blocks, size_t n_blocks, qn_super_block *out);
    /* out[t*tile_rows + r] for unpacked rows r, each of acts->n_super super-blocks, against tokens first .. first+n_tokens-1.
     */
    void (*gemm)(const qn_type_info *type, const qn_super_block *rows, size_t n_rows, const qn_acts *acts, size_t first,
                 size_t n_tokens, float *out);
    /* The same for rows of float weights as stored, row_bytes apart. */
    void (*gemm_float)(const qn_matrix *weights, size_t row, size_t n_rows, const qn_acts *acts, size_t first, size_t n_tokens,
                       float *out);
    /* The product of one token for types whose codes need not be unpacked into memory, and the form that it reads; NULL for the
     * others, or at all. */
    qn_gemv_fn (*gemv)(const qn_type_info *type, bool hilo, qn_act_layout *layout);
    /* How matrices of this type are packed; NULL for types that are best read as they are stored, or at all. */
    const qn_packed_kernel *(*packed)(const qn_type_info *type);
} qn_matmul_kernels;

void qn_matmul_kernels_init(qn_matmul_kernels *kernels, unsigned cpu);

/* qn_matmul_act_layouts - all forms that products with this matrix read, as bits 1 << form: what qn_acts_create is given. */
unsigned qn_matmul_act_layouts(const qn_matmul_kernels *kernels, const qn_matrix *weights);

/* qn_matmul_scratch - bytes of scratch (64-aligned) that one thread needs for rows of n_cols. */
size_t qn_matmul_scratch(const qn_matmul_kernels *kernels, size_t n_cols);

/* qn_matmul_rows - rows [row_begin, row_end) of the product for tokens [0, n_tokens) of acts:
 * out[token*out_stride + row] is stored, or with `accumulate` added to. acts hold the form that the type reads.
 * row_begin of a packed matrix is a multiple of QN_PANEL_ROWS, and so is row_end unless it is n_rows.
 * Threads: safe on distinct rows with distinct scratch. */
void qn_matmul_rows(const qn_matmul_kernels *kernels, const qn_matrix *weights, const qn_acts *acts, size_t n_tokens,
                    size_t row_begin, size_t row_end, bool accumulate, float *out, size_t out_stride, void *scratch);

/* Filled in by the instruction-set files. */
void qn_matmul_init_avx2(qn_matmul_kernels *kernels);
void qn_matmul_init_avxvnni(qn_matmul_kernels *kernels);
void qn_matmul_init_avx512(qn_matmul_kernels *kernels);
void qn_matmul_init_neon(qn_matmul_kernels *kernels);
void qn_matmul_init_neondot(qn_matmul_kernels *kernels);
void qn_matmul_init_ref(qn_matmul_kernels *kernels);

#endif
