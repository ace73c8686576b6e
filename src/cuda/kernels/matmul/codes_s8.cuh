// Codes of 1 and 2 bits as int8, for MMAs with hi/lo int8 activations of several tokens (QN_ACTS_HILO). Defines:
// QN_BITS.
#ifndef QN_CUDA_KERNELS_MATMUL_CODES_S8_CUH
#define QN_CUDA_KERNELS_MATMUL_CODES_S8_CUH

#include "cuda/kernels/cuda.cuh"

// Of the codes of a group, shifted to the high bits of their bytes. To be kept in a register: mask and exclusive or are
// one instruction then, which takes one constant.
#define CODE_MASK (QN_BITS == 1 ? 0x80808080u : 0xc0c0c0c0u)

// The first step of unpacking: the words of a fragment with the codes of a group in the high bits of their bytes.
QN_DEVICE void shift_group(uint32_t shifted[4], const uint4 &fragment, int group)
{
    const uint32_t words[4] = { fragment.x, fragment.y, fragment.z, fragment.w };
#pragma unroll
    for (int i = 0; i < 4; i++)
        shifted[i] = words[i] << (8 - QN_BITS * (1 + group % (8 / QN_BITS)));
}

// The second step: the A fragment of the group, codes minus their zero point: of 1 bit times 64, of 2 bits times -64.
// As bits of an int8, a code c1 c0 of 2 bits is -128 c1 + 64 c0, and inverting c0 makes of it 64 - 64 (2 c1 + c0).
QN_DEVICE void mask_group(uint32_t a[4], const uint32_t shifted[4], uint32_t mask)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = (shifted[i] & mask) ^ (QN_BITS == 1 ? 0xc0c0c0c0u : 0x40404040u);
}

// Both steps.
QN_DEVICE void unpack_group(uint32_t a[4], const uint4 &fragment, int group, uint32_t mask)
{
    uint32_t shifted[4];
    shift_group(shifted, fragment, group);
    mask_group(a, shifted, mask);
}

// A weight scale of products of these codes, whose activations have scales for codes times 64.
QN_DEVICE float code_scale(float scale)
{
    return QN_BITS == 1 ? scale : -scale;
}

#endif
