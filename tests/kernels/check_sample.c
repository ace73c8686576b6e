/* Passes over rows of logits: every variant against the reference, whose sums are compared with sums over sorted
 * copies. check_sample_token.c checks the sampler, which is made of these passes. */
#include "check_sample.h"

#include "check.h"
#include "kernels/sample/sample.h"

enum { MAX_ROW = 4100 };
static const size_t widths[] = { 1, 2, 7, 15, 16, 17, 31, 32, 33, 47, 64, 65, 128, 576, 2047, 4096, MAX_ROW };
enum { N_WIDTHS = QN_LENGTH(widths) };

/* Logits of a case, at an offset of 1 to 8 floats, so that only 4-byte alignment is guaranteed. */
static float input[MAX_ROW + 16];

enum shape { NORMAL, ALMOST_ALL_EXCLUDED, EQUALS, WIDE, N_SHAPES };

/* `at` is the index of the largest, the lower one of equal ones. */
static float *logits_of(enum shape shape, size_t n, size_t *at)
{
    float *x = input + 1 + qn_random_below(8);
    qn_random_floats(x, n, shape == WIDE ? 40 : 5);
    *at = qn_random_below(n);
    for (size_t k = 0; shape == ALMOST_ALL_EXCLUDED && k < n; k++)
        x[k] = -INFINITY; /* x[*at] is set below */
    for (size_t k = 0; shape == EQUALS && k < n; k++)
        x[k] = (float)qn_random_below(3);
    x[*at] = 200;
    if (shape == EQUALS)
        x[ *at = qn_random_below(*at + 1)] = 200;
    return x;
}

/* A threshold: a logit of the row, a value between two, or beyond all. */
static float threshold_of(const float *x, size_t n)
{
    switch (qn_random_below(5)) {
    case 0: return x[qn_random_below(n)];
    case 1: return nextafterf(x[qn_random_below(n)], -INFINITY);
    case 2: return qn_random_below(2) ? INFINITY : -INFINITY;
    default: return 5 * qn_random_normal();
    }
}

static qn_sample_scale scale_of(size_t n)
{
    static const float temperatures[] = { 1e-6f, 0.1f, 1, 1.7f, 30, 3e38f };
    return (qn_sample_scale){ 200, 1 / temperatures[qn_random_below(6)], ldexpf(1, qn_sample_weight_bits(n)) };
}

/* ---- Scalars and sums ---- */

static void check_maximum(const qn_sample_kernels *kernels, float *x, size_t n, size_t at)
{
    qn_expect(qn_argmax_row(kernels, x, n) == at, "argmax is %zu, expected %zu", qn_argmax_row(kernels, x, n), at);
    qn_expect(kernels->maximum(x, n) == 200, "maximum is %g, expected 200", (double)kernels->maximum(x, n));
    qn_expect(kernels->find(x, n, 12345) == n, "a value that is not there is found at %zu", kernels->find(x, n, 12345));
    const size_t broken = qn_random_below(n);
    const float saved = x[broken];
    x[broken] = NAN;
    qn_expect(isnan(kernels->maximum(x, n)), "maximum with NaN at %zu is %g, expected NaN", broken,
              (double)kernels->maximum(x, n));
    x[broken] = saved;
}

struct sums {
    uint64_t total, above[QN_SAMPLE_THRESHOLDS], n_finite, counts[QN_SAMPLE_THRESHOLDS];
};

static void check_sums(const qn_sample_kernels *kernels, const float *x, size_t n, const qn_sample_scale *scale,
                       bool reference, struct sums *expected)
{
    struct sums found;
    float thresholds[QN_SAMPLE_THRESHOLDS];
    for (int i = 0; i < QN_SAMPLE_THRESHOLDS; i++)
        thresholds[i] = threshold_of(x, n);
    memset(&found, 0xff, sizeof found);
    found.total = kernels->sum_above(scale, x, n, thresholds, found.above);
    found.n_finite = kernels->count_above(x, n, thresholds, found.counts);
    if (reference)
        *expected = found;
    qn_expect(memcmp(&found, expected, sizeof found) == 0, "sums or counts differ: total %llu, expected %llu",
              (unsigned long long)found.total, (unsigned long long)expected->total);
    qn_expect(kernels->sum(scale, x, n) == expected->total, "sum is %llu, expected %llu",
              (unsigned long long)kernels->sum(scale, x, n), (unsigned long long)expected->total);
}

static void check_largest_below(const qn_sample_kernels *kernels, const float *x, size_t n,
                                const qn_sample_scale *scale, bool reference, float *expected)
{
    static const float weights[] = { 1, 0.5f, 0.05f, 1e-6f, 1e-30f, 4e-38f };
    for (size_t i = 0; i < QN_LENGTH(weights); i++) {
        const float found = kernels->largest_below(scale, x, n, weights[i]);
        if (reference)
            expected[i] = found;
        qn_expect(found == expected[i], "the largest logit below weight %g is %g, expected %g", (double)weights[i],
                  (double)found, (double)expected[i]);
    }
}

static void check_weights(const qn_sample_kernels *kernels, const float *x, size_t n, const qn_sample_scale *scale,
                          bool reference, uint64_t *expected)
{
    uint64_t *y = qn_guarded(n * sizeof *y, 8 * qn_random_below(8));
    kernels->weigh(scale, x, n, y);
    if (reference)
        memcpy(expected, y, n * sizeof *y);
    qn_expect(memcmp(y, expected, n * sizeof *y) == 0, "weights differ");
}

static void check_moments(const qn_sample_kernels *kernels, const float *x, size_t n, bool reference, float *least,
                          qn_sample_moments *expected)
{
    const float inverse = qn_random_below(2) ? 0x1p13f : 0.75f;
    const qn_sample_moments found = kernels->moments(x, n, 200, inverse);
    if (reference) {
        *least = kernels->least(x, n);
        *expected = found;
    }
    qn_expect(kernels->least(x, n) == *least, "the least logit is %g, expected %g", (double)kernels->least(x, n),
              (double)*least);
    qn_expect(found.n == expected->n && found.sum == expected->sum && found.squares == expected->squares,
              "moments %llu %llu %llu, expected %llu %llu %llu", (unsigned long long)found.n,
              (unsigned long long)found.sum, (unsigned long long)found.squares, (unsigned long long)expected->n,
              (unsigned long long)expected->sum, (unsigned long long)expected->squares);
}

static void check_surprisals(const qn_sample_kernels *kernels, const float *x, size_t n, qn_sample_scale scale,
                             bool reference, uint64_t *expected, uint64_t *expected_total)
{
    uint64_t total;
    scale.unit = 0x1p31f;
    const uint64_t found = kernels->sum_surprisals(&scale, x, n, &total);
    if (reference) {
        *expected = found;
        *expected_total = total;
    }
    qn_expect(found == *expected && total == *expected_total, "surprisals %llu of %llu, expected %llu of %llu",
              (unsigned long long)found, (unsigned long long)total, (unsigned long long)*expected,
              (unsigned long long)*expected_total);
}

/* ---- Selections ---- */

/* Logits and ids that were selected, and their number. */
struct selection {
    float logits[MAX_ROW];
    uint32_t ids[MAX_ROW];
    size_t n;
};

static void expect_selection(bool reference, const float *logits, const uint32_t *ids, size_t n,
                             struct selection *expected, const char *what)
{
    if (reference) {
        expected->n = n;
        memcpy(expected->logits, logits, n * sizeof *logits);
        memcpy(expected->ids, ids, n * sizeof *ids);
    }
    qn_expect(n == expected->n, "%s: %zu logits, expected %zu", what, n, expected->n);
    if (n != expected->n)
        return;
    qn_expect(memcmp(logits, expected->logits, n * sizeof *logits) == 0, "%s: logits differ", what);
    qn_expect(memcmp(ids, expected->ids, n * sizeof *ids) == 0, "%s: ids differ", what);
}

/* Into other memory; then, with those ids, in place. */
static void check_select(const qn_sample_kernels *kernels, const float *x, size_t n, bool reference,
                         struct selection *first, struct selection *second)
{
    float *out = qn_guarded_floats(n);
    uint32_t *ids = qn_guarded(n * sizeof *ids, 4 * qn_random_below(16));
    const float a = threshold_of(x, n), b = threshold_of(x, n);
    size_t n_out = kernels->select(x, NULL, n, fminf(a, b), INFINITY, out, ids);
    expect_selection(reference, out, ids, n_out, first, "select");
    n_out = kernels->select(out, ids, n_out, -INFINITY, fmaxf(a, b), out, ids);
    expect_selection(reference, out, ids, n_out, second, "select in place");
}

/* Bits after the n-th are set: they are not read. */
static void check_select_allowed(const qn_sample_kernels *kernels, const float *x, size_t n, bool reference,
                                 struct selection *expected)
{
    static uint32_t allowed[MAX_ROW / 32 + 1];
    float *out = qn_guarded_floats(n);
    uint32_t *ids = qn_guarded(n * sizeof *ids, 4 * qn_random_below(16));
    const size_t density = qn_random_below(5); /* of the words: none, one bit, half of the bits, all bits, any of these
                                                */
    for (size_t i = 0; i <= n / 32; i++) {
        const size_t own = density == 4 ? qn_random_below(4) : density;
        allowed[i] = own == 0   ? 0
                     : own == 1 ? 1u << qn_random_below(32)
                     : own == 2 ? (uint32_t)qn_random()
                                : UINT32_MAX;
    }
    const size_t n_out = kernels->select_allowed(x, allowed, n, out, ids);
    expect_selection(reference, out, ids, n_out, expected, "select_allowed");
}

/* ---- The reference's sums against sums over a sorted copy ---- */

static int descending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x < y) - (x > y);
}

static void check_reference(const qn_sample_kernels *kernels, const float *x, size_t n, const qn_sample_scale *scale)
{
    static float sorted[MAX_ROW];
    static uint64_t weights[MAX_ROW];
    memcpy(sorted, x, n * sizeof *x);
    qsort(sorted, n, sizeof *sorted, descending);
    kernels->weigh(scale, sorted, n, weights);
    const float thresholds[QN_SAMPLE_THRESHOLDS] = { sorted[0], sorted[n / 4], sorted[n / 2], sorted[n - 1] };
    uint64_t found[QN_SAMPLE_THRESHOLDS], total = 0;
    for (size_t i = 0; i < n; i++) {
        const double exact = exp(fmax(((double)sorted[i] - 200) * (double)scale->inverse, -86)) * (double)scale->unit;
        qn_expect(fabs((double)weights[i] - exact) <= 2e-5 * exact + 1, "weight of %g is %llu, expected %.9g",
                  (double)sorted[i], (unsigned long long)weights[i], exact);
        total += weights[i];
    }
    qn_expect(kernels->sum_above(scale, x, n, thresholds, found) == total, "total of the reference differs");
    for (int t = 0; t < QN_SAMPLE_THRESHOLDS; t++) {
        uint64_t above = 0;
        for (size_t i = 0; i < n && sorted[i] > thresholds[t]; i++)
            above += weights[i];
        qn_expect(found[t] == above, "sum %d of the reference differs", t);
    }
}

struct timed_argmax {
    const qn_sample_kernels *kernels;
    size_t result;
};

static void timed_argmax(void *context)
{
    struct timed_argmax *t = context;
    t->result = qn_argmax_row(t->kernels, input, MAX_ROW);
}

static void check_row(const qn_sample_kernels *kernels, size_t n, enum shape shape, bool reference)
{
    static struct sums sums;
    static float below[6], least;
    static qn_sample_moments moments;
    static uint64_t weights[MAX_ROW], surprisals[2];
    static struct selection selected[3];
    size_t at;
    float *x = logits_of(shape, n, &at);
    const qn_sample_scale scale = scale_of(n);
    check_maximum(kernels, x, n, at);
    check_sums(kernels, x, n, &scale, reference, &sums);
    check_largest_below(kernels, x, n, &scale, reference, below);
    check_weights(kernels, x, n, &scale, reference, weights);
    check_moments(kernels, x, n, reference, &least, &moments);
    check_surprisals(kernels, x, n, scale, reference, &surprisals[0], &surprisals[1]);
    check_select(kernels, x, n, reference, &selected[0], &selected[1]);
    check_select_allowed(kernels, x, n, reference, &selected[2]);
    if (reference)
        check_reference(kernels, x, n, &scale);
    qn_release();
}

void qn_check_sample(bool bench)
{
    enum { ROUNDS = 8 };
    for (size_t c = 0; c < N_WIDTHS * N_SHAPES * ROUNDS; c++) {
        if (!qn_case_selected())
            continue;
        for (const qn_cpu_level *level = qn_levels(); level->name; level++) {
            qn_sample_kernels kernels;
            const size_t n = widths[c / ROUNDS % N_WIDTHS];
            const enum shape shape = (enum shape)(c / ROUNDS / N_WIDTHS);
            qn_random_seed(c);
            qn_sample_kernels_init(&kernels, level->features);
            qn_case_begin("sample", level->name, "width %zu shape %d round %zu", n, (int)shape, c % ROUNDS);
            check_row(&kernels, n, shape, qn_is_reference(level));
        }
    }
    qn_check_sample_tokens();
    for (const qn_cpu_level *level = qn_levels(); bench && level->name; level++) {
        qn_sample_kernels kernels;
        qn_sample_kernels_init(&kernels, level->features);
        qn_bench("sample", level->name, "argmax 4100", MAX_ROW, "value", timed_argmax,
                 &(struct timed_argmax){ &kernels, 0 });
        qn_bench_sample_tokens(level);
    }
}
