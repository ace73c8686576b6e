/* Rows of logits and requests that try the samplers of GPUs: distributions with ties, NaN and values at the limits;
 * filters; masks, bias and penalties. */
#ifndef QN_CHECK_SAMPLE_PROBLEM_H
#define QN_CHECK_SAMPLE_PROBLEM_H

#include "check.h"
#include "kernels/sample/sample.h"

enum { MAX_RECENT = 300, MAX_BIAS = 20, MAX_ENTRIES = 2 * MAX_RECENT + MAX_BIAS };

/* TIES: thousands of equal logits below the largest ones. ROUGH: pairs of adjacent logits whose smaller logit has the
 * larger weight at temperature 1. */
enum shape {
    NORMAL,
    WIDE,
    FLAT,
    FLAT_HIGH,
    TINY,
    EQUAL,
    ZEROS,
    TWO_VALUES,
    TIES,
    ROUGH,
    PEAK,
    OUTLIER,
    MASKED,
    ALL_LOW,
    WITH_NAN,
    WITH_INFINITY,
    N_SHAPES
};
/* [N_SHAPES]; by filter: the names, and the parameters. */
extern const char *const shape_names[];
extern const struct sample_filter {
    const char *name;
    qn_sampling sampling;
} filters[];
extern const size_t n_filters;

/* A request with the data that it points to. */
struct problem {
    enum shape shape;
    size_t filter;
    int mask; /* 0: none, 1: most tokens, 2: few tokens, 3: no token */
    qn_token recent[MAX_RECENT], generated[MAX_RECENT];
    qn_logit_bias bias[MAX_BIAS];
    uint32_t *allowed;
    qn_logprobs logprobs;
};

/* qn_fill_logits - fills a row of n logits. */
void qn_fill_logits(float *logits, size_t n, enum shape shape);

/* qn_request_of - returns a request with random members, for a row of n logits, by the filter and the mask of *problem,
 * to whose data it points. */
qn_sample_request qn_request_of(struct problem *problem, const float *logits, size_t n);

#endif
