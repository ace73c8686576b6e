/* What the kernels of sampling share: a row's parameters, and the order and the weights of its tokens, which are those of
 * the host (plan/sampling.h). */
#extension GL_EXT_control_flow_attributes : require
#include "exact.glsl"

#define SLICES 128 /* QN_VK_SAMPLE_SLICES */
#define BINS 512   /* QN_VK_SAMPLE_BINS */
#define ARGMAX 1   /* QN_VK_SAMPLE_* */
#define DRAW 2
#define LOWEST_LOGIT uintBitsToFloat(0xff800000)

/* qn_vk_sample_params */
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Params {
    uvec2 random, entries, allowed, raw;
    float repeat, frequency, presence;
    float inverse, top_p, min_p, bins_per_unit;
    uint weight_bits, first_edge, last_edge, kind, top_k, n_entries, pad;
};

/* qn_vk_sample_state: best keys of slices; tokens, and sums of their weights, of each bin. */
layout(buffer_reference, std430, buffer_reference_align = 8) coherent buffer State {
    uvec2 best[SLICES];
    uint counts[BINS], low[BINS], high[BINS];
};

/* qn_vk_sample_result */
layout(buffer_reference, std430, buffer_reference_align = 8) buffer Result {
    uvec2 best;
    int token;
};

layout(push_constant) uniform Args {
    uvec2 logits; /* [rows][n] */
    uvec2 params, states, results;
    uvec2 tokens; /* [rows] */
    uint n, n_slices;
};

#define PARAMS_BYTES 88
#define STATE_BYTES (8 * SLICES + 12 * BINS)
#define RESULT_BYTES 16

Params params_of(uint row)
{
    return Params(advance(params, row, PARAMS_BYTES));
}

State state_of(uint row)
{
    return State(advance(states, row, STATE_BYTES));
}

/* ---- Keys: larger for a larger logit, of equal ones for the lower token; NaN is above all ---- */

uint ordered(float x)
{
    const uint bits = floatBitsToUint(x), magnitude = bits & 0x7fffffff;
    return magnitude > 0x7f800000 ? 0xffffffff : magnitude == 0 ? 0x80000000 : bits >> 31 != 0 ? ~bits : bits | 0x80000000;
}

uvec2 key_of(float x, uint token)
{
    return uvec2(~token, ordered(x));
}

float logit_of(uint ordered_)
{
    return uintBitsToFloat(ordered_ >> 31 != 0 ? ordered_ & 0x7fffffff : ~ordered_);
}

bool is_finite_key(uvec2 key)
{
    return (floatBitsToUint(logit_of(key.y)) & 0x7fffffff) < 0x7f800000;
}

shared uint most_high, most_low;

/* The largest key of all lanes. */
uvec2 max_of_lanes(uvec2 key)
{
    barrier();
    if (gl_LocalInvocationIndex == 0)
        most_high = most_low = 0;
    barrier();
    atomicMax(most_high, key.y);
    barrier();
    if (key.y == most_high)
        atomicMax(most_low, key.x);
    barrier();
    return uvec2(most_low, most_high);
}

/* The largest key of a row, from its slices. */
uvec2 max_of_slices(uint row)
{
    uvec2 best = uvec2(0);
    for (uint i = gl_LocalInvocationIndex; i < n_slices; i += LANES) {
        const uvec2 key = state_of(row).best[i];
        best = less64(best, key) ? key : best;
    }
    return max_of_lanes(best);
}

/* ---- Weights ---- */

struct Scale {
    float largest, inverse, bins_per_unit;
    uint bits;
};

float distance_of(Scale s, float x)
{
    precise const float distance = (x - s.largest) * s.inverse;
    return distance;
}

/* Ascends with the distance from the largest logit. From BINS on all weights are 0. */
uint bin_of(Scale s, float x)
{
    precise const float bin = -distance_of(s, x) * s.bins_per_unit;
    return bin < float(BINS) ? uint(bin) : BINS;
}

/* As a float, and as an integer in units of 2^-bits. */
float raw_weight(Scale s, float x)
{
    return exp_like_host(distance_of(s, x));
}

uvec2 units_of(Scale s, float weight)
{
    const uint bits = floatBitsToUint(weight), mantissa = bits & 0x7fffff | 0x800000;
    const int shift = int(bits >> 23) - 150 + int(s.bits);
    return shift >= 0 ? shift_left(uvec2(mantissa, 0), uint(shift)) : shift > -24 ? uvec2(mantissa >> -shift, 0) : uvec2(0);
}

Scale scale_of(Params p, uvec2 best)
{
    return Scale(logit_of(best.y), p.inverse, p.bins_per_unit, p.weight_bits);
}
