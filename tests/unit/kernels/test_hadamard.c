/* The signed Walsh-Hadamard transform: against the explicit matrix, against its inverse, and rejected arguments. */
#include "helper_random.h"

#include "quern/kernels.h"

#include "base/cpu.h"
#include "kernels/hadamard/hadamard.h"

#include <math.h>

static float *random_signs(size_t n)
{
    float *s = random_floats(n);
    for (size_t i = 0; i < n; i++)
        s[i] = s[i] < 0 ? -1 : 1;
    return s;
}

static float *copy(const float *x, size_t n)
{
    float *y = malloc(n * sizeof *y);
    assert_non_null(y);
    return memcpy(y, x, n * sizeof *y);
}

static qn_view view(void *data, size_t count)
{
    return (qn_view){ data, QN_DTYPE_F32, count };
}

static const qn_view no_signs;

/* H of order 4 by hand, times 1/2; the two blocks have different signs. */
TEST(written_out)
{
    float x[8] = { 1, 2, 3, 4, 1, 2, 3, 4 }, signs[8] = { 1, 1, 1, 1, -1, 1, 1, -1 };
    static const float first[8] = { 5, -1, -2, 0, 0, 2, 1, -5 }, last[8] = { 5, -1, -2, 0, -5, -1, -2, 0 };
    float y[8];
    memcpy(y, x, sizeof y);
    assert_ok(qn_hadamard(view(y, 8), view(signs, 8), 1, 8, 4, QN_HADAMARD_SIGN_FIRST));
    for (int i = 0; i < 8; i++)
        assert_true(y[i] == first[i]);
    memcpy(y, x, sizeof y);
    assert_ok(qn_hadamard(view(y, 8), view(signs, 8), 1, 8, 4, QN_HADAMARD_SIGN_LAST));
    for (int i = 0; i < 8; i++)
        assert_true(y[i] == last[i]);
}

TEST(near_float64)
{
    enum { WIDTH = 2048 };
    float *x = random_floats(WIDTH), *signs = random_signs(WIDTH);
    for (size_t block = 1; block <= WIDTH; block *= 2) {
        label("block %zu", block);
        float *y = copy(x, WIDTH);
        assert_ok(qn_hadamard(view(y, WIDTH), view(signs, WIDTH), 1, WIDTH, block, QN_HADAMARD_SIGN_FIRST));
        for (size_t i = 0; i < WIDTH; i++) {
            const size_t first = i / block * block;
            double sum = 0, magnitude = 0;
            for (size_t c = 0; c < block; c++) {
                const double term = (double)x[first + c] * (double)signs[first + c];
                sum += __builtin_popcountll((i - first) & c) % 2 ? -term : term;
                magnitude += fabs(term);
            }
            /* One rounding of at most 2^-24 of the magnitudes per stage, one of the factor and one of the
             * multiplication. */
            const double bound = (log2((double)block) + 2) * 0x1p-24 * magnitude / sqrt((double)block);
            if (!(fabs((double)y[i] - sum / sqrt((double)block)) <= bound))
                fail_msg("element %zu: %g, float64 gives %g", i, (double)y[i], sum / sqrt((double)block));
        }
        free(y);
    }
    free(x);
    free(signs);
}

TEST(last_undoes_first)
{
    enum { ROWS = 3, WIDTH = 5 * 1024 };
    float *x = random_floats(ROWS * WIDTH), *signs = random_signs(WIDTH), *y = copy(x, ROWS * WIDTH);
    const qn_view rows = view(y, ROWS * WIDTH), s = view(signs, WIDTH);
    assert_ok(qn_hadamard(rows, s, ROWS, WIDTH, 1024, QN_HADAMARD_SIGN_FIRST));
    assert_true(fabs((double)y[0] - (double)x[0]) > 1e-3 || fabs((double)y[1] - (double)x[1]) > 1e-3);
    assert_ok(qn_hadamard(rows, s, ROWS, WIDTH, 1024, QN_HADAMARD_SIGN_LAST));
    double error = 0, norm = 0;
    for (size_t i = 0; i < ROWS * WIDTH; i++) {
        error += ((double)y[i] - (double)x[i]) * ((double)y[i] - (double)x[i]);
        norm += (double)x[i] * (double)x[i];
    }
    assert_true(sqrt(error / norm) < 3e-7); /* 24 roundings of 2^-25 on average, with random signs */
    free(x);
    free(signs);
    free(y);
}

/* The same bits for all rows in one call or one per call, and for blocks of every size in every instruction set of the
 * CPU. */
TEST(same_bits)
{
    enum { ROWS = 4, WIDTH = QN_HADAMARD_MAX_BLOCK };
    float *x = random_floats(ROWS * WIDTH), *y = copy(x, ROWS * WIDTH), *z = copy(x, ROWS * WIDTH),
          *s = random_signs(WIDTH);
    qn_hadamard_kernels ref, best;
    qn_hadamard_kernels_init(&ref, 0);
    qn_hadamard_kernels_init(&best, qn_cpu_present());
    for (size_t block = 1; block <= WIDTH; block *= 4) {
        label("block %zu", block);
        assert_ok(qn_hadamard(view(y, ROWS * WIDTH), no_signs, ROWS, WIDTH, block, QN_HADAMARD_SIGN_FIRST));
        for (size_t row = 0; row < ROWS; row++)
            assert_ok(qn_hadamard(view(z + row * WIDTH, WIDTH), no_signs, 1, WIDTH, block, QN_HADAMARD_SIGN_LAST));
        assert_memory_equal(y, z, ROWS * WIDTH * sizeof *y);
    }
    for (size_t n = 1; n <= WIDTH; n *= 2) {
        label("one block of %zu", n);
        ref.block(y, n, s, s + WIDTH - n);
        best.block(z, n, s, s + WIDTH - n);
        assert_memory_equal(y, z, n * sizeof *y);
    }
    free(x);
    free(y);
    free(z);
    free(s);
}

TEST(rejects_bad_arguments)
{
    float x[16], signs[8] = { 1, 1, 1, 1, 1, 0.5f, 1, 1 };
    for (int i = 0; i < 16; i++)
        x[i] = 7;
    const qn_view rows = view(x, 16);
    static const size_t blocks[] = { 0, 3, 6, 131072 };
    for (int i = 0; i < 4; i++) {
        assert_fails(qn_hadamard(rows, no_signs, 1, 131072 * 3, blocks[i], QN_HADAMARD_SIGN_FIRST), QN_ERR_INVALID,
                     "expected a power of two of 1 to 65536");
    }
    assert_fails(qn_hadamard(rows, no_signs, 1, 12, 8, QN_HADAMARD_SIGN_FIRST), QN_ERR_INVALID,
                 "width: 12, expected a multiple of the block 8");
    assert_fails(qn_hadamard(rows, no_signs, 3, 8, 8, QN_HADAMARD_SIGN_FIRST), QN_ERR_INVALID,
                 "x: 16 elements, expected at least 24");
    assert_fails(qn_hadamard((qn_view){ x, QN_DTYPE_F16, 16 }, no_signs, 2, 8, 8, QN_HADAMARD_SIGN_FIRST),
                 QN_ERR_INVALID, "x: type f16");
    assert_fails(qn_hadamard(view(NULL, 16), no_signs, 2, 8, 8, QN_HADAMARD_SIGN_FIRST), QN_ERR_INVALID, "x: NULL");
    assert_fails(qn_hadamard(rows, no_signs, SIZE_MAX / 4, 8, 8, QN_HADAMARD_SIGN_FIRST), QN_ERR_INVALID,
                 "do not fit in memory");
    assert_fails(qn_hadamard(rows, view(signs, 7), 2, 8, 8, QN_HADAMARD_SIGN_FIRST), QN_ERR_INVALID,
                 "signs: 7 elements, expected at least 8");
    assert_fails(qn_hadamard(rows, view(NULL, 8), 2, 8, 8, QN_HADAMARD_SIGN_FIRST), QN_ERR_INVALID, "signs: NULL");
    assert_fails(qn_hadamard(rows, view(signs, 8), 2, 8, 8, QN_HADAMARD_SIGN_LAST), QN_ERR_INVALID,
                 "signs: element 5 is 0.5, expected 1 or -1");
    assert_fails(qn_hadamard(rows, no_signs, 2, 8, 8, (qn_hadamard_order)2), QN_ERR_INVALID, "order: 2");
    for (int i = 0; i < 16; i++)
        assert_true(x[i] == 7);
    assert_ok(qn_hadamard(view(NULL, 0), no_signs, 0, 8, 8, QN_HADAMARD_SIGN_FIRST));
    assert_ok(qn_hadamard(view(NULL, 0), no_signs, 5, 0, 8, QN_HADAMARD_SIGN_FIRST));
}
