// The prologues of GEMVs in the persistent decode kernel, 128 columns a warp: norm, SwiGLU, gated norm or combine, and
// the Walsh-Hadamard transform. The kernels quantise the results.
#ifndef QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_PROLOGUE_CUH
#define QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_PROLOGUE_CUH

#include "cuda/kernels/butterflies.cuh"
#include "cuda/kernels/persistent/persistent_attention.cuh"
#include "cuda/kernels/persistent/persistent_delta.cuh"

#define WARP_COLS (4 * QN_WARP_SIZE) // activations that a warp computes at once

// Elements c to c+3 of split-K partials, reduced and multiplied by the norm's factor. By full warps.
template <int count> QN_DEVICE float4 load_scaled_partials(const qn_persistent_partials &p, uint32_t c, float sumsq, bool pred)
{
    partial_loads_4<count> loads;
    issue_partials_4(loads, p, c, 0, pred);
    const float factor = rms_scale(p, sumsq);
    return scale_4(finish_partials_4(loads, p, c, pred), factor);
}

// Columns c to c+3 of the element-wise prologues: PLAIN, RMS_NORM, SWIGLU. RMS_NORM adds the squares of x + from to
// `square`, and with store_x stores x + from to x_out. All loads are issued before the first result is used.
QN_DEVICE float4 prologue_elementwise(const qn_persistent_gemv &s, uint32_t c, bool store_x, float &square)
{
    const uint32_t prologue = s.prologue;
    const bool in_range = c < s.n_cols;
    const float sumsq = rms_sumsq(s.from);
    if (prologue == QN_PROLOGUE_SWIGLU) {
        partial_loads_4<6> loads, loads2;
        issue_partials_4(loads, s.from, s.row + c, 0, in_range);
        issue_partials_4(loads2, s.from, s.row2 + c, 0, in_range);
        const float factor = rms_scale(s.from, sumsq);
        const float4 gate = scale_4(finish_partials_4(loads, s.from, s.row + c, in_range), factor);
        const float4 up = scale_4(finish_partials_4(loads2, s.from, s.row2 + c, in_range), factor);
        return make_float4(qn_silu_fast(gate.x) * up.x, qn_silu_fast(gate.y) * up.y, qn_silu_fast(gate.z) * up.z,
                           qn_silu_fast(gate.w) * up.w);
    }
    float4 x = load_cg_4_if(s.x + c, in_range);
    if (prologue == QN_PROLOGUE_PLAIN)
        return x;
    const float4 weight = load_cg_4_if(s.weight + c, in_range);
    const float4 addend = s.from.n_partials <= 6 ? load_scaled_partials<6>(s.from, c, sumsq, in_range)
                                                 : load_scaled_partials<12>(s.from, c, sumsq, in_range);
    x = add_4(x, addend);
    if (store_x && in_range)
        *(float4 *)(s.x_out + c) = x;
    square += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
    return make_float4(x.x * weight.x, x.y * weight.y, x.z * weight.z, x.w * weight.w);
}

// The butterflies of a Walsh-Hadamard transform in blocks of `rotation` columns whose strides are below 128, within a
// warp. Four adjacent columns a lane.
QN_DEVICE float4 hadamard_in_warp(float4 x, uint32_t rotation, uint32_t lane)
{
    float v[4] = { x.x, x.y, x.z, x.w };
    qn_butterflies<1, 4>(v);
    qn_butterflies<2, 4>(v);
    const uint32_t lanes = rotation < WARP_COLS ? rotation / 4 : QN_WARP_SIZE;
#pragma unroll 1
    for (uint32_t distance = 1; distance < lanes; distance *= 2) {
        const float sign = lane & distance ? -1.0f : 1.0f; // the upper lane keeps the difference
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = fmaf(v[i], sign, __shfl_xor_sync(QN_FULL_MASK, v[i], distance));
    }
    return make_float4(v[0], v[1], v[2], v[3]);
}

// The remaining butterflies, strides of 128 and more: columns within to within+3 of group `group` of a block of `count`
// groups of 128 columns, each already transformed by itself. Each step combines adjacent groups; a bit of the
// group's index selects the sum or the difference.
template <int count> QN_DEVICE float4 hadamard_over_groups(const float *block, uint32_t group, uint32_t within)
{
    float4 v[count];
#pragma unroll
    for (int j = 0; j < count; j++)
        v[j] = *(const float4 *)(block + j * WARP_COLS + within);
#pragma unroll
    for (int n = count / 2, bit = 1; n > 0; n /= 2, bit *= 2)
#pragma unroll
        for (int j = 0; j < n; j++)
            v[j] = add_4(v[2 * j], scale_4(v[2 * j + 1], group & bit ? -1.0f : 1.0f));
    return v[0];
}

// The same for `rotation` columns, 256 to 1024.
QN_DEVICE float4 hadamard_over_groups(const float *block, uint32_t group, uint32_t rotation, uint32_t within)
{
    return rotation == 256   ? hadamard_over_groups<2>(block, group, within)
           : rotation == 512 ? hadamard_over_groups<4>(block, group, within)
                             : hadamard_over_groups<8>(block, group, within);
}

// Columns first + 4*lane to first + 4*lane + 3 of a GEMV's prologue, by a full warp. RMS_NORM adds the squares of x +
// from to `square`, and with store_x stores x + from to x_out.
QN_DEVICE float4 run_prologue(const qn_persistent_gemv &s, uint32_t position, uint32_t first, bool store_x, float &square,
                              uint32_t lane)
{
    if (s.prologue == QN_PROLOGUE_GATED_NORM)
        return prologue_gated_norm(s, first, lane);
    if (s.prologue == QN_PROLOGUE_ATTENTION_COMBINE)
        return prologue_attention_combine(s, position, first, lane);
    return prologue_elementwise(s, first + 4 * lane, store_x, square);
}

#endif
