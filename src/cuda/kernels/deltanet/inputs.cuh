// What kernels of the delta rule read per sequence and per token, by qn_gdn_chunk_args: lengths, gates, states.
#ifndef QN_CUDA_KERNELS_DELTANET_INPUTS_CUH
#define QN_CUDA_KERNELS_DELTANET_INPUTS_CUH

#include "cuda/kernels/delta.cuh"
#include "cuda/kernels/deltanet/deltanet.h"
#include "cuda/kernels/deltanet/state_planes.cuh"
#include "cuda/kernels/typed.cuh"

// The low word of a 64-bit length is all of it: tokens are counted in 32 bits.
QN_DEVICE uint32_t qn_gdn_seqlen(const qn_gdn_chunk_args &a, uint32_t index)
{
    return a.cu_seqlens[(size_t)index << a.wide_seqlens];
}

QN_DEVICE bool qn_gdn_skipped(const qn_gdn_chunk_args &a, uint32_t sequence)
{
    return a.state_indices && a.state_indices[sequence] < 0;
}

#define QN_GDN_MIN_LOG_DECAY -256.0f // e^-256 is 0 in f32

// NaN stays NaN.
QN_DEVICE float qn_gdn_clamp_decay(float g)
{
    return g < QN_GDN_MIN_LOG_DECAY ? QN_GDN_MIN_LOG_DECAY : g > 0.0f ? 0.0f : g;
}

// The log decay and beta of a token from the elements of g and beta.
QN_DEVICE float qn_gdn_log_decay(const qn_gdn_chunk_args &a, float g, uint32_t head)
{
    if (a.gate_factor)
        g = qn_delta_log_decay(g, a.gate_bias ? a.gate_bias[head] : 0.0f, a.gate_factor[head]);
    return qn_gdn_clamp_decay(g);
}

QN_DEVICE float qn_gdn_beta(const qn_gdn_chunk_args &a, float beta)
{
    return a.sigmoid_beta ? qn_sigmoid(beta) : beta;
}

// A value head's state in device memory: null for zeros, or if it is not stored. Element (value, key) is at value *
// value_step + key * key_step; of QN_GDN_STATE_PLANES, in hi, and `plane` elements later in lo.
struct qn_gdn_head_state {
    void *data;
    uint32_t type; // a qn_gdn_state_type
    uint32_t value_step, key_step, plane;
};

template <bool bf16> QN_DEVICE float qn_gdn_load_state(const qn_gdn_head_state &s, size_t at)
{
    return bf16 ? qn_bf16_to_f32(((const uint16_t *)s.data)[at]) : ((const float *)s.data)[at];
}

template <bool bf16> QN_DEVICE void qn_gdn_store_state(const qn_gdn_head_state &s, size_t at, float x)
{
    if (bf16)
        ((uint16_t *)s.data)[at] = qn_f32_to_bf16(x);
    else
        ((float *)s.data)[at] = x;
}

QN_DEVICE qn_gdn_head_state qn_gdn_state(const qn_gdn_chunk_args &a, const void *states, uint32_t sequence, uint32_t head)
{
    const size_t elements = (size_t)a.head_v * a.head_k;
    qn_gdn_head_state s = { nullptr, QN_GDN_STATE_F32, a.head_k, 1, 0 };
    if (states) {
        const uint32_t index = a.state_indices ? (uint32_t)a.state_indices[sequence] : sequence;
        s.type = a.state_type;
        const uint32_t planes = s.type == QN_GDN_STATE_PLANES ? 2 : 1, bytes = s.type == QN_GDN_STATE_F32 ? 4 : 2;
        s.data = (unsigned char *)states + ((size_t)index * a.v_heads * planes + head) * elements * bytes;
        s.plane = a.v_heads * (uint32_t)elements;
        if (a.transposed_states) {
            s.value_step = 1;
            s.key_step = a.head_v;
        }
    }
    return s;
}

QN_DEVICE qn_gdn_head_state qn_gdn_initial_state(const qn_gdn_chunk_args &a, uint32_t sequence, uint32_t head)
{
    return qn_gdn_state(a, a.initial, sequence, head);
}

QN_DEVICE qn_gdn_head_state qn_gdn_final_state(const qn_gdn_chunk_args &a, uint32_t sequence, uint32_t head)
{
    return qn_gdn_state(a, a.final, sequence, head);
}

#endif
