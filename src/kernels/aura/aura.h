/* AURA: keys and values as codes of 2 to 8 bits in a rotated basis.
 *
 * A row x is stored as codes and one scale: with n = |x| and y = P x / n, P orthogonal, code_d is the number of
 * boundaries below y_d, and the scale is n / |codebook[codes]|, which makes the norm of the decoded row exact.
 * include/quern/kernels.h describes the method and the packed stream; decode, dot and axpy work on rows of that stream,
 * decoded to float32. Method: Zandieh et al., TurboQuant (2025), MSE variant, with norm correction.
 *
 * A cache (cpu/view.h) stores a head's codes in pages of QN_PAGE positions, each at an address of its own, in a
 * layout whose vectors need no shuffle after a load. The keys of a page, and its values, are stored as
 *
 *   codes    of QN_PAGE positions
 *   scales   [QN_PAGE] f32
 *
 * Codes are stored in vectors of sixteen 4-byte lanes. For keys a lane is a position and contains the codes of
 * consecutive dimensions; for values a lane is a dimension and contains the codes of consecutive positions:
 *
 *   keys     [4 tiles of positions][units][vectors of a unit][16 lanes]          a unit is a group of dimensions
 *   values   [units][dim / 16 columns][vectors of a unit][16 lanes]               a unit is a group of positions
 *
 * Four consecutive codes are stored in bytes 0, 2, 1, 3 of their lane, the next four in the next higher bits of the
 * same bytes. A shift of the vector therefore leaves codes i and i+1 in the low bits of the two 16-bit words of each
 * lane, and codes i+2 and i+3 in the low bits of their high bytes: after a look-up the words are operands of
 * multiply-adds on pairs of int16. Widths that do not divide a byte are split, 3 into 2 + 1 bits and 6 into 4 + 2. The
 * three vectors of such a unit are low bits, high bits (of the whole unit), low bits:
 *
 *   bits            2    3    4    6    8
 *   codes of a unit 16   32   8    16   4
 *   vectors         1    3    1    3    1
 *
 * With 3 bits and 80 dimensions the last unit of a tile of keys is half a unit: its first two vectors.
 *
 * Queries attend to blocks of QN_AURA_BLOCK positions, QN_AURA_BLOCK_PAGES pages. Arithmetic over blocks is in
 * integers: centroids are multiples of `step` up to QN_AURA_CENTROID_MAX, queries and weights are int16, scaled so that
 * no sum overflows 32 bits. Integer sums are exact in any order, so all instruction sets produce the same bits.
 * Rounding errors: queries 1e-4 to 5e-4 a dimension, centroids 1e-4, weights 3e-4; the quantisation error of 4-bit
 * codes is 0.1. Float sums follow the canonical order of kernels/canon.h; blocks are combined in ascending order. */
#ifndef QN_KERNELS_AURA_AURA_H
#define QN_KERNELS_AURA_AURA_H

#include "plan/limits.h"
#include "plan/page.h"
#include "quern/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    QN_AURA_BLOCK = 256,
    QN_AURA_BLOCK_PAGES = QN_AURA_BLOCK / QN_PAGE,
    QN_AURA_TILE = 16, /* positions of a tile of keys, dimensions of a column of values */
    QN_AURA_MAX_DIM = 512,
    QN_AURA_MAX_LEVELS = 256,
    QN_AURA_CENTROID_MAX = 8191,
    QN_AURA_MAX_ABS_SUM = 261900 /* bound on the sum of magnitudes of int16 factors. With a rounding of 1/2 for each of
                                    up to 512 factors and an error of 2^-17 in the sum, the bound times
                                    QN_AURA_CENTROID_MAX is below 2^31 */
};

/* A scale of int16 weights of at most this counts as 0: float32 cannot represent its inverse. */
#define QN_AURA_TINY 1e-30f

/* Constant after creation; any number of threads may use it. */
struct qn_aura_codec {
    size_t dim;
    unsigned bits;
    float boundaries[QN_AURA_MAX_LEVELS - 1], codebook[QN_AURA_MAX_LEVELS]; /* 2^bits - 1 and 2^bits elements */
    float *signs;                /* [dim], rotation H S (signs first); or NULL */
    float *rotation, *transpose; /* [dim][dim], dense rotation only */
    /* The codebook as integers (multiples of `step`), repeated to 256 entries so that bits above a code do not matter;
     * and the low and high bytes of these integers. */
    float step;
    int16_t centroids[QN_AURA_MAX_LEVELS];
    uint8_t low[QN_AURA_MAX_LEVELS], high[QN_AURA_MAX_LEVELS];
    /* The same bytes as changes: XORed with those of the entry 16 before, but for the first 16 of each half. */
    uint8_t low_change[QN_AURA_MAX_LEVELS], high_change[QN_AURA_MAX_LEVELS];
};

/* The pages of a block of one head: the keys and values that queries attend to. A page without a position that a query
 * attends to is not read, and may be NULL; all pages after a NULL page may be NULL too. Codecs have the standard
 * codebook, which is antisymmetric: some kernels look up magnitudes. */
typedef struct qn_aura_block {
    const qn_aura_codec *key_codec, *value_codec; /* both of the same dim */
    const uint8_t *keys[QN_AURA_BLOCK_PAGES], *values[QN_AURA_BLOCK_PAGES];
    const uint8_t *next_keys[QN_AURA_BLOCK_PAGES]; /* keys of the block that the caller processes next, prefetched into
                                                      L2 with this block's values, up to the first NULL page. The first
                                                      is NULL: no prefetch */
} qn_aura_block;

typedef struct qn_aura_kernels {
    /* qn_hadamard_kernels.block (kernels/hadamard); set by qn_kernels_init. */
    void (*hadamard)(float *x, size_t n, const float *signs_before, const float *signs_after);
    /* y = matrix x, [n][n], n a multiple of 16; canonical sums. */
    void (*gemv)(float *y, const float *matrix, const float *x, size_t n);
    /* codes[d] = number of the codec's boundaries below y[d], for [dim]. */
    void (*quantize)(uint8_t *codes, const float *y, const qn_aura_codec *codec);
    /* Decodes a row of the packed stream to its centroids [dim], not multiplied by the row's scale. */
    void (*decode)(float *y, const uint32_t *words, const qn_aura_codec *codec);
    float (*dot)(const float *a, const float *b, size_t n);         /* canonical sum; n a multiple of 16 */
    void (*axpy)(float *y, float weight, const float *x, size_t n); /* y = fma(weight, x, y) */
    /* Queries [n_queries][dim], quantised by qn_aura_quantize_query, against one block. Adjacent queries share the
     * decoded codes.
     *   visible   [n_queries] 0 to QN_AURA_BLOCK: number of visible positions of the block; queries with 0 get no
     *             output. The contents of later positions do not matter
     *   out       [n_queries, dim] unnormalised, in the rotated basis of values
     *   m, l      [n_queries] largest score, sum of e^(score - m)
     * A score is (float)(sum of query * centroid) * query_scale * scale; m, p = e^(score - m) and l are as in
     * kernels/attention/attention.h. Weights p * scale are rounded to int16 with one factor per query and block. */
    void (*block)(const int16_t *queries, const float *query_scales, size_t n_queries, const qn_aura_block *block,
                  const uint16_t *visible, float *out, float *m, float *l);
} qn_aura_kernels;

void qn_aura_kernels_init(qn_aura_kernels *kernels, unsigned cpu);

void qn_aura_init_ref(qn_aura_kernels *kernels);
void qn_aura_init_avx2(qn_aura_kernels *kernels);
void qn_aura_init_avx512(qn_aura_kernels *kernels);
void qn_aura_init_neon(qn_aura_kernels *kernels);

/* ---- Codec ---- */

/* qn_aura_lloyd_max - computes the Lloyd-Max codebook [2^bits] of one coordinate of a uniform unit vector in `dim`
 * dimensions (even, at least 4), and the boundaries [2^bits - 1] between its entries. QN_ERR_UNSUPPORTED if the
 * iteration does not converge. */
qn_status qn_aura_lloyd_max(size_t dim, unsigned bits, float *boundaries, float *codebook);

/* qn_aura_check_shape - returns QN_ERR_INVALID, naming the value, unless codecs of this dim and these bits exist. */
qn_status qn_aura_check_shape(size_t dim, unsigned bits);

/* qn_aura_codec_new - creates a codec with the standard codebook and the rotation of `seed`. *out is NULL on failure.
 * Free with qn_aura_codec_delete. */
qn_status qn_aura_codec_new(qn_aura_codec **out, size_t dim, unsigned bits, uint64_t seed);

/* qn_aura_codec_from_tables - creates a codec with the given codebook, boundaries and dense rotation [dim][dim], which
 * are copied. Free with qn_aura_codec_delete. */
qn_status qn_aura_codec_from_tables(qn_aura_codec **out, size_t dim, unsigned bits, const float *rotation,
                                    const float *boundaries, const float *codebook);
void qn_aura_codec_delete(qn_aura_codec *codec);

/* The codecs of keys and values; may be the same codec. Both NULL: none. */
typedef struct qn_aura_codecs {
    qn_aura_codec *keys, *values;
} qn_aura_codecs;

/* qn_aura_codecs_new - creates codecs of one dim; with bits of 0, none. On failure there is nothing to free. Free with
 * qn_aura_codecs_delete, which accepts a zeroed struct. */
qn_status qn_aura_codecs_new(qn_aura_codecs *out, size_t dim, unsigned key_bits, unsigned value_bits, uint64_t seed);
void qn_aura_codecs_delete(qn_aura_codecs *codecs);

/* qn_aura_row_words - returns the number of u32 words of a row of the packed stream. */
size_t qn_aura_row_words(size_t dim, unsigned bits);

/* qn_aura_rotate - computes y = P x, both [dim]. y must not be x. */
void qn_aura_rotate(const qn_aura_kernels *kernels, const qn_aura_codec *codec, float *y, const float *x);

/* qn_aura_rotate_back - computes y = P^T x, both [dim]. y must not be x. */
void qn_aura_rotate_back(const qn_aura_kernels *kernels, const qn_aura_codec *codec, float *y, const float *x);

/* qn_aura_encode_row - encodes x [dim] as codes [dim] and a scale. Returns false if x, its norm in float32 or the scale
 * is not finite; codes and scale are then those of a row of zeros. */
bool qn_aura_encode_row(const qn_aura_kernels *kernels, const qn_aura_codec *codec, const float *x, uint8_t *codes,
                        float *scale);

/* qn_aura_encode_rotated - like qn_aura_encode_row, for a row that is already rotated, y = P x. */
bool qn_aura_encode_rotated(const qn_aura_kernels *kernels, const qn_aura_codec *codec, const float *y, uint8_t *codes,
                            float *scale);

/* qn_aura_pack - packs codes [dim] to a row of the packed stream. */
void qn_aura_pack(uint32_t *words, const uint8_t *codes, size_t dim, unsigned bits);

/* qn_aura_unpack - unpacks a row of the packed stream to codes [dim]. */
void qn_aura_unpack(uint8_t *codes, const uint32_t *words, size_t dim, unsigned bits);

/* qn_aura_quantize_query - quantises a rotated and scaled query [dim] to int16. *scale is the unit times the codec's
 * step: integer sums are multiplied by it. A query that is not finite gets a scale of NaN, and therefore scores of
 * NaN. */
void qn_aura_quantize_query(int16_t *quantized, float *scale, const float *x, const qn_aura_codec *key_codec);

/* ---- Pages ---- */

/* qn_aura_key_page_bytes - returns the bytes of a page's keys: codes, then scales. A multiple of 64. */
size_t qn_aura_key_page_bytes(size_t dim, unsigned bits);

/* qn_aura_value_page_bytes - returns the bytes of a page's values: codes, then scales. A multiple of 64. */
size_t qn_aura_value_page_bytes(size_t dim, unsigned bits);

/* qn_aura_key_code_bytes - returns the bytes of the codes of a page's keys, which is the offset of their scales. */
size_t qn_aura_key_code_bytes(size_t dim, unsigned bits);

/* qn_aura_value_code_bytes - returns the bytes of the codes of a page's values, which is the offset of their scales. */
size_t qn_aura_value_code_bytes(size_t dim, unsigned bits);

/* qn_aura_store_key - stores codes [dim] and scale of one position, 0 to QN_PAGE - 1, in a page's keys; bits of
 * other positions do not change. Two threads must not write to the same aligned group of 32 positions at the same
 * time. */
void qn_aura_store_key(uint8_t *page_data, size_t position, const uint8_t *codes, float scale, size_t dim,
                       unsigned bits);

/* qn_aura_store_value - stores codes [dim] and scale of one position, 0 to QN_PAGE - 1, in a page's values; bits
 * of other positions do not change. Two threads must not write to the same aligned group of 32 positions at the same
 * time: these may share a unit. */
void qn_aura_store_value(uint8_t *page_data, size_t position, const uint8_t *codes, float scale, size_t dim,
                         unsigned bits);

/* qn_aura_load_key - loads codes [dim] and scale of one position from a page's keys. */
void qn_aura_load_key(const uint8_t *page_data, size_t position, uint8_t *codes, float *scale, size_t dim,
                      unsigned bits);

/* qn_aura_load_value - loads codes [dim] and scale of one position from a page's values. */
void qn_aura_load_value(const uint8_t *page_data, size_t position, uint8_t *codes, float *scale, size_t dim,
                        unsigned bits);

/* qn_aura_store_position - encodes one position's rotated key and value [dim] into a page's keys and values. If either
 * is not finite, the position's key scale is NaN: queries that attend to the position get NaN, others do not. */
void qn_aura_store_position(const qn_aura_kernels *kernels, const qn_aura_codec *key_codec,
                            const qn_aura_codec *value_codec, uint8_t *keys, uint8_t *values, size_t position,
                            const float *key, const float *value);

#endif
