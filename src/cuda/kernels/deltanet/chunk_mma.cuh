// MMA of a warp group, four warps of 16 rows each, for the kernels that pass a state from chunk to chunk. Accumulators
// are in registers, the A operand is in registers or is a tile in shared memory, the B operand is a tile in shared
// memory.
//
// With wgmma (sm_90a) four warps share each B operand; without it each warp loads it with ldmatrix. The fragment
// layouts are the same.
#ifndef QN_CUDA_KERNELS_DELTANET_CHUNK_MMA_CUH
#define QN_CUDA_KERNELS_DELTANET_CHUNK_MMA_CUH

#include "cuda/kernels/deltanet/chunk.cuh"

#if defined(__CUDA_ARCH_FEAT_SM90_ALL) && !defined(QN_GDN_NO_WGMMA)
#define QN_WGMMA 1
#else
#define QN_WGMMA 0
#endif

// ---- MMA. d and a are arrays of m16n8k16 fragments ----

QN_DEVICE void pack_fragment(uint32_t a[4], const float d0[4], const float d1[4])
{
    a[0] = pack_pair(d0[0], d0[1]);
    a[1] = pack_pair(d0[2], d0[3]);
    a[2] = pack_pair(d1[0], d1[1]);
    a[3] = pack_pair(d1[2], d1[3]);
}

#if QN_WGMMA

#define ACC_REGS(d, i) "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
#ifdef QN_F16
#define ELEMENT_TYPES "f16.f16"
#else
#define ELEMENT_TYPES "bf16.bf16"
#endif
#define ACC_8_REGS(d)                                                                                                          \
    ACC_REGS(d, 0), ACC_REGS(d, 1), ACC_REGS(d, 2), ACC_REGS(d, 3), ACC_REGS(d, 4), ACC_REGS(d, 5), ACC_REGS(d, 6),            \
        ACC_REGS(d, 7)
#define WGMMA_M64N64K16                                                                                                        \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." ELEMENT_TYPES " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, "    \
    "%13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define A_REGS(a) "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3])

// The wgmma descriptor of a tile with 128-byte swizzle: groups of 8 rows (transposed: rows of the inner dimension) are
// 1024 bytes apart, the next 64 columns are in the next tile.
QN_DEVICE uint64_t matrix_descriptor(const unsigned char *at)
{
    return (uint64_t)(qn_shared_address(at) >> 4) | (uint64_t)(TILE >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

QN_DEVICE void mma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

QN_DEVICE void mma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

// Waits until at most the last `left` groups are in flight. d belongs to a completed group; the empty asm statements
// prevent the compiler from reading it earlier.
template <int left> QN_DEVICE void mma_wait(float d[8][4])
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(left) : "memory");
#pragma unroll
    for (int n = 0; n < 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++)
            asm volatile("" : "+f"(d[n][e])::"memory");
}

template <int transposed> QN_DEVICE void wgmma_m64n64k16(float (*d)[4], const uint32_t a[4], uint64_t b, int accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %37, 0;\n"
                 WGMMA_M64N64K16 "{%32, %33, %34, %35}, %36, p, 1, 1, %38; }"
                 : ACC_8_REGS(d)
                 : A_REGS(a), "l"(b), "r"(accumulate), "n"(transposed));
}

QN_DEVICE void wgmma_m64n64k16_shared(float (*d)[4], uint64_t a, uint64_t b, int accumulate)
{
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %34, 0;\n"
                 WGMMA_M64N64K16 "%32, %33, p, 1, 1, 0, 0; }"
                 : ACC_8_REGS(d)
                 : "l"(a), "l"(b), "r"(accumulate));
}

// d = a x^T, or d += a x^T, x [64 rows][64].
template <bool accumulate> QN_DEVICE void mma_abt(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
#pragma unroll
    for (int s = 0; s < 4; s++)
        wgmma_m64n64k16<0>(d, a[s], matrix_descriptor(x) + s * (32 >> 4), accumulate || s > 0);
}

// The same with a [64 rows][64] in shared memory.
template <bool accumulate> QN_DEVICE void mma_abt_shared(float d[8][4], const unsigned char *a, const unsigned char *x)
{
#pragma unroll
    for (int s = 0; s < 4; s++)
        wgmma_m64n64k16_shared(d, matrix_descriptor(a) + s * (32 >> 4), matrix_descriptor(x) + s * (32 >> 4),
                               accumulate || s > 0);
}

// mma_abt for a lower triangular x, in blocks of 16, whose upper blocks are zeros. wgmma of a smaller n for the other
// blocks alone gain nothing: the compiler then waits after each.
template <bool accumulate> QN_DEVICE void mma_abt_lower(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    mma_abt<accumulate>(d, a, x);
}

// d += a x, x [64 rows][64].
QN_DEVICE void mma_ab(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
#pragma unroll
    for (int s = 0; s < 4; s++)
        wgmma_m64n64k16<1>(d, a[s], matrix_descriptor(x) + s * (2048 >> 4), 1);
}

#else

QN_DEVICE void mma_fence()
{
}

QN_DEVICE void mma_commit()
{
}

template <int left> QN_DEVICE void mma_wait(float d[8][4])
{
}

// Lanes 0-7, 8-15, 16-23, 24-31 address the rows of the 8x8 matrices (0,0), (0,1), (1,0), (1,1) of a block of 16 rows
// and 2 segments.
QN_DEVICE void ldmatrix_16x16(uint32_t b[4], const unsigned char *tile, uint32_t row, uint32_t segment)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    qn_ldmatrix_x4(b, tile + swizzled_offset(row + lane % 8 + lane / 16 * 8, segment + lane / 8 % 2));
}

template <bool accumulate> QN_DEVICE void clear_unless(float d[8][4])
{
    if (!accumulate)
#pragma unroll
        for (int i = 0; i < 8; i++)
            d[i][0] = d[i][1] = d[i][2] = d[i][3] = 0;
}

template <bool accumulate> QN_DEVICE void mma_abt(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    clear_unless<accumulate>(d);
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            ldmatrix_16x16(b, x, n * 16, s * 2);
            mma_m16n8k16(d[2 * n], a[s], b);
            mma_m16n8k16(d[2 * n + 1], a[s], b + 2);
        }
}

template <bool accumulate> QN_DEVICE void mma_abt_shared(float d[8][4], const unsigned char *a, const unsigned char *x)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, warp = threadIdx.x / QN_WARP_SIZE % 4;
    uint32_t rows[4][4];
#pragma unroll
    for (int s = 0; s < 4; s++)
        qn_ldmatrix_x4(rows[s], a + swizzled_offset(warp * 16 + lane % 16, s * 2 + lane / 16));
    mma_abt<accumulate>(d, rows, x);
}

template <bool accumulate> QN_DEVICE void mma_abt_lower(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    clear_unless<accumulate>(d);
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int n = s; n < 4; n++) {
            uint32_t b[4];
            ldmatrix_16x16(b, x, n * 16, s * 2);
            mma_m16n8k16(d[2 * n], a[s], b);
            mma_m16n8k16(d[2 * n + 1], a[s], b + 2);
        }
}

QN_DEVICE void mma_ab(float d[8][4], const uint32_t a[4][4], const unsigned char *x)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
#pragma unroll
    for (int s = 0; s < 4; s++)
#pragma unroll
        for (int n = 0; n < 4; n++) {
            uint32_t b[4];
            qn_ldmatrix_x4_trans(b, x + swizzled_offset(s * 16 + lane % 16, n * 2 + lane / 16));
            mma_m16n8k16(d[2 * n], a[s], b);
            mma_m16n8k16(d[2 * n + 1], a[s], b + 2);
        }
}

#endif

#endif
