// Device functions for one token of a Gated DeltaNet layer: gates, norms of keys and queries, the delta rule for a row
// of the state, and the scales of values in an open chunk. For the kernels of deltanet/ and the persistent decode
// kernel. In float32; deltanet/deltanet.h has the formulas, and the layout of states and open chunks.
#ifndef QN_CUDA_KERNELS_DELTA_CUH
#define QN_CUDA_KERNELS_DELTA_CUH

#include "cuda/kernels/sigmoid.cuh"

// Log of the decay: g = softplus(alpha + bias) * factor.
QN_DEVICE float qn_delta_log_decay(float alpha, float bias, float factor)
{
    const float x = alpha + bias;
    return (x > 20.0f ? x : log1pf(expf(x))) * factor;
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

// The power of two that makes amax a number in [2^14, 2^15), and its inverse; both are normal numbers.
QN_DEVICE float2 qn_delta_scale_of(float amax)
{
    uint32_t exponent = __float_as_uint(amax) >> 23;
    exponent = exponent < 15 ? 1 : exponent - 14;
    return make_float2(__uint_as_float(exponent << 23), __uint_as_float((254 - exponent) << 23));
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
