/* Block Walsh-Hadamard transform for AVX-512: a pass holds eight vectors in eight of the thirty-two registers; sixteen
 * are no faster. */
#define QN_V16_AVX512
#define PASS_VECTORS 8

#include "kernels/vec16.h"

/* Computes the butterfly stages at distances 1, 2, 4 and 8 within a vector, those below n, the values of a block (a
 * power of two). In a stage each lane becomes its partner's value plus or minus its own: one shuffle and one fused
 * multiply-add, which rounds once like an addition. */
QN_INLINE v16 butterfly_lanes(v16 a, size_t n)
{
    if (n > 1)
        a = _mm512_fmadd_ps(a, _mm512_setr4_ps(1, -1, 1, -1), _mm512_permute_ps(a, 0xb1));
    if (n > 2)
        a = _mm512_fmadd_ps(a, _mm512_setr4_ps(1, 1, -1, -1), _mm512_permute_ps(a, 0x4e));
    if (n > 4)
        a = _mm512_fmadd_ps(a, _mm512_setr_ps(1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1),
                            _mm512_shuffle_f32x4(a, a, 0xb1));
    if (n > 8)
        a = _mm512_fmadd_ps(a, _mm512_setr_ps(1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1),
                            _mm512_shuffle_f32x4(a, a, 0x4e));
    return a;
}

#include "kernels/hadamard/hadamard_simd.h"

void qn_hadamard_init_avx512(qn_hadamard_kernels *kernels)
{
    hadamard_fill(kernels);
}
