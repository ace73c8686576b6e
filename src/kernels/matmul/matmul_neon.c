/* The matmul for ARMv8.0. */
#define QN_V16_NEON
enum { TILE_ROWS = 2, TILE_TOKENS = 3 };

#include "kernels/matmul/gemv_neon.h"

void qn_matmul_init_neon(qn_matmul_kernels *kernels)
{
    matmul_fill_neon(kernels);
}
