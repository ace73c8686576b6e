/* AURA for NEON. Centroids are looked up byte by byte, sixteen or sixty-four table entries at a time. */
#define QN_V16_NEON
#define QUERY_GROUP 4
enum { ACCUMULATORS = 4, KEY_ACCUMULATORS = 4 };

#include "kernels/aura/aura.h"
#include "kernels/vec16.h"

typedef struct tables {
    const uint8_t *low, *high; /* the codec's bytes of centroids */
} tables;
/* Four quarters of four lanes: the first and second centroid of each lane. */
typedef struct words {
    int16x4_t first[4], second[4];
} words;

QN_INLINE tables tables_of(const qn_aura_codec *codec, unsigned bits)
{
    (void)bits;
    return (tables){ codec->low, codec->high };
}

/* Shifts bytes right by `by` bits, or left if it is negative, and masks them. */
QN_INLINE uint8x16_t shift_and_mask(const uint8_t *vector, int by, unsigned mask)
{
    return vandq_u8(vshlq_u8(vld1q_u8(vector), vdupq_n_s8((int8_t)-by)), vdupq_n_u8((uint8_t)mask));
}

/* A 64-entry look-up returns 0 (vqtbl4q) or keeps the destination (vqtbx4q) for indices of 64 or more. */
QN_INLINE uint8x16_t look_up(const uint8_t *table, uint8x16_t code, unsigned bits)
{
    if (bits <= 4)
        return vqtbl1q_u8(vld1q_u8(table), code);
    const unsigned parts = (1u << bits) / 64;
    uint8x16_t looked_up = vqtbl4q_u8(vld1q_u8_x4(table), code);
    QN_UNROLLED
    for (unsigned part = 1; part < parts; part++)
        looked_up =
            vqtbx4q_u8(looked_up, vld1q_u8_x4(table + 64 * part), vsubq_u8(code, vdupq_n_u8((uint8_t)(64 * part))));
    return looked_up;
}

QN_INLINE void split_pairs(uint8x16_t bytes, int16x4_t *first, int16x4_t *second)
{
    const int32x4_t both = vreinterpretq_s32_u8(bytes);
    *first = vmovn_s32(both);
    *second = vshrn_n_s32(both, 16);
}

QN_INLINE void decode_step(const uint8_t *unit, unsigned bits, unsigned j, tables t, words out[2])
{
    const int run = (int)j;
    for (int i = 0; i < 4; i++, unit += 16) {
        uint8x16_t code;
        if (bits == 3)
            code =
                vorrq_u8(shift_and_mask(unit + run / 4 * 128, 2 * (run % 4), 3), shift_and_mask(unit + 64, run - 2, 4));
        else if (bits == 6)
            code = vorrq_u8(shift_and_mask(unit + run / 2 * 128, 4 * (run % 2), 15),
                            shift_and_mask(unit + 64, 2 * run - 4, 48));
        else
            code = shift_and_mask(unit, (int)bits * run, (1u << bits) - 1);
        const uint8x16_t low = look_up(t.low, code, bits), high = look_up(t.high, code, bits);
        split_pairs(vtrn1q_u8(low, high), &out[0].first[i], &out[0].second[i]);
        split_pairs(vtrn2q_u8(low, high), &out[1].first[i], &out[1].second[i]);
    }
}

QN_INLINE v16i words_dot(v16i sum, words w, const int16_t *pair)
{
    QN_EACH(sum, vmlal_n_s16(vmlal_n_s16(sum.q[i], w.first[i], pair[0]), w.second[i], pair[1]));
    return sum;
}

QN_INLINE void store_i16(int16_t *p, v16i a)
{
    for (int i = 0; i < 4; i++)
        vst1_s16(p + 4 * i, vqmovn_s32(a.q[i]));
}

#include "kernels/aura/aura_simd.h"

void qn_aura_init_neon(qn_aura_kernels *kernels)
{
    aura_init_simd(kernels);
}
