// Attention over codes by groups of warps: a group of SLICES warps processes SLICES tiles at a time. Each warp computes the
// scores of its own tile, over all dimensions, and then accumulates the values of all tiles of the group, in its own slice
// of the dimensions. Here are the coordinates of a thread, the barriers, and the softmax of a group. For decode_codes.cu
// and the persistent decode kernel; TEAMS is the number of teams of QN_WARPS warps in a block.
#ifndef QN_CUDA_KERNELS_ATTENTION_SLICES_CUH
#define QN_CUDA_KERNELS_ATTENTION_SLICES_CUH

#include "cuda/kernels/attend.cuh"

#define SLICES (DIM % 64 == 0 ? DIM / 64 : 1) // of the dimensions; warps of a group
#define SLICE_DIMS (DIM / SLICES)
#define GROUPS (QN_WARPS / SLICES)

static_assert(QN_WARPS % SLICES == 0, "groups have as many warps as a head has slices");

// A thread's place in its team; `t` and `g` as in thread_coord.
struct team_coord : thread_coord {
    int team, group, slice;
};

// Shared memory of a team.
struct slice_buffers {
    uint2 weights[QN_WARPS][QN_WARP_SIZE]; // softmax weights of a tile, operand B of the values
    float value_maxima[QN_WARPS][4];       // the first of each four: the largest value scale of a tile
};

QN_DEVICE void named_barrier(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

QN_DEVICE void team_barrier(const team_coord &p)
{
    named_barrier(1 + p.team, THREADS);
}

QN_DEVICE void group_barrier(const team_coord &p)
{
    if (SLICES == 1)
        __syncwarp();
    else if (GROUPS == 1)
        team_barrier(p);
    else
        named_barrier(1 + TEAMS + p.team * GROUPS + p.group, SLICES * QN_WARP_SIZE);
}

// ---- Softmax of a group ----

// The largest scores and value scale of the warp's tile, to shared memory.
template <bool scaled>
QN_DEVICE void publish_maxima(const tile_scores &scores, shared &s, slice_buffers &b, const team_coord &p)
{
    const float *x = scores.x;
    const float largest[2] = { qn_lanes_max<4, QN_WARP_SIZE>(fmaxf(x[0], x[2])),
                               qn_lanes_max<4, QN_WARP_SIZE>(fmaxf(x[1], x[3])) };
    if (p.g == 0)
        *(float2 *)&s.m[p.warp][2 * p.t] = make_float2(largest[0], largest[1]);
    if (scaled) {
        const float value = qn_lanes_max<4, QN_WARP_SIZE>(fmaxf(scores.value_scales[0], scores.value_scales[1]));
        if (p.lane == 0)
            b.value_maxima[p.warp][0] = value;
    }
}

// The weights of the warp's tile, relative to the maximum of the group so far, to shared memory, when all maxima of the
// group are there. factor: of the accumulators.
template <bool scaled>
QN_DEVICE void compute_group_weights(float factor[2], softmax_state &state, bool first, const tile_scores &scores,
                                     const shared &s, slice_buffers &b, const team_coord &p)
{
    const float *x = scores.x;
    float raised[2] = { state.m[0], state.m[1] }, value = 0;
#pragma unroll
    for (int i = 0; i < SLICES; i++) {
        const float2 m = *(const float2 *)&s.m[p.group * SLICES + i][2 * p.t];
        raised[0] = fmaxf(raised[0], m.x);
        raised[1] = fmaxf(raised[1], m.y);
        if (scaled)
            value = fmaxf(value, b.value_maxima[p.group * SLICES + i][0]);
    }
    float weight[4];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        factor[i] = qn_exp2(state.m[i] - raised[i]);
        state.m[i] = raised[i];
        weight[i] = qn_exp2(x[i] - raised[i]);
        weight[2 + i] = qn_exp2(x[2 + i] - raised[i]);
        state.l[i] = state.l[i] * factor[i] + (weight[i] + weight[2 + i]);
    }
    if (scaled && (first || value * state.value_scale_factor > MAX_SCALED_VALUE)) {
        const uint32_t exponent = __float_as_uint(value) >> 23;
        const bool is_normal = exponent > 0 && exponent < 254;
        const float new_scale = is_normal ? __uint_as_float((254 - exponent) << 23) : 1;
        factor[0] *= new_scale * state.value_scale_unit;
        factor[1] *= new_scale * state.value_scale_unit;
        state.value_scale_factor = new_scale;
        state.value_scale_unit = is_normal ? __uint_as_float(exponent << 23) : 1;
    }
    uint32_t weights[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float value_factor = scaled ? scores.value_scales[i] * state.value_scale_factor : 1;
        weights[i] = qn_transpose_8x8(qn_f32_to_f16x2(weight[2 * i] * value_factor, weight[2 * i + 1] * value_factor));
    }
    b.weights[p.warp][p.lane] = make_uint2(weights[0], weights[1]);
}

// The weights of the warp's tile, as compute_group_weights has them. Between the two barriers of the group, after which
// all weights are there, are before_weights() and after_weights().
template <bool scaled, class before, class after>
QN_DEVICE void softmax_group(float factor[2], softmax_state &state, bool first, const tile_scores &scores, shared &s,
                             slice_buffers &b, const team_coord &p, before before_weights, after after_weights)
{
    publish_maxima<scaled>(scores, s, b, p);
    group_barrier(p);
    before_weights();
    compute_group_weights<scaled>(factor, state, first, scores, s, b, p);
    after_weights();
    group_barrier(p);
}

QN_DEVICE void begin_slice(softmax_state &state, float (*acc)[4])
{
#pragma unroll
    for (int i = 0; i < SLICE_DIMS / 16; i++)
        acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    state = { { LOWEST, LOWEST }, { 0, 0 }, { LOWEST, LOWEST }, 1, 1 };
}

QN_DEVICE void scale_slice(float (*acc)[4], const float factor[2])
{
#pragma unroll
    for (int i = 0; i < SLICE_DIMS / 16; i++) {
        acc[i][0] *= factor[0];
        acc[i][1] *= factor[1];
        acc[i][2] *= factor[0];
        acc[i][3] *= factor[1];
    }
}

#endif
