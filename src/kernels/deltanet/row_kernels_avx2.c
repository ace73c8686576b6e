/* Conversions and the step of the delta rule for AVX2. */
#define QN_V16_AVX2

#include "kernels/deltanet/row_kernels_simd.h"

void qn_gdn_row_kernels_init_avx2(qn_gdn_row_kernels *rows)
{
    row_kernels_init_simd(rows);
}
