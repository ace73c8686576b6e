/* Block Walsh-Hadamard transform for AVX2: a pass holds four vectors in eight of the sixteen registers, two per
 * vector. */
#define QN_V16_AVX2
#define PASS_VECTORS 4

#include "kernels/vec16.h"

/* Computes a butterfly stage within a vector: each lane becomes its partner's value plus or minus its own: one shuffle
 * and one fused multiply-add, which rounds once like an addition. */
QN_INLINE __m256 butterfly_half(__m256 a, size_t n)
{
    if (n > 1)
        a = _mm256_fmadd_ps(a, _mm256_setr_ps(1, -1, 1, -1, 1, -1, 1, -1), _mm256_permute_ps(a, 0xb1));
    if (n > 2)
        a = _mm256_fmadd_ps(a, _mm256_setr_ps(1, 1, -1, -1, 1, 1, -1, -1), _mm256_permute_ps(a, 0x4e));
    if (n > 4)
        a = _mm256_fmadd_ps(a, _mm256_setr_ps(1, 1, 1, 1, -1, -1, -1, -1), _mm256_permute2f128_ps(a, a, 1));
    return a;
}

QN_INLINE v16 butterfly_lanes(v16 a, size_t n)
{
    a = (v16){ butterfly_half(a.lo, n), butterfly_half(a.hi, n) };
    if (n > 8)
        a = (v16){ _mm256_add_ps(a.lo, a.hi), _mm256_sub_ps(a.lo, a.hi) };
    return a;
}

#include "kernels/hadamard/hadamard_simd.h"

void qn_hadamard_init_avx2(qn_hadamard_kernels *kernels)
{
    hadamard_fill(kernels);
}
