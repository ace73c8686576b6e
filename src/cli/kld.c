/* Statistics of KL divergences. */
#include "cli/kld.h"

#include "base/memory.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static const float LEAST_LOG_P = -16; /* of the base's tokens in a divergence */

/* Without the largest logit the terms cannot overflow, and float exp is accurate to 1e-7 of each; only the sum needs
 * double. */
double qn_log_sum_exp(const float *logits, size_t n)
{
    float largest = -INFINITY;
    for (size_t i = 0; i < n; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)expf(logits[i] - largest);
    return log(sum) + (double)largest;
}

bool qn_log_softmax(const float *logits, size_t n, float *log_probs)
{
    const double log_sum = qn_log_sum_exp(logits, n);
    if (!isfinite(log_sum))
        return false;
    for (size_t i = 0; i < n; i++)
        log_probs[i] = (float)((double)logits[i] - log_sum);
    return true;
}

qn_status qn_kld_create(qn_kld *kld, size_t capacity)
{
    *kld = (qn_kld){ .capacity = capacity };
    QN_TRY(qn_alloc(&kld->divergence, capacity, sizeof *kld->divergence, "statistics"));
    return qn_alloc(&kld->p_change, capacity, sizeof *kld->p_change, "statistics");
}

void qn_kld_free(qn_kld *kld)
{
    qn_free(kld->divergence);
    qn_free(kld->p_change);
}

bool qn_kld_add(qn_kld *kld, const float *base, const float *log_probs, size_t n, qn_token token)
{
    double divergence = 0;
    size_t base_top = 0, top = 0;
    for (size_t i = 0; i < n; i++) {
        base_top = base[i] > base[base_top] ? i : base_top;
        top = log_probs[i] > log_probs[top] ? i : top;
        if (base[i] > LEAST_LOG_P)
            divergence += (double)expf(base[i]) * ((double)base[i] - (double)log_probs[i]);
    }
    const double nll = -(double)log_probs[token], base_nll = -(double)base[token];
    const double p_change = exp(-nll) - exp(-base_nll);
    if (!isfinite(divergence) || !isfinite(nll) || kld->count == kld->capacity)
        return false;
    kld->nll += nll;
    kld->nll2 += nll * nll;
    kld->base_nll += base_nll;
    kld->base_nll2 += base_nll * base_nll;
    kld->nll_base_nll += nll * base_nll;
    kld->divergence_sum += divergence;
    kld->divergence2 += divergence * divergence;
    kld->p_change_sum += p_change;
    kld->p_change2 += p_change * p_change;
    kld->p_change4 += p_change * p_change * p_change * p_change;
    kld->n_same_top += top == base_top;
    kld->divergence[kld->count] = (float)divergence;
    kld->p_change[kld->count++] = (float)p_change;
    return true;
}

/* ---- Statistics ---- */

static qn_estimate mean_of(double sum, double sum_of_squares, double n)
{
    const double mean = sum / n, variance = sum_of_squares / n - mean * mean;
    return (qn_estimate){ mean, n > 1 && variance > 0 ? sqrt(variance / (n - 1)) : 0 };
}

static qn_estimate exp_of(qn_estimate mean)
{
    return (qn_estimate){ exp(mean.value), exp(mean.value) * mean.error };
}

/* Returns the difference of two estimates whose errors have the given covariance. */
static qn_estimate difference_of(qn_estimate a, qn_estimate b, double covariance)
{
    const double variance = a.error * a.error + b.error * b.error - 2 * covariance;
    return (qn_estimate){ a.value - b.value, variance > 0 ? sqrt(variance) : 0 };
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

void qn_kld_summarise(qn_kld *kld, qn_kld_summary *s)
{
    const double n = (double)kld->count, same = (double)kld->n_same_top / n;
    const qn_estimate nll = mean_of(kld->nll, kld->nll2, n), base_nll = mean_of(kld->base_nll, kld->base_nll2, n);
    const qn_estimate square = mean_of(kld->p_change2, kld->p_change4, n);
    const double covariance = n > 1 ? (kld->nll_base_nll / n - nll.value * base_nll.value) / (n - 1) : 0;
    const double errors = nll.error * base_nll.error, rms = sqrt(square.value);
    *s = (qn_kld_summary){
        .ppl = exp_of(nll),
        .base_ppl = exp_of(base_nll),
        .correlation = errors > 0 ? covariance / errors : 1,
        .log_ratio = difference_of(nll, base_nll, covariance),
        .divergence = mean_of(kld->divergence_sum, kld->divergence2, n),
        .p_change = mean_of(kld->p_change_sum, kld->p_change2, n),
        .p_change_rms = { rms, rms > 0 ? square.error / (2 * rms) : 0 },
        .same_top = { same, n > 1 ? sqrt(same * (1 - same) / (n - 1)) : 0 },
    };
    s->ratio = exp_of(s->log_ratio);
    s->difference = difference_of(s->ppl, s->base_ppl, covariance * s->ppl.value * s->base_ppl.value);
    qsort(kld->divergence, kld->count, sizeof *kld->divergence, ascending);
    qsort(kld->p_change, kld->count, sizeof *kld->p_change, ascending);
}

double qn_kld_percentile(const float *values, size_t n, double fraction)
{
    const double at = fraction * (double)(n - 1);
    const size_t below = (size_t)at, above = below + 1 < n ? below + 1 : below;
    return (double)values[below] + (at - (double)below) * ((double)values[above] - (double)values[below]);
}

/* ---- Printing ---- */

static void print_percentile(double percent, const char *what, const float *values, size_t n, double factor,
                             const char *unit)
{
    const double value = factor * qn_kld_percentile(values, n, percent / 100);
    if (percent <= 0 || percent >= 100)
        printf("%s %s: %10.6f%s\n", percent <= 0 ? "Minimum" : "Maximum", what, value, unit);
    else if (percent == 50)
        printf("Median  %s: %10.6f%s\n", what, value, unit);
    else
        printf("%4.1f%%   %s: %10.6f%s\n", percent, what, value, unit);
}

void qn_kld_print(const qn_kld *kld, const qn_kld_summary *s)
{
    static const double of_divergence[] = { 100, 99.9, 99, 95, 90, 50, 10, 5, 1, 0.1, 0 };
    static const double of_p_change[] = { 100, 99.9, 99, 95, 90, 75, 50, 25, 10, 5, 1, 0.1, 0 };
    printf("====== Perplexity statistics ======\n");
    printf("Mean PPL(Q)                   : %10.6f ± %10.6f\n", s->ppl.value, s->ppl.error);
    printf("Mean PPL(base)                : %10.6f ± %10.6f\n", s->base_ppl.value, s->base_ppl.error);
    printf("Cor(ln(PPL(Q)), ln(PPL(base))): %6.2f%%\n", 100 * s->correlation);
    printf("Mean ln(PPL(Q)/PPL(base))     : %10.6f ± %10.6f\n", s->log_ratio.value, s->log_ratio.error);
    printf("Mean PPL(Q)/PPL(base)         : %10.6f ± %10.6f\n", s->ratio.value, s->ratio.error);
    printf("Mean PPL(Q)-PPL(base)         : %10.6f ± %10.6f\n", s->difference.value, s->difference.error);
    printf("\n====== KL divergence statistics ======\n");
    printf("Mean    KLD: %10.6f ± %10.6f\n", s->divergence.value, s->divergence.error);
    for (size_t i = 0; i < sizeof of_divergence / sizeof *of_divergence; i++)
        print_percentile(of_divergence[i], "KLD", kld->divergence, kld->count, 1, "");
    printf("\n====== Token probability statistics ======\n");
    printf("Mean    Δp: %10.6f ± %10.6f %%\n", 100 * s->p_change.value, 100 * s->p_change.error);
    for (size_t i = 0; i < sizeof of_p_change / sizeof *of_p_change; i++)
        print_percentile(of_p_change[i], "Δp", kld->p_change, kld->count, 100, "%");
    printf("RMS Δp    : %10.6f ± %10.6f %%\n", 100 * s->p_change_rms.value, 100 * s->p_change_rms.error);
    printf("Same top p: %6.3f ± %5.3f %%\n", 100 * s->same_top.value, 100 * s->same_top.error);
}
