/* Codecs, and the operations of a codec on one row: rotation, encoding, the packed stream, quantisation of queries to
 * int16. codebook.c computes codebooks, layout.c stores blocks; kernels with SIMD variants are in qn_aura_kernels. */
#include "kernels/aura/aura.h"

#include "base/memory.h"
#include "base/splitmix.h"
#include "base/status.h"

#include <float.h>
#include <math.h>
#include <string.h>

qn_status qn_aura_check_shape(size_t dim, unsigned bits)
{
    if (!qn_aura_has_dim(dim))
        return qn_fail(QN_ERR_INVALID, "dim: %zu, expected 64, 80, 96, 128, 192, 256 or 512", dim);
    if (bits != 2 && bits != 3 && bits != 4 && bits != 6 && bits != 8)
        return qn_fail(QN_ERR_INVALID, "bits: %u, expected 2, 3, 4, 6 or 8", bits);
    return QN_OK;
}

size_t qn_aura_row_words(size_t dim, unsigned bits)
{
    return (dim * bits + 31) / 32;
}

/* ---- Random numbers: integers and double sums only, for the same rotation on all machines ---- */

/* Returns a nearly normal number: the sum of twelve uniform numbers minus its mean. */
static double random_normal(uint64_t *state)
{
    double sum = -6;
    for (int i = 0; i < 12; i++)
        sum += (double)(qn_splitmix(state) >> 11) * 0x1p-53;
    return sum;
}

/* Subtracts from x its projections on `n` rows of length 1. */
static void orthogonalize(double *x, const double *rows, size_t n, size_t dim)
{
    for (size_t r = 0; r < n; r++) {
        double projection = 0;
        for (size_t d = 0; d < dim; d++)
            projection += x[d] * rows[r * dim + d];
        for (size_t d = 0; d < dim; d++)
            x[d] -= projection * rows[r * dim + d];
    }
}

/* Computes a random orthogonal matrix by Gram-Schmidt on random rows, each step twice: orthogonal to double
 * precision. */
static void random_rotation(double *rows, size_t dim, uint64_t seed)
{
    for (size_t r = 0; r < dim; r++) {
        double *x = rows + r * dim, square = 0;
        for (size_t d = 0; d < dim; d++)
            x[d] = random_normal(&seed);
        orthogonalize(x, rows, r, dim);
        orthogonalize(x, rows, r, dim);
        for (size_t d = 0; d < dim; d++)
            square += x[d] * x[d];
        for (size_t d = 0; d < dim; d++)
            x[d] /= sqrt(square);
    }
}

/* ---- A codec ---- */

static void set_centroids(qn_aura_codec *codec)
{
    const size_t levels = (size_t)1 << codec->bits;
    float largest = 0;
    for (size_t i = 0; i < levels; i++)
        largest = fabsf(codec->codebook[i]) > largest ? fabsf(codec->codebook[i]) : largest;
    codec->step = largest / QN_AURA_CENTROID_MAX;
    for (size_t i = 0; i < QN_AURA_MAX_LEVELS; i++) {
        const double quantized =
            largest > 0 ? rint((double)codec->codebook[i % levels] / largest * QN_AURA_CENTROID_MAX) : 0;
        codec->centroids[i] = (int16_t)quantized;
        codec->low[i] = (uint8_t)((uint16_t)codec->centroids[i] & 0xff);
        codec->high[i] = (uint8_t)((uint16_t)codec->centroids[i] >> 8);
        const bool begins = i % (QN_AURA_MAX_LEVELS / 2) < 16;
        codec->low_change[i] = codec->low[i] ^ (begins ? 0 : codec->low[i - 16]);
        codec->high_change[i] = codec->high[i] ^ (begins ? 0 : codec->high[i - 16]);
    }
}

static qn_status allocate(qn_aura_codec **out, size_t dim, unsigned bits, bool dense)
{
    *out = NULL;
    QN_TRY(qn_aura_check_shape(dim, bits));
    qn_aura_codec *codec;
    QN_TRY(qn_alloc(&codec, 1, sizeof *codec, "codec"));
    codec->dim = dim;
    codec->bits = bits;
    const qn_status status = dense ? qn_alloc(&codec->rotation, 2 * dim * dim, sizeof(float), "rotation")
                                   : qn_alloc(&codec->signs, dim, sizeof(float), "rotation");
    if (status != QN_OK) {
        qn_aura_codec_delete(codec);
        return status;
    }
    if (dense)
        codec->transpose = codec->rotation + dim * dim;
    *out = codec;
    return QN_OK;
}

static void set_transpose(qn_aura_codec *codec)
{
    for (size_t i = 0; i < codec->dim; i++)
        for (size_t j = 0; j < codec->dim; j++)
            codec->transpose[j * codec->dim + i] = codec->rotation[i * codec->dim + j];
}

static qn_status init_rotation(qn_aura_codec *codec, uint64_t seed)
{
    const size_t dim = codec->dim;
    if (codec->signs) {
        for (size_t d = 0; d < dim; d++)
            codec->signs[d] = qn_splitmix(&seed) >> 63 ? -1.0f : 1.0f;
        return QN_OK;
    }
    double *rows;
    QN_TRY(qn_alloc(&rows, dim * dim, sizeof *rows, "rotation"));
    random_rotation(rows, dim, seed);
    for (size_t i = 0; i < dim * dim; i++)
        codec->rotation[i] = (float)rows[i];
    qn_free(rows);
    set_transpose(codec);
    return QN_OK;
}

qn_status qn_aura_codec_new(qn_aura_codec **out, size_t dim, unsigned bits, uint64_t seed)
{
    QN_TRY(allocate(out, dim, bits, (dim & (dim - 1)) != 0));
    qn_status status = qn_aura_lloyd_max(dim, bits, (*out)->boundaries, (*out)->codebook);
    if (status == QN_OK)
        status = init_rotation(*out, seed);
    if (status != QN_OK) {
        qn_aura_codec_delete(*out);
        *out = NULL;
        return status;
    }
    set_centroids(*out);
    return QN_OK;
}

qn_status qn_aura_codec_from_tables(qn_aura_codec **out, size_t dim, unsigned bits, const float *rotation,
                                    const float *boundaries, const float *codebook)
{
    QN_TRY(allocate(out, dim, bits, true));
    memcpy((*out)->rotation, rotation, dim * dim * sizeof *rotation);
    memcpy((*out)->boundaries, boundaries, (((size_t)1 << bits) - 1) * sizeof *boundaries);
    memcpy((*out)->codebook, codebook, ((size_t)1 << bits) * sizeof *codebook);
    set_transpose(*out);
    set_centroids(*out);
    return QN_OK;
}

void qn_aura_codec_delete(qn_aura_codec *codec)
{
    if (!codec)
        return;
    qn_free(codec->signs);
    qn_free(codec->rotation);
    qn_free(codec);
}

qn_status qn_aura_codecs_new(qn_aura_codecs *out, size_t dim, unsigned key_bits, unsigned value_bits, uint64_t seed)
{
    *out = (qn_aura_codecs){ 0 };
    if (!key_bits)
        return QN_OK;
    QN_TRY(qn_aura_codec_new(&out->keys, dim, key_bits, seed));
    out->values = out->keys;
    const qn_status status = value_bits == key_bits ? QN_OK : qn_aura_codec_new(&out->values, dim, value_bits, seed);
    if (status != QN_OK)
        qn_aura_codecs_delete(out);
    return status;
}

void qn_aura_codecs_delete(qn_aura_codecs *codecs)
{
    if (codecs->values != codecs->keys)
        qn_aura_codec_delete(codecs->values);
    qn_aura_codec_delete(codecs->keys);
    *codecs = (qn_aura_codecs){ 0 };
}

/* ---- Rows ---- */

void qn_aura_rotate(const qn_aura_kernels *kernels, const qn_aura_codec *codec, float *y, const float *x)
{
    if (!codec->signs) {
        kernels->gemv(y, codec->rotation, x, codec->dim);
        return;
    }
    memcpy(y, x, codec->dim * sizeof *y);
    kernels->hadamard(y, codec->dim, codec->signs, NULL);
}

void qn_aura_rotate_back(const qn_aura_kernels *kernels, const qn_aura_codec *codec, float *y, const float *x)
{
    if (!codec->signs) {
        kernels->gemv(y, codec->transpose, x, codec->dim);
        return;
    }
    memcpy(y, x, codec->dim * sizeof *y);
    kernels->hadamard(y, codec->dim, NULL, codec->signs);
}

enum { PARTIAL_SUMS = 8 }; /* accumulators of a sum of doubles */

static double reduce_sums(const double sums[PARTIAL_SUMS])
{
    return ((sums[0] + sums[4]) + (sums[2] + sums[6])) + ((sums[1] + sums[5]) + (sums[3] + sums[7]));
}

/* Returns the norm of a row. Computed in double, whose range holds the square of every finite float. */
static double norm(const float *x, size_t dim)
{
    double sums[PARTIAL_SUMS] = { 0 };
    for (size_t d = 0; d < dim; d += PARTIAL_SUMS)
        for (size_t i = 0; i < PARTIAL_SUMS; i++)
            sums[i] += (double)x[d + i] * (double)x[d + i];
    return sqrt(reduce_sums(sums));
}

static double decoded_norm(const uint8_t *codes, const qn_aura_codec *codec)
{
    double sums[PARTIAL_SUMS] = { 0 };
    for (size_t d = 0; d < codec->dim; d += PARTIAL_SUMS)
        for (size_t i = 0; i < PARTIAL_SUMS; i++) {
            const double c = (double)codec->codebook[codes[d + i]];
            sums[i] += c * c;
        }
    return sqrt(reduce_sums(sums));
}

/* Smaller norms count as 0. */
#define TINY_NORM 1e-8

/* Encodes a row of norm n and rotated direction y; returns the scale. */
static double encode_unit(const qn_aura_kernels *kernels, const qn_aura_codec *codec, const float *y, double n,
                          uint8_t *codes)
{
    kernels->quantize(codes, y, codec);
    const double decoded = decoded_norm(codes, codec);
    return decoded > TINY_NORM ? n / decoded : n;
}

static bool encode(const qn_aura_kernels *kernels, const qn_aura_codec *codec, const float *x, bool is_rotated,
                   uint8_t *codes, float *scale)
{
    static const float zeros[QN_AURA_MAX_DIM];
    float unit[QN_AURA_MAX_DIM], y[QN_AURA_MAX_DIM];
    const double n = norm(x, codec->dim); /* NaN and infinity propagate */
    if (n <= (double)FLT_MAX) {
        const float by = n > TINY_NORM ? (float)n : INFINITY;
        for (size_t d = 0; d < codec->dim; d++)
            unit[d] = x[d] / by;
        if (!is_rotated)
            qn_aura_rotate(kernels, codec, y, unit);
        const double exact = encode_unit(kernels, codec, is_rotated ? unit : y, n, codes);
        *scale = (float)exact;
        if (exact <= (double)FLT_MAX)
            return true;
    }
    *scale = (float)encode_unit(kernels, codec, zeros, 0, codes);
    return false;
}

bool qn_aura_encode_row(const qn_aura_kernels *kernels, const qn_aura_codec *codec, const float *x, uint8_t *codes,
                        float *scale)
{
    return encode(kernels, codec, x, false, codes, scale);
}

bool qn_aura_encode_rotated(const qn_aura_kernels *kernels, const qn_aura_codec *codec, const float *y, uint8_t *codes,
                            float *scale)
{
    return encode(kernels, codec, y, true, codes, scale);
}

/* Packs codes into a bit stream. Eight codes are exactly `bits` bytes, so each group of eight begins at a byte and fits
 * a 64-bit word. The bytes of little-endian words are in stream order on all supported machines, which are
 * little-endian. */
void qn_aura_pack(uint32_t *words, const uint8_t *codes, size_t dim, unsigned bits)
{
    uint8_t *bytes = (uint8_t *)words;
    words[qn_aura_row_words(dim, bits) - 1] = 0;
    for (size_t d = 0; d < dim; d += 8, bytes += bits) {
        uint64_t run = 0;
        for (unsigned i = 0; i < 8; i++)
            run |= (uint64_t)codes[d + i] << i * bits;
        memcpy(bytes, &run, bits);
    }
}

void qn_aura_unpack(uint8_t *codes, const uint32_t *words, size_t dim, unsigned bits)
{
    const uint8_t *bytes = (const uint8_t *)words;
    for (size_t d = 0; d < dim; d += 8, bytes += bits) {
        uint64_t run = 0;
        memcpy(&run, bytes, bits);
        for (unsigned i = 0; i < 8; i++)
            codes[d + i] = (uint8_t)(run >> i * bits & ((1u << bits) - 1));
    }
}

/* Adding and subtracting this number rounds a float of magnitude below 2^22 to an integer, ties to even. */
#define ROUND_TO_INT 12582912.0f

void qn_aura_quantize_query(int16_t *quantized, float *scale, const float *x, const qn_aura_codec *key_codec)
{
    const size_t dim = key_codec->dim;
    float largest = 0, sums[16] = { 0 }, sum = 0;
    for (size_t d = 0; d < dim; d += 16)
        for (size_t i = 0; i < 16; i++) {
            const float a = fabsf(x[d + i]);
            sums[i] += a;
            largest = a > largest ? a : largest;
        }
    for (size_t i = 0; i < 16; i++)
        sum += sums[i];                       /* NaN if any element is */
    if (!(sum > FLT_MIN && sum <= FLT_MAX)) { /* zero, or not finite */
        memset(quantized, 0, dim * sizeof *quantized);
        *scale = sum <= FLT_MIN ? 0.0f : NAN;
        return;
    }
    const float by_largest = largest / INT16_MAX, by_sum = sum / QN_AURA_MAX_ABS_SUM;
    const float unit = by_largest > by_sum ? by_largest : by_sum;
    for (size_t d = 0; d < dim; d++)
        quantized[d] = (int16_t)(int32_t)(x[d] / unit + ROUND_TO_INT - ROUND_TO_INT);
    *scale = unit * key_codec->step;
}
