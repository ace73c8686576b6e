// What the stages of a chain share: numbers that the stage before has left in parts.
#ifndef QN_KERNELS_PERSISTENT_PERSISTENT_CUH
#define QN_KERNELS_PERSISTENT_PERSISTENT_CUH

#include "kernels/persistent/persistent_cuda.h"

// Parts that are on their way at once: a way to the second cache and back takes longer than adding them.
#define QN_PERSISTENT_PARTIAL_LOADS 8

// All that other blocks have written in this launch comes from the second cache: the first one may have what was there before.
QN_DEVICE float load_cg(const float *p)
{
    return __ldcg(p);
}

QN_DEVICE float4 load_cg_4(const float *p)
{
    return __ldcg((const float4 *)p);
}

// The same where it is wanted, else zeros; with no branch.
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

// Within a few units in the last place, and a fourth of the instructions of exact ones.
QN_DEVICE float sigmoid(float x)
{
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

QN_DEVICE float silu(float x)
{
    return __fdividef(x, 1.0f + __expf(-x));
}

// Of the sum that rms_scale takes the lane's share, by whole warps: what is asked for before parts are added up comes along
// with them.
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

// By whole warps.
QN_DEVICE float rms_scale(const qn_persistent_partials &p)
{
    return rms_scale(p, rms_sumsq(p));
}

// Numbers i to i+3 of parts (i a multiple of 4), not yet times the factor, in two steps as well: what is asked for, `count` of
// them, and the sum.
template <int count> struct partial_loads_4 {
    float4 v[count];
};

template <int count>
QN_DEVICE void issue_partials_4(partial_loads_4<count> &loads, const qn_persistent_partials &p, uint32_t i, uint32_t first, bool pred)
{
    const uint32_t n = pred ? p.n_partials : 0, stride = p.stride;
    const float *partial = p.data + (uint64_t)first * stride + i;
#pragma unroll
    for (uint32_t k = 0; k < count; k++, partial += stride)
        loads.v[k] = load_cg_4_if(partial, first + k < n);
}

template <int count> QN_DEVICE float4 finish_partials_4(partial_loads_4<count> &loads, const qn_persistent_partials &p, uint32_t i, bool pred)
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

// What a launch knows of the row's session.
struct persistent_session {
    unsigned char *memory; // of its recurrent layers
    uint32_t position;
};

// Into the second cache, from where the stage that is next has it in half the time; nobody has touched it since the last token.
// By one thread; p and bytes are multiples of 16.
QN_DEVICE void prefetch_bytes(const void *p, uint32_t bytes)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
#endif
}

// The 64 bytes at p. The lanes of a warp take turns: better for a few than for many.
QN_DEVICE void prefetch_line(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

#endif
