/* DRY, after p-e-w's description (text-generation-webui, 2024) and llama.cpp's options. */
#include "kernels/sample/sample_dry.h"

/* Returns the first sequence in [begin, end), whose sequences agree before `place`, that has a token of at least
 * `least` at `place`. */
static size_t find_from(const qn_sample_breakers *breakers, size_t begin, size_t end, size_t place, int64_t least)
{
    while (begin < end) {
        const size_t middle = begin + (end - begin) / 2;
        if (breakers->sequences[middle][place] < least)
            begin = middle + 1;
        else
            end = middle;
    }
    return begin;
}

bool qn_sample_ends_breaker(const qn_sample_breakers *breakers, const qn_token *last, size_t n)
{
    size_t begin = 0, end = breakers ? breakers->n : 0;
    for (size_t i = 0; i < n && begin < end; i++) {
        const int64_t token = last[-(ptrdiff_t)i];
        begin = find_from(breakers, begin, end, i, token);
        end = find_from(breakers, begin, end, i, token + 1);
        if (begin < end && breakers->sequences[begin][i + 1] < 0)
            return true;
    }
    return false;
}

size_t qn_sample_dry_longest(const qn_sample_request *request)
{
    const qn_sampling *sampling = &request->sampling;
    const size_t most = (size_t)sampling->dry_allowed_length + QN_SAMPLE_DRY_GROWTH;
    size_t n = 0;
    while (n < most && n < request->n_text &&
           !qn_sample_ends_breaker(request->breakers, request->text + (request->n_text - 1 - n), request->n_text - n))
        n++;
    return n;
}

/* Computes the power by multiplications, which give the same bits on every system. */
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
    if (length < (size_t)sampling->dry_allowed_length || qn_sample_ends_breaker(request->breakers, text + at, 1))
        return 0;
    return penalty_of(sampling, length);
}
