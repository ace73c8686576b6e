/* Conversion of weights: the variants must give the bytes of the reference, on weights of all kinds:
 * tests/unit/quant/test_quant.c compares the reference with the formulas of the formats. */
#include "check.h"

#include "quant/layout.h"
#include "quant/quant_kernels.h"

enum { BLOCK = 128, MAX_BLOCKS = 9, BENCH_BLOCKS = 32 };

static const char *const kinds[] = { "ordinary",  "binary", "ternary",      "zero",
                                     "subnormal", "huge",   "at the bound", "trits" };
enum kind { ORDINARY, BINARY, TERNARY, ZERO, SUBNORMAL, HUGE_VALUES, AT_BOUND, TRITS, N_KINDS };

/* A block of weights, with negative zeros. */
static void random_block(float *x, enum kind kind)
{
    static const float bounds[] = { 0.5f, -0.5f, 0x1.fffffep-2f, -0x1.fffffep-2f, 1.0f, -1.0f, 0.0f, -0.0f };
    const float d = 0.01f + 0.02f * (float)qn_random_below(1000) / 1000;
    for (size_t i = 0; i < BLOCK; i++) {
        const float sign = qn_random() & 1 ? 1.0f : -1.0f;
        switch (kind) {
        case ORDINARY: x[i] = 0.02f * qn_random_normal(); break;
        case BINARY: x[i] = sign * d; break;
        case TERNARY: x[i] = sign * d * (float)qn_random_below(2); break;
        case ZERO: x[i] = sign * 0.0f; break;
        case SUBNORMAL: x[i] = sign * 0x1p-140f * (float)qn_random_below(9); break;
        case HUGE_VALUES: x[i] = sign * 1e38f * (float)qn_random_below(3); break;
        case AT_BOUND: x[i] = bounds[i == 0 ? 4 : qn_random_below(8)]; break;
        case TRITS: x[i] = (float)qn_random_below(3) - 1.0f; break;
        case N_KINDS: break;
        }
    }
}

static void expect_bytes(const void *found, const void *expected, size_t n, const char *what)
{
    const uint8_t *f = found, *e = expected;
    size_t i = 0;
    while (i < n && f[i] == e[i])
        i++;
    qn_expect(i == n, "%s: byte %zu is %u, expected %u", what, i, i < n ? f[i] : 0u, i < n ? e[i] : 0u);
}

/* Quantises, unpacks and compares with the source, each step on the reference's result of the step before. */
static void check_type(const qn_quant_kernels *reference, const qn_quant_kernels *kernels, qn_type id, const float *x,
                       size_t n_blocks)
{
    const qn_type_info from = qn_quant_type(reference, qn_type_find((uint32_t)id)), to = qn_quant_type(kernels, &from);
    const size_t n = n_blocks * BLOCK, groups = n / QN_QUANT_GROUP;
    uint8_t blocks[MAX_BLOCKS * QN_PTQ1_0_BYTES], codes[MAX_BLOCKS * BLOCK];
    float scales[MAX_BLOCKS * BLOCK / QN_QUANT_GROUP];
    from.from_float(x, n_blocks, blocks);
    from.unpack(blocks, n_blocks, codes, scales, NULL, NULL);

    uint8_t *out = qn_guarded(n_blocks * to.block_bytes, 1 + qn_random_below(15));
    to.from_float(x, n_blocks, out);
    expect_bytes(out, blocks, n_blocks * to.block_bytes, "blocks");
    for (size_t i = 0; i < n_blocks * to.block_bytes; i++) /* all bytes can be decoded */
        blocks[i] = i % to.block_bytes >= to.scale_at && i % to.block_bytes < to.scale_at + 2 ? blocks[i]
                                                                                              : (uint8_t)qn_random();
    for (int any = 0; any < 2; any++) {
        uint8_t *found = qn_guarded(n, 1 + qn_random_below(15));
        float *found_scales = qn_guarded(groups * sizeof(float), 4 * qn_random_below(4));
        from.unpack(blocks, n_blocks, codes, scales, NULL, NULL);
        to.unpack(blocks, n_blocks, found, found_scales, NULL, NULL);
        expect_bytes(found, codes, n, "codes");
        expect_bytes(found_scales, scales, groups * sizeof *scales, "scales");
        const uint32_t difference = kernels->largest_difference(x, codes, scales, to.zero_point, n);
        const uint32_t expected = reference->largest_difference(x, codes, scales, to.zero_point, n);
        qn_expect(difference == expected, "largest difference %#x, expected %#x", difference, expected);
        from.from_float(x, n_blocks, blocks);
    }
}

static void check_bf16(const qn_quant_kernels *reference, const qn_quant_kernels *kernels, size_t n)
{
    uint8_t values[2 * 400 + 1];
    float expected[400];
    for (size_t i = 0; i < n; i++) {
        const uint16_t value = (uint16_t)(qn_random() & 0xbf7f); /* finite */
        memcpy(values + 1 + 2 * i, &value, sizeof value);
    }
    float *out = qn_guarded_floats(n);
    reference->dequantize_bf16(values + 1, n, expected);
    kernels->dequantize_bf16(values + 1, n, out);
    expect_bytes(out, expected, n * sizeof *expected, "floats");
    qn_expect(kernels->find_nonfinite_bf16(values + 1, n) == n, "finite values: found one that is not");
    for (size_t bad = n; bad-- > 0;) {
        const uint16_t value = bad % 2 ? 0xff80 : 0x7fc1;
        memcpy(values + 1 + 2 * bad, &value, sizeof value);
        const size_t found = kernels->find_nonfinite_bf16(values + 1, n);
        qn_expect(found == bad, "non-finite value %zu was found at %zu", bad, found);
    }
}

/* Packs weights of 16 bits that are mostly those of a binary or ternary block, and compares with the reference. */
static void check_pack(const qn_quant_kernels *reference, const qn_quant_kernels *kernels, qn_type source, qn_type id,
                       const float *x, size_t n_blocks)
{
    const qn_type_info *from = qn_type_find((uint32_t)source), *to = qn_type_find((uint32_t)id);
    uint8_t weights[2 * MAX_BLOCKS * BLOCK + 1], blocks[MAX_BLOCKS * QN_PTQ1_0_BYTES];
    from->from_float(x, n_blocks * BLOCK, weights + 1);
    if (qn_random() % 4 == 0) { /* one weight that may not belong to the others, or is not finite */
        const uint16_t other = (uint16_t)(qn_random() % 3 ? qn_random() : 0x7f80 + 0x8000 * qn_random_below(2));
        memcpy(weights + 1 + 2 * qn_random_below((uint32_t)(n_blocks * BLOCK)), &other, sizeof other);
    }
    const bool is_q1_0 = id == QN_TYPE_Q1_0;
    const size_t expected =
        (is_q1_0 ? reference->pack_q1_0 : reference->pack_ptq1_0)(source, weights + 1, n_blocks, blocks);
    uint8_t *out = qn_guarded(n_blocks * to->block_bytes, 1 + qn_random_below(15));
    const size_t found = (is_q1_0 ? kernels->pack_q1_0 : kernels->pack_ptq1_0)(source, weights + 1, n_blocks, out);
    qn_expect(found == expected, "%s to %s: %zu blocks are exact, expected %zu", from->name, to->name, found, expected);
    memcpy(out + expected * to->block_bytes, blocks + expected * to->block_bytes,
           (n_blocks - expected) * to->block_bytes);
    expect_bytes(out, blocks, n_blocks * to->block_bytes, "packed blocks");
}

static void check_packs(const qn_quant_kernels *reference, const qn_quant_kernels *kernels, const float *x,
                        size_t n_blocks)
{
    static const qn_type sources[] = { QN_TYPE_BF16, QN_TYPE_F16 }, types[] = { QN_TYPE_Q1_0, QN_TYPE_PTQ1_0 };
    for (size_t s = 0; s < 2; s++)
        for (size_t t = 0; t < 2; t++)
            check_pack(reference, kernels, sources[s], types[t], x, n_blocks);
}

struct timed_encode {
    qn_pack_fn *pack;
    uint8_t raw[BENCH_BLOCKS * BLOCK * 2], blocks[BENCH_BLOCKS * QN_PTQ1_0_BYTES];
};

/* What conversion does with bf16 weights that are stored without loss. */
static void timed_blocks(void *context)
{
    struct timed_encode *t = context;
    if (t->pack(QN_TYPE_BF16, t->raw, BENCH_BLOCKS, t->blocks) < BENCH_BLOCKS)
        abort();
}

static void bench_type(const qn_cpu_level *level, qn_type id)
{
    static struct timed_encode t;
    qn_quant_kernels kernels;
    float x[BLOCK];
    qn_quant_kernels_init(&kernels, level->features);
    t.pack = id == QN_TYPE_Q1_0 ? kernels.pack_q1_0 : kernels.pack_ptq1_0;
    qn_random_seed(1);
    for (size_t b = 0; b < BENCH_BLOCKS; b++) {
        random_block(x, id == QN_TYPE_Q1_0 ? BINARY : TRITS);
        for (size_t i = 0; i < BLOCK; i++)
            x[i] = x[i] > 0 ? 0.015625f : x[i] < 0 ? -0.015625f : 0;
        qn_quantize_bf16(x, BLOCK, t.raw + 2 * b * BLOCK);
    }
    const char *shape = qn_text("bf16 to %s, exact", qn_type_find((uint32_t)id)->name);
    qn_bench("encode", level->name, shape, BENCH_BLOCKS * BLOCK, "weight", timed_blocks, &t);
}

void qn_check_encode(bool bench)
{
    static float weights[MAX_BLOCKS * BLOCK + 16];
    qn_quant_kernels reference;
    qn_quant_kernels_init(&reference, 0);
    for (enum kind kind = 0; kind < N_KINDS; kind++)
        for (size_t n_blocks = 1; n_blocks <= MAX_BLOCKS; n_blocks++)
            for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
                qn_quant_kernels kernels;
                qn_quant_kernels_init(&kernels, level->features);
                qn_random_seed(kind * 100 + n_blocks);
                float *x = weights + qn_random_below(16);
                for (size_t b = 0; b < n_blocks; b++)
                    random_block(x + b * BLOCK, b % 3 == 2 ? ORDINARY : kind);
                qn_case_begin("encode", level->name, "%zu blocks, %s", n_blocks, kinds[kind]);
                check_type(&reference, &kernels, QN_TYPE_Q1_0, x, n_blocks);
                check_type(&reference, &kernels, QN_TYPE_PTQ1_0, x, n_blocks);
                check_bf16(&reference, &kernels, qn_random_below(400));
                for (size_t b = 2; b < n_blocks; b += 3)
                    random_block(x + b * BLOCK, kind);
                check_packs(&reference, &kernels, x, n_blocks);
                qn_release();
            }
    for (const qn_cpu_level *level = qn_levels(); bench && level->name; level++) {
        bench_type(level, QN_TYPE_Q1_0);
        bench_type(level, QN_TYPE_PTQ1_0);
    }
}
