/* The rejection rule: drafted tokens and their replacements have the distribution of the model, by chi-square tests
 * that fail if one drafted token in a hundred is not checked. */
#include "helper_assert.h"
#include "helper_test.h"

#include "base/splitmix.h"
#include "engine/spec/rejection.h"

#include <math.h>

enum { N = 12, DRAWS = 100000, SEEDS = 20 };

static const double temperatures[] = { 0.5, 1, 1.7 };
enum { TEMPERATURES = sizeof temperatures / sizeof *temperatures };

/* Logits of a model, and of a drafter. Token 3 is never sampled, token 5 is never drafted. */
static const double model_logits[N] = { 2.1, 1.4, 1.3, -INFINITY, 0.6, 0.5, 0.1, -0.2, -0.4, -0.9, -1.1, -1.5 };
static const double draft_logits[N] = { 1.2, 1.9, 0.3, 0.3, 0.9, -INFINITY, 0.7, 0.2, 0.1, 1.4, 2.0, 1.5 };

static void weigh(const double *logits, double temperature, float *weights)
{
    for (size_t i = 0; i < N; i++)
        weights[i] = (float)exp(logits[i] / temperature);
}

static qn_token draw(const float *weights, uint64_t *random)
{
    double sum = 0;
    for (size_t i = 0; i < N; i++)
        sum += (double)weights[i];
    double left = (double)(qn_splitmix(random) >> 11) * 0x1p-53 * sum;
    qn_token token = 0;
    for (size_t i = 0; i < N; i++) {
        token = weights[i] > 0 ? (qn_token)i : token;
        left -= (double)weights[i];
        if (left < 0)
            break;
    }
    return token;
}

/* The chi-square statistic of DRAWS tokens. bias: the chance that a drafted token is kept whatever the rule says. */
static double statistic(double temperature, uint64_t seed, double bias)
{
    float p[N], q[N];
    double counts[N] = { 0 }, sum = 0, result = 0;
    uint64_t random = seed, of_bias = seed ^ 0x1234567;
    weigh(model_logits, temperature, p);
    weigh(draft_logits, temperature, q);
    for (size_t i = 0; i < DRAWS; i++) {
        const qn_token drafted = draw(q, &random);
        qn_token token;
        const bool accepted = qn_rejection_sample(p, q, N, drafted, &random, &token);
        assert_int_equal(accepted, token == drafted);
        if (bias > 0 && (double)(qn_splitmix(&of_bias) >> 11) * 0x1p-53 < bias)
            token = drafted;
        counts[token]++;
    }
    for (size_t i = 0; i < N; i++)
        sum += (double)p[i];
    for (size_t i = 0; i < N; i++) {
        const double expected = DRAWS * (double)p[i] / sum;
        if (expected > 0)
            result += (counts[i] - expected) * (counts[i] - expected) / expected;
        else
            assert_true(counts[i] == 0 || bias > 0);
    }
    return result;
}

/* The probability that chi-square of `freedom` degrees of freedom is larger: Wilson and Hilferty's approximation by the
 * normal distribution (1931), good to a few percent of the probability at these degrees. */
static double upper_tail(double chi_square, double freedom)
{
    const double z = (cbrt(chi_square / freedom) - (1 - 2 / (9 * freedom))) / sqrt(2 / (9 * freedom));
    return 0.5 * erfc(z / sqrt(2));
}

TEST(tokens_have_the_models_distribution)
{
    double sum = 0;
    for (size_t t = 0; t < TEMPERATURES; t++)
        for (uint64_t seed = 1; seed <= SEEDS; seed++) {
            const double chi_square = statistic(temperatures[t], seed, 0), tail = upper_tail(chi_square, N - 2);
            label("temperature %g, seed %d: chi-square %.2f, p %.4f", temperatures[t], (int)seed, chi_square, tail);
            print_message("temperature %g, seed %2d: chi-square %5.2f, p %.4f\n", temperatures[t], (int)seed,
                          chi_square, tail);
            assert_true(tail > 0.01 / (TEMPERATURES * SEEDS)); /* Bonferroni */
            sum += chi_square;
        }
    assert_true(upper_tail(sum, (N - 2) * TEMPERATURES * SEEDS) > 0.01);
}

/* The test above would see that one drafted token in a hundred was kept unchecked: at each temperature. */
TEST(a_bias_of_one_percent_is_seen)
{
    for (size_t t = 0; t < TEMPERATURES; t++) {
        double sum = 0;
        label("temperature %g", temperatures[t]);
        for (uint64_t seed = 1; seed <= SEEDS; seed++)
            sum += statistic(temperatures[t], seed, 0.01);
        assert_true(upper_tail(sum, (N - 2) * SEEDS) < 0.01 / (TEMPERATURES * SEEDS));
    }
}

TEST(the_extremes_are_right)
{
    const float model[3] = { 0, 1, 0 }, other[3] = { 1, 0, 0 }, same[3] = { 2, 4, 2 },
                normal[3] = { 0.25f, 0.5f, 0.25f };
    uint64_t random = 7;
    for (int i = 0; i < 1000; i++) {
        qn_token token;
        assert_false(qn_rejection_sample(model, other, 3, 0, &random, &token));
        assert_int_equal(token, 1);
        assert_true(qn_rejection_sample(same, normal, 3, i % 3, &random, &token)); /* only the scale differs */
        assert_int_equal(token, i % 3);
    }
}
