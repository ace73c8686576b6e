// What the kernels that quantise activations share: the operation fused before the matmul, and the quantisation of a
// group to int8. Defines: QN_OP.
#ifndef QN_KERNELS_MATMUL_ACTS_CUH
#define QN_KERNELS_MATMUL_ACTS_CUH

#include "kernels/matmul/hilo.cuh"
#include "kernels/sigmoid.cuh"

// QN_OP of one element. other: its norm weight or its second factor; scale: 1 / RMS of the row.
QN_DEVICE float apply_op(float x, float other, float scale)
{
#if QN_OP == QN_ACTS_OP_RMS_NORM
    return x * scale * other;
#elif QN_OP == QN_ACTS_OP_SWIGLU
    return qn_silu(x) * other;
#else
    return x;
#endif
}

// Quantises a group of 32 values, one per lane, by the rule of matmul.h; every lane gets the scale and the sum of
// codes.
QN_DEVICE int quantize_group(float x, float *scale, int *sum)
{
    const uint32_t bits = __reduce_max_sync(QN_FULL_MASK, MAGNITUDE(x));
    const float amax = __uint_as_float(bits);
    const bool finite = bits < INF_BITS, zero = !finite || amax < MIN_GROUP_ABSMAX;
    const int code = zero ? 0 : __float2int_rn(x * (127.0f / amax));
    *scale = finite ? (zero ? 0 : amax * (1.0f / 127)) : QN_NAN;
    *sum = __reduce_add_sync(QN_FULL_MASK, code);
    return code;
}

#endif
