// Codes of 1 and 2 bits as int8, for MMAs with hi/lo int8 activations of several tokens (QN_ACTS_HILO). Defines: QN_BITS.
#ifndef QN_KERNELS_MATMUL_CODES_S8_CUH
#define QN_KERNELS_MATMUL_CODES_S8_CUH

#include "kernels/cuda.cuh"

// The A fragment of a group: codes minus their zero point, times 64 (1 bit) or 32. With a constant in a register, mask and
// exclusive or are one instruction, which takes one constant.
QN_DEVICE void unpack_group(uint32_t a[4], const uint4 &fragment, int group, uint32_t high_bits)
{
    const uint32_t words[4] = { fragment.x, fragment.y, fragment.z, fragment.w };
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (QN_BITS == 1) {
            a[i] = (words[i] << (7 - group) & high_bits) ^ 0xc0c0c0c0u;
        } else {
            const int shift = 5 - 2 * (group % 4);
            const uint32_t codes = shift < 0 ? words[i] >> 1 : words[i] << (shift < 0 ? 0 : shift);
            a[i] = ((codes & 0x60606060u | high_bits) - 0x20202020u) ^ high_bits; // byte by byte: no borrow leaves one
        }
    }
}

// What the scales of activations, which are for codes times 64, have to be multiplied by.
#define CODE_FACTOR (QN_BITS == 1 ? 1.0f : 2.0f)

#endif
