/* Searches in the descending order of the tokens of a row (qn_sample_key) by sums of weights, in linear time: the sums
 * above a few thresholds narrow the range of logits, and only the last few tokens of a range are sorted. */
#ifndef QN_KERNELS_SAMPLE_SAMPLE_SEARCH_H
#define QN_KERNELS_SAMPLE_SAMPLE_SEARCH_H

#include "kernels/sample/sample.h"

/* Limit of tokens that are sorted. */
enum { QN_SAMPLE_SORTED = 128 };

/* A row of tokens: no logit is NaN, and the largest is finite. */
typedef struct qn_sample_row {
    const qn_sample_kernels *kernels;
    const qn_sample_scale *scale; /* scale of the weights; NULL: every token has the weight 1 */
    const float *logits;          /* [n] */
    size_t n;
    float *list; /* [n], with positions [n]: scratch of the search; must not be the memory of logits */
    uint32_t *positions;
} qn_sample_row;

/* The tokens with above < logit <= up_to. */
typedef struct qn_sample_range {
    float above, up_to;
    uint64_t before; /* sum of the weights of all tokens with larger logits */
    uint64_t sum;    /* sum of the weights of the range's tokens */
} qn_sample_range;

/* The sums of the row's weights above descending thresholds. */
typedef struct qn_sample_bins {
    float thresholds[QN_SAMPLE_THRESHOLDS];
    uint64_t above[QN_SAMPLE_THRESHOLDS], total;
} qn_sample_bins;

/* A token, by its position in the row. */
typedef struct qn_sample_found {
    size_t position;
    float logit;
    uint64_t before, weight; /* sum of the weights of the tokens before this one, and its own weight */
} qn_sample_found;

/* qn_sample_bins_around - returns the sums above thresholds chosen around the tokens at which the sum, in descending
 * order, reaches the fractions [n_fractions] of the total. The thresholds are estimated from a sample of the row's
 * tokens; a bad estimate only costs time. */
qn_sample_bins qn_sample_bins_around(const qn_sample_row *row, const double *fractions, size_t n_fractions);

/* qn_sample_bin - returns the range between two thresholds in which the sum reaches `target`, 1 to the total. */
qn_sample_range qn_sample_bin(const qn_sample_bins *bins, uint64_t target);

/* qn_sample_find - returns the first token, in descending order, at which the sum of the weights reaches `target`.
 * range.before < target <= range.before + range.sum. */
qn_sample_found qn_sample_find(const qn_sample_row *row, qn_sample_range range, uint64_t target);

#endif
