/* Conversions and the step of the delta rule for AVX-512. */
#define QN_V16_AVX512

#include "kernels/deltanet/row_kernels_simd.h"

void qn_gdn_row_kernels_init_avx512(qn_gdn_row_kernels *rows)
{
    row_kernels_init_simd(rows);
}
