/* The division of a sequence's pages for attention, and the order in which results are added: within a split page by
 * page, then split by split. It depends on the position of the row alone. */
#define MAX_SPLITS 256 /* QN_VK_MAX_SPLITS */
#define PARTIAL_EXTRA 4 /* QN_VK_PARTIAL_EXTRA: after a partial's sums, the largest score and the sum of weights */

#define LOWEST uintBitsToFloat(0xff800000)

uint pages_per_split(uint n_pages)
{
    return (n_pages + MAX_SPLITS - 1) / MAX_SPLITS;
}

/* The factors of two sums of weights e^(score - m) when they become sums with the larger m. */
vec2 merge_factors(float m, float other)
{
    precise const float most = max(m, other), a = m - most, b = other - most;
    return vec2(exp_of(a), exp_of(b));
}
