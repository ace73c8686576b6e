// Helpers that the phases of the persistent decode kernel share: loads of data that other blocks have written, the
// reduction of split-K partials, the RMS norm's factor, prefetches.
#ifndef QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_CUH
#define QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_CUH

#include "cuda/kernels/persistent/persistent.h"
#include "cuda/kernels/sigmoid.cuh"



// Partials in flight a thread: a round trip to L2 takes longer than their additions.
#define QN_PERSISTENT_PARTIAL_LOADS 8

// Loads of data that other blocks have written in this launch: ld.global.cg, from L2. L1 is not coherent between SMs
// and may hold older data of the same address.
QN_DEVICE float load_cg(const float *p)
{
    return __ldcg(p);
}

QN_DEVICE float4 load_cg_4(const float *p)
{
    return __ldcg((const float4 *)p);
}

// load_cg if pred, else zeros; without a branch.
QN_DEVICE float load_cg_if(const float *p, bool pred)
{
    float x = 0;
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %2, 0;\n"
                 "@wanted ld.global.cg.f32 %0, [%1];\n"
                 "}\n"
                 : "+f"(x)
                 : "l"(p), "r"((uint32_t)pred));
    return x;
}

QN_DEVICE float4 load_cg_4_if(const float *p, bool pred)
{
    float4 x = {};
    asm volatile("{\n"
                 ".reg .pred wanted;\n"
                 "setp.ne.u32 wanted, %5, 0;\n"
                 "@wanted ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];\n"
                 "}\n"
                 : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w)
                 : "l"(p), "r"((uint32_t)pred));
    return x;
}

QN_DEVICE float4 add_4(float4 a, float4 b)
{
    return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}

QN_DEVICE float4 scale_4(float4 a, float f)
{
    return make_float4(a.x * f, a.y * f, a.z * f, a.w * f);
}

// The lane's part of the sum of squares over all slices, by full warps. rms_scale finishes it. Called before partials
// are reduced, so that these loads are in flight together with the loads of the partials.
QN_DEVICE float rms_sumsq(const qn_persistent_partials &p)
{
    const uint32_t n = p.sumsq ? p.n_sumsq : 0, lane = threadIdx.x % QN_WARP_SIZE;
    float sum = load_cg_if(p.sumsq + lane, lane < n);
    if (n > QN_WARP_SIZE)
        sum += load_cg_if(p.sumsq + lane + QN_WARP_SIZE, lane + QN_WARP_SIZE < n);
    return sum;
}

QN_DEVICE float rms_scale_of(const qn_persistent_partials &p, float sum)
{
    return p.sumsq ? rsqrtf(__fdividef(sum, (float)p.n_cols) + p.eps) : 1;
}

QN_DEVICE float rms_scale(const qn_persistent_partials &p, float sumsq)
{
    return rms_scale_of(p, qn_warp_sum(sumsq));
}

// By full warps.
QN_DEVICE float rms_scale(const qn_persistent_partials &p)
{
    return rms_scale(p, rms_sumsq(p));
}

// Reduction of split-K partials, elements i to i+3 (i a multiple of 4), before the multiplication by the norm's factor.
// In two steps, so that a caller can issue several loads before it waits for one: issue_partials_4 issues the loads of
// `count` partials from `first` on, finish_partials_4 adds them in ascending order, and loads and adds the remaining
// ones.
template <int count> struct partial_loads_4 {
    float4 v[count];
};

template <int count>
QN_DEVICE void issue_partials_4(partial_loads_4<count> &loads, const qn_persistent_partials &p, uint32_t i, uint32_t first,
                                bool pred)
{
    const uint32_t n = pred ? p.n_partials : 0, stride = p.stride;
    const float *partial = p.data + (uint64_t)first * stride + i;
#pragma unroll
    for (uint32_t k = 0; k < count; k++, partial += stride)
        loads.v[k] = load_cg_4_if(partial, first + k < n);
}

template <int count>
QN_DEVICE float4 finish_partials_4(partial_loads_4<count> &loads, const qn_persistent_partials &p, uint32_t i, bool pred)
{
    float4 sum = {};
#pragma unroll 1
    for (uint32_t first = 0;;) {
#pragma unroll
        for (uint32_t k = 0; k < count; k++)
            sum = add_4(sum, loads.v[k]);
        first += count;
        if (first >= p.n_partials)
            return sum;
        issue_partials_4(loads, p, i, first, pred);
    }
}

QN_DEVICE float4 reduce_partials_4(const qn_persistent_partials &p, uint32_t i)
{
    partial_loads_4<QN_PERSISTENT_PARTIAL_LOADS> loads;
    issue_partials_4(loads, p, i, 0, true);
    return finish_partials_4(loads, p, i, true);
}

QN_DEVICE float reduce_partials(const qn_persistent_partials &p, uint32_t i)
{
    const uint32_t n = p.n_partials, stride = p.stride;
    const float *partial = p.data + i;
    float sum = 0;
#pragma unroll 1
    for (uint32_t first = 0; first < n; first += QN_PERSISTENT_PARTIAL_LOADS) {
        float v[QN_PERSISTENT_PARTIAL_LOADS];
#pragma unroll
        for (uint32_t k = 0; k < QN_PERSISTENT_PARTIAL_LOADS; k++, partial += stride)
            v[k] = load_cg_if(partial, first + k < n);
#pragma unroll
        for (uint32_t k = 0; k < QN_PERSISTENT_PARTIAL_LOADS; k++)
            sum += v[k];
    }
    return sum;
}

// The sequence of a row.
struct persistent_sequence {
    const unsigned char *state; // its slots, of recurrent layers
    unsigned char *open;
    uint32_t position, state_position;
};

QN_DEVICE persistent_sequence load_sequence(const qn_persistent_args &a, uint32_t row)
{
    persistent_sequence s = { nullptr, nullptr, a.positions ? a.positions[row] : 0, 0 };
    if (a.states) {
        s.state_position = a.state_positions[row];
        s.state = a.states + a.state_from[row] * a.state_stride;
        s.open = a.open + a.open_slots[row] * a.open_stride;
    }
    return s;
}

// Prefetches into L2 data that was last used for the previous token: the next phase then loads it in half the time. By
// one thread; p and bytes are multiples of 16.
QN_DEVICE void prefetch_bytes(const void *p, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

#endif
