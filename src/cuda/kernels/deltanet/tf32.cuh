// tf32 MMA in the Gated DeltaNet kernels.
#ifndef QN_CUDA_KERNELS_DELTANET_TF32_CUH
#define QN_CUDA_KERNELS_DELTANET_TF32_CUH

#include "cuda/kernels/cuda.cuh"

// Rounds to the nearest of tf32, ties away from zero, for finite values. The MMA ignores the low 13 bits. One addition,
// where cvt.rna.tf32 takes four instructions on sm_90.
QN_DEVICE uint32_t to_tf32(float x)
{
    return __float_as_uint(x) + 0x1000;
}

// d += a b.
QN_DEVICE void mma_m16n8k8_tf32(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#endif
