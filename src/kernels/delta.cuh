// Device functions for one token of a Gated DeltaNet layer: convolution over the last inputs, gates, norms of keys and
// queries, and the delta rule for a row of the state. For the separate kernel (deltanet/deltanet_step.cu) and the
// persistent decode kernel. In float32; deltanet/deltanet_cuda.h has the formulas and the layout of a session's state.
#ifndef QN_KERNELS_DELTA_CUH
#define QN_KERNELS_DELTA_CUH

#include "kernels/sigmoid.cuh"

#define QN_DELTA_MAX_TAPS 8

// Log of the decay: g = softplus(alpha + bias) * factor.
QN_DEVICE float qn_delta_log_decay(float alpha, float bias, float factor)
{
    const float x = alpha + bias;
    return (x > 20.0f ? x : log1pf(expf(x))) * factor;
}

// Adds the taps for the inputs of `first` down to `last` tokens ago. slot: the current position's row of the ring.
template <uint32_t first, uint32_t last>
QN_DEVICE float qn_delta_convolve_taps(float sum, const float *conv, const float *ring, uint32_t position, uint32_t slot,
                                       uint32_t taps, uint32_t width, uint32_t channel)
{
    float weights[first - last + 1], inputs[first - last + 1];
#pragma unroll
    for (uint32_t back = first; back >= last; back--) {
        const bool valid = back < taps && back <= position;
        const uint32_t row = slot >= back ? slot - back : slot + taps - back;
        weights[first - back] = valid ? conv[(taps - 1 - back) * width + channel] : 0;
        inputs[first - back] = valid ? ring[row * width + channel] : 0;
    }
#pragma unroll
    for (uint32_t back = first; back >= last; back--)
        if (back < taps && back <= position)
            sum = fmaf(weights[first - back], inputs[first - back], sum);
    return sum;
}

// The part of a channel's convolution that comes from the inputs before the token at `position`. The loads of several
// taps are in flight before the first result is used.
QN_DEVICE float qn_delta_convolve_past(const float *conv, const float *ring, uint32_t position, uint32_t slot, uint32_t taps,
                                       uint32_t width, uint32_t channel)
{
    float sum = 0;
    if (taps > 4)
        sum = qn_delta_convolve_taps<QN_DELTA_MAX_TAPS - 1, 4>(sum, conv, ring, position, slot, taps, width, channel);
    return qn_delta_convolve_taps<3, 1>(sum, conv, ring, position, slot, taps, width, channel);
}

// Completes the convolution with the token's own input and its tap, and applies SiLU.
QN_DEVICE float qn_delta_convolve(float past, float weight, float input)
{
    const float sum = fmaf(weight, input, past);
    return sum * qn_sigmoid(sum);
}

// Inverse l2 norms of a key and a query, and the dot product of the normalised key and query.
struct qn_delta_qk_norms {
    float q_inv_norm, k_inv_norm, kq;
};

// By a full warp, redundantly in every warp. q, k: outputs of the convolution, in shared memory.
template <uint32_t head_k> QN_DEVICE qn_delta_qk_norms qn_delta_compute_qk_norms(const float *q, const float *k, bool normalize)
{
    float qq = 0, kk = 0, kq = 0;
    for (uint32_t i = threadIdx.x % QN_WARP_SIZE; i < head_k; i += QN_WARP_SIZE) {
        qq = fmaf(q[i], q[i], qq);
        kk = fmaf(k[i], k[i], kk);
        kq = fmaf(k[i], q[i], kq);
    }
    qn_delta_qk_norms s;
    s.q_inv_norm = normalize ? 1.0f / sqrtf(qn_warp_sum(qq) + 1e-6f) : 1.0f;
    s.k_inv_norm = normalize ? 1.0f / sqrtf(qn_warp_sum(kk) + 1e-6f) : 1.0f;
    s.kq = qn_warp_sum(kq) * s.q_inv_norm * s.k_inv_norm;
    return s;
}

QN_DEVICE float qn_delta_dot(float4 x, float4 y, float sum)
{
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

// A lane's part of the dot products of a row of the state with the key and the query, to be summed over the lanes. A
// row is the keys of one value; groups of 4 keys are interleaved over `lanes` lanes.
template <int lanes, int vecs>
QN_DEVICE void qn_delta_dots(const float4 s[vecs], const float *q, const float *k, float &k_read, float &q_read)
{
    const uint32_t lane = threadIdx.x % lanes;
    k_read = q_read = 0;
#pragma unroll
    for (int i = 0; i < vecs; i++) {
        k_read = qn_delta_dot(s[i], *(const float4 *)(k + (i * lanes + lane) * 4), k_read);
        q_read = qn_delta_dot(s[i], *(const float4 *)(q + (i * lanes + lane) * 4), q_read);
    }
}

// S = decay S + delta_v k^T.
template <int lanes, int vecs> QN_DEVICE void qn_delta_update(float4 s[vecs], const float *k, float decay, float delta_v)
{
#pragma unroll
    for (int i = 0; i < vecs; i++) {
        const float4 key = *(const float4 *)(k + (i * lanes + threadIdx.x % lanes) * 4);
        s[i].x = fmaf(delta_v, key.x, decay * s[i].x);
        s[i].y = fmaf(delta_v, key.y, decay * s[i].y);
        s[i].z = fmaf(delta_v, key.z, decay * s[i].z);
        s[i].w = fmaf(delta_v, key.w, decay * s[i].w);
    }
}

// The delta rule for one row: S = e^g S + v' k^T with v' = beta (v - e^g S k). Returns the row's S q for the new state,
// computed from the old one: e^g S q + v' (k q).
template <int lanes, int vecs>
QN_DEVICE float qn_delta_row(float4 s[vecs], const float *q, const float *k, const qn_delta_qk_norms &keys, float decay,
                             float beta, float v)
{
    float k_read, q_read;
    qn_delta_dots<lanes, vecs>(s, q, k, k_read, q_read);
    k_read = qn_lanes_sum<1, lanes>(k_read) * (keys.k_inv_norm * decay);
    q_read = qn_lanes_sum<1, lanes>(q_read) * (keys.q_inv_norm * decay);
    const float v_new = beta * (v - k_read);
    qn_delta_update<lanes, vecs>(s, k, decay, v_new * keys.k_inv_norm);
    return fmaf(v_new, keys.kq, q_read);
}

// Loads a row; zeros if `row` is null.
template <int lanes, int vecs> QN_DEVICE void qn_delta_load_row(float4 s[vecs], const float *row)
{
#pragma unroll
    for (int i = 0; i < vecs; i++)
        s[i] = row ? *(const float4 *)(row + (i * lanes + threadIdx.x % lanes) * 4) : make_float4(0, 0, 0, 0);
}

template <int lanes, int vecs> QN_DEVICE void qn_delta_store_row(float *row, const float4 s[vecs])
{
#pragma unroll
    for (int i = 0; i < vecs; i++)
        *(float4 *)(row + (i * lanes + threadIdx.x % lanes) * 4) = s[i];
}

#endif
