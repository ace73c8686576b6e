// Kernels that measure a GPU's limits: read bandwidth, MMA throughput from registers, launch cost.
#include "cuda/kernels/peak/peak.h"

// Loads of 16 bytes that a thread has in flight; adjacent threads load adjacent addresses.
enum { LOADS = 8 };

// Volatile: the compiler would use the first loads before it issues the last ones, to save registers.
QN_DEVICE uint4 load_once(const uint4 *from)
{
    uint4 v;
    asm volatile("ld.global.cs.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}

extern "C" __global__ void __launch_bounds__(QN_PEAK_THREADS, 1) qn_peak_read_all(const __grid_constant__ qn_peak_read_args a)
{
    const uint4 *from = (const uint4 *)a.from;
    const uint64_t n_threads = (uint64_t)gridDim.x * QN_PEAK_THREADS;
    uint64_t at = (uint64_t)blockIdx.x * QN_PEAK_THREADS + threadIdx.x;
    uint32_t sum = 0;
    for (; at + (LOADS - 1) * n_threads < a.n_uint4; at += LOADS * n_threads) {
        uint4 v[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            v[i] = load_once(from + at + i * n_threads);
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            sum ^= v[i].x ^ v[i].y ^ v[i].z ^ v[i].w;
    }
    for (; at < a.n_uint4; at += n_threads) {
        const uint4 v = __ldcs(from + at);
        sum ^= v.x ^ v.y ^ v.z ^ v.w;
    }
    if (sum == QN_FULL_MASK)
        *a.out = sum;
}

extern "C" __global__ void __launch_bounds__(QN_PEAK_THREADS, 1) qn_peak_copy_all(const __grid_constant__ qn_peak_copy_args a)
{
    const uint4 *from = (const uint4 *)a.from;
    uint4 *to = (uint4 *)a.to;
    const uint64_t n_threads = (uint64_t)gridDim.x * QN_PEAK_THREADS;
    uint64_t at = (uint64_t)blockIdx.x * QN_PEAK_THREADS + threadIdx.x;
    for (; at + (LOADS - 1) * n_threads < a.n_uint4; at += LOADS * n_threads) {
        uint4 v[LOADS];
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            v[i] = load_once(from + at + i * n_threads);
#pragma unroll
        for (int i = 0; i < LOADS; i++)
            __stcs(to + at + i * n_threads, v[i]);
    }
    for (; at < a.n_uint4; at += n_threads)
        __stcs(to + at, __ldcs(from + at));
}

QN_DEVICE void mma_int8(const qn_peak_mma_args &args)
{
    int d[QN_PEAK_MMAS][4] = {};
    uint32_t a[4], b[QN_PEAK_MMAS][2];
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = (threadIdx.x + i) * 0x01010101u & 0x03030303u;
#pragma unroll
    for (int t = 0; t < QN_PEAK_MMAS; t++)
        b[t][0] = (threadIdx.x ^ t) * 0x01010101u & 0x01010101u, b[t][1] = b[t][0] ^ 0x01010101u;
    for (uint32_t step = 0; step < args.n_steps; step++)
#pragma unroll
        for (int t = 0; t < QN_PEAK_MMAS; t++)
            qn_mma_m16n8k32_s8(d[t], a, b[t]);
    int sum = 0;
#pragma unroll
    for (int t = 0; t < QN_PEAK_MMAS; t++)
        sum += d[t][0] + d[t][1] + d[t][2] + d[t][3];
    if (sum == -1)
        *args.out = 1;
}

QN_DEVICE void mma_bf16(const qn_peak_mma_args &args)
{
    float d[QN_PEAK_MMAS][4] = {};
    uint32_t a[4], b[QN_PEAK_MMAS][2];
    const uint32_t one = qn_f32_to_bf16x2(1, 1);
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = threadIdx.x + i & 1 ? one : 0;
#pragma unroll
    for (int t = 0; t < QN_PEAK_MMAS; t++)
        b[t][0] = threadIdx.x + t & 2 ? one : 0, b[t][1] = one;
    for (uint32_t step = 0; step < args.n_steps; step++)
#pragma unroll
        for (int t = 0; t < QN_PEAK_MMAS; t++)
            qn_mma_m16n8k16_bf16(d[t], a, b[t]);
    float sum = 0;
#pragma unroll
    for (int t = 0; t < QN_PEAK_MMAS; t++)
        sum += d[t][0] + d[t][1] + d[t][2] + d[t][3];
    if (sum < 0)
        *args.out = 1;
}

extern "C" __global__ void __launch_bounds__(QN_PEAK_THREADS) qn_peak_mma(const __grid_constant__ qn_peak_mma_args a)
{
    if (a.bf16)
        mma_bf16(a);
    else
        mma_int8(a);
}

extern "C" __global__ void qn_peak_empty(const __grid_constant__ qn_peak_empty_args a)
{
    qn_pdl_trigger();
    qn_pdl_wait();
}
