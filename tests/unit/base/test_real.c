/* Functions of real numbers and the fused multiply-add: exact against longer arithmetic, the special values, and the
 * same bits on every system. */
#include "helper_assert.h"

#include "base/fmaf.h"
#include "base/real.h"
#include "base/splitmix.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <xxhash.h>

enum { VALUES = 200000 };

static double between(uint64_t *state, double low, double high)
{
    return low + (double)(qn_splitmix(state) >> 11) * 0x1p-53 * (high - low);
}

/* The error of a result in units of the last place of the exact value, of which `exact` has eleven bits more than a
 * double where long double is longer. */
static double error_of(double result, long double exact)
{
    int exponent;
    frexpl(exact, &exponent);
    return (double)(fabsl((long double)result - exact) / ldexpl(1, exponent - DBL_MANT_DIG));
}

struct sums {
    double worst;
    size_t n_floats; /* that are not the float nearest to the exact value */
    XXH64_state_t *hash;
};

static void take(struct sums *s, double result, long double exact)
{
    const double error = error_of(result, exact);
    s->worst = error > s->worst ? error : s->worst;
    s->n_floats += (float)result != (float)exact;
    XXH64_update(s->hash, &result, sizeof result);
}

/* Ends a function's values: within the bound that real.h states, every float the one that an exact function gives, and
 * the bits of every system. */
static void check(struct sums *s, double bound, uint64_t bits)
{
    if (LDBL_MANT_DIG > DBL_MANT_DIG) {
        assert_true(s->worst < bound);
        assert_int_equal(s->n_floats, 0);
    }
    assert_int_equal(XXH64_digest(s->hash), bits);
    XXH64_reset(s->hash, 0);
    s->worst = 0;
    s->n_floats = 0;
}

TEST(functions_are_exact_and_the_same_everywhere)
{
    uint64_t state = 1;
    struct sums s = { .hash = XXH64_createState() };
    XXH64_reset(s.hash, 0);
    for (int i = 0; i < VALUES; i++) {
        const double x = between(&state, -700, 700);
        take(&s, qn_real_exp(x), expl(x));
    }
    check(&s, 0.51, 0xf8ac6674b9060776u);
    for (int i = 0; i < VALUES; i++) {
        const double x = i % 2 ? between(&state, 0.5, 2) : qn_real_exp(between(&state, -700, 700));
        take(&s, qn_real_log(x), logl(x));
    }
    check(&s, 0.51, 0x3b777ffe16778a19u);
    for (int i = 0; i < VALUES; i++) {
        const double x = qn_real_exp(between(&state, -50, 30));
        take(&s, qn_real_log1p(x), log1pl(x));
    }
    check(&s, 0.8, 0x8a9f272a22d75cdeu);
    for (int i = 0; i < VALUES; i++) {
        const double x = between(&state, 1, 1e7), y = between(&state, -1, 0);
        take(&s, qn_real_pow(x, y), powl(x, y));
    }
    check(&s, 0.51, 0x17abeb9a54840831u);
    for (int i = 0; i < VALUES; i++) {
        const double x = between(&state, -1, 1) * (i % 2 ? 4 : 1e6);
        take(&s, qn_real_sin(x), sinl(x));
    }
    check(&s, 0.8, 0x5cf15ee3bca72474u);
    for (int i = 0; i < VALUES; i++) {
        const double x = between(&state, -1, 1) * (i % 2 ? 4 : 1e6);
        take(&s, qn_real_cos(x), cosl(x));
    }
    check(&s, 0.8, 0x6f5a8f121edb9464u);
    XXH64_freeState(s.hash);
}

TEST(special_values)
{
    assert_true(qn_real_exp(0) == 1 && qn_real_exp(-INFINITY) == 0 && isinf(qn_real_exp(INFINITY)));
    assert_true(qn_real_exp(-800) == 0 && isinf(qn_real_exp(800)) && isnan(qn_real_exp(NAN)));
    assert_true(qn_real_exp(-745) > 0); /* the smallest double */
    assert_true(qn_real_log(1) == 0 && qn_real_log(0) == -INFINITY && isnan(qn_real_log(-1)) &&
                isnan(qn_real_log(NAN)));
    assert_true(isinf(qn_real_log(INFINITY)) && error_of(qn_real_log(0x1p-1074), logl(0x1p-1074)) < 0.51);
    assert_true(qn_real_log1p(0) == 0 && qn_real_log1p(1e-300) == 1e-300 && qn_real_log1p(-1) == -INFINITY);
    assert_true(isnan(qn_real_log1p(-2)) && isnan(qn_real_log1p(NAN)) && isinf(qn_real_log1p(INFINITY)));
    assert_true(qn_real_pow(2, 10) == 1024 && qn_real_pow(10000, 0) == 1 && qn_real_pow(10000, -1) == 1e-4);
    assert_true(qn_real_pow(0, 1) == 0 && isinf(qn_real_pow(0, -1)) && isnan(qn_real_pow(-1, 0.5)));
    assert_true(isinf(qn_real_pow(10, 400)) && qn_real_pow(10, -400) == 0);
    assert_true(qn_real_sin(0) == 0 && signbit(qn_real_sin(-0.0)) && qn_real_cos(0) == 1);
    assert_true(isnan(qn_real_sin(INFINITY)) && isnan(qn_real_cos(NAN)));
    assert_true(fabs(qn_real_sin(1e300)) <= 1 && fabs(qn_real_cos(1e300)) <= 1);
}

/* A float with any bits, or of a few exponents, so that sums nearly cancel. */
static float any_float(uint64_t *state, bool is_near)
{
    uint32_t bits = (uint32_t)(qn_splitmix(state) >> 32);
    if (is_near)
        bits = (bits & 0x807fffffu) | (uint32_t)(120 + (bits >> 23) % 16) << 23;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* By the C library's fma for doubles: the product of floats is exact, so that its error is that of the sum alone. */
static float fused(float a, float b, float c)
{
#ifdef __FP_FAST_FMAF
    return __builtin_fmaf(a, b, c);
#else
    return fmaf(a, b, c);
#endif
}

TEST(one_rounding)
{
    uint64_t state = 2;
    size_t n_wrong = 0;
    for (int i = 0; i < 4000000; i++) {
        const bool is_near = i % 2;
        const float a = any_float(&state, is_near), b = any_float(&state, is_near);
        float c = any_float(&state, is_near);
        if (i % 8 >= 6) { /* the negated product, and its neighbours: what is left is the rounding of the product */
            c = -(a * b);
            for (int step = (int)(qn_splitmix(&state) % 3); step > 0; step--)
                c = nextafterf(c, 0);
        }
        const float got = qn_fmaf_portable(a, b, c), expected = fused(a, b, c);
        n_wrong += !(isnan(got) && isnan(expected)) && memcmp(&got, &expected, sizeof got) != 0;
    }
    assert_int_equal(n_wrong, 0);
}

/* The product is the middle between two floats; the bits beyond the double of the sum decide. */
TEST(no_double_rounding)
{
    const float a = 0x1.001p0f;
    assert_true(qn_fmaf_portable(a, a, 0x1p-100f) == 0x1.002002p0f);
    assert_true(qn_fmaf_portable(a, a, -0x1p-100f) == 0x1.002p0f);
    assert_true(qn_fmaf_portable(a, a, 0) == 0x1.002p0f);
    assert_true(qn_fmaf_portable(0x1p-12f, 0x1p-12f, 0x1.000002p0f) == 0x1.000004p0f);
    assert_true(qn_fmaf_portable(0x1p-75f, 0x1p-75f, 0) == 0);
    assert_true(qn_fmaf_portable(0x1.4p-75f, 0x1p-74f, 0) == 0x1p-149f);
    assert_true(signbit(qn_fmaf_portable(-0.0f, 1, -0.0f)) && !signbit(qn_fmaf_portable(-0.0f, 1, 0)));
}
