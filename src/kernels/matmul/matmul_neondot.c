/* The matmul for ARMv8.2 with dot product instructions. */
#define QN_V16_NEON
#define QN_V16_DOTPROD
enum { TILE_ROWS = 4, TILE_TOKENS = 3 };

#include "kernels/matmul/gemv_neon.h"

void qn_matmul_init_neondot(qn_matmul_kernels *kernels)
{
    matmul_fill_neon(kernels);
}
