/* How far a model's predictions are from those of a base: sums over tokens, and the statistics that llama-perplexity
 * prints with --kl-divergence, defined as there. */
#ifndef QN_CLI_KLD_H
#define QN_CLI_KLD_H

#include "quern/quern.h"

#include <stddef.h>

typedef struct qn_kld {
    size_t count, capacity;
    float *divergence, *p_change;                        /* [count] KL divergence; p(token) minus the base's */
    double nll, nll2, base_nll, base_nll2, nll_base_nll; /* sums of -log p(token), of squares and products */
    double divergence_sum, divergence2, p_change_sum, p_change2, p_change4;
    size_t n_same_top;
} qn_kld;

/* qn_log_sum_exp - returns the log of the sum of exp(logits[i]); not finite if the logits are not sound. */
double qn_log_sum_exp(const float *logits, size_t n);

/* qn_log_softmax - logits to log probabilities, which may be the same array. False: they are not sound. */
bool qn_log_softmax(const float *logits, size_t n, float *log_probs);

/* qn_kld_create - room for `capacity` tokens. Free with qn_kld_free, which accepts a zeroed struct. */
qn_status qn_kld_create(qn_kld *kld, size_t capacity);
void qn_kld_free(qn_kld *kld);

/* qn_kld_add - adds a token, given two arrays of n log probabilities. Tokens of which the base's log probability is -16
 * or less are no part of the divergence: files of log probabilities do not hold them. False: the divergence is not
 * finite. */
bool qn_kld_add(qn_kld *kld, const float *base, const float *log_probs, size_t n, qn_token token);

typedef struct qn_estimate {
    double value, error; /* and its standard error */
} qn_estimate;

/* Statistics of all tokens. Changes of probability and shares are from -1 to 1. */
typedef struct qn_kld_summary {
    qn_estimate ppl, base_ppl, log_ratio, ratio, difference; /* of PPL(Q) to PPL(base) */
    double correlation;                                      /* of both -log p */
    qn_estimate divergence, p_change, p_change_rms, same_top;
} qn_kld_summary;

/* qn_kld_summarise - computes the statistics, and sorts the values of tokens for qn_kld_percentile. */
void qn_kld_summarise(qn_kld *kld, qn_kld_summary *summary);

/* qn_kld_percentile - of `n` sorted values, the one below which `fraction` of them are, interpolated. */
double qn_kld_percentile(const float *values, size_t n, double fraction);

/* qn_kld_print - prints all statistics, in the lines of llama-perplexity; changes of probability with more digits. */
void qn_kld_print(const qn_kld *kld, const qn_kld_summary *summary);

#endif
