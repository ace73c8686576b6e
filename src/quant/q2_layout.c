/* The decision between the three layouts of type 42. Finding out how many bytes a tensor has to itself is the caller's work. */
#include "quant/q2_layout.h"

#include "base/half.h"

#include <math.h>
#include <string.h>

/* At least 2000 are asked for; a wrong reading has a negative scale in every third block, so it does not survive a hundred. */
enum { SAMPLE_BLOCKS = 4096 };

struct reading {
    qn_type type;
    uint64_t block_weights, block_bytes, scale_at, codes_at;
    bool three_valued; /* a code 3 speaks against it */
    const char *note;
};

enum { MAINLINE, PRISM, OXIBONSAI, N_READINGS };

static const struct reading readings[N_READINGS] = {
    [MAINLINE] = { QN_TYPE_Q2_0, 64, 18, 0, 2, false, "type 42 has the mainline layout: groups of 64 in 18 bytes" },
    [PRISM] = { QN_TYPE_PQ2_0, 128, 34, 0, 2, true,
                "type 42 has PrismML's older layout: groups of 128 in 34 bytes, scale first" },
    [OXIBONSAI] = { QN_TYPE_OX2_0, 128, 34, 32, 0, true,
                    "type 42 has OxiBonsai's layout: groups of 128 in 34 bytes, scale last" },
};

static bool fits(const struct reading *r, const qn_q2_tensor *t)
{
    return t->width % r->block_weights == 0 && t->n_weights / r->block_weights <= t->room / r->block_bytes;
}

/* Whether nothing but padding follows the tensor in its room. */
static bool fills(const struct reading *r, const qn_q2_tensor *t, size_t alignment)
{
    return fits(r, t) && t->room - t->n_weights / r->block_weights * r->block_bytes < alignment;
}

/* How much of a name to show: a hostile one can be as long as the file. */
static int shown(const qn_q2_tensor *t)
{
    return t->name_length < 80 ? (int)t->name_length : 80;
}

static bool sound_block(const struct reading *r, const uint8_t *block)
{
    uint16_t half;
    memcpy(&half, block + r->scale_at, sizeof half);
    const float d = qn_f16_to_f32(half);
    if (!isfinite(d) || d < 0.0f)
        return false;
    unsigned threes = 0;
    for (uint64_t i = 0; i < r->block_weights / 4 && r->three_valued; i++)
        threes |= block[r->codes_at + i] & block[r->codes_at + i] >> 1 & 0x55;
    return threes == 0;
}

/* The first tensor that speaks against a reading, or n. The same number of weights is looked at in each tensor, so that one odd
 * tensor at the front of a file does not decide alone; it grows until small tensors no longer keep the sample short. */
static size_t first_against(const struct reading *r, const qn_q2_tensor *tensors, size_t n)
{
    uint64_t quota = SAMPLE_BLOCKS / n + 1, sample, all = 0;
    for (size_t t = 0; t < n; t++)
        all += tensors[t].n_weights / r->block_weights;
    for (;; quota *= 2) {
        sample = 0;
        for (size_t t = 0; t < n; t++) {
            const uint64_t blocks = tensors[t].n_weights / r->block_weights;
            sample += blocks < quota ? blocks : quota;
        }
        if (sample >= SAMPLE_BLOCKS || sample == all)
            break;
    }
    for (size_t t = 0; t < n; t++)
        for (uint64_t b = 0; b < quota && b < tensors[t].n_weights / r->block_weights; b++)
            if (!sound_block(r, tensors[t].data + b * r->block_bytes))
                return t;
    return n;
}

qn_status qn_q2_find_layout(const qn_q2_tensor *tensors, size_t n, size_t alignment, const char *file, qn_type *type,
                            const char **note)
{
    const qn_q2_tensor *not_64 = NULL, *not_128 = NULL; /* where groups of 64, or of 128, do not fit */
    bool only_64_fills = false;
    for (size_t i = 0; i < n; i++) {
        const qn_q2_tensor *t = &tensors[i];
        if (!not_64 && !fits(&readings[MAINLINE], t))
            not_64 = t;
        if (!not_128 && !fits(&readings[PRISM], t))
            not_128 = t;
        only_64_fills |= fills(&readings[MAINLINE], t, alignment) && !fills(&readings[PRISM], t, alignment);
    }
    if (not_64 && not_128)
        return qn_fail(
            QN_ERR_FORMAT,
            "%s: tensor '%.*s' of type 42: rows of %llu weights, %llu weights in %zu bytes, fit neither groups of 64 in 18 "
            "bytes nor (tensor '%.*s') groups of 128 in 34",
            file, shown(not_64), not_64->name, (unsigned long long)not_64->width, (unsigned long long)not_64->n_weights,
            not_64->room, shown(not_128), not_128->name);
    int found = MAINLINE;
    if (not_64 || (!not_128 && !only_64_fills && first_against(&readings[MAINLINE], tensors, n) < n)) {
        const size_t against_prism = first_against(&readings[PRISM], tensors, n);
        const size_t against_ox = first_against(&readings[OXIBONSAI], tensors, n);
        const bool neither = against_prism < n && against_ox < n;
        const bool both = against_prism == n && against_ox == n;
        const qn_q2_tensor *t = &tensors[both ? 0 : against_prism > against_ox ? against_prism : against_ox];
        if (both || (neither && not_64))
            return qn_fail(
                QN_ERR_FORMAT,
                "%s: tensor '%.*s' of type 42, groups of 128 in 34 bytes: %s has finite scales that are not negative and no "
                "code 3, expected of exactly one",
                file, shown(t), t->name,
                both ? "each reading, scale first and scale last," : "no reading, scale first or scale last,");
        /* neither, where mainline's fits: an unsound scale in a mainline file, for the scan of the weights to report */
        found = neither ? MAINLINE : against_prism == n ? PRISM : OXIBONSAI;
    }
    *type = readings[found].type;
    *note = readings[found].note;
    return QN_OK;
}
