/* Conversions and the step of the delta rule for NEON. */
#define QN_V16_NEON

#include "kernels/deltanet/row_kernels_simd.h"

void qn_gdn_row_kernels_init_neon(qn_gdn_row_kernels *rows)
{
    row_kernels_init_simd(rows);
}
