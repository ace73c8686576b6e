// Shared by the kernels for chunks of 64 tokens: 16-bit elements, swizzled tiles in shared memory for ldmatrix and wgmma, and
// the tokens, records and spans of a sequence.
//
// QN_HEAD_K is the number of elements of a key, a compile-time constant. Keys are padded with zeros to full tiles of 64
// elements. Elements are bf16, or f16 with QN_F16.
#ifndef QN_KERNELS_DELTANET_CHUNK_CUH
#define QN_KERNELS_DELTANET_CHUNK_CUH

#include "kernels/deltanet/inputs.cuh"

#ifndef QN_HEAD_K
#define QN_HEAD_K 128
#endif

#define TOKENS QN_GDN_CHUNK_TOKENS
#define HEAD_K QN_HEAD_K
#define PADDED_K QN_GDN_PADDED(QN_HEAD_K)
#define KEY_TILES (PADDED_K / 64)
#define TILE QN_GDN_TILE_BYTES

// ---- Tiles: 64 rows of 128 bytes; segments of 16 bytes are swizzled, so that a segment of 8 rows covers all banks ----

QN_DEVICE uint32_t swizzled_offset(uint32_t row, uint32_t segment)
{
    return row * 128 + ((segment ^ (row & 7)) << 4);
}

// Issues cp.async of n rows of `segments` segments, of which the first `valid` are loaded and the others filled with zeros, as
// are rows past n. Each 8 segments (128 bytes) are a tile, and tiles are contiguous. A thread copies the same segment of every
// (threads / segments)-th row, so its addresses differ by constants.
template <int segments, int threads>
QN_DEVICE void load_segments(unsigned char *tiles, const uint16_t *from, uint32_t stride, uint32_t n, uint32_t valid,
                             uint32_t thread)
{
    constexpr uint32_t step = threads / segments;
    static_assert(step % 8 == 0, "rows of a thread have the same swizzle");
    const uint32_t first = thread / segments, segment = thread % segments;
    unsigned char *to = tiles + segment / 8 * TILE + swizzled_offset(first, segment % 8);
    const uint16_t *at = from + (size_t)first * stride + segment * 8;
    if (n == TOKENS && valid >= segments) {
#pragma unroll
        for (uint32_t i = 0; i < TOKENS / step; i++)
            qn_cp_async_16(to + i * step * 128, at + (size_t)i * step * stride);
        return;
    }
#pragma unroll 1
    for (uint32_t i = 0; i < TOKENS / step; i++) {
        const bool in = first + i * step < n && segment < valid;
        qn_cp_async_16(to + i * step * 128, in ? at + (size_t)i * step * stride : from, in ? 16 : 0);
    }
}

// The same for rows of `columns` elements in `n_tiles` tiles.
template <int n_tiles, int threads>
QN_DEVICE void load_rows(unsigned char *tiles, const uint16_t *from, uint32_t stride, uint32_t n, uint32_t columns,
                         uint32_t thread)
{
    constexpr int in_pairs = threads >= 128 ? n_tiles / 2 * 2 : 0;
    if constexpr (in_pairs > 0) {
#pragma unroll
        for (int i = 0; i < in_pairs; i += 2)
            load_segments<16, threads>(tiles + i * TILE, from + i * 64, stride, n, columns / 8 - i * 8, thread);
    }
#pragma unroll
    for (int i = in_pairs; i < n_tiles; i++)
        load_segments<8, threads>(tiles + i * TILE, from + i * 64, stride, n, columns / 8 - i * 8, thread);
}

// ---- Pairs of 16-bit elements ----

#ifdef QN_F16
QN_DEVICE uint32_t pack_pair(float lo, float hi)
{
    return qn_f32_to_f16x2(lo, hi);
}

QN_DEVICE float pair_lo(uint32_t pair)
{
    return qn_f16_low(pair);
}

QN_DEVICE float pair_hi(uint32_t pair)
{
    return qn_f16_high(pair);
}

QN_DEVICE void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    qn_mma_m16n8k16_f16(d, a, b);
}
#else
QN_DEVICE uint32_t pack_pair(float lo, float hi)
{
    return qn_f32_to_bf16x2(lo, hi);
}

QN_DEVICE float pair_lo(uint32_t pair)
{
    return __uint_as_float(pair << 16);
}

QN_DEVICE float pair_hi(uint32_t pair)
{
    return __uint_as_float(pair & 0xffff0000u);
}

QN_DEVICE void mma_m16n8k16(float d[4], const uint32_t a[4], const uint32_t b[2])
{
    qn_mma_m16n8k16_bf16(d, a, b);
}
#endif

// ---- Sequences and spans ----

struct sequence {
    uint32_t index, first, n; // first token, number of tokens
    uint32_t chunks;
    bool skipped;
};

QN_DEVICE uint32_t first_token(const qn_gdn_chunk_args &a, uint32_t sequence)
{
    return a.cu_seqlens ? qn_gdn_seqlen(a, sequence) : sequence * a.tokens;
}

QN_DEVICE sequence sequence_at(const qn_gdn_chunk_args &a, uint32_t index)
{
    sequence s;
    s.index = index;
    s.first = first_token(a, index);
    s.n = a.cu_seqlens ? qn_gdn_seqlen(a, index + 1) - s.first : a.tokens;
    s.skipped = qn_gdn_skipped(a, index);
    if (s.skipped)
        s.n = 0;
    s.chunks = (s.n + TOKENS - 1) / TOKENS;
    return s;
}

// The index of a sequence's first chunk or span, which have `unit` tokens.
QN_DEVICE uint32_t first_index(const sequence &s, uint32_t unit)
{
    return s.first / unit + s.index;
}

// The sequence of a chunk or span. By a full warp, which tests 32 sequences at a time.
QN_DEVICE sequence sequence_of(const qn_gdn_chunk_args &a, uint32_t index, uint32_t unit)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    uint32_t from = 0, n = a.sequences;
    while (n > 1) {
        const uint32_t step = (n + QN_WARP_SIZE - 1) / QN_WARP_SIZE, at = lane * step;
        const bool begins = at < n && first_token(a, from + at) / unit + from + at <= index;
        const uint32_t begun = __ballot_sync(QN_FULL_MASK, begins), last = begun ? (31 - __clz(begun)) * step : 0;
        from += last;
        n = n - last < step ? n - last : step;
    }
    return sequence_at(a, from);
}

QN_DEVICE uint32_t key_head(const qn_gdn_chunk_args &a, uint32_t head)
{
    return a.tiled ? head % a.k_heads : head / (a.v_heads / a.k_heads);
}

QN_DEVICE unsigned char *record_of(const qn_gdn_chunk_args &a, const sequence &s, uint32_t chunk, uint32_t head)
{
    return a.records + ((size_t)(first_index(s, TOKENS) + chunk) * a.v_heads + head) * QN_GDN_RECORD;
}

// How qn_gdn_compose obtains the state at the start of a span.
enum span_source {
    SOURCE_UNUSED,  // the state is not read
    SOURCE_EFFECT,  // it is B of the previous span, which began with the right state
    SOURCE_COMPOSED // it is S M + B of the previous span
};

struct span {
    sequence s;
    uint32_t index, number, count; // index among all spans; number and count in the sequence
    uint32_t begin, end;           // chunks
};

// False for an index that is not used. By a full warp.
QN_DEVICE bool span_at(const qn_gdn_chunk_args &a, uint32_t index, span &p)
{
    const uint32_t unit = a.span_chunks * TOKENS;
    p.s = sequence_of(a, index, unit);
    p.index = index;
    p.number = index - first_index(p.s, unit);
    p.count = p.s.chunks ? (p.s.chunks + a.span_chunks - 1) / a.span_chunks : 1;
    p.begin = p.number * a.span_chunks;
    p.end = p.s.chunks - p.begin < a.span_chunks ? p.s.chunks : p.begin + a.span_chunks;
    return p.number < p.count && !p.s.skipped;
}

// The number of chunks before a span that determine the state at its start, 0 if more than span_chunks do. By a full warp.
QN_DEVICE uint32_t warm_up_chunks(const qn_gdn_chunk_args &a, const sequence &s, uint32_t head, uint32_t begin)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE, most = begin < a.span_chunks ? begin : a.span_chunks;
    float before = 0;
    for (uint32_t base = 0; base < most; base += QN_WARP_SIZE) {
        const uint32_t i = base + lane;
        float sum = i < most ? *(const float *)(record_of(a, s, begin - 1 - i, head) + QN_GDN_RECORD_BOUND) : 0.0f;
#pragma unroll
        for (uint32_t distance = 1; distance < QN_WARP_SIZE; distance *= 2) {
            const float y = __shfl_up_sync(QN_FULL_MASK, sum, distance);
            sum += lane >= distance ? y : 0.0f;
        }
        const uint32_t forgotten = __ballot_sync(QN_FULL_MASK, i < most && before + sum <= QN_GDN_FORGOTTEN);
        if (forgotten)
            return base + __ffs(forgotten);
        before += __shfl_sync(QN_FULL_MASK, sum, QN_WARP_SIZE - 1);
    }
    return 0;
}

#endif
