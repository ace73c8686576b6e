// Bit planes of activations: a warp has four columns in each lane, as bytes.
#ifndef QN_CUDA_KERNELS_PLANES_CUH
#define QN_CUDA_KERNELS_PLANES_CUH

#include "cuda/kernels/cuda.cuh"

// Transposes bits between the four lanes that are 8 apart. They hold the same columns of four 32-column groups, j =
// lane / 8, one byte for each of four columns. Lane j receives, of all four groups, plane j in the low nibble of each
// byte and plane 4 + j in the high nibble.
QN_DEVICE uint32_t gather_planes(uint32_t bytes, uint32_t lane)
{
    uint32_t other = __shfl_xor_sync(QN_FULL_MASK, bytes, 8);
    bytes = lane & 8 ? (other >> 1 & 0x55555555u) | (bytes & 0xaaaaaaaau) : (bytes & 0x55555555u) | (other << 1 & 0xaaaaaaaau);
    other = __shfl_xor_sync(QN_FULL_MASK, bytes, 16);
    return lane & 16 ? (other >> 2 & 0x33333333u) | (bytes & 0xccccccccu) : (bytes & 0x33333333u) | (other << 2 & 0xccccccccu);
}

// Spreads the low nibble of each byte to its even bits.
QN_DEVICE uint32_t spread_nibbles(uint32_t w)
{
    w = (w | w << 2) & 0x33333333u;
    return (w | w << 1) & 0x55555555u;
}

#endif
