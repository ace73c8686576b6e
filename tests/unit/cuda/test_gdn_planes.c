/* The two fp16 planes of a recurrent state: what they hold of an f32, and that pairs survive a session file; the error
 * of a layer's output from reading one plane. */
#include "helper_assert.h"

#include "base/memory.h"
#include "gpu/state_planes.h"

#include <float.h>

static uint64_t random_state = 1;

static uint32_t random_bits(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 16);
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* 0x8000 is -0: in a pair the signs of zeros are of no matter. */
static uint16_t without_sign_of_zero(uint16_t x)
{
    return x == 0x8000 ? 0 : x;
}

static void check(float x)
{
    uint16_t hi, lo, hi_again, lo_again;
    qn_gdn_split(x, &hi, &lo);
    const float y = qn_gdn_join(hi, lo);
    const double wanted = fmin(fmax((double)x, -65504.0 - 65504.0 / 4096), 65504.0 + 65504.0 / 4096);
    /* In [2^14, 2^15) of f16's range the rest is half a step of hi at most: cut to 11 bits it loses 2^-11 of 2^-11. A
     * tie of the largest hi is cut to 65504. Below 2^-14 the step of lo decides. */
    assert_true(fabs((double)y - wanted) <= fmax(fabs(wanted) * 0x1p-22, 0x1p-36));
    qn_gdn_split(y, &hi_again, &lo_again);
    if (without_sign_of_zero(hi) != without_sign_of_zero(hi_again) ||
        without_sign_of_zero(lo) != without_sign_of_zero(lo_again))
        fail_msg("%a: planes %04x %04x, and of their sum %04x %04x", (double)x, hi, lo, hi_again, lo_again);
    assert_true(qn_gdn_join(hi_again, lo_again) == y);
    assert_true(fabs((double)qn_f16_to_f32(hi) - wanted) <= fmax(fabs(wanted) * 0x1p-11, 0x1p-25));
}

/* Every f16, the middles between neighbours, and the floats around them. */
TEST(neighbours)
{
    for (uint32_t h = 0; h < 0x7c00; h++) {
        const float x = qn_f16_to_f32((uint16_t)h), next = h == 0x7bff ? 65536 : qn_f16_to_f32((uint16_t)(h + 1));
        const float at[] = { x, x + (next - x) / 2, x + (next - x) / 4 };
        for (size_t i = 0; i < COUNT(at); i++)
            for (uint32_t step = 0; step < 17; step++)
                for (int sign = 0; sign < 2; sign++)
                    if (bits_of(at[i]) + step >= 8)
                        check((sign ? -1.0f : 1.0f) * float_of(bits_of(at[i]) + step - 8));
    }
}

TEST(random_floats)
{
    for (size_t i = 0; i < 1000000; i++) {
        const float x = float_of(random_bits());
        if (!isnan(x))
            check(x);
        check(float_of((random_bits() & 0x80ffffffu) + ((96 + random_bits() % 50) << 23))); /* 2^-31 to 2^19 */
    }
}

TEST(edges)
{
    static const float values[] = { 0.0f, -0.0f,   FLT_MIN,  FLT_TRUE_MIN, 0x1p-24f, 0x1p-25f,       0x1p-36f,
                                    1e5f, FLT_MAX, 65504.0f, 65519.99f,    65520.0f, 0x1.ffdffep15f, INFINITY };
    for (size_t i = 0; i < COUNT(values); i++) {
        check(values[i]);
        check(-values[i]);
    }
    uint16_t hi, lo;
    qn_gdn_split(NAN, &hi, &lo);
    assert_true(isnan(qn_gdn_join(hi, lo)));
}

/* Over the states that a head of 128 by 128 comes to: normalised keys, random or with a common part, decays of 0.9 to
 * 1. The l2 norm of the outputs' error from S rounded to f16, over that of the outputs: what a row adds by reading one
 *    plane. */
enum { HEAD = 128, TOKENS = 512 };

static double normal(void)
{
    const double u = (random_bits() + 1.0) / 4294967297.0, v = random_bits() / 4294967296.0;
    return sqrt(-2 * log(u)) * cos(6.283185307179586 * v);
}

static void draw_unit(double *x, const double *common)
{
    double squares = 0;
    for (size_t i = 0; i < HEAD; i++) {
        x[i] = normal() + common[i];
        squares += x[i] * x[i];
    }
    for (size_t i = 0; i < HEAD; i++)
        x[i] /= sqrt(squares);
}

/* Error and output of a row: S k and S q for S, and for its plane hi. */
static void add_errors(const double *s, const double *x, double *error, double *size)
{
    for (size_t v = 0; v < HEAD; v++) {
        double exact = 0, read = 0;
        for (size_t k = 0; k < HEAD; k++) {
            uint16_t hi, lo;
            qn_gdn_split((float)s[v * HEAD + k], &hi, &lo);
            exact += s[v * HEAD + k] * x[k];
            read += (double)qn_f16_to_f32(hi) * x[k];
        }
        *error += (read - exact) * (read - exact);
        *size += exact * exact;
    }
}

static double error_of_reading(double common_part)
{
    double *s = calloc(HEAD * HEAD, sizeof *s), common[HEAD], q[HEAD], k[HEAD], error = 0, size = 0;
    for (size_t i = 0; i < HEAD; i++)
        common[i] = common_part * normal();
    for (size_t token = 0; token < TOKENS; token++) {
        const double decay = 0.9 + 0.1 * random_bits() / 4294967296.0, beta = random_bits() / 4294967296.0;
        draw_unit(q, common);
        draw_unit(k, common);
        if (token > 0 && token % 64 == 0) {
            add_errors(s, q, &error, &size);
            add_errors(s, k, &error, &size);
        }
        for (size_t v = 0; v < HEAD; v++) {
            double read = 0;
            for (size_t i = 0; i < HEAD; i++)
                read += s[v * HEAD + i] * k[i];
            const double change = beta * (normal() - decay * read);
            for (size_t i = 0; i < HEAD; i++)
                s[v * HEAD + i] = decay * s[v * HEAD + i] + change * k[i];
        }
    }
    free(s);
    return sqrt(error / size);
}

TEST(error_of_reading_one_plane)
{
    const double random_keys = error_of_reading(0), similar_keys = error_of_reading(1);
    print_message("products with S in f16: error %.1e with random keys, %.1e with a common part\n", random_keys,
                  similar_keys);
    /* Rounding to nearest is 2^-11 of an element at most, 2^-12.3 in the mean square; elements are independent. */
    assert_true(random_keys > 0x1p-14 && random_keys < 0x1p-12);
    assert_true(similar_keys > 0x1p-15 && similar_keys < 0x1p-12);
}
