/* Conversions and the step of the delta rule for AVX-512. */
#define QN_V16_AVX512

#include "kernels/deltanet/rows_simd.h"

void qn_gdn_rows_init_avx512(qn_gdn_rows *rows)
{
    rows_fill(rows);
}
