/* Vectors of sixteen floats or sixteen int32: one AVX-512 register, two AVX2 registers or four NEON registers.
 *
 * A kernel in terms of these vectors is compiled once for each instruction set, by a small file that defines one of
 * QN_V16_AVX512, QN_V16_AVX2 (optionally QN_V16_AVXVNNI), QN_V16_NEON (optionally QN_V16_DOTPROD) before it includes
 * the kernel. It has the canonical order of kernels/canon.h on all of them. Loads and stores may be unaligned. */
#ifndef QN_KERNELS_VEC16_H
#define QN_KERNELS_VEC16_H

#include "kernels/canon.h"

#include <stdint.h>
#include <string.h>

/* clang-format off: short definitions, laid out as a table. */
#define QN_INLINE static inline __attribute__((always_inline, unused))

/* Unrolls loops with constant bounds over an array of vectors. Without it the compiler may keep the array in memory.
 * Not in sanitizer builds, which take minutes to compile the unrolled code. */
#if defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define QN_UNROLLED
#endif
#endif
#ifndef QN_UNROLLED
#ifdef __clang__
#define QN_UNROLLED _Pragma("clang loop unroll(full)")
#else
#define QN_UNROLLED _Pragma("GCC unroll 16")
#endif
#endif

/* For v16_pack of four lanes: the bytes of the lanes whose bits are set, in order, and their number. */
#define QN_LANE(i) (0x03020100u + (i)*0x04040404u)
static const uint32_t v16_pack_lanes[16][4] __attribute__((unused)) = {
    { 0 },
    { QN_LANE(0) },
    { QN_LANE(1) },
    { QN_LANE(0), QN_LANE(1) },
    { QN_LANE(2) },
    { QN_LANE(0), QN_LANE(2) },
    { QN_LANE(1), QN_LANE(2) },
    { QN_LANE(0), QN_LANE(1), QN_LANE(2) },
    { QN_LANE(3) },
    { QN_LANE(0), QN_LANE(3) },
    { QN_LANE(1), QN_LANE(3) },
    { QN_LANE(0), QN_LANE(1), QN_LANE(3) },
    { QN_LANE(2), QN_LANE(3) },
    { QN_LANE(0), QN_LANE(2), QN_LANE(3) },
    { QN_LANE(1), QN_LANE(2), QN_LANE(3) },
    { QN_LANE(0), QN_LANE(1), QN_LANE(2), QN_LANE(3) },
};
#undef QN_LANE
static const uint8_t v16_pack_counts[16] __attribute__((unused)) = { 0, 1, 1, 2, 1, 2, 2, 3, 1, 2, 2, 3, 2, 3, 3, 4 };

#if defined(QN_V16_AVX512)

#include <immintrin.h>

typedef __m512 v16;
typedef __m512i v16i;

QN_INLINE __mmask16 v16_mask(size_t n)
{
    return (__mmask16)((1u << n) - 1);
}
QN_INLINE v16 v16_set1(float x)
{
    return _mm512_set1_ps(x);
}
QN_INLINE v16 v16_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
QN_INLINE v16 v16_load_n(const float *p, size_t n)
{
    return _mm512_maskz_loadu_ps(v16_mask(n), p);
}
QN_INLINE void v16_store(float *p, v16 a)
{
    _mm512_storeu_ps(p, a);
}
QN_INLINE void v16_store_n(float *p, v16 a, size_t n)
{
    _mm512_mask_storeu_ps(p, v16_mask(n), a);
}
QN_INLINE v16 v16_add(v16 a, v16 b)
{
    return _mm512_add_ps(a, b);
}
QN_INLINE v16 v16_mul(v16 a, v16 b)
{
    return _mm512_mul_ps(a, b);
}
QN_INLINE v16 v16_div(v16 a, v16 b)
{
    return _mm512_div_ps(a, b);
}
QN_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return _mm512_fmadd_ps(a, b, c);
}
QN_INLINE v16 v16_max(v16 a, v16 b)
{
    return _mm512_max_ps(a, b);
}
QN_INLINE v16 v16_min(v16 a, v16 b)
{
    return _mm512_min_ps(a, b);
}
QN_INLINE v16 v16_abs(v16 a)
{
    return _mm512_abs_ps(a);
}
QN_INLINE v16 v16_rint(v16 a)
{
    return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
QN_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
QN_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
QN_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
QN_INLINE v16 v16_scale2(v16 y, v16 n) /* y * 2^n for integer n; y and the result are normal numbers */
{
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(y), _mm512_slli_epi32(_mm512_cvtps_epi32(n), 23)));
}
QN_INLINE float v16_hmax(v16 a)
{
    return _mm512_reduce_max_ps(a);
}
QN_INLINE float v16_sum(v16 a)
{
    __m256 p = _mm256_add_ps(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps(a, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

QN_INLINE v16i v16i_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}
QN_INLINE v16i v16i_load(const int32_t *p)
{
    return _mm512_loadu_si512(p);
}
QN_INLINE v16i v16i_add(v16i a, v16i b)
{
    return _mm512_add_epi32(a, b);
}
QN_INLINE v16i v16i_sub(v16i a, v16i b)
{
    return _mm512_sub_epi32(a, b);
}
QN_INLINE v16i v16i_shift_left(v16i a, int bits)
{
    return _mm512_sll_epi32(a, _mm_cvtsi32_si128(bits));
}
QN_INLINE v16i v16i_mul(v16i a, v16i b)
{
    return _mm512_mullo_epi32(a, b);
}
QN_INLINE v16 v16i_to_float(v16i a)
{
    return _mm512_cvtepi32_ps(a);
}
QN_INLINE v16i v16_to_int(v16 a)
{
    return _mm512_cvtps_epi32(a);
} /* to nearest even */
QN_INLINE void v16i_store(int32_t *p, v16i a)
{
    _mm512_storeu_si512(p, a);
}

/* Conditions of the sixteen lanes. v16m_bits: bit i is lane i. */
typedef __mmask16 v16m;
QN_INLINE v16m v16_greater(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_GT_OQ);
}
QN_INLINE v16m v16_equal(v16 a, v16 b)
{
    return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ);
}
QN_INLINE v16m v16_is_nan(v16 a)
{
    return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q);
}
QN_INLINE v16m v16m_none(void)
{
    return 0;
}
QN_INLINE v16m v16m_or(v16m a, v16m b)
{
    return a | b;
}
QN_INLINE uint32_t v16m_bits(v16m m)
{
    return m;
}
QN_INLINE v16 v16_select(v16m m, v16 a, v16 b) /* a where m is true, else b */
{
    return _mm512_mask_blend_ps(m, b, a);
}
/* Store the lanes whose bit is set, one after another. Writes sixteen lanes; those after the last set one are
 * undefined. */
QN_INLINE void v16_pack(float *p, v16 a, uint32_t bits)
{
    _mm512_storeu_ps(p, _mm512_maskz_compress_ps((__mmask16)bits, a));
}
QN_INLINE void v16i_pack(int32_t *p, v16i a, uint32_t bits)
{
    _mm512_storeu_si512(p, _mm512_maskz_compress_epi32((__mmask16)bits, a));
}

/* Sixteen uint64, and sums of such. v16_to_u64: truncated, for 0 <= a < 2^63. */
typedef struct v16u {
    __m512i lo, hi;
} v16u;
typedef __m512i v16u_sum;
QN_INLINE v16u v16_to_u64(v16 a)
{
    return (v16u){ _mm512_cvttps_epi64(_mm512_castps512_ps256(a)), _mm512_cvttps_epi64(_mm512_extractf32x8_ps(a, 1)) };
}
QN_INLINE void v16u_store(uint64_t *p, v16u a)
{
    _mm512_storeu_si512(p, a.lo);
    _mm512_storeu_si512(p + 8, a.hi);
}
QN_INLINE v16u v16u_mul(v16u a, v16u b) /* of integers below 2^32 */
{
    return (v16u){ _mm512_mul_epu32(a.lo, b.lo), _mm512_mul_epu32(a.hi, b.hi) };
}
QN_INLINE v16u_sum v16u_zero(void)
{
    return _mm512_setzero_si512();
}
QN_INLINE v16u_sum v16u_add(v16u_sum sum, v16u a)
{
    return _mm512_add_epi64(sum, _mm512_add_epi64(a.lo, a.hi));
}
QN_INLINE v16u_sum v16u_add_if(v16u_sum sum, v16m m, v16u a)
{
    sum = _mm512_mask_add_epi64(sum, (__mmask8)m, sum, a.lo);
    return _mm512_mask_add_epi64(sum, (__mmask8)(m >> 8), sum, a.hi);
}
QN_INLINE uint64_t v16u_total(v16u_sum sum)
{
    return (uint64_t)_mm512_reduce_add_epi64(sum);
}
QN_INLINE void v16i_store_i8(int8_t *p, v16i a)
{
    _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(a));
}

/* Dot products of 64 unsigned codes and 64 signed activations: four adjacent products are added to each of the sixteen
 * int32 sums. v16i_dot: codes up to 127. v16i_dot_wide: codes up to 255; its products are
 * (code - 128 + V16_WIDE_ZERO) * activation, because not every instruction set multiplies unsigned by signed bytes. */
#define V16_WIDE_ZERO 128
typedef __m512i v16b;
QN_INLINE v16b v16b_load(const void *p)
{
    return _mm512_loadu_si512(p);
}
QN_INLINE v16i v16i_dot(v16i sum, v16b codes, v16b acts)
{
    return _mm512_dpbusd_epi32(sum, codes, acts);
}
QN_INLINE v16i v16i_dot_wide(v16i sum, v16b codes, v16b acts)
{
    return _mm512_dpbusd_epi32(sum, codes, acts);
}

#elif defined(QN_V16_AVX2)

#include <immintrin.h>

typedef struct v16 {
    __m256 lo, hi;
} v16;
typedef struct v16i {
    __m256i lo, hi;
} v16i;

QN_INLINE v16 v16_set1(float x)
{
    return (v16){ _mm256_set1_ps(x), _mm256_set1_ps(x) };
}
QN_INLINE v16 v16_load(const float *p)
{
    return (v16){ _mm256_loadu_ps(p), _mm256_loadu_ps(p + 8) };
}
QN_INLINE void v16_store(float *p, v16 a)
{
    _mm256_storeu_ps(p, a.lo);
    _mm256_storeu_ps(p + 8, a.hi);
}
QN_INLINE v16 v16_add(v16 a, v16 b)
{
    return (v16){ _mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi) };
}
QN_INLINE v16 v16_mul(v16 a, v16 b)
{
    return (v16){ _mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi) };
}
QN_INLINE v16 v16_div(v16 a, v16 b)
{
    return (v16){ _mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi) };
}
QN_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    return (v16){ _mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi) };
}
QN_INLINE v16 v16_max(v16 a, v16 b)
{
    return (v16){ _mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi) };
}
QN_INLINE v16 v16_min(v16 a, v16 b)
{
    return (v16){ _mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi) };
}
QN_INLINE v16 v16_abs(v16 a)
{
    const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    return (v16){ _mm256_and_ps(a.lo, mask), _mm256_and_ps(a.hi, mask) };
}
QN_INLINE v16 v16_rint(v16 a)
{
    return (v16){ _mm256_round_ps(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC),
                  _mm256_round_ps(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC) };
}
QN_INLINE v16 v16_load_f16(const uint16_t *p)
{
    return (v16){ _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(p + 8))) };
}
QN_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph(a.lo, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    _mm_storeu_si128((__m128i *)(p + 8), _mm256_cvtps_ph(a.hi, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
QN_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    const __m256i h = _mm256_loadu_si256((const __m256i *)p);
    return (v16){ _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_castsi256_si128(h)), 16)),
                  _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm256_extracti128_si256(h, 1)), 16)) };
}
QN_INLINE v16 v16_scale2(v16 y, v16 n)
{
    const __m256i lo = _mm256_slli_epi32(_mm256_cvtps_epi32(n.lo), 23),
                  hi = _mm256_slli_epi32(_mm256_cvtps_epi32(n.hi), 23);
    return (v16){ _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y.lo), lo)),
                  _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y.hi), hi)) };
}
QN_INLINE float v16_hmax(v16 a)
{
    const __m256 p = _mm256_max_ps(a.lo, a.hi);
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}
QN_INLINE float v16_sum(v16 a)
{
    const __m256 p = _mm256_add_ps(a.lo, a.hi);
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(p), _mm256_extractf128_ps(p, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

QN_INLINE v16i v16i_set1(int32_t x)
{
    return (v16i){ _mm256_set1_epi32(x), _mm256_set1_epi32(x) };
}
QN_INLINE v16i v16i_load(const int32_t *p)
{
    return (v16i){ _mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)(p + 8)) };
}
QN_INLINE v16i v16i_add(v16i a, v16i b)
{
    return (v16i){ _mm256_add_epi32(a.lo, b.lo), _mm256_add_epi32(a.hi, b.hi) };
}
QN_INLINE v16i v16i_sub(v16i a, v16i b)
{
    return (v16i){ _mm256_sub_epi32(a.lo, b.lo), _mm256_sub_epi32(a.hi, b.hi) };
}
QN_INLINE v16i v16i_shift_left(v16i a, int bits)
{
    const __m128i count = _mm_cvtsi32_si128(bits);
    return (v16i){ _mm256_sll_epi32(a.lo, count), _mm256_sll_epi32(a.hi, count) };
}
QN_INLINE v16i v16i_mul(v16i a, v16i b)
{
    return (v16i){ _mm256_mullo_epi32(a.lo, b.lo), _mm256_mullo_epi32(a.hi, b.hi) };
}
QN_INLINE v16 v16i_to_float(v16i a)
{
    return (v16){ _mm256_cvtepi32_ps(a.lo), _mm256_cvtepi32_ps(a.hi) };
}
QN_INLINE v16i v16_to_int(v16 a)
{
    return (v16i){ _mm256_cvtps_epi32(a.lo), _mm256_cvtps_epi32(a.hi) };
}
QN_INLINE void v16i_store(int32_t *p, v16i a)
{
    _mm256_storeu_si256((__m256i *)p, a.lo);
    _mm256_storeu_si256((__m256i *)(p + 8), a.hi);
}

typedef struct v16m {
    __m256 lo, hi;
} v16m;
QN_INLINE v16m v16_greater(v16 a, v16 b)
{
    return (v16m){ _mm256_cmp_ps(a.lo, b.lo, _CMP_GT_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_GT_OQ) };
}
QN_INLINE v16m v16_equal(v16 a, v16 b)
{
    return (v16m){ _mm256_cmp_ps(a.lo, b.lo, _CMP_EQ_OQ), _mm256_cmp_ps(a.hi, b.hi, _CMP_EQ_OQ) };
}
QN_INLINE v16m v16_is_nan(v16 a)
{
    return (v16m){ _mm256_cmp_ps(a.lo, a.lo, _CMP_UNORD_Q), _mm256_cmp_ps(a.hi, a.hi, _CMP_UNORD_Q) };
}
QN_INLINE v16m v16m_none(void)
{
    return (v16m){ _mm256_setzero_ps(), _mm256_setzero_ps() };
}
QN_INLINE v16m v16m_or(v16m a, v16m b)
{
    return (v16m){ _mm256_or_ps(a.lo, b.lo), _mm256_or_ps(a.hi, b.hi) };
}
QN_INLINE uint32_t v16m_bits(v16m m)
{
    return (uint32_t)_mm256_movemask_ps(m.lo) | (uint32_t)_mm256_movemask_ps(m.hi) << 8;
}
QN_INLINE v16 v16_select(v16m m, v16 a, v16 b)
{
    return (v16){ _mm256_blendv_ps(b.lo, a.lo, m.lo), _mm256_blendv_ps(b.hi, a.hi, m.hi) };
}
QN_INLINE __m128i v16i_pack_quarter(__m128i quarter, uint32_t bits)
{
    return _mm_shuffle_epi8(quarter, _mm_loadu_si128((const __m128i *)v16_pack_lanes[bits & 15]));
}
QN_INLINE void v16i_pack(int32_t *p, v16i a, uint32_t bits)
{
    const __m128i quarters[4] = { _mm256_castsi256_si128(a.lo), _mm256_extracti128_si256(a.lo, 1),
                                  _mm256_castsi256_si128(a.hi), _mm256_extracti128_si256(a.hi, 1) };
    for (int i = 0; i < 4; i++) {
        _mm_storeu_si128((__m128i *)p, v16i_pack_quarter(quarters[i], bits >> 4 * i));
        p += v16_pack_counts[bits >> 4 * i & 15];
    }
}
QN_INLINE void v16_pack(float *p, v16 a, uint32_t bits)
{
    v16i_pack((int32_t *)(void *)p, (v16i){ _mm256_castps_si256(a.lo), _mm256_castps_si256(a.hi) }, bits);
}

/* Of eight lanes, those of 0, 1, 4, 5 and those of 2, 3, 6, 7: the order of unpacklo and unpackhi. */
typedef struct v16u {
    __m256i q[4];
} v16u;
typedef __m256i v16u_sum;
/* Multiples of 2^32 first: the remainder is exact, and less than 2^32. A conversion to int32 of 2^31 or more gives
 * 2^31. */
QN_INLINE void v16_to_u64_half(__m256i *low, __m256i *high, __m256 a)
{
    const __m256i upper = _mm256_cvttps_epi32(_mm256_mul_ps(a, _mm256_set1_ps(0x1p-32f)));
    const __m256 rest = _mm256_fnmadd_ps(_mm256_cvtepi32_ps(upper), _mm256_set1_ps(0x1p32f), a);
    const __m256i small = _mm256_cvttps_epi32(rest),
                  large = _mm256_cvttps_epi32(_mm256_sub_ps(rest, _mm256_set1_ps(0x1p31f)));
    const __m256i lower = _mm256_or_si256(small, _mm256_and_si256(large, _mm256_srai_epi32(small, 31)));
    *low = _mm256_unpacklo_epi32(lower, upper);
    *high = _mm256_unpackhi_epi32(lower, upper);
}
QN_INLINE v16u v16_to_u64(v16 a)
{
    v16u r;
    v16_to_u64_half(&r.q[0], &r.q[1], a.lo);
    v16_to_u64_half(&r.q[2], &r.q[3], a.hi);
    return r;
}
QN_INLINE void v16u_store(uint64_t *p, v16u a)
{
    for (int i = 0; i < 4; i += 2) {
        _mm256_storeu_si256((__m256i *)(p + 4 * i), _mm256_permute2x128_si256(a.q[i], a.q[i + 1], 0x20));
        _mm256_storeu_si256((__m256i *)(p + 4 * i + 4), _mm256_permute2x128_si256(a.q[i], a.q[i + 1], 0x31));
    }
}
QN_INLINE v16u v16u_mul(v16u a, v16u b)
{
    for (int i = 0; i < 4; i++)
        a.q[i] = _mm256_mul_epu32(a.q[i], b.q[i]);
    return a;
}
QN_INLINE v16u_sum v16u_zero(void)
{
    return _mm256_setzero_si256();
}
QN_INLINE v16u_sum v16u_add(v16u_sum sum, v16u a)
{
    return _mm256_add_epi64(sum, _mm256_add_epi64(_mm256_add_epi64(a.q[0], a.q[1]), _mm256_add_epi64(a.q[2], a.q[3])));
}
QN_INLINE v16u_sum v16u_add_if(v16u_sum sum, v16m m, v16u a)
{
    const __m256i lo = _mm256_castps_si256(m.lo), hi = _mm256_castps_si256(m.hi);
    return v16u_add(sum, (v16u){ { _mm256_and_si256(a.q[0], _mm256_unpacklo_epi32(lo, lo)),
                                   _mm256_and_si256(a.q[1], _mm256_unpackhi_epi32(lo, lo)),
                                   _mm256_and_si256(a.q[2], _mm256_unpacklo_epi32(hi, hi)),
                                   _mm256_and_si256(a.q[3], _mm256_unpackhi_epi32(hi, hi)) } });
}
QN_INLINE uint64_t v16u_total(v16u_sum sum)
{
    const __m128i pair = _mm_add_epi64(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    return (uint64_t)_mm_cvtsi128_si64(pair) + (uint64_t)_mm_extract_epi64(pair, 1);
}
QN_INLINE void v16i_store_i8(int8_t *p, v16i a)
{
    const __m256i h = _mm256_permute4x64_epi64(_mm256_packs_epi32(a.lo, a.hi), 0xd8);
    _mm_storeu_si128((__m128i *)p, _mm_packs_epi16(_mm256_castsi256_si128(h), _mm256_extracti128_si256(h, 1)));
}

#define V16_WIDE_ZERO 0
typedef struct v16b {
    __m256i lo, hi;
} v16b;
QN_INLINE v16b v16b_load(const void *p)
{
    return (v16b){ _mm256_loadu_si256((const __m256i *)p), _mm256_loadu_si256((const __m256i *)p + 1) };
}
#ifdef QN_V16_AVXVNNI
QN_INLINE __m256i v16i_dot_half(__m256i sum, __m256i codes, __m256i acts)
{
    return _mm256_dpbusd_avx_epi32(sum, codes, acts);
}
#else
/* Pairs are added in 16 bits: codes up to 127 cannot saturate (2 * 127 * 127 < 32768). */
QN_INLINE __m256i v16i_dot_half(__m256i sum, __m256i codes, __m256i acts)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(codes, acts), _mm256_set1_epi16(1)));
}
#endif
QN_INLINE v16i v16i_dot(v16i sum, v16b codes, v16b acts)
{
    return (v16i){ v16i_dot_half(sum.lo, codes.lo, acts.lo), v16i_dot_half(sum.hi, codes.hi, acts.hi) };
}
/* |w| * (sign of w) a, for w = code - 128. |-128| is 128 as an unsigned byte; activations are never -128. */
QN_INLINE __m256i v16i_dot_wide_half(__m256i sum, __m256i codes, __m256i acts)
{
    const __m256i w = _mm256_xor_si256(codes, _mm256_set1_epi8(-128));
    return v16i_dot_half(sum, _mm256_abs_epi8(w), _mm256_sign_epi8(acts, w));
}
QN_INLINE v16i v16i_dot_wide(v16i sum, v16b codes, v16b acts)
{
    return (v16i){ v16i_dot_wide_half(sum.lo, codes.lo, acts.lo), v16i_dot_wide_half(sum.hi, codes.hi, acts.hi) };
}

#elif defined(QN_V16_NEON)

#include <arm_neon.h>

typedef struct v16 {
    float32x4_t q[4];
} v16;
typedef struct v16i {
    int32x4_t q[4];
} v16i;

#define QN_EACH(result, expression)                                                                                    \
    do {                                                                                                               \
        for (int i = 0; i < 4; i++)                                                                                    \
            (result).q[i] = (expression);                                                                              \
    } while (0)

QN_INLINE v16 v16_set1(float x)
{
    v16 r;
    QN_EACH(r, vdupq_n_f32(x));
    return r;
}
QN_INLINE v16 v16_load(const float *p)
{
    v16 r;
    QN_EACH(r, vld1q_f32(p + 4 * i));
    return r;
}
QN_INLINE void v16_store(float *p, v16 a)
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, a.q[i]);
}
QN_INLINE v16 v16_add(v16 a, v16 b)
{
    v16 r;
    QN_EACH(r, vaddq_f32(a.q[i], b.q[i]));
    return r;
}
QN_INLINE v16 v16_mul(v16 a, v16 b)
{
    v16 r;
    QN_EACH(r, vmulq_f32(a.q[i], b.q[i]));
    return r;
}
QN_INLINE v16 v16_div(v16 a, v16 b)
{
    v16 r;
    QN_EACH(r, vdivq_f32(a.q[i], b.q[i]));
    return r;
}
QN_INLINE v16 v16_fma(v16 a, v16 b, v16 c)
{
    v16 r;
    QN_EACH(r, vfmaq_f32(c.q[i], a.q[i], b.q[i]));
    return r;
}
QN_INLINE v16 v16_max(v16 a, v16 b)
{
    v16 r;
    QN_EACH(r, vmaxq_f32(a.q[i], b.q[i]));
    return r;
}
QN_INLINE v16 v16_min(v16 a, v16 b)
{
    v16 r;
    QN_EACH(r, vminq_f32(a.q[i], b.q[i]));
    return r;
}
QN_INLINE v16 v16_abs(v16 a)
{
    v16 r;
    QN_EACH(r, vabsq_f32(a.q[i]));
    return r;
}
QN_INLINE v16 v16_rint(v16 a)
{
    v16 r;
    QN_EACH(r, vrndnq_f32(a.q[i]));
    return r;
}
QN_INLINE v16 v16_load_f16(const uint16_t *p)
{
    v16 r;
    QN_EACH(r, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
    return r;
}
QN_INLINE void v16_store_f16(uint16_t *p, v16 a)
{
    for (int i = 0; i < 4; i++)
        vst1_u16(p + 4 * i, vreinterpret_u16_f16(vcvt_f16_f32(a.q[i])));
}
QN_INLINE v16 v16_load_bf16(const uint16_t *p)
{
    v16 r;
    QN_EACH(r, vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
    return r;
}
QN_INLINE v16 v16_scale2(v16 y, v16 n)
{
    v16 r;
    QN_EACH(r,
            vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(y.q[i]), vshlq_n_s32(vcvtnq_s32_f32(n.q[i]), 23))));
    return r;
}
QN_INLINE float v16_hmax(v16 a)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(a.q[0], a.q[1]), vmaxq_f32(a.q[2], a.q[3])));
}
QN_INLINE float v16_sum(v16 a)
{
    const float32x4_t p = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
    const float32x2_t q = vadd_f32(vget_low_f32(p), vget_high_f32(p));
    return vget_lane_f32(q, 0) + vget_lane_f32(q, 1);
}

QN_INLINE v16i v16i_set1(int32_t x)
{
    v16i r;
    QN_EACH(r, vdupq_n_s32(x));
    return r;
}
QN_INLINE v16i v16i_load(const int32_t *p)
{
    v16i r;
    QN_EACH(r, vld1q_s32(p + 4 * i));
    return r;
}
QN_INLINE v16i v16i_add(v16i a, v16i b)
{
    v16i r;
    QN_EACH(r, vaddq_s32(a.q[i], b.q[i]));
    return r;
}
QN_INLINE v16i v16i_sub(v16i a, v16i b)
{
    v16i r;
    QN_EACH(r, vsubq_s32(a.q[i], b.q[i]));
    return r;
}
QN_INLINE v16i v16i_shift_left(v16i a, int bits)
{
    v16i r;
    QN_EACH(r, vshlq_s32(a.q[i], vdupq_n_s32(bits)));
    return r;
}
QN_INLINE v16i v16i_mul(v16i a, v16i b)
{
    v16i r;
    QN_EACH(r, vmulq_s32(a.q[i], b.q[i]));
    return r;
}
QN_INLINE v16 v16i_to_float(v16i a)
{
    v16 r;
    QN_EACH(r, vcvtq_f32_s32(a.q[i]));
    return r;
}
QN_INLINE v16i v16_to_int(v16 a)
{
    v16i r;
    QN_EACH(r, vcvtnq_s32_f32(a.q[i]));
    return r;
}
QN_INLINE void v16i_store(int32_t *p, v16i a)
{
    for (int i = 0; i < 4; i++)
        vst1q_s32(p + 4 * i, a.q[i]);
}

typedef struct v16m {
    uint32x4_t q[4];
} v16m;
QN_INLINE v16m v16_greater(v16 a, v16 b)
{
    v16m r;
    QN_EACH(r, vcgtq_f32(a.q[i], b.q[i]));
    return r;
}
QN_INLINE v16m v16_equal(v16 a, v16 b)
{
    v16m r;
    QN_EACH(r, vceqq_f32(a.q[i], b.q[i]));
    return r;
}
QN_INLINE v16m v16_is_nan(v16 a)
{
    v16m r;
    QN_EACH(r, vmvnq_u32(vceqq_f32(a.q[i], a.q[i])));
    return r;
}
QN_INLINE v16m v16m_none(void)
{
    v16m r;
    QN_EACH(r, vdupq_n_u32(0));
    return r;
}
QN_INLINE v16m v16m_or(v16m a, v16m b)
{
    v16m r;
    QN_EACH(r, vorrq_u32(a.q[i], b.q[i]));
    return r;
}
QN_INLINE uint32_t v16m_bits(v16m m)
{
    static const uint32_t weights[4] = { 1, 2, 4, 8 };
    uint32_t bits = 0;
    for (int i = 0; i < 4; i++)
        bits |= vaddvq_u32(vandq_u32(m.q[i], vld1q_u32(weights))) << 4 * i;
    return bits;
}
QN_INLINE v16 v16_select(v16m m, v16 a, v16 b)
{
    v16 r;
    QN_EACH(r, vbslq_f32(m.q[i], a.q[i], b.q[i]));
    return r;
}
QN_INLINE void v16i_pack(int32_t *p, v16i a, uint32_t bits)
{
    for (int i = 0; i < 4; i++) {
        const uint8x16_t lanes = vreinterpretq_u8_u32(vld1q_u32(v16_pack_lanes[bits >> 4 * i & 15]));
        vst1q_s32(p, vreinterpretq_s32_u8(vqtbl1q_u8(vreinterpretq_u8_s32(a.q[i]), lanes)));
        p += v16_pack_counts[bits >> 4 * i & 15];
    }
}
QN_INLINE void v16_pack(float *p, v16 a, uint32_t bits)
{
    v16i r;
    QN_EACH(r, vreinterpretq_s32_f32(a.q[i]));
    v16i_pack((int32_t *)(void *)p, r, bits);
}

typedef struct v16u {
    uint64x2_t q[8];
} v16u;
typedef uint64x2_t v16u_sum;
QN_INLINE v16u v16_to_u64(v16 a)
{
    v16u r;
    for (int i = 0; i < 4; i++) {
        r.q[2 * i] = vcvtq_u64_f64(vcvt_f64_f32(vget_low_f32(a.q[i])));
        r.q[2 * i + 1] = vcvtq_u64_f64(vcvt_high_f64_f32(a.q[i]));
    }
    return r;
}
QN_INLINE void v16u_store(uint64_t *p, v16u a)
{
    for (int i = 0; i < 8; i++)
        vst1q_u64(p + 2 * i, a.q[i]);
}
QN_INLINE v16u v16u_mul(v16u a, v16u b)
{
    for (int i = 0; i < 8; i++)
        a.q[i] = vmull_u32(vmovn_u64(a.q[i]), vmovn_u64(b.q[i]));
    return a;
}
QN_INLINE v16u_sum v16u_zero(void)
{
    return vdupq_n_u64(0);
}
QN_INLINE v16u_sum v16u_add(v16u_sum sum, v16u a)
{
    for (int i = 0; i < 8; i += 2)
        sum = vaddq_u64(sum, vaddq_u64(a.q[i], a.q[i + 1]));
    return sum;
}
QN_INLINE v16u_sum v16u_add_if(v16u_sum sum, v16m m, v16u a)
{
    for (int i = 0; i < 4; i++) {
        const int32x4_t lanes = vreinterpretq_s32_u32(m.q[i]);
        a.q[2 * i] = vandq_u64(a.q[2 * i], vreinterpretq_u64_s64(vmovl_s32(vget_low_s32(lanes))));
        a.q[2 * i + 1] = vandq_u64(a.q[2 * i + 1], vreinterpretq_u64_s64(vmovl_high_s32(lanes)));
    }
    return v16u_add(sum, a);
}
QN_INLINE uint64_t v16u_total(v16u_sum sum)
{
    return vgetq_lane_u64(sum, 0) + vgetq_lane_u64(sum, 1);
}
QN_INLINE void v16i_store_i8(int8_t *p, v16i a)
{
    const int16x8_t lo = vcombine_s16(vqmovn_s32(a.q[0]), vqmovn_s32(a.q[1]));
    const int16x8_t hi = vcombine_s16(vqmovn_s32(a.q[2]), vqmovn_s32(a.q[3]));
    vst1q_s8(p, vcombine_s8(vqmovn_s16(lo), vqmovn_s16(hi)));
}

#define V16_WIDE_ZERO 0
typedef struct v16b {
    int8x16_t q[4];
} v16b;
QN_INLINE v16b v16b_load(const void *p)
{
    v16b r;
    QN_EACH(r, vld1q_s8((const int8_t *)p + 16 * i));
    return r;
}
#ifdef QN_V16_DOTPROD
QN_INLINE int32x4_t v16i_dot_quarter(int32x4_t sum, int8x16_t w, int8x16_t a)
{
    return vdotq_s32(sum, w, a);
}
#else
QN_INLINE int32x4_t v16i_dot_quarter(int32x4_t sum, int8x16_t w, int8x16_t a)
{
    const int16x8_t lo = vmull_s8(vget_low_s8(w), vget_low_s8(a)), hi = vmull_high_s8(w, a);
    return vaddq_s32(sum, vpaddq_s32(vpaddlq_s16(lo), vpaddlq_s16(hi)));
}
#endif
/* Adds to each lane of `sum` the dot product of its four codes and activations. Codes up to 127 have the same value as
 * signed bytes. */
QN_INLINE v16i v16i_dot(v16i sum, v16b codes, v16b acts)
{
    QN_EACH(sum, v16i_dot_quarter(sum.q[i], codes.q[i], acts.q[i]));
    return sum;
}
QN_INLINE v16i v16i_dot_wide(v16i sum, v16b codes, v16b acts)
{
    QN_EACH(sum, v16i_dot_quarter(sum.q[i], veorq_s8(codes.q[i], vdupq_n_s8(-128)), acts.q[i]));
    return sum;
}

#else
#error "define the instruction set before including vec16.h"
#endif

/* clang-format on */

#if !defined(QN_V16_AVX512)
/* Loads n <= 16 floats, then zeros; reads nothing past them. */
QN_INLINE v16 v16_load_n(const float *p, size_t n)
{
    float buffer[QN_LANES] = { 0 };
    memcpy(buffer, p, n * sizeof *p);
    return v16_load(buffer);
}
QN_INLINE void v16_store_n(float *p, v16 a, size_t n)
{
    float buffer[QN_LANES];
    v16_store(buffer, a);
    memcpy(p, buffer, n * sizeof *p);
}
#endif

/* Loads n <= 16 fp16 values, then zeros; reads nothing past them. */
QN_INLINE v16 v16_load_f16_n(const uint16_t *p, size_t n)
{
    uint16_t buffer[QN_LANES] = { 0 };
    memcpy(buffer, p, n * sizeof *p);
    return v16_load_f16(buffer);
}
QN_INLINE v16 v16_load_bf16_n(const uint16_t *p, size_t n)
{
    uint16_t buffer[QN_LANES] = { 0 };
    memcpy(buffer, p, n * sizeof *p);
    return v16_load_bf16(buffer);
}

/* The vector form of qn_exp, with the same bits. */
QN_INLINE v16 v16_exp(v16 x)
{
    /* x is the second operand: x86 min and max return the second one if either is NaN. */
    x = v16_min(v16_set1(QN_EXP_MAX), v16_max(v16_set1(QN_EXP_MIN), x));
    const v16 n = v16_rint(v16_mul(x, v16_set1(1.44269504f)));
    v16 r = v16_fma(n, v16_set1(-0.693359375f), x);
    r = v16_fma(n, v16_set1(2.12194440e-4f), r);
    v16 y = v16_set1(1.0f / 5040);
    y = v16_fma(y, r, v16_set1(1.0f / 720));
    y = v16_fma(y, r, v16_set1(1.0f / 120));
    y = v16_fma(y, r, v16_set1(1.0f / 24));
    y = v16_fma(y, r, v16_set1(1.0f / 6));
    y = v16_fma(y, r, v16_set1(0.5f));
    y = v16_fma(y, r, v16_set1(1.0f));
    y = v16_fma(y, r, v16_set1(1.0f));
    return v16_scale2(y, n);
}

QN_INLINE v16 v16_silu(v16 x)
{
    return v16_div(x, v16_add(v16_set1(1.0f), v16_exp(v16_mul(x, v16_set1(-1.0f)))));
}

#endif
