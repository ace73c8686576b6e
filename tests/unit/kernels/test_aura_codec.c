/* AURA rows: the codebook and its distortion, the packed stream, norms, tiny and non-finite rows, rejected
 * arguments. */
#include "helper_aura.h"

#include "base/cpu.h"
#include "base/f16.h"
#include "kernels/kernels.h"

#include <float.h>

/* ---- Golden data, as tools/make_aura_golden.py describes it ---- */

enum { GOLDEN_DIM = 80, GOLDEN_ROWS = 6 };

static FILE *golden;

static void next(void *data, size_t size, size_t n)
{
    if (fread(data, size, n, golden) != n)
        fail_msg("tests/golden/aura.bin is too short");
}

static int open_golden(void)
{
    golden = fopen(QN_SOURCE_DIR "/tests/golden/aura.bin", "rb");
    return golden == NULL;
}

static int close_golden(void)
{
    return fclose(golden);
}

static void codebooks(void)
{
    for (size_t i = 0; i < N_DIMS; i++)
        for (size_t j = 0; j < N_BITS; j++) {
            label("dim %zu bits %u", aura_dims[i], aura_bits[j]);
            const size_t half = (size_t)1 << (aura_bits[j] - 1);
            qn_aura_codec *codec = new_codec(aura_dims[i], aura_bits[j]);
            float book[256], boundaries[255];
            double exact[128];
            next(exact, sizeof *exact, half);
            assert_ok(qn_aura_codec_tables(codec, (qn_view){ 0 }, f32(boundaries, 2 * half - 1), f32(book, 2 * half)));
            for (size_t k = 0; k < half; k++) {
                label("centroid %zu", k);
                const double middle = k ? (exact[k - 1] + exact[k]) / 2 : 0;
                /* Half an ulp of a float below 1. */
                if (fabs((double)book[half + k] - exact[k]) > 0x1p-24 || book[half - 1 - k] != -book[half + k])
                    fail_msg("%.9g, float64 has %.9g", (double)book[half + k], exact[k]);
                assert_true(fabs((double)boundaries[half - 1 + k] - middle) <= 0x1p-24);
                assert_true(boundaries[half - 1 - k] == -boundaries[half - 1 + k]);
            }
            qn_aura_codec_free(codec);
        }
}

TEST_WITH(encoded_as_defined, open_golden, close_golden)
{
    static float rotation[GOLDEN_DIM * GOLDEN_DIM], rows[GOLDEN_ROWS * GOLDEN_DIM], boundaries[255], book[256];
    static uint32_t expected[GOLDEN_ROWS * GOLDEN_DIM], words[GOLDEN_ROWS * GOLDEN_DIM];
    codebooks();
    next(rotation, sizeof *rotation, GOLDEN_DIM * GOLDEN_DIM);
    next(rows, sizeof *rows, GOLDEN_ROWS * GOLDEN_DIM);
    for (size_t i = 0; i < N_BITS; i++) {
        label("bits %u", aura_bits[i]);
        const size_t levels = (size_t)1 << aura_bits[i], n_words = (GOLDEN_DIM * aura_bits[i] + 31) / 32;
        double scales[GOLDEN_ROWS];
        float found[GOLDEN_ROWS];
        qn_aura_codec *codec;
        next(boundaries, sizeof *boundaries, levels - 1);
        next(book, sizeof *book, levels);
        next(expected, sizeof *expected, GOLDEN_ROWS * n_words);
        next(scales, sizeof *scales, GOLDEN_ROWS);
        assert_ok(qn_aura_codec_create_with(&codec, GOLDEN_DIM, aura_bits[i], f32(rotation, GOLDEN_DIM * GOLDEN_DIM),
                                            f32(boundaries, levels - 1), f32(book, levels)));
        assert_int_equal(qn_aura_words(codec), n_words);
        assert_ok(qn_aura_encode(codec, f32(rows, GOLDEN_ROWS * GOLDEN_DIM), GOLDEN_ROWS,
                                 u32(words, GOLDEN_ROWS * n_words), f32(found, GOLDEN_ROWS)));
        assert_memory_equal(words, expected, GOLDEN_ROWS * n_words * sizeof *words);
        for (size_t r = 0; r < GOLDEN_ROWS; r++) /* rounding to float32 */
            assert_true(fabs((double)found[r] / scales[r] - 1) < 0x1p-23);
        qn_aura_codec_free(codec);
    }
    assert_int_equal(fgetc(golden), EOF);
}

/* ---- Distortion ---- */

/* Distortion of the Lloyd-Max quantiser of one coordinate, summed over a unit vector, computed independently. 0: not
 * known. */
static const double distortions[N_DIMS][N_BITS] = {
    { 0.114526, 0.0333908, 0.00913152, 0.000615963, 3.93168e-5 },
    { 0.115115, 0.0336201, 0.00920447, 0.000621528, 3.96842e-5 },
    { 0.115508, 0.0337735, 0.00925337, 0.000625264, 3.99309e-5 },
    { 0.116000, 0.0339659, 0.00931479, 0.000629961, 4.02412e-5 },
    { 0, 0, 0, 0, 0 },
    { 0.116740, 0.0342560, 0.00940753, 0.000637065, 4.07107e-5 },
    { 0.117111, 0.0344017, 0.00945418, 0.000640644, 4.09473e-5 },
};

static void distortion_of(size_t i, size_t vectors)
{
    const size_t dim = aura_dims[i];
    qn_kernels kernels;
    qn_aura_codec *codecs[N_BITS];
    double sums[N_BITS] = { 0 };
    qn_kernels_init(&kernels, qn_cpu_present());
    for (size_t j = 0; j < N_BITS; j++)
        codecs[j] = new_codec(dim, aura_bits[j]);
    for (size_t v = 0; v < vectors; v++) {
        float x[512], y[512], unit[512];
        double square = 0;
        for (size_t d = 0; d < dim; d += 2) {
            const double radius = sqrt(-2 * log(uniform())), angle = 6.283185307179586 * uniform();
            x[d] = (float)(radius * cos(angle));
            x[d + 1] = (float)(radius * sin(angle));
            square += radius * radius;
        }
        for (size_t d = 0; d < dim; d++)
            unit[d] = (float)((double)x[d] / sqrt(square));
        qn_aura_rotate(&kernels.aura, codecs[0], y, unit); /* all codecs have the same seed and so the same rotation */
        for (size_t j = 0; j < N_BITS; j++) {
            uint8_t codes[512];
            kernels.aura.quantize(codes, y, codecs[j]);
            for (size_t d = 0; d < dim; d++) {
                const double error = (double)y[d] - (double)codecs[j]->codebook[codes[d]];
                sums[j] += error * error;
            }
        }
    }
    for (size_t j = 0; j < N_BITS; j++) {
        const double found = sums[j] / (double)vectors;
        /* 192 has no entry: its distortion is between those of 128 and 256, which differ by 1.2%. */
        const double low = distortions[dim == 192 ? 3 : i][j], high = distortions[dim == 192 ? 5 : i][j];
        if (!(found >= low * 0.99 && found <= high * 1.01))
            fail_msg("dim %zu bits %u: %g, expected %g to %g", dim, aura_bits[j], found, low, high);
        qn_aura_codec_free(codecs[j]);
    }
}

TEST(distortion)
{
    random_state = 5;
    for (size_t i = 0; i < N_DIMS; i++)
        distortion_of(i, 100000);
}

/* ---- The stream ---- */

TEST(stream_is_a_bit_string)
{
    for (size_t i = 0; i < N_DIMS; i++)
        for (size_t j = 0; j < N_BITS; j++) {
            label("dim %zu bits %u", aura_dims[i], aura_bits[j]);
            const size_t dim = aura_dims[i], bits = aura_bits[j], n_words = (dim * bits + 31) / 32;
            uint8_t codes[512], back[512];
            uint32_t words[512 * 8 / 32 + 1], expected[512 * 8 / 32] = { 0 };
            memset(words, 0xff, sizeof words);
            for (size_t d = 0; d < dim; d++) {
                codes[d] = (uint8_t)(uniform() * (double)(1u << bits));
                for (size_t b = 0; b < bits; b++)
                    if (codes[d] >> b & 1)
                        expected[(d * bits + b) / 32] |= 1u << (d * bits + b) % 32;
            }
            qn_aura_pack(words, codes, dim, (unsigned)bits);
            assert_memory_equal(words, expected, n_words * 4);
            assert_true(words[n_words] == 0xffffffffu);
            qn_aura_unpack(back, words, dim, (unsigned)bits);
            assert_memory_equal(back, codes, dim);
        }
}

static qn_view typed(const float *x, qn_dtype dtype, size_t n)
{
    uint16_t *values16 = memory(n * 2, 0);
    for (size_t i = 0; i < n; i++)
        values16[i] = dtype == QN_DTYPE_F16 ? qn_f32_to_f16(x[i]) : qn_f32_to_bf16(x[i]);
    return (qn_view){ values16, dtype, n };
}

static double norm_of(const float *x, size_t n)
{
    double square = 0;
    for (size_t d = 0; d < n; d++)
        square += (double)x[d] * (double)x[d];
    return sqrt(square);
}

/* Decoding restores norms exactly and rows within the distortion. Without rotating back, a decoded row is scale times
 * centroids. */
TEST(norms_and_rows)
{
    enum { ROWS = 5 };
    static const double worst[N_BITS] = { 0.5, 0.25, 0.13, 0.04, 0.011 }; /* 1.5 times the root of the distortion */
    static const double sizes[ROWS] = { 1, 1e-6, 1e18, 30, 1e-3 };
    for (size_t i = 0; i < N_DIMS; i++)
        for (size_t j = 0; j < N_BITS; j++) {
            label("dim %zu bits %u", aura_dims[i], aura_bits[j]);
            const size_t dim = aura_dims[i];
            qn_aura_codec *codec = new_codec(dim, aura_bits[j]);
            const size_t n_words = qn_aura_words(codec);
            float *x = normals(ROWS * dim, 1), *y = memory(ROWS * dim * 4, 0), *z = memory(ROWS * dim * 4, 0),
                  scales[ROWS];
            float *rotation = memory(dim * dim * 4, 0), book[256];
            uint32_t *words = memory(ROWS * n_words * 4, 0xff);
            uint8_t codes[512];
            for (size_t k = 0; k < ROWS * dim; k++)
                x[k] = (float)((double)x[k] * sizes[k / dim]);
            const qn_view w = u32(words, ROWS * n_words), s = f32(scales, ROWS);
            assert_ok(qn_aura_encode(codec, f32(x, ROWS * dim), ROWS, w, s));
            assert_ok(qn_aura_decode(codec, w, s, ROWS, true, f32(y, ROWS * dim)));
            assert_ok(qn_aura_decode(codec, w, s, ROWS, false, f32(z, ROWS * dim)));
            assert_ok(qn_aura_codec_tables(codec, f32(rotation, dim * dim), (qn_view){ 0 }, f32(book, 256)));
            for (size_t r = 0; r < ROWS; r++) {
                label("row %zu", r);
                double exact[512];
                const double n = norm_of(x + r * dim, dim);
                for (size_t d = 0; d < dim; d++)
                    exact[d] = (double)x[r * dim + d];
                if (!(fabs(norm_of(y + r * dim, dim) / n - 1) < 1e-5))
                    fail_msg("norm %g of %g", norm_of(y + r * dim, dim), n);
                assert_true(relative(y + r * dim, exact, dim) < worst[j]);
                qn_aura_unpack(codes, words + r * n_words, dim, aura_bits[j]);
                for (size_t d = 0; d < dim; d++) {
                    assert_true(z[r * dim + d] == book[codes[d]] * scales[r]);
                    exact[d] = 0;
                    for (size_t k = 0; k < dim; k++)
                        exact[d] += (double)rotation[k * dim + d] * (double)z[r * dim + k];
                }
                assert_true(relative(y + r * dim, exact, dim) < 1e-6); /* float32 sums of up to 512 terms */
            }
            free(x);
            free(y);
            free(z);
            free(rotation);
            free(words);
            qn_aura_codec_free(codec);
        }
}

/* An fp16 or bf16 row is encoded as the floats that it contains. */
TEST(narrow_types)
{
    enum { DIM = 96, ROWS = 3, WORDS = 9 };
    qn_aura_codec *codec = new_codec(DIM, 3);
    float *x = normals(ROWS * DIM, 1), scales[2][ROWS];
    uint32_t words[2][ROWS * WORDS];
    for (int i = 0; i < 2; i++) {
        label("%s", i ? "bf16" : "f16");
        const qn_dtype dtype = i ? QN_DTYPE_BF16 : QN_DTYPE_F16;
        const qn_view narrow = typed(x, dtype, ROWS * DIM), out = typed(x, dtype, ROWS * DIM);
        const uint16_t *values16 = narrow.data;
        for (size_t k = 0; k < ROWS * DIM; k++)
            x[k] = i ? qn_bf16_to_f32(values16[k]) : qn_f16_to_f32(values16[k]);
        assert_ok(qn_aura_encode(codec, narrow, ROWS, u32(words[0], ROWS * WORDS), f32(scales[0], ROWS)));
        assert_ok(qn_aura_encode(codec, f32(x, ROWS * DIM), ROWS, u32(words[1], ROWS * WORDS), f32(scales[1], ROWS)));
        assert_memory_equal(words[0], words[1], sizeof words[0]);
        assert_memory_equal(scales[0], scales[1], sizeof scales[0]);
        float decoded[ROWS * DIM];
        assert_ok(qn_aura_decode(codec, u32(words[0], ROWS * WORDS), f32(scales[0], ROWS), ROWS, true, out));
        assert_ok(qn_aura_decode(codec, u32(words[0], ROWS * WORDS), f32(scales[0], ROWS), ROWS, true,
                                 f32(decoded, ROWS * DIM)));
        for (size_t k = 0; k < ROWS * DIM; k++)
            assert_int_equal(((uint16_t *)out.data)[k], i ? qn_f32_to_bf16(decoded[k]) : qn_f32_to_f16(decoded[k]));
        free(narrow.data);
        free(out.data);
    }
    free(x);
    qn_aura_codec_free(codec);
}

TEST(tiny_rows)
{
    for (size_t j = 0; j < N_BITS; j++) {
        label("bits %u", aura_bits[j]);
        qn_aura_codec *codec = new_codec(64, aura_bits[j]);
        const size_t n_words = qn_aura_words(codec);
        float x[2 * 64] = { 0 }, scales[2], decoded[2 * 64];
        uint32_t words[2 * 16];
        uint8_t codes[64];
        x[64 + 7] = 9e-9f;
        const qn_view w = u32(words, 2 * n_words), s = f32(scales, 2);
        assert_ok(qn_aura_encode(codec, f32(x, 128), 2, w, s));
        for (size_t r = 0; r < 2; r++) {
            label("row %zu", r);
            qn_aura_unpack(codes, words + r * n_words, 64, aura_bits[j]);
            for (size_t d = 0; d < 64; d++)
                assert_int_equal(codes[d], (1u << (aura_bits[j] - 1)) - 1);
        }
        assert_true(scales[0] == 0);
        assert_ok(qn_aura_decode(codec, w, s, 2, true, f32(decoded, 128)));
        assert_true(fabs(norm_of(decoded + 64, 64) / 9e-9 - 1) < 1e-5);
        qn_aura_codec_free(codec);
    }
    /* An all-zero codebook has no norm to divide by: the scale is the row's norm. */
    float rotation[64 * 64] = { 0 }, boundaries[3] = { -1, 0, 1 }, book[4] = { 0 }, x[64] = { 3, 4 }, scale;
    uint32_t words[4];
    qn_aura_codec *codec;
    for (size_t d = 0; d < 64; d++)
        rotation[d * 65] = 1;
    assert_ok(qn_aura_codec_create_with(&codec, 64, 2, f32(rotation, 4096), f32(boundaries, 3), f32(book, 4)));
    assert_ok(qn_aura_encode(codec, f32(x, 64), 1, u32(words, 4), f32(&scale, 1)));
    assert_true(scale == 5);
    qn_aura_codec_free(codec);
}

/* ---- Rejected arguments ---- */

TEST(rows_not_finite)
{
    static const float bad[] = { NAN, INFINITY, -INFINITY, FLT_MAX }; /* FLT_MAX twice: their norm is 1.4 times as large
                                                                       */
    qn_aura_codec *codec = new_codec(64, 3);
    for (size_t k = 0; k < 4; k++) {
        label("%g", (double)bad[k]);
        float *x = normals(4 * 64, 1), scales[4];
        uint32_t words[4 * 6];
        memset(words, 0xab, sizeof words);
        memset(scales, 0xab, sizeof scales);
        x[2 * 64 + 11] = x[2 * 64 + 12] = bad[k];
        assert_fails(qn_aura_encode(codec, f32(x, 256), 4, u32(words, 24), f32(scales, 4)), QN_ERR_INVALID,
                     "rows: row 2 is not finite");
        assert_true(words[0] != 0xabababab && words[11] != 0xabababab && isfinite(scales[1]) && scales[1] > 0);
        for (size_t i = 12; i < 24; i++)
            assert_true(words[i] == 0xabababab);
        assert_memory_equal(scales + 2, words + 12, 8);
        free(x);
    }
    qn_aura_codec_free(codec);
}

TEST(refuses)
{
    static const size_t dims[] = { 0, 16, 48, 63, 160, 1024 };
    static const unsigned bits[] = { 0, 1, 5, 7, 9, 32, 64 };
    qn_aura_codec *codec = (qn_aura_codec *)&dims;
    for (size_t i = 0; i < 6; i++) {
        assert_fails(qn_aura_codec_create(&codec, dims[i], 4, 0), QN_ERR_INVALID,
                     "expected 64, 80, 96, 128, 192, 256 or 512");
        assert_null(codec);
    }
    for (size_t i = 0; i < 7; i++) {
        assert_fails(qn_aura_codec_create_with(&codec, 64, bits[i], f32(NULL, 0), f32(NULL, 0), f32(NULL, 0)),
                     QN_ERR_INVALID, "expected 2, 3, 4, 6 or 8");
        assert_int_equal(qn_aura_codec_create(&codec, 64, bits[i], 0), QN_ERR_INVALID);
    }
    assert_int_equal(qn_aura_codec_create(NULL, 64, 4, 0), QN_ERR_INVALID);
    assert_int_equal(qn_aura_words(NULL), 0);
    qn_aura_codec_free(NULL);

    static float rotation[4096];
    float b[3] = { -1, 0, 1 }, c[4] = { -2, -1, 1, 2 };
    assert_fails(qn_aura_codec_create_with(&codec, 64, 2, f32(rotation, 4095), f32(b, 3), f32(c, 4)), QN_ERR_INVALID,
                 "rotation: 4095 elements, expected at least 4096");
    assert_fails(qn_aura_codec_create_with(&codec, 64, 2, f32(rotation, 4096), f32(b, 2), f32(c, 4)), QN_ERR_INVALID,
                 "boundaries: 2 elements, expected at least 3");
    assert_fails(qn_aura_codec_create_with(&codec, 64, 2, f32(rotation, 4096), f32(b, 3), f32(c, 3)), QN_ERR_INVALID,
                 "codebook: 3 elements, expected at least 4");
    b[1] = -1.5f;
    assert_fails(qn_aura_codec_create_with(&codec, 64, 2, f32(rotation, 4096), f32(b, 3), f32(c, 4)), QN_ERR_INVALID,
                 "boundaries: element 1 is -1.5, expected at least -1");
    b[1] = 0;
    c[3] = INFINITY;
    assert_fails(qn_aura_codec_create_with(&codec, 64, 2, f32(rotation, 4096), f32(b, 3), f32(c, 4)), QN_ERR_INVALID,
                 "codebook: element 3 is inf");
    assert_null(codec);

    float x[2 * 64] = { 1 }, scales[2] = { 7, 7 };
    uint32_t words[2 * 8];
    memset(words, 0xab, sizeof words);
    codec = new_codec(64, 4);
    assert_fails(qn_aura_encode(NULL, f32(x, 128), 2, u32(words, 16), f32(scales, 2)), QN_ERR_INVALID, "codec: NULL");
    assert_fails(qn_aura_encode(codec, f32(x, 127), 2, u32(words, 16), f32(scales, 2)), QN_ERR_INVALID,
                 "rows: 127 elements, expected at least 128");
    assert_fails(qn_aura_encode(codec, f32(x, 128), 2, u32(words, 15), f32(scales, 2)), QN_ERR_INVALID,
                 "codes: 15 elements, expected at least 16");
    assert_fails(qn_aura_encode(codec, f32(x, 128), 2, u32(words, 16), f32(scales, 1)), QN_ERR_INVALID,
                 "scales: 1 elements, expected at least 2");
    assert_fails(qn_aura_encode(codec, f32(x, 128), 2, f32(words, 16), f32(scales, 2)), QN_ERR_INVALID,
                 "codes: type f32 (0), expected u32");
    assert_fails(qn_aura_encode(codec, u32(x, 128), 2, u32(words, 16), f32(scales, 2)), QN_ERR_INVALID,
                 "rows: type u32");
    assert_fails(qn_aura_encode(codec, f32(x, 128), SIZE_MAX / 2, u32(words, 16), f32(scales, 2)), QN_ERR_INVALID,
                 "do not fit in memory");
    assert_fails(qn_aura_decode(codec, u32(words, 16), f32(scales, 2), 2, true, f32(x, 127)), QN_ERR_INVALID,
                 "rows: 127 elements");
    assert_int_equal(qn_aura_decode(codec, u32(words, 15), f32(scales, 2), 2, true, f32(x, 128)), QN_ERR_INVALID);
    assert_int_equal(qn_aura_codec_tables(codec, f32(rotation, 4095), (qn_view){ 0 }, (qn_view){ 0 }), QN_ERR_INVALID);
    for (size_t i = 0; i < 16; i++)
        assert_true(words[i] == 0xabababab);
    assert_true(scales[0] == 7 && scales[1] == 7 && x[0] == 1 && x[1] == 0);
    assert_ok(qn_aura_encode(codec, f32(NULL, 0), 0, u32(NULL, 0), f32(NULL, 0)));
    qn_aura_codec_free(codec);
}
