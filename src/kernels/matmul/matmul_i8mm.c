/* The matmul for ARMv8.6 with int8 matrix multiplication: GEMM tiles by smmla, the rest by dot product instructions. */
#define QN_V16_NEON
#define QN_V16_DOTPROD
#define QN_V16_I8MM
enum { TILE_ROWS = 4, TILE_TOKENS = 3 };

#include "kernels/matmul/gemv_neon.h"

void qn_matmul_init_i8mm(qn_matmul_kernels *kernels)
{
    matmul_fill_neon(kernels);
}
