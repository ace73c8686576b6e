/* Conversions of fp16 and bf16: every bit pattern against the definition in float64, and rounding at every midpoint. */
#include "helper_assert.h"

#include "base/f16.h"

#include <math.h>

/* The value of a bit pattern by the definition of IEEE 754, with the given numbers of exponent and fraction bits. */
static double value_of(unsigned bits, int exponent_bits, int fraction_bits)
{
    const unsigned fraction = bits & ((1u << fraction_bits) - 1);
    const int exponent = (int)(bits >> fraction_bits & ((1u << exponent_bits) - 1));
    const int all_ones = (1 << exponent_bits) - 1, bias = all_ones / 2;
    const double sign = bits >> (exponent_bits + fraction_bits) & 1 ? -1.0 : 1.0;
    if (exponent == all_ones)
        return fraction ? (double)NAN : sign * (double)INFINITY;
    if (exponent == 0)
        return sign * ldexp(fraction, 1 - bias - fraction_bits);
    return sign * ldexp((1u << fraction_bits) | fraction, exponent - bias - fraction_bits);
}

struct format {
    const char *name;
    int exponent_bits, fraction_bits;
    float (*to_f32)(uint16_t);
    uint16_t (*from_f32)(float);
};

static const struct format f16 = { "f16", 5, 10, qn_f16_to_f32, qn_f32_to_f16 };
static const struct format bf16 = { "bf16", 8, 7, qn_bf16_to_f32, qn_f32_to_bf16 };

static void check_all_patterns(const struct format *f)
{
    for (unsigned bits = 0; bits <= 0xffff; bits++) {
        label("%s, pattern 0x%x", f->name, bits);
        const double expected = value_of(bits, f->exponent_bits, f->fraction_bits);
        const float x = f->to_f32((uint16_t)bits);
        const uint16_t back = f->from_f32(x);
        if (isnan(expected)) {
            assert_true(isnan(x));
            assert_true(isnan(f->to_f32(back)));
            assert_int_equal(back >> 15, bits >> 15);
        } else {
            assert_true((double)x == expected && !signbit(x) == !(bits >> 15));
            assert_int_equal(back, bits);
        }
    }
}

/* Between each finite pattern and the next larger one: the midpoint rounds to the even pattern, its float neighbours to
 * the nearer pattern. */
static void check_rounding(const struct format *f)
{
    const unsigned infinity = ((1u << f->exponent_bits) - 1) << f->fraction_bits;
    for (unsigned sign = 0; sign <= 0x8000; sign += 0x8000)
        for (unsigned bits = 0; bits < infinity; bits++) {
            label("%s, pattern 0x%x", f->name, sign | bits);
            const double low = value_of(bits, f->exponent_bits, f->fraction_bits);
            /* the next pattern's value with an unbounded exponent: 65536 for fp16; overflow begins at the midpoint */
            const double step = bits == 0 ? value_of(1, f->exponent_bits, f->fraction_bits)
                                          : low - value_of(bits - 1, f->exponent_bits, f->fraction_bits);
            const double high =
                bits + 1 < infinity ? value_of(bits + 1, f->exponent_bits, f->fraction_bits) : low + step;
            const float middle = (float)((low + high) / 2);
            assert_true((double)middle == (low + high) / 2);
            const float signed_middle = sign ? -middle : middle;
            const float inside = nextafterf(signed_middle, 0.0f);
            const float outside = nextafterf(signed_middle, sign ? -INFINITY : INFINITY);
            assert_int_equal(f->from_f32(signed_middle), (bits + (bits & 1)) | sign);
            assert_int_equal(f->from_f32(inside), bits | sign);
            assert_int_equal(f->from_f32(outside), (bits + 1) | sign);
        }
}

TEST(f16_patterns)
{
    check_all_patterns(&f16);
}

TEST(f16_rounding)
{
    check_rounding(&f16);
    assert_int_equal(qn_f32_to_f16(65519.996f), 0x7bff);
    assert_int_equal(qn_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(qn_f32_to_f16(3.4e38f), 0x7c00);
    assert_int_equal(qn_f32_to_f16(1e-45f), 0);
}

TEST(bf16_patterns)
{
    check_all_patterns(&bf16);
}

TEST(bf16_rounding)
{
    check_rounding(&bf16);
}
