/* Chi-square tests of drawn tokens against probabilities in float64: twelve settings, several seeds, and the same test
 * on a sampler with a bias of 1%, which must fail. QN_SOAK=1: 10^5 draws, seeds 1 to 20, every p-value printed. */
#include "helper_assert.h"

#include "engine/internal.h"
#include "quern/quern.h"

#include <math.h>

enum { VOCAB = 1000, MAX_SEEDS = 20, LEAST_EXPECTED = 20 };

/* ---- Settings ---- */

enum shape { NORMAL, FLAT, TIES, PEAKED };

#define PLAIN .top_p = 1, .repeat_penalty = 1

static const struct setting {
    const char *name;
    enum shape shape;
    bool masked, biased;
    qn_sampling sampling;
} settings[] = {
    { "temperature 1", NORMAL, false, false, { .temperature = 1, PLAIN } },
    { "temperature 0.5", NORMAL, false, false, { .temperature = 0.5f, PLAIN } },
    { "temperature 2", NORMAL, false, false, { .temperature = 2, PLAIN } },
    { "flat", FLAT, false, false, { .temperature = 1, PLAIN } },
    { "ties", TIES, false, false, { .temperature = 1, .top_p = 0.6f, .repeat_penalty = 1 } },
    { "top_k 40", FLAT, false, false, { .temperature = 1, .top_k = 40, PLAIN } },
    { "top_k 300", FLAT, false, false, { .temperature = 1, .top_k = 300, PLAIN } },
    { "top_p 0.95", FLAT, false, false, { .temperature = 1, .top_p = 0.95f, .repeat_penalty = 1 } },
    { "min_p 0.05", NORMAL, false, false, { .temperature = 1, .min_p = 0.05f, PLAIN } },
    { "top_k, top_p, min_p",
      NORMAL,
      false,
      false,
      { .temperature = 1.3f, .top_k = 200, .top_p = 0.9f, .min_p = 0.01f, .repeat_penalty = 1 } },
    { "mask", FLAT, true, false, { .temperature = 1, PLAIN } },
    { "peaked, bias", PEAKED, false, true, { .temperature = 1, PLAIN } },
};
enum { N_SETTINGS = COUNT(settings) };

static float logits[VOCAB];
static uint32_t allowed[(VOCAB + 31) / 32];
static const qn_logit_bias bias[] = { { 5, 3 }, { 700, -INFINITY }, { 701, 2.5f } };

static double normal(uint64_t *random)
{
    double sum = -6; /* of twelve uniform numbers */
    for (int i = 0; i < 12; i++) {
        *random = *random * 6364136223846793005u + 1442695040888963407u;
        sum += (double)(*random >> 11) * 0x1p-53;
    }
    return sum;
}

static void fill(const struct setting *setting)
{
    uint64_t random = 7;
    for (int i = 0; i < VOCAB; i++) {
        const double x = normal(&random);
        switch (setting->shape) {
        case NORMAL: logits[i] = (float)(2 * x); break;
        case FLAT: logits[i] = (float)(0.5 * x); break;
        case TIES: logits[i] = (float)floor(x); break;
        case PEAKED: logits[i] = (float)(x + (i % 331 == 0 ? 7 : 0)); break;
        }
        if (i % 32 == 0)
            allowed[i / 32] = (uint32_t)(random >> 32);
    }
}

/* ---- Exact probabilities ---- */

struct ranked {
    double logit;
    int token;
};

static int likelier_first(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    return x->logit != y->logit ? (x->logit < y->logit) - (x->logit > y->logit) : x->token - y->token;
}

/* Returns the number of tokens that the filters keep; probabilities of the first of them. */
static size_t exact(const struct setting *setting, struct ranked ranked[VOCAB], double probabilities[VOCAB])
{
    const qn_sampling *s = &setting->sampling;
    double total = 0, kept = 0;
    for (int i = 0; i < VOCAB; i++) {
        ranked[i] = (struct ranked){ (double)logits[i], i };
        for (size_t b = 0; setting->biased && b < COUNT(bias); b++)
            ranked[i].logit += bias[b].token == i ? (double)bias[b].value : 0;
        if (setting->masked && !(allowed[i / 32] >> i % 32 & 1))
            ranked[i].logit = -INFINITY;
    }
    qsort(ranked, VOCAB, sizeof *ranked, likelier_first);
    const size_t k = s->top_k > 0 ? (size_t)s->top_k : VOCAB;
    for (size_t i = 0; i < k; i++)
        total += probabilities[i] = exp((ranked[i].logit - ranked[0].logit) / (double)s->temperature);
    size_t n = 0;
    while (n < k && probabilities[n] > 0 && probabilities[n] >= (double)s->min_p && kept < (double)s->top_p * total)
        kept += probabilities[n++];
    for (size_t i = 0; i < n; i++)
        probabilities[i] /= kept;
    return n;
}

/* ---- Chi-square ---- */

/* The upper tail of the chi-square distribution: the regularised incomplete gamma function Q(a, x), by its series below
 * a + 1, else by its continued fraction (Lentz). */
static double upper_gamma(double a, double x)
{
    const double scale = exp(a * log(x) - x - lgamma(a));
    if (x <= 0)
        return 1;
    if (x < a + 1) {
        double term = 1 / a, sum = term;
        for (double n = a + 1; term > sum * 1e-14; n++)
            sum += term *= x / n;
        return 1 - scale * sum;
    }
    double b = x + 1 - a, c = 1e300, d = 1 / b, h = d;
    for (int i = 1; i < 10000; i++) {
        const double an = -(double)i * ((double)i - a);
        b += 2;
        d = 1 / (an * d + b);
        c = b + an / c;
        h *= c * d;
        if (fabs(c * d - 1) < 1e-14)
            break;
    }
    return scale * h;
}

/* Tokens in descending order are joined until a cell has at least LEAST_EXPECTED expected draws. */
static double p_value(const struct ranked *ranked, const double *probabilities, size_t n, const size_t counts[VOCAB],
                      size_t draws)
{
    double expected = 0, found = 0, chi_square = 0, rest = (double)draws;
    int n_cells = 0;
    for (size_t i = 0; i < n; i++) {
        expected += probabilities[i] * (double)draws;
        found += (double)counts[ranked[i].token];
        rest -= probabilities[i] * (double)draws;
        if (i + 1 < n && (expected < LEAST_EXPECTED || rest < LEAST_EXPECTED))
            continue;
        chi_square += (found - expected) * (found - expected) / expected;
        n_cells++;
        expected = found = 0;
    }
    return upper_gamma((n_cells - 1) / 2.0, chi_square / 2);
}

/* Draw, and return the p-value. with_bias: one of a hundred draws gives the most likely token. */
static double test_seed(const struct setting *setting, uint64_t seed, size_t draws, bool with_bias)
{
    static struct ranked ranked[VOCAB];
    static double probabilities[VOCAB];
    static size_t counts[VOCAB];
    qn_sampling params = setting->sampling;
    params.size = sizeof params;
    qn_sampler *sampler;
    const size_t n = exact(setting, ranked, probabilities);
    memset(counts, 0, sizeof counts);
    params.seed = seed;
    assert_ok(qn_sampler_create(&params, VOCAB, &sampler));
    for (size_t i = 0; i < draws; i++) {
        qn_sample_request request = qn_sampler_next_request(sampler, NULL, 0);
        request.allowed = setting->masked ? allowed : NULL;
        request.bias = bias;
        request.n_bias = setting->biased ? COUNT(bias) : 0;
        assert_ok(qn_sampler_sample(sampler, logits, &request));
        assert_ok(qn_sample_status(request.best));
        counts[with_bias && i % 100 == 99 ? ranked[0].token : request.token]++;
    }
    qn_sampler_free(sampler);
    size_t n_kept = 0;
    for (size_t i = 0; i < n; i++)
        n_kept += counts[ranked[i].token];
    assert_int_equal(n_kept, draws); /* none that the filters drop */
    return p_value(ranked, probabilities, n, counts, draws);
}

/* The least p-value of all settings and seeds, times their number (Bonferroni). */
static double least_p_value(bool with_bias)
{
    const bool soak = getenv("QN_SOAK");
    const size_t draws = soak ? 100000 : 20000;
    const uint64_t n_seeds = soak ? MAX_SEEDS : 2;
    double least = 1;
    for (size_t s = 0; s < N_SETTINGS; s++) {
        fill(&settings[s]);
        if (soak)
            printf("%s%s:", settings[s].name, with_bias ? ", with a bias" : "");
        for (uint64_t seed = 1; seed <= n_seeds; seed++) {
            const double p = test_seed(&settings[s], seed, draws, with_bias);
            least = fmin(least, p);
            if (soak)
                printf(" %.3g", p);
        }
        if (soak)
            printf("\n");
    }
    return least * (double)(N_SETTINGS * n_seeds);
}

TEST(draws_have_the_distribution)
{
    const double p = least_p_value(false);
    if (!(p > 0.01))
        fail_msg("p = %g, expected more than 0.01", p);
}

TEST(a_bias_of_one_percent_fails)
{
    const double p = least_p_value(true);
    if (!(p < 0.01))
        fail_msg("p = %g with a bias, expected less than 0.01", p);
}

TEST(p_values_are_those_of_tables)
{
    static const struct {
        double chi_square, cells, p;
    } known[] = { { 3.841459, 1, 0.05 },     { 18.307038, 10, 0.05 },   { 23.209251, 10, 0.01 },
                  { 124.342113, 100, 0.05 }, { 61.917925, 100, 0.999 }, { 2.558212, 10, 0.99 } };
    for (size_t i = 0; i < COUNT(known); i++)
        assert_true(fabs(upper_gamma(known[i].cells / 2, known[i].chi_square / 2) - known[i].p) < 1e-6);
}
