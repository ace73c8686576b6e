/* Weight formats: dequantisation against one formula per type, written here from the definitions in float64; error
 * bounds and exact cases of the quantisers; the integer form; the scan for non-finite scales. */
#include "helper_files.h"
#include "helper_random.h"

#include "base/f16.h"
#include "quant/layout.h"
#include "quant/quant.h"

#include <float.h>
#include <math.h>

enum { MAX_BLOCK = 256, MAX_BYTES = 256 };

static float random_normal(void)
{
    double sum = 0.0;
    for (int i = 0; i < 12; i++)
        sum += random_u32() / 4294967296.0;
    return (float)(sum - 6.0);
}

/* ---- One formula per type: weight i of a block ---- */

static double f16_at(const uint8_t *b, size_t at)
{
    const unsigned bits = b[at] | (unsigned)b[at + 1] << 8;
    const int exponent = bits >> 10 & 31;
    const double magnitude = exponent ? ldexp(1024 + (bits & 1023), exponent - 25) : ldexp(bits & 1023, -24);
    return bits >> 15 ? -magnitude : magnitude;
}

static double w_f32(const uint8_t *b, size_t i)
{
    float x;
    memcpy(&x, b + 4 * i, 4);
    return x;
}

static double w_f16(const uint8_t *b, size_t i)
{
    return f16_at(b, 2 * i);
}

static double w_bf16(const uint8_t *b, size_t i)
{
    const uint8_t wide[4] = { 0, 0, b[2 * i], b[2 * i + 1] };
    return w_f32(wide, 0);
}

static int int8_at(const uint8_t *b, size_t at)
{
    return b[at] < 128 ? b[at] : b[at] - 256;
}

static unsigned nibble(const uint8_t *bytes, size_t i)
{
    return i < 16 ? bytes[i] % 16u : bytes[i - 16] / 16u;
}

static unsigned bit(const uint8_t *bytes, size_t i)
{
    return bytes[i / 8] >> (i % 8) & 1u;
}

static double w_q4_0(const uint8_t *b, size_t i)
{
    return f16_at(b, 0) * ((double)nibble(b + 2, i) - 8);
}

static double w_q4_1(const uint8_t *b, size_t i)
{
    return f16_at(b, 0) * nibble(b + 4, i) + f16_at(b, 2);
}

static double w_q5_0(const uint8_t *b, size_t i)
{
    return f16_at(b, 0) * ((double)(nibble(b + 6, i) + 16 * bit(b + 2, i)) - 16);
}

static double w_q5_1(const uint8_t *b, size_t i)
{
    return f16_at(b, 0) * (nibble(b + 8, i) + 16 * bit(b + 4, i)) + f16_at(b, 2);
}

static double w_q8_0(const uint8_t *b, size_t i)
{
    return f16_at(b, 0) * int8_at(b, 2 + i);
}

/* 6-bit value k of the twelve bytes: values 0 to 7 are scales, 8 to 15 minima. */
static unsigned six_bits(const uint8_t *s, size_t k)
{
    const size_t j = k % 8;
    const int is_min = k >= 8;
    if (j < 4)
        return s[j + 4 * is_min] % 64u;
    return (is_min ? s[j + 4] / 16u : s[j + 4] % 16u) + s[j - 4 + 4 * is_min] / 64u * 16;
}

static double w_q2_k(const uint8_t *b, size_t i)
{
    const unsigned code = b[16 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3u;
    return f16_at(b, 80) * (b[i / 16] % 16u) * code - f16_at(b, 82) * (b[i / 16] / 16u);
}

/* ggml's dequantize_row_q3_K: four words of scales, rearranged by masks. */
static double w_q3_k(const uint8_t *b, size_t i)
{
    uint32_t aux[4];
    memcpy(aux, b + 96, 12);
    const uint32_t top = aux[2];
    aux[2] = (aux[0] >> 4 & 0x0f0f0f0fu) | (top >> 4 & 0x03030303u) << 4;
    aux[3] = (aux[1] >> 4 & 0x0f0f0f0fu) | (top >> 6 & 0x03030303u) << 4;
    aux[0] = (aux[0] & 0x0f0f0f0fu) | (top & 0x03030303u) << 4;
    aux[1] = (aux[1] & 0x0f0f0f0fu) | (top >> 2 & 0x03030303u) << 4;
    uint8_t scales[16];
    memcpy(scales, aux, sizeof scales);
    const int two = b[32 + i / 128 * 32 + i % 32] >> i % 128 / 32 * 2 & 3, third = b[i % 32] >> i / 32 & 1;
    return f16_at(b, 108) * (scales[i / 16] - 32) * (third ? two : two - 4);
}

static const int iq4_values[16] = { -127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113 };

static double w_iq4_nl(const uint8_t *b, size_t i)
{
    return f16_at(b, 0) * iq4_values[nibble(b + 2, i)];
}

static double w_iq4_xs(const uint8_t *b, size_t i)
{
    const size_t sub = i / 32;
    const unsigned low = sub % 2 ? b[4 + sub / 2] / 16u : b[4 + sub / 2] % 16u;
    const unsigned high = (b[2] + 256u * b[3]) >> 2 * sub & 3u;
    return f16_at(b, 0) * ((int)(low + 16 * high) - 32) * iq4_values[nibble(b + 8 + 16 * sub, i % 32)];
}

/* E2M1: a sign, two bits of exponent with bias 1, one of mantissa. */
static double w_mxfp4(const uint8_t *b, size_t i)
{
    const unsigned code = nibble(b + 1, i), exponent = code / 2 % 4, mantissa = code % 2;
    const double value = exponent ? ldexp(1 + mantissa / 2.0, (int)exponent - 1) : mantissa / 2.0;
    return ldexp(code / 8 ? -value : value, b[0] - 127);
}

/* Four bits of exponent with bias 7, three of mantissa; 0x7f counts as 0. */
static double e4m3(uint8_t bits)
{
    const int exponent = bits >> 3 & 15, mantissa = bits & 7;
    if (bits == 0x7f)
        return 0;
    return exponent ? ldexp(8 + mantissa, exponent - 10) : ldexp(mantissa, -9);
}

static double w_nvfp4(const uint8_t *b, size_t i)
{
    static const double values[16] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6 };
    const uint8_t byte = b[4 + i / 16 * 8 + i % 8];
    return e4m3(b[i / 16]) * values[i / 8 % 2 ? byte / 16 : byte % 16];
}

/* In memory: after the tensor's scale, in the order of nibbles of Q4_0. All bytes are scales. */
static double w_nvfp4_l(const uint8_t *b, size_t i)
{
    static const double values[16] = { 0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6 };
    const uint8_t bits = b[4 + i / 16] & 0x7f;
    float d;
    memcpy(&d, b, sizeof d);
    return (float)(bits == 0x7f ? 480 : e4m3(bits)) * (d / 2) * 2 * values[nibble(b + 8 + i / 32 * 16, i % 32)];
}

static double w_q4_k(const uint8_t *b, size_t i)
{
    const size_t sub = i / 32;
    const uint8_t byte = b[16 + i / 64 * 32 + i % 32];
    const unsigned q = sub % 2 ? byte / 16u : byte % 16u;
    return f16_at(b, 0) * six_bits(b + 4, sub) * q - f16_at(b, 2) * six_bits(b + 4, 8 + sub);
}

static double w_q5_k(const uint8_t *b, size_t i)
{
    const size_t sub = i / 32;
    const uint8_t byte = b[48 + i / 64 * 32 + i % 32];
    const unsigned q = (sub % 2 ? byte / 16u : byte % 16u) + 16 * (b[16 + i % 32] >> sub & 1u);
    return f16_at(b, 0) * six_bits(b + 4, sub) * q - f16_at(b, 2) * six_bits(b + 4, 8 + sub);
}

static double w_q6_k(const uint8_t *b, size_t i)
{
    const size_t part = i / 128, in = i % 128, quarter = in / 32, l = in % 32;
    const uint8_t low = b[64 * part + (quarter % 2 ? 32 : 0) + l], high = b[128 + 32 * part + l];
    const int q = (int)((quarter < 2 ? low % 16u : low / 16u) + (high >> 2 * quarter & 3u) * 16) - 32;
    return f16_at(b, 208) * int8_at(b, 192 + i / 16) * q;
}

/* Digit n of a byte by the second definition, with comparisons. */
static int trit(unsigned byte, int n)
{
    unsigned x = byte;
    for (int k = 0; k < n; k++)
        x = x * 3 % 256;
    return (x >= 86) + (x >= 171);
}

static double w_tq1_0(const uint8_t *b, size_t i)
{
    const int digit = i < 160   ? trit(b[i % 32], (int)(i / 32))
                      : i < 240 ? trit(b[32 + (i - 160) % 16], (int)((i - 160) / 16))
                                : trit(b[48 + (i - 240) % 4], (int)((i - 240) / 4));
    return f16_at(b, 52) * (digit - 1);
}

static double w_tq2_0(const uint8_t *b, size_t i)
{
    const size_t in = i % 128;
    return f16_at(b, 64) * ((b[i / 128 * 32 + in % 32] >> 2 * (in / 32) & 3) - 1);
}

static double w_q1_0(const uint8_t *b, size_t i)
{
    return bit(b + 2, i) ? f16_at(b, 0) : -f16_at(b, 0);
}

static double w_q2_0(const uint8_t *b, size_t i)
{
    return f16_at(b, 0) * ((b[2 + i / 4] >> 2 * (i % 4) & 3) - 1);
}

static double w_ptq1_0(const uint8_t *b, size_t i)
{
    const int digit = i < 80    ? trit(b[i % 16], (int)(i / 16))
                      : i < 120 ? trit(b[16 + (i - 80) % 8], (int)((i - 80) / 8))
                                : trit(b[24 + (i - 120) % 2], (int)((i - 120) / 2));
    return f16_at(b, 26) * (digit - 1);
}

static double w_ox2_0(const uint8_t *b, size_t i)
{
    return f16_at(b, 32) * ((b[i / 4] >> 2 * (i % 4) & 3) - 1);
}

static const struct {
    const char *name;
    uint32_t number;
    size_t weights, bytes;
    double (*weight)(const uint8_t *block, size_t i);
    int scale_offsets[2]; /* byte offsets of the scales, -1 for none */
    bool has_quantizer;
} expected[] = {
    { "f32", 0, 1, 4, w_f32, { -1, -1 }, true },
    { "f16", 1, 1, 2, w_f16, { 0, -1 }, true },
    { "bf16", 30, 1, 2, w_bf16, { -1, -1 }, true },
    { "q4_0", 2, 32, 18, w_q4_0, { 0, -1 }, true },
    { "q4_1", 3, 32, 20, w_q4_1, { 0, 2 }, true },
    { "q5_0", 6, 32, 22, w_q5_0, { 0, -1 }, false },
    { "q5_1", 7, 32, 24, w_q5_1, { 0, 2 }, false },
    { "q8_0", 8, 32, 34, w_q8_0, { 0, -1 }, true },
    { "q2_k", 10, 256, 84, w_q2_k, { 80, 82 }, false },
    { "q3_k", 11, 256, 110, w_q3_k, { 108, -1 }, false },
    { "q4_k", 12, 256, 144, w_q4_k, { 0, 2 }, false },
    { "q5_k", 13, 256, 176, w_q5_k, { 0, 2 }, false },
    { "q6_k", 14, 256, 210, w_q6_k, { 208, -1 }, false },
    { "iq4_nl", 20, 32, 18, w_iq4_nl, { 0, -1 }, false },
    { "iq4_xs", 23, 256, 136, w_iq4_xs, { 0, -1 }, false },
    { "mxfp4", 39, 32, 17, w_mxfp4, { -1, -1 }, false },
    { "nvfp4", 40, 64, 36, w_nvfp4, { -1, -1 }, false },
    { "nvfp4_l", 1040, 64, 40, w_nvfp4_l, { -1, -1 }, false },
    { "tq1_0", 34, 256, 54, w_tq1_0, { 52, -1 }, true },
    { "tq2_0", 35, 256, 66, w_tq2_0, { 64, -1 }, true },
    { "q1_0", 41, 128, 18, w_q1_0, { 0, -1 }, true },
    { "q2_0", 42, 64, 18, w_q2_0, { 0, -1 }, true },
    { "pq2_0", 142, 128, 34, w_q2_0, { 0, -1 }, true },
    { "ptq1_0", 143, 128, 28, w_ptq1_0, { 26, -1 }, true },
    { "ox2_0", 1042, 128, 34, w_ox2_0, { 32, -1 }, false },
};
enum { N_TYPES = COUNT(expected) };

static void random_block(size_t t, uint8_t *block)
{
    for (size_t i = 0; i < expected[t].bytes; i++)
        block[i] = (uint8_t)random_u32();
    for (int k = 0; k < 2; k++) /* an exponent of all ones is infinity or NaN: keep these blocks finite */
        if (expected[t].scale_offsets[k] >= 0 && (block[expected[t].scale_offsets[k] + 1] & 0x7c) == 0x7c)
            block[expected[t].scale_offsets[k] + 1] ^= 0x40;
    if (expected[t].number == QN_TYPE_F32 && (block[3] & 0x7f) == 0x7f)
        block[3] ^= 0x40;
    if (expected[t].number == QN_TYPE_NVFP4_L) { /* a power of two from 2^-32 to 2^31: products are exact */
        const float d = ldexpf(1, (int)(block[0] % 64) - 32);
        memcpy(block, &d, sizeof d);
    }
    if (expected[t].number == QN_TYPE_MXFP4 && block[0] > 252) /* 12 * 2^(253 - 128) is beyond a float */
        block[0] -= 128;
    if (expected[t].number == QN_TYPE_BF16 && (block[1] & 0x7f) == 0x7f)
        block[1] ^= 0x40;
}

TEST(table)
{
    size_t count;
    qn_types(&count);
    assert_int_equal(count, N_TYPES);
    for (size_t t = 0; t < N_TYPES; t++) {
        const qn_type_info *info = qn_type_find(expected[t].number);
        assert_non_null(info);
        assert_string_equal(info->name, expected[t].name);
        assert_int_equal(info->block_weights, expected[t].weights);
        assert_int_equal(info->block_bytes, expected[t].bytes);
        assert_int_equal(info->from_float != NULL, expected[t].has_quantizer);
        assert_int_equal(info->unpack != NULL, expected[t].weights > 1);
        assert_ptr_equal(qn_type_find_name(expected[t].name), info);
    }
    assert_ptr_equal(qn_type_find_name("PTQ1_0"), qn_type_find(143));
    assert_null(qn_type_find_name("iq2_xxs"));
    assert_null(qn_type_find_name(""));
    assert_null(qn_type_find(4));
    assert_null(qn_type_find(UINT32_MAX));
}

TEST(row_bytes)
{
    size_t bytes = 0;
    assert_true(qn_row_bytes(qn_type_find(QN_TYPE_PTQ1_0), 2048, &bytes));
    assert_int_equal(bytes, 448);
    assert_true(qn_row_bytes(qn_type_find(QN_TYPE_F32), 3, &bytes));
    assert_int_equal(bytes, 12);
    assert_false(qn_row_bytes(qn_type_find(QN_TYPE_PTQ1_0), 2049, &bytes));
    assert_false(qn_row_bytes(qn_type_find(QN_TYPE_Q4_K), 128, &bytes));
    assert_false(qn_row_bytes(qn_type_find(QN_TYPE_F32), UINT64_MAX, &bytes));
    assert_false(qn_row_bytes(qn_type_find(QN_TYPE_Q8_0), UINT64_MAX - 31, &bytes));
}

/* Every product of stored values is exact in float32. Only the addition of an offset rounds, by half a unit in the last
 * place. */
TEST(dequantize_matches_the_formula)
{
    for (size_t t = 0; t < N_TYPES; t++) {
        const qn_type_info *info = qn_type_find(expected[t].number);
        label("%s", info->name);
        const size_t blocks = 300, weights = blocks * info->block_weights;
        uint8_t *memory = malloc(blocks * info->block_bytes + 1);
        float *out = malloc((weights + 1) * sizeof *out);
        assert_true(memory && out);
        uint8_t *source = memory + 1; /* unaligned */
        for (size_t b = 0; b < blocks; b++)
            random_block(t, source + b * info->block_bytes);
        out[weights] = 12345.0f;
        info->to_float(source, blocks, out);
        assert_true(out[weights] == 12345.0f);
        for (size_t i = 0; i < weights; i++) {
            const double right =
                expected[t].weight(source + i / info->block_weights * info->block_bytes, i % info->block_weights);
            if (!(fabs(out[i] - right) <= 0x1.0001p-24 * fabs(right)))
                fail_msg("weight %zu: %.9g, expected %.9g", i, (double)out[i], right);
        }
        free(memory);
        free(out);
    }
}

static uint32_t golden_u32(const uint8_t **at)
{
    uint32_t value;
    memcpy(&value, *at, sizeof value);
    *at += sizeof value;
    return value;
}

/* tools/make_quant_golden.py: the weights of llama.cpp's gguf package. */
TEST(dequantize_matches_golden_blocks)
{
    size_t size;
    uint8_t *file = read_file(QN_SOURCE_DIR "/tests/golden/blocks.bin", &size);
    const uint8_t *at = file, *end = file + size;
    size_t n_types = 0;
    for (; at < end; n_types++) {
        const qn_type_info *info = qn_type_find(golden_u32(&at));
        const uint32_t n_blocks = golden_u32(&at);
        assert_non_null(info);
        label("%s", info->name);
        assert_int_equal(golden_u32(&at), info->block_bytes);
        assert_int_equal(golden_u32(&at), info->block_weights);
        const size_t n = n_blocks * info->block_weights;
        float *out = malloc(n * sizeof *out);
        assert_non_null(out);
        info->to_float(at, n_blocks, out);
        at += n_blocks * info->block_bytes;
        for (size_t i = 0; i < n; i++, at += sizeof(float)) {
            float right;
            memcpy(&right, at, sizeof right);
            assert_true(out[i] == right); /* but for the sign of zero */
        }
        free(out);
    }
    assert_ptr_equal(at, end);
    assert_int_equal(n_types, 11);
    free(file);
}

TEST(unpack_matches_dequantize)
{
    for (size_t t = 0; t < N_TYPES; t++) {
        const qn_type_info *info = qn_type_find(expected[t].number);
        label("%s", info->name);
        if (!info->unpack)
            continue;
        enum { BLOCKS = 100 };
        uint8_t source[BLOCKS * MAX_BYTES], codes[BLOCKS * MAX_BLOCK];
        float scale[2 * BLOCKS * MAX_BLOCK / QN_QUANT_GROUP], offset[2 * BLOCKS * MAX_BLOCK / QN_QUANT_GROUP],
            out[BLOCKS * MAX_BLOCK];
        int8_t factor[2 * BLOCKS * MAX_BLOCK / QN_QUANT_GROUP];
        for (size_t b = 0; b < BLOCKS; b++)
            random_block(t, source + b * info->block_bytes);
        info->to_float(source, BLOCKS, out);
        info->unpack(source, BLOCKS, codes, scale, info->has_offset ? offset : NULL, info->has_factor ? factor : NULL);
        uint8_t largest = 0;
        for (size_t i = 0; i < BLOCKS * info->block_weights; i++) {
            const size_t r = i / QN_QUANT_GROUP;
            float weight = scale[info->has_half_scale ? i / (QN_QUANT_GROUP / 2) : r] *
                           (float)(info->has_factor ? factor[i / (QN_QUANT_GROUP / 2)] : 1) *
                           (float)(codes[i] - info->zero_point);
            if (info->has_offset)
                weight += offset[info->has_factor ? i / (QN_QUANT_GROUP / 2) : r];
            assert_true(weight == out[i]);
            largest = codes[i] > largest ? codes[i] : largest;
        }
        assert_int_equal(largest, info->max_code); /* 100 random blocks contain every code of a type */
    }
}

/* Loading keeps all weights of NVFP4, whatever the bytes of its scales are, and multiplies them by the tensor's scale.
 */
TEST(nvfp4_is_loaded_whole)
{
    const qn_type_info *stored = qn_type_find(QN_TYPE_NVFP4), *loaded = qn_type_find(QN_TYPE_NVFP4_L);
    uint8_t blocks[64 * QN_NVFP4_BYTES], out[64 * QN_NVFP4_L_BYTES];
    float weights[64 * 64], after[64 * 64];
    for (size_t i = 0; i < sizeof blocks; i++)
        blocks[i] = (uint8_t)random_u32();
    for (size_t b = 0; b < 64; b++)
        for (size_t k = 0; k < 4; k++)
            blocks[b * QN_NVFP4_BYTES + k] = (uint8_t)(4 * b + k);
    stored->to_float(blocks, 64, weights);
    for (int negative = 0; negative < 2; negative++) {
        const float scale = negative ? -0.125f : 4096;
        qn_nvfp4_load(blocks, 64, scale, out);
        loaded->to_float(out, 64, after);
        for (size_t i = 0; i < 64 * 64; i++)
            assert_true(after[i] == weights[i] * scale);
    }
    assert_int_equal(loaded->find_nonfinite(out, 64), 64);
    const float nan = NAN;
    memcpy(out + 5 * QN_NVFP4_L_BYTES, &nan, sizeof nan);
    assert_int_equal(loaded->find_nonfinite(out, 64), 5);
}

TEST(all_trit_bytes)
{
    for (unsigned byte = 0; byte < 256; byte++) {
        label("byte %u", byte);
        uint8_t block[28];
        float out[128];
        memset(block, (int)byte, 26);
        block[26] = 0x00;
        block[27] = 0x3c; /* 1.0 */
        qn_type_find(QN_TYPE_PTQ1_0)->to_float(block, 1, out);
        unsigned power = 1;
        for (size_t n = 0; n < 5; n++, power *= 3) {
            const float right = (float)((int)(byte * power % 256 * 3 / 256) - 1); /* the first definition */
            for (size_t j = 0; j < 16; j++)
                assert_true(out[16 * n + j] == right);
            for (size_t j = 0; j < 8; j++)
                assert_true(out[80 + 8 * n + j] == right);
            for (size_t j = 0; j < 2 && n < 4; j++)
                assert_true(out[120 + 2 * n + j] == right);
        }
    }
}

/* Five digits are stored as the byte ceil(v*256/243): this is what other programs write. */
TEST(trit_bytes_are_canonical)
{
    for (unsigned v = 0; v < 243; v++) {
        float weights[128];
        uint8_t block[28];
        const unsigned digits[5] = { v / 81, v / 27 % 3, v / 9 % 3, v / 3 % 3, v % 3 };
        for (size_t i = 0; i < 128; i++)
            weights[i] = i % 2 ? 1.0f : -1.0f; /* gives d = 1 for every v */
        for (size_t n = 0; n < 5; n++) {
            weights[16 * n] = (float)digits[n] - 1.0f;
            weights[80 + 8 * n + 3] = (float)digits[n] - 1.0f;
            if (n < 4)
                weights[120 + 2 * n + 1] = (float)digits[n] - 1.0f;
        }
        qn_type_find(QN_TYPE_PTQ1_0)->from_float(weights, 1, block);
        assert_int_equal(block[0], (v * 256 + 242) / 243);
        assert_int_equal(block[16 + 3], (v * 256 + 242) / 243);
        assert_int_equal(block[24 + 1], ((v - v % 3) * 256 + 242) / 243);
    }
}

/* Largest |error| / amax of a block that rounding to the nearest code allows, for any weights: half a step, plus the
 * rounding of the scale and the minimum to 11 bits (2^-11 relative) at the largest code. */
static double bound_of(uint32_t type)
{
    const double f16_half_ulp = 0x1p-11;
    switch (type) {
    case QN_TYPE_F32: return 0.0;
    case QN_TYPE_F16: return f16_half_ulp;
    case QN_TYPE_BF16: return 0x1p-8;
    case QN_TYPE_Q8_0: return 0.5 / 127 * (1 + f16_half_ulp) + f16_half_ulp;
    case QN_TYPE_Q4_0:
        return 1.0 / 8 * (1 + f16_half_ulp) + f16_half_ulp; /* the largest of the other sign: code 7 of 8 */
    case QN_TYPE_Q4_1: return 0.5 * 2 / 15 * (1 + f16_half_ulp) + 3 * f16_half_ulp; /* the range is up to twice amax */
    default: return 0.5 * (1 + f16_half_ulp) + f16_half_ulp;                        /* ternary */
    }
}

TEST(round_trip_error)
{
    for (size_t t = 0; t < N_TYPES; t++) {
        const qn_type_info *info = qn_type_find(expected[t].number);
        label("%s", info->name);
        if (!info->from_float || info->type == QN_TYPE_Q1_0)
            continue;
        for (int trial = 0; trial < 500; trial++) {
            float in[MAX_BLOCK], out[MAX_BLOCK], largest = 0.0f;
            uint8_t block[MAX_BYTES];
            const float size = ldexpf(1.0f, (int)(random_u32() % 16) - 8);
            for (size_t i = 0; i < info->block_weights; i++) {
                in[i] = size * random_normal();
                largest = fmaxf(largest, fabsf(in[i]));
            }
            info->from_float(in, 1, block);
            info->to_float(block, 1, out);
            for (size_t i = 0; i < info->block_weights; i++)
                if (!(fabs((double)out[i] - in[i]) <= bound_of(info->type) * largest))
                    fail_msg("%.9g came back as %.9g, largest %.9g", (double)in[i], (double)out[i], (double)largest);
        }
    }
}

/* Blocks of any weights, of one magnitude, and of one magnitude but for one weight, up to five at once. */
TEST(q1_0_is_mean_and_sign)
{
    const qn_type_info *info = qn_type_find(QN_TYPE_Q1_0);
    for (unsigned round = 0; round < 3000; round++) {
        float in[5 * 128], out[5 * 128];
        uint8_t blocks[5 * 18];
        const size_t n = 1 + round % 5;
        for (size_t b = 0; b < n; b++) {
            float *x = in + b * 128;
            const unsigned kind = random_u32() % 3;
            const float magnitude = ldexpf(fabsf(random_normal()), (int)(random_u32() % 20) - 15);
            for (size_t i = 0; i < 128; i++)
                x[i] = kind == 0 ? (i == 5 ? 0.0f : random_normal()) : random_u32() % 2 ? magnitude : -magnitude;
            if (kind == 2)
                x[random_u32() % 128] *= 100.0f;
        }
        info->from_float(in, n, blocks);
        info->to_float(blocks, n, out);
        for (size_t b = 0; b < n; b++) {
            double sum = 0.0;
            for (size_t i = b * 128; i < (b + 1) * 128; i++)
                sum += fabs((double)in[i]);
            const float d = qn_f16_to_f32(qn_f32_to_f16((float)(sum / 128)));
            for (size_t i = b * 128; i < (b + 1) * 128; i++)
                assert_true(out[i] == (in[i] >= 0.0f ? d : -d));
        }
    }
}

TEST(exact_cases)
{
    static const uint32_t ternary[] = { QN_TYPE_Q2_0, QN_TYPE_PQ2_0, QN_TYPE_PTQ1_0, QN_TYPE_TQ1_0, QN_TYPE_TQ2_0 };
    for (size_t t = 0; t < COUNT(ternary); t++) {
        const qn_type_info *info = qn_type_find(ternary[t]);
        /* every positive finite fp16 scale, subnormals included; digits -1, 0, 1, and 2 if the type has a code for
         * it */
        for (unsigned half = 1; half < 0x7c00; half++)
            for (int top = 1; top <= (info->max_code == 3 && half < 0x7800 ? 2 : 1); top++) {
                label("%s, scale 0x%x, digits up to %d", info->name, half, top);
                const float d = qn_f16_to_f32((uint16_t)half);
                float in[MAX_BLOCK], out[MAX_BLOCK];
                uint8_t block[MAX_BYTES];
                for (size_t i = 0; i < info->block_weights; i++)
                    in[i] = d * (float)((int)(random_u32() % (unsigned)(2 + top)) - 1);
                info->from_float(in, 1, block);
                info->to_float(block, 1, out);
                assert_memory_equal(in, out, info->block_weights * sizeof *in);
            }
    }
    float in[128], out[128];
    uint8_t block[18];
    for (unsigned half = 0; half < 0x7c00; half++) {
        for (size_t i = 0; i < 128; i++)
            in[i] = random_u32() & 1 ? qn_f16_to_f32((uint16_t)half) : -qn_f16_to_f32((uint16_t)half);
        qn_type_find(QN_TYPE_Q1_0)->from_float(in, 1, block);
        qn_type_find(QN_TYPE_Q1_0)->to_float(block, 1, out);
        for (size_t i = 0; i < 128; i++)
            assert_true(in[i] == out[i]);
    }
}

/* Four values that are not exactly on the grid follow the rule d = max |x|, and so does a block whose largest magnitude
 * is negative. */
TEST(four_values_need_an_exact_grid)
{
    const qn_type_info *info = qn_type_find(QN_TYPE_Q2_0);
    float in[64] = { 2.0f, 1.0f, -1.0f, 0.9f }, out[64];
    uint8_t block[18];
    info->from_float(in, 1, block);
    info->to_float(block, 1, out);
    assert_true(out[0] == 2.0f && out[1] == 2.0f && out[2] == -2.0f && out[3] == 0.0f && out[4] == 0.0f);
    in[0] = -2.0f, in[3] = 0.0f;
    info->from_float(in, 1, block);
    info->to_float(block, 1, out);
    assert_true(out[0] == -2.0f && out[1] == 2.0f && out[2] == -2.0f);
}

TEST(extremes)
{
    static const float values[] = { 0.0f,    -0.0f,    FLT_MAX,  -FLT_MAX, FLT_MIN, 1e-45f,
                                    -1e-45f, 65504.0f, 65520.0f, -1e6f,    3e-8f,   1.0f };
    for (size_t t = 0; t < N_TYPES; t++) {
        const qn_type_info *info = qn_type_find(expected[t].number);
        label("%s", info->name);
        if (!info->from_float)
            continue;
        for (int trial = 0; trial < 2000; trial++) {
            label("trial %d", trial);
            float in[MAX_BLOCK], out[MAX_BLOCK];
            uint8_t block[MAX_BYTES];
            for (size_t i = 0; i < info->block_weights; i++)
                in[i] = trial == 0 ? 0.0f : values[random_u32() % (COUNT(values))];
            info->from_float(in, 1, block);
            assert_int_equal(info->find_nonfinite(block, 1), 1);
            info->to_float(block, 1, out);
            for (size_t i = 0; i < info->block_weights; i++) {
                assert_true(isfinite(out[i]));
                assert_true(trial != 0 || out[i] == 0.0f);
            }
        }
    }
    float big[32] = { 1e6f, -1e6f }, out[32];
    uint8_t block[34];
    qn_type_find(QN_TYPE_F16)->from_float(big, 2, block);
    qn_type_find(QN_TYPE_F16)->to_float(block, 2, out);
    assert_true(out[0] == 65504.0f && out[1] == -65504.0f);
    big[0] = FLT_MAX;
    qn_type_find(QN_TYPE_Q8_0)->from_float(big, 1, block);
    qn_type_find(QN_TYPE_Q8_0)->to_float(block, 1, out);
    assert_true(out[0] == 127 * 65504.0f);
}

TEST(nonfinite_scales_are_found)
{
    static const uint16_t bad[] = { 0x7c00, 0xfc00, 0x7e00, 0x7c01, 0xffff };
    for (size_t t = 0; t < N_TYPES; t++) {
        const qn_type_info *info = qn_type_find(expected[t].number);
        label("%s", info->name);
        enum { BLOCKS = 700 }; /* more than one step of the plain types' scan, and a tail */
        uint8_t *blocks = malloc(BLOCKS * info->block_bytes + 1);
        assert_non_null(blocks);
        uint8_t *source = blocks + 1;
        for (size_t b = 0; b < BLOCKS; b++)
            random_block(t, source + b * info->block_bytes);
        assert_int_equal(info->find_nonfinite(source, BLOCKS), BLOCKS);
        assert_int_equal(info->find_nonfinite(source, 0), 0);
        for (size_t at = 0; at < BLOCKS; at += at < 16 || at > 680 ? 1 : 61)
            for (int k = 0; k < 2; k++)
                for (size_t v = 0; v < COUNT(bad); v++) {
                    label("block %zu, scale %d, pattern 0x%x", at, k, (unsigned)bad[v]);
                    uint8_t *block = source + at * info->block_bytes, saved[MAX_BYTES];
                    memcpy(saved, block, info->block_bytes);
                    if (expected[t].scale_offsets[k] >= 0) {
                        memcpy(block + expected[t].scale_offsets[k], &bad[v], 2);
                    } else if (k == 0 && info->type == QN_TYPE_MXFP4) {
                        block[0] = (uint8_t)(253 + v % 3);
                    } else if (k == 0 && info->type == QN_TYPE_NVFP4_L) {
                        const float x = v ? qn_f16_to_f32(bad[v]) : 1e36f; /* all weights must be finite */
                        memcpy(block, &x, sizeof x);
                    } else if (info->type == QN_TYPE_NVFP4) {
                        continue;        /* every byte is a scale */
                    } else if (k == 0) { /* f32, bf16: the same patterns with their wider exponent */
                        const float x = qn_f16_to_f32(bad[v]);
                        memcpy(block, (const uint8_t *)&x + (4 - info->block_bytes), info->block_bytes);
                    } else {
                        continue;
                    }
                    assert_int_equal(info->find_nonfinite(source, BLOCKS), at);
                    assert_int_equal(info->find_nonfinite(source, at), at);
                    memcpy(block, saved, info->block_bytes);
                }
        free(blocks);
    }
}

/* A block that was quantised to Q4_1 before has 16 equally spaced values. The quantiser finds a step that hits all of
 * them; amax / 127 misses each by up to half a step. */
TEST(q8_0_meets_values_of_four_bits)
{
    double found = 0, plain = 0;
    for (uint32_t draw = 0; draw < 200; draw++) {
        float x[32], y[32], largest = 0;
        uint8_t block[34];
        const float d = 0.01f + 0.0001f * (float)draw, m = -7.3f * d + 0.0007f * (float)(draw % 13);
        for (uint32_t j = 0; j < 32; j++) {
            x[j] = d * (float)((j * 7 + draw * j + j * j) % 16) + m;
            largest = fabsf(x[j]) > largest ? fabsf(x[j]) : largest;
        }
        qn_type_find(QN_TYPE_Q8_0)->from_float(x, 1, block);
        qn_type_find(QN_TYPE_Q8_0)->to_float(block, 1, y);
        for (size_t j = 0; j < 32; j++) {
            const double step = (double)largest / 127, miss = (double)x[j] - step * nearbyint((double)x[j] / step);
            found += pow((double)y[j] - (double)x[j], 2);
            plain += miss * miss;
        }
    }
    assert_true(found < 0.5 * plain);
}

static double q8_0_error(const float *x, float d)
{
    double sum = 0;
    for (size_t j = 0; j < 32; j++) {
        const double code = nearbyint((double)x[j] / (double)d);
        sum += fabs(code) <= 127 ? pow((double)x[j] - (double)d * code, 2) : INFINITY;
    }
    return sum;
}

/* No fraction of a block's own step has a smaller error than the one that is stored: the search ends early at errors
 * that are no better. Errors are summed in float32 there. */
TEST(q8_0_has_the_best_fraction)
{
    size_t n_fractions = 0;
    for (uint32_t draw = 0; draw < 600; draw++) {
        float x[32], step = INFINITY, largest = 0;
        uint8_t block[34];
        uint16_t stored;
        label("draw %u", draw);
        for (uint32_t j = 0; j < 32; j++) {
            const uint32_t code = (j * 7 + draw * j + j * j) % (draw % 3 ? 16 : 3);
            x[j] =
                (0.01f + 0.0001f * (float)draw) * ((float)code - (draw % 3 ? 7.3f : 1.0f)) + 1e-5f * (float)(draw % 2);
            largest = fabsf(x[j]) > largest ? fabsf(x[j]) : largest;
        }
        for (size_t i = 0; i < 32; i++)
            for (size_t j = 0; j < 32; j++)
                if (x[i] > x[j] && x[i] - x[j] < step && x[i] - x[j] > 2e-3f * largest)
                    step = x[i] - x[j];
        qn_type_find(QN_TYPE_Q8_0)->from_float(x, 1, block);
        memcpy(&stored, block, 2);
        const double found = q8_0_error(x, qn_f16_to_f32(stored));
        for (int divisor = 1; divisor <= 24; divisor++) {
            const float d = qn_f16_to_f32(qn_f32_to_f16(step / (float)divisor));
            if (d * 127.5f > largest)
                assert_true(found <= 1.0001 * q8_0_error(x, d) + 1e-12);
        }
        const uint16_t plain = qn_f32_to_f16(largest / 127);
        assert_true(found <= 1.0001 * q8_0_error(x, qn_f16_to_f32(plain)) + 1e-12);
        n_fractions += stored != plain;
    }
    assert_true(n_fractions > 300);
}
