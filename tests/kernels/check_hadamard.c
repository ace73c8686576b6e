/* Signed block Walsh-Hadamard transforms: the variants must have the same bits as the reference, which is compared with
 * the dense matrix in float64. */
#include "check.h"

#include "kernels/hadamard/hadamard.h"

enum { MAX_N = QN_HADAMARD_MAX_BLOCK, DENSE_ROWS = 256, BENCH_WIDTH = 5120 };

/* Used at offsets of 1 to 8 floats, so that only 4-byte alignment is guaranteed. */
static float data[MAX_N + 16], signs[2][MAX_N + 16], expected[MAX_N];

/* Row r of S_after H S_before x, and the error bound of f32: one rounding in each of log2(n) stages and for three
 * factors, each at most 2^-24 of a partial sum, and no partial sum exceeds the sum of magnitudes. */
static void exact_row(size_t r, const float *x, size_t n, const float *before, const float *after, double *exact,
                      double *bound)
{
    double sum = 0, magnitude = 0;
    for (size_t c = 0; c < n; c++) {
        const double term = (double)x[c] * (before ? (double)before[c] : 1);
        sum += __builtin_popcountll(r & c) % 2 ? -term : term;
        magnitude += fabs(term);
    }
    *exact = sum / sqrt((double)n) * (after ? (double)after[r] : 1);
    *bound = (log2((double)n) + 3) * 0x1p-24 * magnitude / sqrt((double)n);
}

static void check_reference(const float *found, const float *x, size_t n, const float *before, const float *after)
{
    const size_t step = n > DENSE_ROWS ? n / DENSE_ROWS : 1;
    for (size_t r = 0; r < n; r += step) {
        const size_t row = r + qn_random_below(step);
        double exact, bound;
        exact_row(row, x, n, before, after, &exact, &bound);
        if (!(fabs((double)found[row] - exact) <= bound))
            qn_expect(false, "element %zu is %.9g, float64 gives %.9g, bound %.2g", row, (double)found[row], exact,
                      bound);
    }
}

static void check_block(const qn_cpu_level *level, size_t n, bool before, bool after)
{
    qn_hadamard_kernels kernels;
    qn_hadamard_kernels_init(&kernels, level->features);
    float *x = data + 1 + qn_random_below(8), *s = signs[0] + 1 + qn_random_below(8),
          *t = signs[1] + 1 + qn_random_below(8);
    qn_random_floats(x, n, 3);
    qn_random_signs(s, n);
    qn_random_signs(t, n);
    float *found = qn_guarded_floats(n);
    memcpy(found, x, n * sizeof *x);
    kernels.block(found, n, before ? s : NULL, after ? t : NULL);
    qn_expect_level(level, found, expected, n, "element");
    if (qn_is_reference(level))
        check_reference(found, x, n, before ? s : NULL, after ? t : NULL);
    qn_release();
}

struct timed_hadamard {
    const qn_hadamard_kernels *kernels;
    size_t n;
};

static void timed_row(void *context)
{
    const struct timed_hadamard *t = context;
    for (size_t at = 0; at < BENCH_WIDTH; at += t->n)
        t->kernels->block(data + at, t->n, signs[0] + at, NULL);
}

void qn_check_hadamard(bool bench)
{
    for (size_t n = 1; n <= MAX_N; n *= 2)
        for (unsigned sign_mask = 0; sign_mask < 4; sign_mask++)
            for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
                qn_random_seed(n * 4 + sign_mask);
                qn_case_begin("hadamard", level->name, "block %zu%s%s", n, sign_mask & 1 ? " signs before" : "",
                              sign_mask & 2 ? " signs after" : "");
                check_block(level, n, sign_mask & 1, sign_mask & 2);
            }
    qn_random_signs(signs[0], MAX_N);
    for (const qn_cpu_level *level = qn_levels(); bench && level->name; level++)
        for (size_t n = 128; n <= 1024; n *= 8) {
            qn_hadamard_kernels kernels;
            memset(data, 0, sizeof data); /* zeros: rounding errors of a million transforms in place would drift */
            qn_hadamard_kernels_init(&kernels, level->features);
            qn_bench("hadamard", level->name, qn_text("width %d in blocks of %zu", BENCH_WIDTH, n), BENCH_WIDTH,
                     "value", timed_row, &(struct timed_hadamard){ &kernels, n });
        }
}
