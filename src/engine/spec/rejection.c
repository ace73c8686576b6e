/* The rejection rule. */
#include "engine/spec/rejection.h"

#include "base/splitmix.h"

static double sum_of(const float *weights, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)weights[i];
    return sum;
}

/* A uniform number in [0, 1). */
static double uniform(uint64_t *random)
{
    return (double)(qn_splitmix(random) >> 11) * 0x1p-53;
}

/* What remains of a token's probability after the accepted drafts. */
static double rest_of(const float *p, const float *q, size_t i, double p_unit, double q_unit)
{
    const double rest = (double)p[i] * p_unit - (double)q[i] * q_unit;
    return rest > 0 ? rest : 0;
}

bool qn_rejection_sample(const float *p, const float *q, size_t n, qn_token drafted, uint64_t *random, qn_token *token)
{
    const double p_unit = 1 / sum_of(p, n), q_unit = 1 / sum_of(q, n);
    const double accept = uniform(random), draw = uniform(random);
    double sum = 0, left;
    *token = drafted;
    if (accept * (double)q[drafted] * q_unit < (double)p[drafted] * p_unit)
        return true;
    for (size_t i = 0; i < n; i++)
        sum += rest_of(p, q, i, p_unit, q_unit);
    left = draw * sum;
    for (size_t i = 0; i < n; i++) {
        const double rest = rest_of(p, q, i, p_unit, q_unit);
        if (rest <= 0)
            continue;
        *token = (qn_token)i; /* the last with a rest, if rounding leaves something */
        left -= rest;
        if (left < 0)
            break;
    }
    return false;
}
