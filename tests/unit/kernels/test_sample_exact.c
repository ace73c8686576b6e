/* qn_sample_token against a sorted list with every weight and every sum written out, on all instruction sets of the
 * CPU: vocabularies, distributions with ties and extremes, settings, masks, bias and penalties. QN_SOAK=1: 10^6 draws
 * and the vocabularies of models. */
#include "helper_random.h"
#include "helper_create.h"

#include "base/cpu.h"
#include "base/splitmix.h"
#include "kernels/canon.h"
#include "kernels/sample/sample.h"

#include <float.h>
#include <math.h>

enum { MAX_VOCAB = 151936, MAX_LISTED = 200, MAX_LEVELS = 16, DRAWS = 25 };

static float logits[MAX_VOCAB], adjusted[MAX_VOCAB];
static uint32_t allowed[(MAX_VOCAB + 31) / 32];
static qn_token recent[MAX_LISTED], generated[MAX_LISTED];
static qn_logit_bias bias[MAX_LISTED];

static size_t below(size_t n)
{
    return (size_t)(random_u64() % n);
}

static float normal(void)
{
    const double u = ((double)(random_u64() >> 11) + 0.5) * 0x1p-53, v = (double)(random_u64() >> 11) * 0x1p-53;
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* ---- The sorted list ---- */

struct sorted {
    int32_t order[MAX_VOCAB];    /* by descending logit, ascending id */
    uint64_t weights[MAX_VOCAB]; /* of order */
    uint64_t sums[MAX_VOCAB];    /* of the weights up to and including each */
    size_t n, kept;
};

static struct sorted reference;

static int likelier_first(const void *a, const void *b)
{
    const int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return adjusted[x] != adjusted[y] ? (adjusted[x] < adjusted[y]) - (adjusted[x] > adjusted[y]) : (x > y) - (x < y);
}

static void adjust(const qn_sample_request *request, size_t n)
{
    const qn_sampling *s = &request->sampling;
    const qn_sample_penalties penalties = { s->repeat_penalty, s->frequency_penalty, s->presence_penalty };
    const bool repeats = s->repeat_penalty != 1, counts = s->frequency_penalty != 0 || s->presence_penalty != 0;
    static qn_sample_entry entries[MAX_VOCAB];
    memset(entries, 0, n * sizeof *entries);
    for (size_t i = 0; i < request->n_bias; i++)
        if ((size_t)bias[i].token < n)
            entries[bias[i].token].bias += bias[i].value;
    for (size_t i = 0; repeats && i < request->n_recent; i++)
        if ((size_t)recent[i] < n)
            entries[recent[i]].is_recent = 1;
    for (size_t i = 0; counts && i < request->n_generated; i++)
        if ((size_t)generated[i] < n)
            entries[generated[i]].n_generated++;
    for (size_t i = 0; i < n; i++) {
        adjusted[i] = qn_sample_adjust(logits[i], &entries[i], &penalties);
        if (request->allowed && !(allowed[i / 32] >> i % 32 & 1))
            adjusted[i] = -INFINITY;
    }
}

/* The largest key, in which NaN is above all numbers. */
static uint64_t best_of(size_t n)
{
    uint64_t best = 0;
    for (size_t i = 0; i < n; i++) {
        const uint64_t key = qn_sample_key(adjusted[i], (uint32_t)i);
        best = key > best ? key : best;
    }
    return best;
}

static void sort_tokens(size_t n)
{
    for (size_t i = 0; i < n; i++)
        reference.order[i] = (int32_t)i;
    qsort(reference.order, n, sizeof *reference.order, likelier_first);
    reference.n = n;
}

/* The number of tokens that top_n_sigma keeps, of the sorted ones. */
static size_t within_sigma(float top_n_sigma)
{
    const struct sorted *r = &reference;
    const float largest = adjusted[r->order[0]];
    unsigned __int128 sum = 0, squares = 0;
    size_t n = r->n, n_kept = 0;
    while (adjusted[r->order[n - 1]] == -INFINITY)
        n--;
    const float range = fminf(largest - adjusted[r->order[n - 1]], FLT_MAX);
    if (!(top_n_sigma > 0) || range == 0)
        return n;
    int unit = -127; /* exponents: the least for which the range has at most this number of bits */
    while ((double)range >= ldexp(1, qn_sample_weight_bits(r->n) / 2 + unit))
        unit++;
    for (size_t i = 0; i < n; i++) {
        const uint64_t d = (uint64_t)ldexp((double)fminf(largest - adjusted[r->order[i]], FLT_MAX), -unit);
        sum += d;
        squares += (unsigned __int128)d * d;
    }
    const double limit = (double)top_n_sigma * sqrt((double)(n * squares - sum * sum)) / (double)n;
    while (n_kept < n && floor(ldexp((double)fminf(largest - adjusted[r->order[n_kept]], FLT_MAX), -unit)) <= limit)
        n_kept++;
    return n_kept;
}

/* The number of tokens that XTC drops. */
static size_t excluded_top_choices(const qn_sampling *sampling)
{
    const struct sorted *r = &reference;
    const float largest = adjusted[r->order[0]], inverse = 1 / sampling->temperature;
    const double unit = ldexp(1, qn_sample_weight_bits(r->n)), kept = (double)r->sums[r->kept - 1];
    size_t n = 0;
    while (n < r->kept && r->weights[n] > 0 &&
           (double)qn_exp((adjusted[r->order[n]] - largest) * inverse) >= (double)sampling->xtc_threshold * kept / unit)
        n++;
    return n ? n - 1 : 0;
}

/* Keep the typical ones of the first k sorted tokens; returns their number. */
static size_t typical(const qn_sampling *sampling, size_t k)
{
    static uint64_t at_distance[QN_SAMPLE_SURPRISALS + 1];
    static uint32_t surprisals[MAX_VOCAB];
    struct sorted *r = &reference;
    const float largest = adjusted[r->order[0]], inverse = 1 / sampling->temperature;
    const int bits = qn_sample_weight_bits(r->n);
    uint64_t weights = 0, sum = 0, total = 0, within = 0;
    if (!(sampling->typical_p > 0 && sampling->typical_p < 1))
        return k;
    for (size_t i = 0; i < k; i++) {
        const float u = (adjusted[r->order[i]] - largest) * inverse;
        const double weight = (double)qn_exp(u);
        const uint64_t reduced = (uint64_t)ldexp(weight, bits - 17 < 31 ? bits - 17 : 31);
        surprisals[i] = (uint32_t)fmin(-(double)u * 1024, QN_SAMPLE_SURPRISALS);
        r->weights[i] = (uint64_t)ldexp(weight, bits);
        total += r->weights[i];
        weights += reduced;
        sum += reduced * surprisals[i];
    }
    const uint32_t mean = (uint32_t)(sum / weights);
    memset(at_distance, 0, sizeof at_distance);
    for (size_t i = 0; i < k; i++)
        at_distance[surprisals[i] > mean ? surprisals[i] - mean : mean - surprisals[i]] += r->weights[i];
    uint32_t distance = 0;
    while ((within += at_distance[distance]) < 1 || !((double)within >= (double)sampling->typical_p * (double)total))
        distance++;
    size_t n = 0;
    for (size_t i = 0; i < k; i++)
        if ((surprisals[i] > mean ? surprisals[i] - mean : mean - surprisals[i]) <= distance)
            r->order[n++] = r->order[i];
    return n;
}

/* The filters, as documented at qn_sample_request. */
static void filter(const qn_sampling *sampling)
{
    struct sorted *r = &reference;
    const size_t most = within_sigma(sampling->top_n_sigma);
    const size_t k =
        typical(sampling, sampling->top_k > 0 && (size_t)sampling->top_k < most ? (size_t)sampling->top_k : most);
    const float largest = adjusted[r->order[0]], inverse = 1 / sampling->temperature;
    const double unit = ldexp(1, qn_sample_weight_bits(r->n));
    uint64_t total = 0, kept = 0;
    for (size_t i = 0; i < k; i++) {
        r->weights[i] = (uint64_t)((double)qn_exp((adjusted[r->order[i]] - largest) * inverse) * unit);
        total += r->weights[i];
    }
    for (r->kept = 0; r->kept < k; r->kept++) {
        const float weight = qn_exp((adjusted[r->order[r->kept]] - largest) * inverse);
        if (r->kept && (weight < sampling->min_p || (double)kept >= (double)sampling->top_p * (double)total))
            break;
        r->sums[r->kept] = kept += r->weights[r->kept];
    }
}

static int32_t reference_token(const qn_sampling *sampling, uint64_t random)
{
    uint64_t state = random;
    const bool excludes = (double)(qn_splitmix(&state) >> 11) < ldexp((double)sampling->xtc_probability, 53);
    const size_t n_dropped = excludes ? excluded_top_choices(sampling) : 0;
    const uint64_t dropped = n_dropped ? reference.sums[n_dropped - 1] : 0,
                   kept = reference.sums[reference.kept - 1] - dropped;
    const uint64_t low = (uint32_t)kept, high = kept >> 32, r_low = (uint32_t)random, r_high = random >> 32;
    const uint64_t middle = r_low * high + (r_low * low >> 32), rest = r_high * low + (uint32_t)middle;
    const uint64_t point = dropped + r_high * high + (middle >> 32) + (rest >> 32); /* dropped + random * kept / 2^64 */
    size_t first = 0, last = reference.kept - 1;
    while (first < last) { /* the first whose sum is above the point */
        const size_t half = (first + last) / 2;
        if (reference.sums[half] <= point)
            first = half + 1;
        else
            last = half;
    }
    return reference.order[first];
}

/* ---- Distributions, masks and settings ---- */

enum { N_DISTRIBUTIONS = 18 };

static void fill_logits(int distribution, size_t n)
{
    static const float scales[] = { 1, 3, 8, 0.01f };
    const float tie = normal();
    for (size_t i = 0; i < n; i++) {
        const float x = normal();
        switch (distribution) {
        case 0:
        case 1:
        case 2:
        case 3: logits[i] = scales[distribution] * x; break;
        case 4: logits[i] = 2; break;                                 /* all equal */
        case 5: logits[i] = i == n / 3 ? 50 : 0; break;               /* one outlier */
        case 6: logits[i] = rintf(2 * x) / 2; break;                  /* few values */
        case 7: logits[i] = below(8) ? -INFINITY : x; break;          /* most excluded */
        case 8: logits[i] = i % 15 ? x : tie; break;                  /* 10^4 equal ones, and others */
        case 9: logits[i] = below(n) < 20 ? 15 + x : 1.5f * x; break; /* peaked */
        case 10: logits[i] = (float)i / (float)n * 20; break;         /* ascending */
        case 11: logits[i] = -(float)i / (float)n * 20; break;        /* descending */
        case 12: logits[i] = below(2) ? 3e35f * x : x; break;         /* large magnitudes */
        case 13: logits[i] = (float)below(5) * 1.4e-45f * (below(2) ? 1.0f : -1.0f); break; /* next to 0, and -0 */
        case 14: logits[i] = 300 * x; break;                                                /* weights below one unit */
        case 15: logits[i] = below(3) ? -2.9957323f : 0; break;                             /* ln 0.05 */
        case 16: logits[i] = i % 64 ? x - 5 : x; break;                                     /* a period */
        default:
            logits[i] = -28 + below(3) * 0.01f + (i == n / 2 ? 28.0f : 0.0f);
            break; /* a tail of a few units each */
        }
    }
}

static float one_of(const float *values, size_t n)
{
    return values[below(n)];
}

static qn_sampling random_sampling(size_t n)
{
    static const float temperatures[] = { 1, 1, 0.7f, 0.05f, 2, 30, 1e-6f },
                       top_ps[] = { 1, 1, 0.95f, 0.5f, 1e-6f, 0.9999999f };
    static const float min_ps[] = { 0, 0, 0.05f, 0.5f, 0.99f, 1e-6f, 1e-38f };
    const int top_ks[] = { 0, 0, 0, 2, 20, 128, 129, 1000, (int)(n / 2), (int)n, (int)n + 1 };
    static const float sigmas[] = { 0, 0, 0, 1, 0.3f, 3, 1000, 1e-6f }, chances[] = { 0, 0, 0.5f, 1 };
    static const float typicals[] = { 0, 0, 0, 0.95f, 0.5f, 0.1f, 0.9999999f };
    static const float thresholds[] = { 0.1f, 0.01f, 0, 0.6f, 1e-5f };
    return SAMPLING(.repeat_penalty = 1, .top_n_sigma = one_of(sigmas, COUNT(sigmas)),
                    .typical_p = one_of(typicals, COUNT(typicals)), .xtc_probability = one_of(chances, COUNT(chances)),
                    .xtc_threshold = one_of(thresholds, COUNT(thresholds)),
                    .temperature = one_of(temperatures, COUNT(temperatures)), .top_k = top_ks[below(COUNT(top_ks))],
                    .top_p = one_of(top_ps, COUNT(top_ps)), .min_p = one_of(min_ps, COUNT(min_ps)));
}

/* None, 1, 10, about half or all tokens, or no mask. */
static const uint32_t *random_mask(size_t n)
{
    static const size_t counts[] = { 0, 1, 10 };
    const size_t kind = below(9);
    if (kind > 4)
        return NULL;
    memset(allowed, kind == 4 ? 0xff : 0, sizeof allowed);
    for (size_t i = 0; i < (kind < 3 ? counts[kind] : 0); i++) {
        const size_t token = below(n);
        allowed[token / 32] |= 1u << token % 32;
    }
    for (size_t i = 0; kind == 3 && i < (n + 31) / 32; i++)
        allowed[i] = random_u32();
    return allowed;
}

/* Bias and penalties in every third request; tokens repeat, and some are outside the vocabulary. */
static void random_lists(qn_sample_request *request, size_t n)
{
    if (below(3))
        return;
    request->sampling.repeat_penalty = below(2) ? 1.3f : 1;
    request->sampling.frequency_penalty = below(2) ? 0.2f : 0;
    request->sampling.presence_penalty = below(2) ? -0.4f : 0;
    for (size_t i = 0; i < MAX_LISTED; i++) {
        recent[i] = (qn_token)below(n + 2);
        generated[i] = (qn_token)(below(2) ? below(n) : below(n < 7 ? n : 7)) - (i == 9);
        bias[i] = (qn_logit_bias){ (qn_token)below(n + 1), i % 50 == 3 ? -INFINITY : 4 * normal() };
    }
    request->recent = recent;
    request->generated = generated;
    request->bias = bias;
    request->n_recent = request->n_generated = MAX_LISTED;
    request->n_bias = below(2) ? MAX_LISTED : 0;
}

static uint64_t random_place(size_t draw)
{
    return draw == 0 ? 0 : draw == 1 ? UINT64_MAX : draw == 2 ? UINT64_MAX - below(1 << 20) : random_u64();
}

/* ---- The comparison ---- */

struct variants {
    qn_sample_kernels kernels[MAX_LEVELS];
    size_t n;
};

static struct variants variants_of_cpu(void)
{
    struct variants v = { .n = 0 };
    for (size_t i = 0; i < qn_cpu_n_levels && v.n < MAX_LEVELS; i++)
        if (qn_cpu_has_level(&qn_cpu_levels[i]))
            qn_sample_kernels_init(&v.kernels[v.n++], qn_cpu_levels[i].features);
    return v;
}

/* Returns the number of draws. */
static size_t check_case(const struct variants *v, int distribution, size_t n, void *scratch)
{
    qn_sample_request request = { .sampling = random_sampling(n), .allowed = random_mask(n) };
    fill_logits(distribution, n);
    random_lists(&request, n);
    adjust(&request, n);
    const uint64_t best = best_of(n);
    const bool drawn = qn_sample_is_finite(best);
    if (drawn) {
        sort_tokens(n);
        filter(&request.sampling);
    }
    for (size_t draw = 0; draw < (drawn ? DRAWS : 1); draw++) {
        request.random = random_place(draw);
        const int32_t expected = !drawn ? -1
                                 : qn_sample_is_greedy(&request.sampling)
                                     ? (int32_t)qn_sample_key_index(best)
                                     : reference_token(&request.sampling, request.random);
        qn_sample_token(&v->kernels[draw % v->n], &request, logits, n, scratch);
        if (request.token != expected || request.best != best)
            fail_msg("distribution %d, %zu tokens, variant %zu, temperature %g, top_k %d, top_p %g, min_p %g, "
                     "top_n_sigma %g, typical_p %g, xtc %g %g, %s, random %llx: token %d, expected %d",
                     distribution, n, draw % v->n, (double)request.sampling.temperature, request.sampling.top_k,
                     (double)request.sampling.top_p, (double)request.sampling.min_p,
                     (double)request.sampling.top_n_sigma, (double)request.sampling.typical_p,
                     (double)request.sampling.xtc_probability, (double)request.sampling.xtc_threshold,
                     request.allowed ? "masked" : "no mask", (unsigned long long)request.random, request.token,
                     expected);
    }
    return drawn ? DRAWS : 1;
}

TEST(tokens_are_those_of_a_sorted_list)
{
    static const size_t vocabularies[] = { 1,   2,   3,   15,  16,   17,   33,    127,
                                           128, 129, 130, 257, 1000, 5003, 49152, MAX_VOCAB };
    enum { N_VOCABULARIES = COUNT(vocabularies) };
    const bool soak = getenv("QN_SOAK");
    const struct variants v = variants_of_cpu();
    const size_t wanted = soak ? 1000000 : 40000;
    void *scratch = malloc(qn_sample_scratch_bytes(MAX_VOCAB));
    assert_non_null(scratch);
    for (size_t n_draws = 0, round = 0; n_draws < wanted; round++) {
        /* The larger vocabularies in a part of the rounds: they take most of the time. */
        const size_t most = round % 8 ? N_VOCABULARIES - 2 : soak ? N_VOCABULARIES : N_VOCABULARIES - (round % 64 != 0);
        n_draws += check_case(&v, (int)(round % N_DISTRIBUTIONS), vocabularies[below(most)], scratch);
    }
    free(scratch);
}

TEST(broken_logits_are_reported)
{
    static const size_t vocabularies[] = { 1, 16, 100, 5003 };
    const struct variants v = variants_of_cpu();
    void *scratch = malloc(qn_sample_scratch_bytes(MAX_VOCAB));
    assert_non_null(scratch);
    for (size_t round = 0; round < 400; round++) {
        const size_t n = vocabularies[round % 4];
        qn_sample_request request = { .sampling = { .temperature = 1, .top_p = 1, .repeat_penalty = 1 },
                                      .allowed = random_mask(n),
                                      .random = random_u64() };
        label("round %zu, %zu tokens", round, n);
        fill_logits(1, n);
        for (size_t i = 0; i < 2; i++)
            logits[below(n)] = round & 1 ? NAN : INFINITY;
        adjust(&request, n);
        const uint64_t best = best_of(n);
        qn_sample_token(&v.kernels[round % v.n], &request, logits, n, scratch);
        assert_true(request.best == best);
        assert_int_equal(request.token >= 0, qn_sample_is_finite(best));
    }
    free(scratch);
}
