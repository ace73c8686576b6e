/* Conversions and the step of the delta rule for NEON. */
#define QN_V16_NEON

#include "kernels/deltanet/rows_simd.h"

void qn_gdn_rows_init_neon(qn_gdn_rows *rows)
{
    rows_fill(rows);
}
