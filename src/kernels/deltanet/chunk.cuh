// Shared by the two kernels for chunks of 64 tokens, qn_gdn_prepare and qn_gdn_advance: swizzled tiles in shared memory for
// ldmatrix and wgmma, and the addresses of a sequence's tokens and records.
#ifndef QN_KERNELS_DELTANET_CHUNK_CUH
#define QN_KERNELS_DELTANET_CHUNK_CUH

#include "kernels/deltanet/deltanet_cuda.h"

#define TOKENS QN_GDN_CHUNK_TOKENS
#define HEAD_K QN_GDN_HEAD_K
#define TILE QN_GDN_TILE_BYTES

// ---- Tiles: 64 rows of 128 bytes; segments of 16 bytes are swizzled, so that a segment of 8 rows covers all banks ----

QN_DEVICE uint32_t swizzled_offset(uint32_t row, uint32_t segment)
{
    return row * 128 + ((segment ^ (row & 7)) << 4);
}

// Issues cp.async of n rows of `segments` segments; rows past n are filled with zeros. Each 8 segments (128 bytes) are a tile,
// and tiles are contiguous. A thread copies the same segment of every (threads / segments)-th row, so its addresses differ by
// constants.
template <int segments, int threads>
QN_DEVICE void load_rows(unsigned char *tiles, const uint16_t *from, uint32_t stride, uint32_t n, uint32_t thread)
{
    constexpr uint32_t step = threads / segments;
    const uint32_t first = thread / segments, segment = thread % segments;
    unsigned char *to = tiles + segment / 8 * TILE + swizzled_offset(first, segment % 8);
    const uint16_t *at = from + (size_t)first * stride + segment * 8;
#pragma unroll
    for (uint32_t i = 0; i < TOKENS / step; i++) {
        if (n == TOKENS)
            qn_cp_async_16(to + i * step * 128, at);
        else
            qn_cp_async_16(to + i * step * 128, first + i * step < n ? at : from, first + i * step < n ? 16 : 0);
        at += step * stride;
    }
}

// ---- bf16 pairs ----

QN_DEVICE float bf16_lo(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

QN_DEVICE float bf16_hi(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

// ---- Sequences ----

struct sequence {
    uint32_t first, n;      // first token, number of tokens
    uint32_t record_offset; // index of its first chunk in the records
};

QN_DEVICE sequence sequence_at(const qn_gdn_chunk_args &a, uint32_t index)
{
    sequence s;
    s.first = a.cu_seqlens ? a.cu_seqlens[index] : index * a.tokens;
    s.n = a.cu_seqlens ? a.cu_seqlens[index + 1] - s.first : a.tokens;
    s.record_offset = s.first / TOKENS + index;
    return s;
}

#endif
