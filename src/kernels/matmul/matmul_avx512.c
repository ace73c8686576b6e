/* The matrix product for AVX-512 with VNNI: twelve int32 and twelve float sums live in registers. */
#define QN_V16_AVX512
#define VARIANT "avx512"
enum { TILE_ROWS = 4, TILE_TOKENS = 3 };

#include "kernels/matmul/matmul_simd.h"

void qn_matmul_init_avx512(qn_matmul_kernels *kernels)
{
    matmul_fill(kernels);
}
