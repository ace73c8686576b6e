// Basics for all CUDA kernels of quern: fixed-width types, fp16 and bf16 as bit patterns, warp reductions, cp.async,
// tensor core MMA, PDL. It needs no header of the toolkit, so that nvcc and NVRTC compile the same text. Operations are
// in the kernels' directories.
#ifndef QN_CUDA_KERNELS_CUDA_CUH
#define QN_CUDA_KERNELS_CUDA_CUH

// The same types as in <stdint.h> on 64-bit Linux: if a compiler has included it, these are repeated typedefs.
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long uint64_t;

#define QN_DEVICE static __device__ __forceinline__
#define QN_WARP_SIZE 32
#define QN_FULL_MASK 0xffffffffu
#define QN_INFINITY __int_as_float(0x7f800000)
#define QN_NAN __int_as_float(0x7fc00000)

// The compute capability of the device whose code this is. nvcc defines it with QN_CUDA_LIMITS of a later capability
// than that of the device, whose instructions __CUDA_ARCH__ then has (cuda/runtime/limits.h).
#if !defined(QN_CUDA_ARCH) && defined(__CUDA_ARCH__)
#define QN_CUDA_ARCH __CUDA_ARCH__
#endif

// Maximum resident threads an SM: CUDA C++ Programming Guide, technical specifications by compute capability.
#if defined(QN_CUDA_ARCH) && (QN_CUDA_ARCH == 860 || QN_CUDA_ARCH == 870 || QN_CUDA_ARCH == 890 || QN_CUDA_ARCH >= 1200)
#define QN_MAX_THREADS_PER_SM 1536
#else
#define QN_MAX_THREADS_PER_SM 2048
#endif

// ---- fp16 and bf16 as 16-bit patterns, rounded to nearest even ----

QN_DEVICE float qn_f16_to_f32(uint16_t h)
{
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(h));
    return x;
}

QN_DEVICE uint16_t qn_f32_to_f16(float x)
{
    uint16_t h;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

// The halves of a 32-bit word of two values.
QN_DEVICE float qn_f16_low(uint32_t word)
{
    return qn_f16_to_f32((uint16_t)word);
}

QN_DEVICE float qn_f16_high(uint32_t word)
{
    return qn_f16_to_f32((uint16_t)(word >> 16));
}

// Two values in a 32-bit word, `low` in its low half.
QN_DEVICE uint32_t qn_f32_to_f16x2(float low, float high)
{
    uint32_t h;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(high), "f"(low));
    return h;
}

QN_DEVICE float qn_bf16_to_f32(uint16_t h)
{
    return __uint_as_float((uint32_t)h << 16);
}

QN_DEVICE uint16_t qn_f32_to_bf16(float x)
{
    uint16_t h;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(h) : "f"(x));
    return h;
}

QN_DEVICE uint32_t qn_f32_to_bf16x2(float low, float high)
{
    uint32_t h;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(h) : "f"(high), "f"(low));
    return h;
}

// The values of a 32-bit word, the low half first.
QN_DEVICE float2 qn_bf16x2_to_f32(uint32_t word)
{
    return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

// ---- Warp reductions: fixed order, the result in every lane ----

QN_DEVICE float qn_warp_sum(float x)
{
#pragma unroll
    for (int distance = QN_WARP_SIZE / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(QN_FULL_MASK, x, distance);
    return x;
}

// The sum over a block of `warps` warps, once in a kernel: each call has shared memory of its own.
template <int warps> QN_DEVICE float qn_block_sum(float x)
{
    __shared__ float sums[warps];
    x = qn_warp_sum(x);
    if (threadIdx.x % QN_WARP_SIZE == 0)
        sums[threadIdx.x / QN_WARP_SIZE] = x;
    __syncthreads();
    float sum = 0;
#pragma unroll
    for (int i = 0; i < warps; i++)
        sum += sums[i];
    return sum;
}

QN_DEVICE int qn_warp_sum_int(int x)
{
#pragma unroll
    for (int distance = QN_WARP_SIZE / 2; distance > 0; distance /= 2)
        x += __shfl_xor_sync(QN_FULL_MASK, x, distance);
    return x;
}

QN_DEVICE float qn_warp_max(float x)
{
#pragma unroll
    for (int distance = QN_WARP_SIZE / 2; distance > 0; distance /= 2)
        x = fmaxf(x, __shfl_xor_sync(QN_FULL_MASK, x, distance));
    return x;
}

// Sum and maximum over the lanes whose indices differ only in the bits of first, 2 * first, ..., below end: <1, 4> are
// four adjacent lanes, a row of an MMA accumulator; <4, 32> are the lanes with its columns in common.
template <int first, int end> QN_DEVICE float qn_lanes_sum(float x)
{
#pragma unroll
    for (int distance = first; distance < end; distance *= 2)
        x += __shfl_xor_sync(QN_FULL_MASK, x, distance);
    return x;
}

template <int first, int end> QN_DEVICE float qn_lanes_max(float x)
{
#pragma unroll
    for (int distance = first; distance < end; distance *= 2)
        x = fmaxf(x, __shfl_xor_sync(QN_FULL_MASK, x, distance));
    return x;
}

#define QN_LOG2E 1.4426950408889634f

// 2^x with a relative error up to 2^-22 (PTX ISA, ex2.approx.ftz); subnormal results are flushed to zero.
QN_DEVICE float qn_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// Prefetches the line at p into L2. The lanes of a warp issue one after another: for a few lines only.
QN_DEVICE void qn_prefetch_line(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p));
}

// ---- Shared memory and asynchronous copies into it ----

QN_DEVICE uint32_t qn_shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

// Copies 16 bytes, bypassing L1; both addresses are multiples of 16.
QN_DEVICE void qn_cp_async_16(void *shared, const void *global)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(qn_shared_address(shared)), "l"(global) : "memory");
}

// The same; only the first `bytes` (0 to 16) are read, the rest becomes zeros.
QN_DEVICE void qn_cp_async_16(void *shared, const void *global, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(qn_shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

// Copies 4 bytes.
QN_DEVICE void qn_cp_async_4(void *shared, const void *global)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(qn_shared_address(shared)), "l"(global) : "memory");
}

// Commits the copies so far as a group; qn_cp_async_wait<n> waits until at most the last n groups of this thread are in
// flight.
QN_DEVICE void qn_cp_async_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

template <int n> QN_DEVICE void qn_cp_async_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(n) : "memory");
}

// ---- Tensor cores (fragment layouts: PTX ISA, mma and ldmatrix of each shape) ----

QN_DEVICE void qn_ldmatrix_x4(uint32_t r[4], const void *shared_row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(qn_shared_address(shared_row))
                 : "memory");
}

QN_DEVICE void qn_ldmatrix_x4_trans(uint32_t r[4], const void *shared_row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(qn_shared_address(shared_row))
                 : "memory");
}

// Transposes an 8x8 matrix of 16-bit elements that a warp holds: row g, columns 2t and 2t + 1 in lane 4g + t.
QN_DEVICE uint32_t qn_transpose_8x8(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

// d += a b, int8 by int8 into int32.
QN_DEVICE void qn_mma_m16n8k32_s8(int d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d += a b, fp16 into f32.
QN_DEVICE void qn_mma_m16n8k16_f16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// d += a b, bf16 into f32.
QN_DEVICE void qn_mma_m16n8k16_bf16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// ---- Programmatic dependent launch, PDL (qn_launch.pdl); no operation before sm_90, where launches do not overlap
// ----

// Waits until the previous kernels of the stream have completed and their writes are visible. Weights may be loaded
// before it.
QN_DEVICE void qn_pdl_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Allows the next kernel to start as soon as all blocks of this one have called this or ended. The next kernel calls
// qn_pdl_wait before it reads this one's output, so this may be the first line of a kernel, unless blocks of the next
// kernel would occupy SMs that blocks of this one still need.
QN_DEVICE void qn_pdl_trigger()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#endif
