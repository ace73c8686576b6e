/* Detection of the layout of type 42 (q2_layout.h). The caller determines available_bytes of each tensor. */
#include "quant/q2_layout.h"

#include "base/f16.h"
#include "quant/layout.h"

#include <math.h>
#include <string.h>

/* At least 2000 blocks are required. Read with the wrong layout, every third block has a negative scale, so the
 * wrong layout is rejected within the first hundred. */
enum { SAMPLE_BLOCKS = 4096 };

struct layout {
    qn_type type;
    uint64_t block_weights, block_bytes, scale_at, codes_at; /* layout.h */
    bool three_valued;                                       /* a block with a code 3 rules this layout out */
    const char *note;
};

enum { MAINLINE, PRISM, OXIBONSAI, N_LAYOUTS };

static const struct layout layouts[N_LAYOUTS] = {
#define LAYOUT(ID) QN_TYPE_##ID, QN_##ID##_WEIGHTS, QN_##ID##_BYTES, QN_##ID##_SCALE, QN_##ID##_CODES
    [MAINLINE] = { LAYOUT(Q2_0), false, "type 42 has the mainline layout: groups of 64 in 18 bytes" },
    [PRISM] = { LAYOUT(PQ2_0), true, "type 42 has PrismML's older layout: groups of 128 in 34 bytes, scale first" },
    [OXIBONSAI] = { LAYOUT(OX2_0), true, "type 42 has OxiBonsai's layout: groups of 128 in 34 bytes, scale last" },
};

static bool fits(const struct layout *r, const qn_q2_tensor *t)
{
    return t->width % r->block_weights == 0 && t->n_weights / r->block_weights <= t->available_bytes / r->block_bytes;
}

/* Whether only padding follows the tensor within its available bytes. */
static bool fills(const struct layout *r, const qn_q2_tensor *t, size_t alignment)
{
    return fits(r, t) && t->available_bytes - t->n_weights / r->block_weights * r->block_bytes < alignment;
}

/* Returns the number of bytes of the name to print: in a malicious file it can be as long as the file. */
static int shown(const qn_q2_tensor *t)
{
    return t->name_length < 80 ? (int)t->name_length : 80;
}

static bool plausible_block(const struct layout *r, const uint8_t *block)
{
    uint16_t scale_f16;
    memcpy(&scale_f16, block + r->scale_at, sizeof scale_f16);
    const float d = qn_f16_to_f32(scale_f16);
    if (!isfinite(d) || d < 0.0f)
        return false;
    unsigned threes = 0;
    for (uint64_t i = 0; i < r->block_weights / 4 && r->three_valued; i++)
        threes |= block[r->codes_at + i] & block[r->codes_at + i] >> 1 & 0x55;
    return threes == 0;
}

/* The index of the first tensor that rules the layout out, or n. Up to the same number of blocks is tested of each
 * tensor, so that one odd tensor at the start of a file does not decide alone. A small tensor may have fewer blocks:
 * the number is doubled until all tensors together give SAMPLE_BLOCKS, or all blocks are tested. */
static size_t first_mismatch(const struct layout *r, const qn_q2_tensor *tensors, size_t n)
{
    uint64_t blocks_per_tensor = SAMPLE_BLOCKS / n + 1, sample, all = 0;
    for (size_t t = 0; t < n; t++)
        all += tensors[t].n_weights / r->block_weights;
    for (;; blocks_per_tensor *= 2) {
        sample = 0;
        for (size_t t = 0; t < n; t++) {
            const uint64_t blocks = tensors[t].n_weights / r->block_weights;
            sample += blocks < blocks_per_tensor ? blocks : blocks_per_tensor;
        }
        if (sample >= SAMPLE_BLOCKS || sample == all)
            break;
    }
    for (size_t t = 0; t < n; t++)
        for (uint64_t b = 0; b < blocks_per_tensor && b < tensors[t].n_weights / r->block_weights; b++)
            if (!plausible_block(r, tensors[t].data + b * r->block_bytes))
                return t;
    return n;
}

qn_status qn_q2_find_layout(const qn_q2_tensor *tensors, size_t n, size_t alignment, const char *file, qn_type *type,
                            const char **note)
{
    const qn_q2_tensor *not_64 = NULL, *not_128 = NULL; /* the first tensors that blocks of 64, or of 128, do not fit */
    bool only_64_fills = false;
    for (size_t i = 0; i < n; i++) {
        const qn_q2_tensor *t = &tensors[i];
        if (!not_64 && !fits(&layouts[MAINLINE], t))
            not_64 = t;
        if (!not_128 && !fits(&layouts[PRISM], t))
            not_128 = t;
        only_64_fills |= fills(&layouts[MAINLINE], t, alignment) && !fills(&layouts[PRISM], t, alignment);
    }
    if (not_64 && not_128)
        return qn_fail(QN_ERR_FORMAT,
                       "%s: tensor '%.*s' of type 42: rows of %llu weights, %llu weights in %zu bytes, fit neither "
                       "groups of 64 in 18 bytes nor (tensor '%.*s') groups of 128 in 34",
                       file, shown(not_64), not_64->name, (unsigned long long)not_64->width,
                       (unsigned long long)not_64->n_weights, not_64->available_bytes, shown(not_128), not_128->name);
    int found = MAINLINE;
    if (not_64 || (!not_128 && !only_64_fills && first_mismatch(&layouts[MAINLINE], tensors, n) < n)) {
        const size_t prism_mismatch = first_mismatch(&layouts[PRISM], tensors, n);
        const size_t oxibonsai_mismatch = first_mismatch(&layouts[OXIBONSAI], tensors, n);
        const bool neither = prism_mismatch < n && oxibonsai_mismatch < n;
        const bool both = prism_mismatch == n && oxibonsai_mismatch == n;
        const qn_q2_tensor *t = &tensors[both                                  ? 0
                                         : prism_mismatch > oxibonsai_mismatch ? prism_mismatch
                                                                               : oxibonsai_mismatch];
        if (both || (neither && not_64))
            return qn_fail(QN_ERR_FORMAT,
                           "%s: tensor '%.*s' of type 42, groups of 128 in 34 bytes: %s has finite scales that are "
                           "not negative and no code 3, expected of exactly one",
                           file, shown(t), t->name,
                           both ? "each layout, scale first and scale last,"
                                : "neither layout, scale first nor scale last,");
        /* neither matches but mainline's fits: a bad scale in a mainline file, which the scan of the weights reports */
        found = neither ? MAINLINE : prism_mismatch == n ? PRISM : OXIBONSAI;
    }
    *type = layouts[found].type;
    *note = layouts[found].note;
    return QN_OK;
}
