/* AURA's codec on the GPU compared with the CPU's: encoding and decoding of rows, and quantisation of complete pages of
 * a session's cache. A code may differ from the CPU's by 1 if the rotated value is at a boundary. */
#include "cuda_codec.h"
#include "cuda_views.h"

#include "base/f16.h"
#include "kernels/kernels.h"

/* Largest fraction of codes that differ by 1. Both sides rotate in float32: sums of up to 512 terms of at most 1 have
 * errors of about 512 * 2^-24. With up to 255 boundaries over the width of the distribution, fewer than one value in a
 * thousand is that close to one. */
#define NEIGHBOURS_BOUND 1e-3

enum { N_OPEN = 3 };

/* Compares codes and scale of a row with the CPU's. Returns the number of codes that differ by 1. */
static size_t compare_row(const uint32_t *words, float scale, const uint8_t *expected, float expected_scale,
                          const qn_aura_codec *codec)
{
    uint8_t codes[QN_AURA_MAX_DIM];
    const size_t n_words = qn_aura_row_words(codec->dim, codec->bits), used = codec->dim * codec->bits % 32;
    size_t neighbours = 0, wrong = 0;
    qn_aura_unpack(codes, words, codec->dim, codec->bits);
    for (size_t d = 0; d < codec->dim; d++) {
        const int apart = abs((int)codes[d] - (int)expected[d]);
        neighbours += apart == 1;
        wrong += apart > 1;
    }
    qn_expect(wrong == 0, "%zu codes differ from the CPU's by more than 1", wrong);
    qn_expect(!used || words[n_words - 1] >> used == 0, "bits past the row's end are not 0");
    /* A code that differs by 1 changes the decoded norm by at most a step of the codebook. */
    const double bound = neighbours ? 0.05 : 1e-5;
    qn_expect((isnan(scale) && isnan(expected_scale)) ||
                  fabs((double)scale - (double)expected_scale) <= bound * fabs((double)expected_scale) + 1e-12,
              "scale %g, expected %g", (double)scale, (double)expected_scale);
    return neighbours;
}

static void expect_few(size_t neighbours, size_t n)
{
    qn_expect((double)neighbours <= NEIGHBOURS_BOUND * (double)n + 2, "%zu of %zu codes differ from the CPU's by 1",
              neighbours, n);
}

/* Random rows; among them a zero, a tiny, a large and a NaN row. */
static float *random_rows(qn_dtype dtype, size_t n_rows, size_t dim)
{
    float *rows = qn_floats_of(n_rows * dim, 3);
    for (size_t d = 0; d < dim; d++) {
        rows[d] = 0;
        if (n_rows > 3) {
            rows[dim + d] *= 1e-12f;
            rows[2 * dim + d] *= dtype == QN_DTYPE_F16 ? 5000.0f : 1e30f;
            rows[3 * dim + d] = d == 5 ? NAN : rows[3 * dim + d];
        }
    }
    return rows;
}

static void check_codec(const qn_kernels *kernels, size_t dim, unsigned bits, qn_dtype dtype, size_t n_rows)
{
    const size_t words = qn_aura_row_words(dim, bits);
    const qn_aura_codec *codec = qn_codec(dim, bits, 7);
    qn_launch encode, decode;
    size_t neighbours = 0;
    qn_random_seed(dim * 100 + bits * 10 + (unsigned)dtype);
    qn_case_begin("aura", "cuda", "%zu rows of %zu in %u bits, type %d", n_rows, dim, bits, (int)dtype);
    qn_assert_ok(qn_aura_gpu_encode(dim, bits, n_rows, &encode));
    qn_assert_ok(qn_aura_gpu_decode(dim, bits, n_rows, &decode));
    const qn_gpu_rows rows = qn_gpu_rows_of(random_rows(dtype, n_rows, dim), dtype, n_rows, dim, 0, 0),
                      inverse = qn_gpu_rows_poison(dtype, n_rows, dim, 0, 0);
    const qn_aura_encode_args encode_args = { .rows = rows.memory,
                                              .codes = qn_gpu_new(n_rows * words * 4),
                                              .scales = qn_gpu_floats(n_rows),
                                              .rotation = qn_gpu_rotation(codec),
                                              .levels = qn_gpu_levels(codec),
                                              .n_rows = (uint32_t)n_rows,
                                              .stride = (uint32_t)dim,
                                              .dtype = dtype };
    const qn_aura_decode_args decode_args = { .codes = encode_args.codes,
                                              .scales = encode_args.scales,
                                              .rows = inverse.memory,
                                              .rotation = encode_args.rotation,
                                              .levels = encode_args.levels,
                                              .n_rows = (uint32_t)n_rows,
                                              .stride = (uint32_t)dim,
                                              .dtype = dtype };
    qn_gpu_launch(&encode, &encode_args);
    qn_gpu_launch(&decode, &decode_args);
    const uint32_t *found = qn_gpu_read(encode_args.codes);
    const float *scales = qn_gpu_read(encode_args.scales), *decoded = qn_gpu_rows_read(&inverse, "decoded rows");
    double square = 0, error = 0;
    for (size_t r = 0; r < n_rows; r++) {
        uint8_t expected[QN_AURA_MAX_DIM], unpacked[QN_AURA_MAX_DIM];
        float expected_scale, rotated[QN_AURA_MAX_DIM], row[QN_AURA_MAX_DIM];
        if (!qn_aura_encode_row(&kernels->aura, codec, rows.values + r * dim, expected, &expected_scale))
            expected_scale = NAN;
        neighbours += compare_row(found + r * words, scales[r], expected, expected_scale, codec);
        if (isnan(expected_scale) || r == 2) /* the large row: it overflows fp16 */
            continue;
        qn_aura_unpack(unpacked, found + r * words, dim, bits);
        for (size_t d = 0; d < dim; d++)
            rotated[d] = scales[r] * codec->codebook[unpacked[d]];
        qn_aura_rotate_back(&kernels->aura, codec, row, rotated);
        for (size_t d = 0; d < dim; d++) {
            const double x = (double)decoded[r * dim + d] - (double)row[d];
            error += x * x;
            square += (double)row[d] * (double)row[d];
        }
    }
    expect_few(neighbours, n_rows * dim);
    /* Rounding to the type, after float32 sums. */
    const double bound = dtype == QN_DTYPE_F32 ? 1e-5 : dtype == QN_DTYPE_F16 ? 0x1p-11 : 0x1p-8;
    qn_expect(error <= bound * bound * square, "decoded rows are off by %.2e, expected up to %.1e",
              sqrt(error / square), bound);
    qn_release();
}

/* n_pages pages from first_page of a session's cache: the mean of page 0's keys, codes of the others. */
static void check_quantize_page(const qn_kernels *kernels, size_t dim, unsigned key_bits, unsigned value_bits,
                                uint32_t first_page, size_t n_pages)
{
    enum { HEADS = 2, SLOTS = 1 + N_OPEN };
    const size_t n_f16 = (size_t)HEADS * SLOTS * QN_PAGE * dim, rows = (size_t)(first_page + n_pages) * QN_PAGE;
    const size_t key_words = qn_aura_row_words(dim, key_bits), value_words = qn_aura_row_words(dim, value_bits);
    const qn_aura_codec *keys = qn_codec(dim, key_bits, 7), *values = qn_codec(dim, value_bits, 8);
    qn_launch launch;
    uint16_t *f16_keys = qn_new(n_f16, 2), *f16_values = qn_new(n_f16, 2);
    size_t neighbours[2] = { 0, 0 };
    qn_random_seed(dim * 100 + key_bits * 10 + value_bits + first_page);
    qn_case_begin("aura", "cuda pages", "pages %u to %zu, heads of %zu in %u and %u bits", first_page,
                  first_page + n_pages - 1, dim, key_bits, value_bits);
    qn_assert_ok(qn_aura_gpu_quantize_page(dim, key_bits, value_bits, n_pages, HEADS, 1, &launch));
    for (size_t i = 0; i < n_f16; i++) {
        f16_keys[i] = qn_f32_to_f16(qn_random_normal() + 2);
        f16_values[i] = qn_f32_to_f16(qn_random_normal());
    }
    const uint32_t bad_page = first_page ? first_page : 1;
    f16_keys[((1 + (bad_page - 1) % N_OPEN) * QN_PAGE + 3) * dim] = 0x7e00; /* a key of head 0 */
    const qn_aura_quantize_page_args args = { .cache = { .keys = qn_gpu_new(HEADS * rows * key_words * 4),
                                                         .values = qn_gpu_new(HEADS * rows * value_words * 4),
                                                         .key_scales = qn_gpu_floats(HEADS * rows),
                                                         .value_scales = qn_gpu_floats(HEADS * rows),
                                                         .key_head_stride = rows * key_words * 4,
                                                         .value_head_stride = rows * value_words * 4,
                                                         .scale_head_stride = rows * 4 },
                                              .pages = { .keys = qn_gpu_copy(f16_keys),
                                                         .values = qn_gpu_copy(f16_values),
                                                         .means = qn_gpu_floats(HEADS * dim),
                                                         .head = (uint64_t)SLOTS * QN_PAGE * dim * 2,
                                                         .n_open_pages = N_OPEN },
                                              .key_levels = qn_gpu_levels(keys),
                                              .value_levels = qn_gpu_levels(values),
                                              .first_page = first_page };
    qn_gpu_launch(&launch, &args);
    const uint32_t *found_keys = qn_gpu_read(args.cache.keys), *found_values = qn_gpu_read(args.cache.values);
    const float *found_key_scales = qn_gpu_read(args.cache.key_scales),
                *found_value_scales = qn_gpu_read(args.cache.value_scales),
                *found_means = qn_gpu_read(args.pages.means);
    size_t n_codes = 0;
    for (size_t head = 0; head < HEADS; head++) {
        const uint16_t *k = f16_keys + head * SLOTS * QN_PAGE * dim, *v = f16_values + head * SLOTS * QN_PAGE * dim;
        float mean[QN_AURA_MAX_DIM], x[QN_AURA_MAX_DIM], scale;
        uint8_t codes[QN_AURA_MAX_DIM];
        for (size_t d = 0; d < dim; d++) {
            mean[d] = 0;
            for (size_t i = 0; i < QN_PAGE; i++)
                mean[d] += qn_f16_to_f32(k[i * dim + d]);
            mean[d] /= QN_PAGE;
        }
        if (first_page == 0)
            qn_expect_same(found_means + head * dim, mean, dim, "mean");
        for (size_t page = first_page ? first_page : 1; page < first_page + n_pages; page++)
            for (size_t i = 0; i < QN_PAGE; i++) {
                const size_t from = ((1 + (page - 1) % N_OPEN) * QN_PAGE + i) * dim,
                             to = head * rows + (page - 1) * QN_PAGE + i;
                for (size_t d = 0; d < dim; d++)
                    x[d] = qn_f16_to_f32(k[from + d]) - mean[d];
                if (!qn_aura_encode_rotated(&kernels->aura, keys, x, codes, &scale))
                    scale = NAN;
                neighbours[0] += compare_row(found_keys + to * key_words, found_key_scales[to], codes, scale, keys);
                for (size_t d = 0; d < dim; d++)
                    x[d] = qn_f16_to_f32(v[from + d]);
                qn_aura_encode_rotated(&kernels->aura, values, x, codes, &scale);
                neighbours[1] +=
                    compare_row(found_values + to * value_words, found_value_scales[to], codes, scale, values);
                n_codes += dim;
            }
    }
    expect_few(neighbours[0], n_codes);
    expect_few(neighbours[1], n_codes);
    qn_release();
}

void qn_check_cuda_aura(bool bench)
{
    static const size_t dims[] = { 64, 80, 96, 128, 192, 256, 512 };
    static const unsigned bits[] = { 2, 3, 4, 6, 8 };
    static const qn_dtype types[] = { QN_DTYPE_F32, QN_DTYPE_F16, QN_DTYPE_BF16 };
    qn_kernels kernels;
    (void)bench;
    qn_kernels_init(&kernels, 0);
    for (size_t i = 0; i < QN_LENGTH(dims); i++)
        for (size_t j = 0; j < QN_LENGTH(bits); j++)
            check_codec(&kernels, dims[i], bits[j], types[(i + j) % 3], (i + j) % 4 ? 37 : 1);
    check_quantize_page(&kernels, 128, 4, 4, 0, 3);
    check_quantize_page(&kernels, 256, 4, 2, 5, 1);
    check_quantize_page(&kernels, 80, 3, 8, 0, 1);
    check_quantize_page(&kernels, 64, 8, 8, 1, 3);
}
