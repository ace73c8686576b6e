/* The matmul for AVX2 with AVX-VNNI's dpbusd. */
#define QN_V16_AVX2
#define QN_V16_AVXVNNI
enum { TILE_ROWS = 2, TILE_TOKENS = 2 };

#include "kernels/matmul/gemm_avx2.h"

void qn_matmul_init_avxvnni(qn_matmul_kernels *kernels)
{
    matmul_fill_avx2(kernels);
}
