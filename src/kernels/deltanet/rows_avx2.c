/* Conversions and the step of the delta rule for AVX2. */
#define QN_V16_AVX2

#include "kernels/deltanet/rows_simd.h"

void qn_gdn_rows_init_avx2(qn_gdn_rows *rows)
{
    rows_fill(rows);
}
