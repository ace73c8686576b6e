/* The matmul for AVX2: integer multiply-adds by maddubs and madd. */
#define QN_V16_AVX2
enum { TILE_ROWS = 2, TILE_TOKENS = 2 };

#include "kernels/matmul/gemm_avx2.h"

void qn_matmul_init_avx2(qn_matmul_kernels *kernels)
{
    matmul_fill_avx2(kernels);
}
