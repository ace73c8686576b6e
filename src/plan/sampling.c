/* The status of a sampled token, and the order of the breakers of DRY (qn_sampling.dry_breakers). */
#include "plan/sampling.h"

#include <stdlib.h>

qn_status qn_sample_status(uint64_t best)
{
    const uint32_t ordered = (uint32_t)(best >> 32);
    if (qn_sample_is_finite(best))
        return QN_OK;
    if (ordered == UINT32_MAX)
        return qn_fail(QN_ERR_INVALID, "logits: NaN for token %u", (unsigned)qn_sample_key_index(best));
    if (ordered >> 31)
        return qn_fail(QN_ERR_INVALID, "logits: the largest is inf, expected a finite one");
    return qn_fail(QN_ERR_INVALID, "logits: the largest of the allowed tokens is -inf, expected a finite one");
}

static int compare_sequences(const void *a, const void *b)
{
    const qn_token *x = *(const qn_token *const *)a, *y = *(const qn_token *const *)b;
    for (; *x >= 0 && *x == *y; x++)
        y++;
    return (*x > *y) - (*x < *y);
}

void qn_sample_sort_breakers(qn_sample_breakers *breakers)
{
    if (breakers->n)
        qsort(breakers->sequences, breakers->n, sizeof *breakers->sequences, compare_sequences);
}
