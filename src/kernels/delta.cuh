// A token through a Gated DeltaNet layer, piece by piece: convolution over the last inputs, gates, norms of keys and queries,
// and the delta rule for a row of the state. For the kernels that do all of it (deltanet/deltanet_step.cu) and for those that
// do it on the way to something else (chain/). In float32; deltanet/deltanet_cuda.h says what is computed, and what a session
// keeps.
#ifndef QN_KERNELS_DELTA_CUH
#define QN_KERNELS_DELTA_CUH

#include "kernels/cuda.cuh"

#define QN_DELTA_MAX_TAPS 8

QN_DEVICE float qn_delta_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

// The log of how much of the state is kept.
QN_DEVICE float qn_delta_decay(float alpha, float bias, float factor)
{
    const float x = alpha + bias;
    return (x > 20.0f ? x : log1pf(expf(x))) * factor;
}

// The taps from `first` down to `last` back; place: of the position in the ring.
template <uint32_t first, uint32_t last>
QN_DEVICE float qn_delta_convolve_taps(float sum, const float *conv, const float *ring, uint32_t position, uint32_t place,
                                       uint32_t taps, uint32_t width, uint32_t channel)
{
    float weights[first - last + 1], inputs[first - last + 1];
#pragma unroll
    for (uint32_t back = first; back >= last; back--) {
        const bool there = back < taps && back <= position;
        const uint32_t row = place >= back ? place - back : place + taps - back;
        weights[first - back] = there ? conv[(taps - 1 - back) * width + channel] : 0;
        inputs[first - back] = there ? ring[row * width + channel] : 0;
    }
#pragma unroll
    for (uint32_t back = first; back >= last; back--)
        if (back < taps && back <= position)
            sum = fmaf(weights[first - back], inputs[first - back], sum);
    return sum;
}

// What the inputs before the token at `position` give to a channel's convolution: loads of several taps are on their way before
// the first is used.
QN_DEVICE float qn_delta_convolve_past(const float *conv, const float *ring, uint32_t position, uint32_t place, uint32_t taps,
                                       uint32_t width, uint32_t channel)
{
    float sum = 0;
    if (taps > 4)
        sum = qn_delta_convolve_taps<QN_DELTA_MAX_TAPS - 1, 4>(sum, conv, ring, position, place, taps, width, channel);
    return qn_delta_convolve_taps<3, 1>(sum, conv, ring, position, place, taps, width, channel);
}

// With the token's own input and its tap's weight, and through SiLU.
QN_DEVICE float qn_delta_convolve(float past, float weight, float input)
{
    const float sum = fmaf(weight, input, past);
    return sum * qn_delta_sigmoid(sum);
}

// Of a key and a query in shared memory, what a token needs: factors that norm them, and their product when normed.
struct qn_delta_keys {
    float q_norm, k_norm, kq;
};

// Every warp computes them for itself; q and k as they come from the convolution.
template <uint32_t head_k> QN_DEVICE qn_delta_keys qn_delta_keys_of(const float *q, const float *k, bool normalize)
{
    float qq = 0, kk = 0, kq = 0;
    for (uint32_t i = threadIdx.x % QN_WARP; i < head_k; i += QN_WARP) {
        qq = fmaf(q[i], q[i], qq);
        kk = fmaf(k[i], k[i], kk);
        kq = fmaf(k[i], q[i], kq);
    }
    qn_delta_keys s;
    s.q_norm = normalize ? 1.0f / sqrtf(qn_warp_sum(qq) + 1e-6f) : 1.0f;
    s.k_norm = normalize ? 1.0f / sqrtf(qn_warp_sum(kk) + 1e-6f) : 1.0f;
    s.kq = qn_warp_sum(kq) * s.q_norm * s.k_norm;
    return s;
}

QN_DEVICE float qn_delta_dot(float4 x, float4 y, float sum)
{
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

// Over the `lanes` neighbouring lanes that a row belongs to.
template <int lanes> QN_DEVICE float qn_delta_lanes_sum(float x)
{
#pragma unroll
    for (int distance = 1; distance < lanes; distance *= 2)
        x += __shfl_xor_sync(QN_ALL_LANES, x, distance);
    return x;
}

// Of a lane's part of the state's row, which is a value's keys, runs of 4 keys in turn in each of `lanes` lanes: its products
// with key and query, to be added up over the lanes.
template <int lanes, int runs>
QN_DEVICE void qn_delta_dots(const float4 s[runs], const float *q, const float *k, float &recalled, float &read)
{
    const uint32_t lane = threadIdx.x % lanes;
    recalled = read = 0;
#pragma unroll
    for (int i = 0; i < runs; i++) {
        recalled = qn_delta_dot(s[i], *(const float4 *)(k + (i * lanes + lane) * 4), recalled);
        read = qn_delta_dot(s[i], *(const float4 *)(q + (i * lanes + lane) * 4), read);
    }
}

// S = decay S + times k^T.
template <int lanes, int runs> QN_DEVICE void qn_delta_update(float4 s[runs], const float *k, float decay, float times)
{
#pragma unroll
    for (int i = 0; i < runs; i++) {
        const float4 key = *(const float4 *)(k + (i * lanes + threadIdx.x % lanes) * 4);
        s[i].x = fmaf(times, key.x, decay * s[i].x);
        s[i].y = fmaf(times, key.y, decay * s[i].y);
        s[i].z = fmaf(times, key.z, decay * s[i].z);
        s[i].w = fmaf(times, key.w, decay * s[i].w);
    }
}

// A token through a row: S = e^g S + v' k^T with v' = beta (v - e^g S k), and the row's S q. S q is taken from the old state,
// as the new one's is e^g S q + v' (k q).
template <int lanes, int runs>
QN_DEVICE float qn_delta_row(float4 s[runs], const float *q, const float *k, const qn_delta_keys &keys, float decay, float beta,
                             float v)
{
    float recalled, read;
    qn_delta_dots<lanes, runs>(s, q, k, recalled, read);
    recalled = qn_delta_lanes_sum<lanes>(recalled) * (keys.k_norm * decay);
    read = qn_delta_lanes_sum<lanes>(read) * (keys.q_norm * decay);
    const float corrected = beta * (v - recalled);
    qn_delta_update<lanes, runs>(s, k, decay, corrected * keys.k_norm);
    return fmaf(corrected, keys.kq, read);
}

// Zeros where `row` is null.
template <int lanes, int runs> QN_DEVICE void qn_delta_load_row(float4 s[runs], const float *row)
{
#pragma unroll
    for (int i = 0; i < runs; i++)
        s[i] = row ? *(const float4 *)(row + (i * lanes + threadIdx.x % lanes) * 4) : make_float4(0, 0, 0, 0);
}

template <int lanes, int runs> QN_DEVICE void qn_delta_store_row(float *row, const float4 s[runs])
{
#pragma unroll
    for (int i = 0; i < runs; i++)
        *(float4 *)(row + (i * lanes + threadIdx.x % lanes) * 4) = s[i];
}

#endif
