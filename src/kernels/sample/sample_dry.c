/* DRY, after p-e-w's description (text-generation-webui, 2024) and llama.cpp's options. */
#include "kernels/sample/sample_dry.h"

#include <stdlib.h>

static int compare_tokens(const void *a, const void *b)
{
    const qn_token x = *(const qn_token *)a, y = *(const qn_token *)b;
    return (x > y) - (x < y);
}

static bool is_breaker(const qn_sampling *sampling, qn_token token)
{
    return sampling->n_dry_breakers &&
           bsearch(&token, sampling->dry_breakers, sampling->n_dry_breakers, sizeof token, compare_tokens);
}

void qn_sample_sort_breakers(qn_token *breakers, size_t n)
{
    if (n)
        qsort(breakers, n, sizeof *breakers, compare_tokens);
}

size_t qn_sample_dry_longest(const qn_sample_request *request)
{
    const qn_sampling *sampling = &request->sampling;
    const size_t most = (size_t)sampling->dry_allowed_length + QN_SAMPLE_DRY_GROWTH;
    size_t n = 0;
    while (n < most && n < request->n_text && !is_breaker(sampling, request->text[request->n_text - 1 - n]))
        n++;
    return n;
}

/* By multiplications, which give the same bits on every system. */
static float penalty_of(const qn_sampling *sampling, size_t length)
{
    double penalty = (double)sampling->dry_multiplier;
    for (size_t i = (size_t)sampling->dry_allowed_length; i < length && penalty < QN_SAMPLE_DRY_MOST; i++)
        penalty *= (double)sampling->dry_base;
    return penalty < QN_SAMPLE_DRY_MOST ? (float)penalty : (float)QN_SAMPLE_DRY_MOST;
}

float qn_sample_dry_penalty(const qn_sample_request *request, size_t longest, size_t at)
{
    const qn_sampling *sampling = &request->sampling;
    const qn_token *text = request->text, *end = text + request->n_text;
    size_t length = 0;
    while (length < longest && length < at && text[at - 1 - length] == end[-1 - (ptrdiff_t)length])
        length++;
    if (length < (size_t)sampling->dry_allowed_length || is_breaker(sampling, text[at]))
        return 0;
    return penalty_of(sampling, length);
}
