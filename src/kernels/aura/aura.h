/* AURA: keys and values as codes of a few bits in a rotated basis.
 *
 * A row x is stored as n = |x|, y = P x / n with P orthogonal, code_d = how many boundaries lie below y_d, and one scale
 * n / |codebook[codes]|, which makes the norm of what is decoded exact. include/quern/kernels.h says more of the method and of
 * the packed stream, rows of which are decoded to float32 here (decode, dot, add). Method: Zandieh et al., TurboQuant (2025),
 * MSE variant, with norm correction.
 *
 * A session's cache (cache/kv.h) holds a head's codes in blocks of QN_AURA_BLOCK, laid out so that every vector read from
 * memory is of use as it is. A part of a block, keys or values, is
 *
 *   codes    of QN_AURA_BLOCK positions
 *   scales   [QN_AURA_BLOCK] f32
 *
 * Codes come in vectors of sixteen lanes of four bytes. For keys a lane is a position and the codes in it are those of
 * consecutive dimensions; for values a lane is a dimension and the codes are those of consecutive positions:
 *
 *   keys     [16 tiles of positions][units][vectors of a unit][16 lanes]          a unit is a run of dimensions
 *   values   [units][dim / 16 columns][vectors of a unit][16 lanes]               a unit is a run of positions
 *
 * Four consecutive codes go to the bytes 0, 2, 1, 3 of their lane, the next four to the next higher bits of them: so shifting
 * a vector leaves codes i and i+1 in the low bits of the two words of each lane, or of their high bytes codes i+2 and i+3,
 * and after a look-up the words are what multiply-add instructions of pairs of int16 take. Bits that do not divide a byte are
 * split, 3 into 2 + 1 and 6 into 4 + 2; the vectors of a unit are then low bits, high bits (of all the unit), low bits:
 *
 *   bits            2    3    4    6    8
 *   codes of a unit 16   32   8    16   4
 *   vectors         1    3    1    3    1
 *
 * With 3 bits and 80 dimensions the last unit of a tile of keys is half a unit: its first two vectors.
 *
 * Arithmetic over blocks is whole: centroids are multiples of `step` up to QN_AURA_CENTROID_MAX, queries and weights int16
 * such that no sum leaves 32 bits, so all instruction sets have the same bits and any order of sums is the canonical one.
 * Rounded so, queries are off by 1e-4 to 5e-4 a dimension, centroids by 1e-4, weights by 3e-4, where 4-bit codes are
 * themselves off by 0.1. Floats keep the order of kernels/canon.h; blocks are merged in rising order. */
#ifndef QN_KERNELS_AURA_AURA_H
#define QN_KERNELS_AURA_AURA_H

#include "quern/kernels.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    QN_AURA_BLOCK = 256,
    QN_AURA_TILE = 16, /* positions of a tile of keys, dimensions of a column of values */
    QN_AURA_MAX_DIM = 512,
    QN_AURA_MAX_LEVELS = 256,
    QN_AURA_CENTROID_MAX = 8191,
    QN_AURA_MAX_ABS_SUM = 261900 /* of the magnitudes of int16 factors: with a rounding of 1/2 each for up to 512 of them and
                                2^-17 of error in the sum, times QN_AURA_CENTROID_MAX, still below 2^31 */
};

/* A multiple of this or less is taken for 0, whose inverse float32 does not hold. */
#define QN_AURA_TINY 1e-30f

struct qn_aura_codec {
    size_t dim;
    unsigned bits;
    float boundaries[QN_AURA_MAX_LEVELS - 1], codebook[QN_AURA_MAX_LEVELS]; /* 2^bits - 1, 2^bits */
    float *signs;                                                           /* [dim]: the rotation is H S; or NULL */
    float *rotation, *transpose;                                            /* [dim][dim] where it is dense */
    /* The codebook in whole steps, repeated up to 256 entries so that bits above a code do not matter; and its bytes. */
    float step;
    int16_t centroids[QN_AURA_MAX_LEVELS];
    uint8_t low[QN_AURA_MAX_LEVELS], high[QN_AURA_MAX_LEVELS];
};

/* What queries are set against: one block of a head. Codecs are of the standard codebook, which is antisymmetric: some kernels
 * look up magnitudes. */
typedef struct qn_aura_block {
    const qn_aura_codec *key_codec, *value_codec; /* of the same dim */
    const uint8_t *keys, *values;                 /* parts */
    const uint8_t *next_keys; /* whose block comes next, so that memory can be asked for it in time; or NULL */
} qn_aura_block;

typedef struct qn_aura_kernels {
    /* qn_hadamard_kernels.block, which is another room's: put in by qn_kernels_init. */
    void (*hadamard)(float *x, size_t n, const float *signs_before, const float *signs_after);
    /* y = matrix x, [n][n], n a multiple of 16; sums in canonical order. */
    void (*gemv)(float *y, const float *matrix, const float *x, size_t n);
    /* codes[d] = how many of the codec's boundaries are below y[d], for [dim]. */
    void (*quantize)(uint8_t *codes, const float *y, const qn_aura_codec *codec);
    /* The centroids of a row of the packed stream, [dim], without its scale. */
    void (*decode)(float *y, const uint32_t *words, const qn_aura_codec *codec);
    float (*dot)(const float *a, const float *b, size_t n);         /* canonical sum; n a multiple of 16 */
    void (*axpy)(float *y, float weight, const float *x, size_t n); /* y = fma(weight, x, y) */
    /* Queries [n_queries][dim], as qn_aura_quantize_query makes them, against one block; those next to each other share what is decoded.
     *   visible   [n_queries] 0 to QN_AURA_BLOCK: how many of the block's positions each query sees; queries with 0 are not
     *             written. What positions beyond hold does not matter
     *   out       [n_queries, dim] unnormalised, in the rotated basis of values; m, l [n_queries]
     * A score is (float)(sum of query * centroid) * query_scale * scale; m, p = e^(score - m) and l are as in
     * kernels/attention/attention.h; weights p * scale are rounded to int16 with a factor of their own for each query and
     * block. */
    void (*block)(const int16_t *queries, const float *query_scales, size_t n_queries, const qn_aura_block *block,
                  const uint16_t *visible, float *out, float *m, float *l);
} qn_aura_kernels;

void qn_aura_kernels_init(qn_aura_kernels *kernels, unsigned cpu);

void qn_aura_init_ref(qn_aura_kernels *kernels);
void qn_aura_init_avx2(qn_aura_kernels *kernels);
void qn_aura_init_avx512(qn_aura_kernels *kernels);
void qn_aura_init_neon(qn_aura_kernels *kernels);

/* ---- Codec ---- */

/* qn_aura_lloyd_max - the codebook [2^bits] of one coordinate of a uniform unit vector in `dim` dimensions (even, at least 4),
 * and the boundaries [2^bits - 1] between its entries. */
qn_status qn_aura_lloyd_max(size_t dim, unsigned bits, float *boundaries, float *codebook);

/* qn_aura_check_shape - whether codecs of that dim and those bits exist. */
qn_status qn_aura_check_shape(size_t dim, unsigned bits);

/* qn_aura_codec_new - with the standard codebook, and the rotation of `seed`; free with qn_aura_codec_delete. */
qn_status qn_aura_codec_new(qn_aura_codec **out, size_t dim, unsigned bits, uint64_t seed);
/* qn_aura_codec_from_tables - with a codebook and a dense rotation [dim][dim] that are given. */
qn_status qn_aura_codec_from_tables(qn_aura_codec **out, size_t dim, unsigned bits, const float *rotation,
                                    const float *boundaries, const float *codebook);
void qn_aura_codec_delete(qn_aura_codec *codec);

/* qn_aura_row_words - u32 words of a row of the packed stream. */
size_t qn_aura_row_words(size_t dim, unsigned bits);

/* qn_aura_rotate - y = P x; qn_aura_rotate_back - y = P^T x. [dim], y is not x. */
void qn_aura_rotate(const qn_aura_kernels *kernels, const qn_aura_codec *codec, float *y, const float *x);
void qn_aura_rotate_back(const qn_aura_kernels *kernels, const qn_aura_codec *codec, float *y, const float *x);

/* qn_aura_encode_row - x [dim] to codes [dim] and their scale. False where x, or its norm in float32, is not finite: codes and
 * scale are those of a row of zeros then. */
bool qn_aura_encode_row(const qn_aura_kernels *kernels, const qn_aura_codec *codec, const float *x, uint8_t *codes,
                        float *scale);
/* qn_aura_encode_rotated - the same for y = P x. */
bool qn_aura_encode_rotated(const qn_aura_kernels *kernels, const qn_aura_codec *codec, const float *y, uint8_t *codes,
                            float *scale);

/* qn_aura_pack - codes [dim] to a row of the packed stream, and back. */
void qn_aura_pack(uint32_t *words, const uint8_t *codes, size_t dim, unsigned bits);
void qn_aura_unpack(uint8_t *codes, const uint32_t *words, size_t dim, unsigned bits);

/* qn_aura_quantize_query - a query [dim], rotated and scaled, to int16 and what they are multiples of, the codec's step included. A
 * query that is not finite gets a scale of NaN, and so scores of NaN. */
void qn_aura_quantize_query(int16_t *quantized, float *scale, const float *x, const qn_aura_codec *key_codec);

/* ---- Blocks ---- */

/* qn_aura_key_block_bytes, qn_aura_value_block_bytes - keys, or values, of one block: its codes, and then its scales. Multiples
 * of 64. */
size_t qn_aura_key_block_bytes(size_t dim, unsigned bits);
size_t qn_aura_value_block_bytes(size_t dim, unsigned bits);

/* qn_aura_key_code_bytes, qn_aura_value_code_bytes - the codes alone: where the scales begin. */
size_t qn_aura_key_code_bytes(size_t dim, unsigned bits);
size_t qn_aura_value_code_bytes(size_t dim, unsigned bits);

/* qn_aura_store_key, qn_aura_store_value - codes [dim] and scale of one position, 0 to QN_AURA_BLOCK - 1, into a part; the bits of
 * other positions stay. Two threads must not write the same 32 positions of a part, which may share a unit. */
void qn_aura_store_key(uint8_t *block_data, size_t position, const uint8_t *codes, float scale, size_t dim, unsigned bits);
void qn_aura_store_value(uint8_t *block_data, size_t position, const uint8_t *codes, float scale, size_t dim, unsigned bits);

/* qn_aura_load_key, qn_aura_load_value - the same back. */
void qn_aura_load_key(const uint8_t *block_data, size_t position, uint8_t *codes, float *scale, size_t dim, unsigned bits);
void qn_aura_load_value(const uint8_t *block_data, size_t position, uint8_t *codes, float *scale, size_t dim, unsigned bits);

/* qn_aura_store_position - one position's key and value [dim], rotated, into a block's parts. Rows that are not finite make the
 * position's key NaN: whoever sees it gets NaN, and nobody else. */
void qn_aura_store_position(const qn_aura_kernels *kernels, const qn_aura_codec *key_codec, const qn_aura_codec *value_codec,
                            uint8_t *keys, uint8_t *values, size_t position, const float *key, const float *value);

#endif
