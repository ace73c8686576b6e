// Shared by the kernels for chunks of 64 tokens: 16-bit elements, swizzled tiles in shared memory for ldmatrix and
// wgmma, and sequences, their records, and the spans of blocks.
//
// QN_HEAD_K is the number of elements of a key, a compile-time constant. Keys are padded with zeros to full tiles of 64
// elements. Elements are bf16, or f16 with QN_F16.
#ifndef QN_CUDA_KERNELS_DELTANET_CHUNK_CUH
#define QN_CUDA_KERNELS_DELTANET_CHUNK_CUH

#include "cuda/kernels/deltanet/inputs.cuh"

#ifndef QN_HEAD_K
#define QN_HEAD_K 128
#endif

#define TOKENS QN_GDN_CHUNK
#define HEAD_K QN_HEAD_K
#define PADDED_K QN_GDN_PADDED(QN_HEAD_K)
#define KEY_TILES (PADDED_K / 64)
#define TILE QN_GDN_TILE_BYTES

// ---- Tiles: 64 rows of 128 bytes; segments of 16 bytes are swizzled, so that a segment of 8 rows covers all banks
// ----

QN_DEVICE uint32_t swizzled_offset(uint32_t row, uint32_t segment)
{
    return row * 128 + ((segment ^ (row & 7)) << 4);
}

// Issues cp.async of n rows of `segments` segments: loads the first `valid` rows and fills the others with zeros, as
// are rows past n. Each 8 segments (128 bytes) are a tile, and tiles are contiguous. A thread copies the same segment
// of every (threads / segments)-th row, so its addresses differ by constants.
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

// ---- Sequences ----

struct sequence {
    uint32_t index, first, n; // first token, number of tokens
    uint32_t chunks;
    bool skipped;
};

QN_DEVICE uint32_t divide_up(uint32_t n, uint32_t by)
{
    return (n + by - 1) / by;
}

// The number of indices of a sequence with this number of chunks; a sequence without tokens has one index.
QN_DEVICE uint32_t count_indices(uint32_t chunks)
{
    return chunks ? chunks : 1;
}

// The index of a sequence's first chunk among the chunks of all sequences. first: the sequence's first token.
QN_DEVICE uint32_t first_index(const qn_gdn_chunk_args &a, uint32_t sequence, uint32_t first)
{
    return a.cu_seqlens ? first / TOKENS + sequence : sequence * count_indices(divide_up(a.tokens, TOKENS));
}

QN_DEVICE uint32_t first_index(const qn_gdn_chunk_args &a, const sequence &s)
{
    return first_index(a, s.index, s.first);
}

QN_DEVICE sequence sequence_at(const qn_gdn_chunk_args &a, uint32_t index)
{
    sequence s;
    s.index = index;
    s.first = a.cu_seqlens ? qn_gdn_seqlen(a, index) : index * a.tokens;
    s.n = a.cu_seqlens ? qn_gdn_seqlen(a, index + 1) - s.first : a.tokens;
    s.skipped = qn_gdn_skipped(a, index);
    if (s.skipped)
        s.n = 0;
    s.chunks = divide_up(s.n, TOKENS);
    return s;
}

// The sequence of a chunk. By a full warp, which tests 32 sequences at a time.
QN_DEVICE sequence sequence_of(const qn_gdn_chunk_args &a, uint32_t index)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
    uint32_t from = 0, n = a.sequences;
    if (!a.cu_seqlens && n > 1) {
        from = index / first_index(a, 1, 0);
        from = from < n ? from : n - 1;
        n = 1;
    }
    while (n > 1) {
        const uint32_t step = divide_up(n, QN_WARP_SIZE), at = lane * step;
        const bool begins = at < n && first_index(a, from + at, qn_gdn_seqlen(a, from + at)) <= index;
        const uint32_t begun = __ballot_sync(QN_FULL_MASK, begins), last = begun ? (31 - __clz(begun)) * step : 0;
        from += last;
        n = n - last < step ? n - last : step;
    }
    return sequence_at(a, from);
}

QN_DEVICE sequence sequence_at_position(const qn_gdn_chunk_args &a, uint32_t position)
{
    return sequence_of(a, a.sequences > 1 ? position / a.v_heads : 0);
}

QN_DEVICE uint32_t key_head(const qn_gdn_chunk_args &a, uint32_t head)
{
    return a.tiled ? head % a.k_heads : head / (a.v_heads / a.k_heads);
}

QN_DEVICE unsigned char *record_of(const qn_gdn_chunk_args &a, const sequence &s, uint32_t chunk, uint32_t head)
{
    return a.records + ((size_t)(first_index(a, s) + chunk) * a.v_heads + head) * QN_GDN_RECORD;
}

// ---- Pieces and spans (deltanet.h) ----

struct pieces {
    uint32_t positions, count;
    uint32_t length, rest; // positions / count and its remainder: divisions take long
};

QN_DEVICE pieces pieces_of(const qn_gdn_chunk_args &a)
{
    const sequence last = sequence_at(a, a.sequences - 1);
    pieces p;
    p.positions = (first_index(a, last) + count_indices(last.chunks)) * a.v_heads;
    p.count = p.positions < a.pieces ? p.positions : a.pieces;
    p.length = p.positions / p.count;
    p.rest = p.positions - p.length * p.count;
    return p;
}

// The first position of a piece: index * positions / count. count has 16 bits.
QN_DEVICE uint32_t piece_begin(const pieces &p, uint32_t index)
{
    return index * p.length + index * p.rest / p.count;
}

// Where the piece ends that begins at `begin`.
QN_DEVICE uint32_t piece_end(const pieces &p, uint32_t index, uint32_t begin)
{
    const uint32_t left = index * p.rest - (begin - index * p.length) * p.count; // index * rest mod count
    return begin + p.length + (left + p.rest >= p.count);
}

QN_DEVICE uint32_t piece_of(const pieces &p, uint32_t position)
{
    return (uint32_t)(((uint64_t)(position + 1) * p.count - 1) / p.positions);
}

// Chunks of a head that a block computes one after the other.
struct span {
    sequence s;
    uint32_t head, k_head;
    uint32_t head_position; // of the head's first chunk
    uint32_t begin, end;    // chunks; equal in a sequence without tokens
    bool last;              // of its head
};

// The span of s in the positions [begin, end), with the position `at` of s or of the gap after it; false if that is in
// the gap, or if s is skipped. In the order of positions heads of the same key head are k_heads apart, whatever the
// mapping.
QN_DEVICE bool span_at(const qn_gdn_chunk_args &a, const sequence &s, uint32_t begin, uint32_t end, uint32_t at, span &p)
{
    const uint32_t first = first_index(a, s) * a.v_heads, n = count_indices(s.chunks), i = (at - first) / n;
    const uint32_t repeat = i / a.k_heads;
    p.s = s;
    p.k_head = i - repeat * a.k_heads;
    p.head = a.tiled ? i : p.k_head * (a.v_heads / a.k_heads) + repeat;
    p.head_position = first + i * n;
    p.begin = begin > p.head_position ? begin - p.head_position : 0;
    p.last = end - p.head_position >= n;
    p.end = p.last ? s.chunks : end - p.head_position;
    return i < a.v_heads && !s.skipped;
}

// How qn_gdn_compose obtains the state at the start of a piece that begins within a head.
enum state_source {
    SOURCE_UNUSED,  // the state is not read
    SOURCE_EFFECT,  // it is B of the previous piece's last span, which began with the right state
    SOURCE_COMPOSED // it is S M + B of that span
};

// From which state a span runs, and from how many chunks before it.
enum start_state { START_ZEROS, START_INITIAL, START_STORED };

struct start {
    start_state from;
    uint32_t warm_up; // chunks
};

// The number of chunks before a span that determine the state at its start, 0 if more than `most` do. By a full warp.
QN_DEVICE uint32_t warm_up_chunks(const qn_gdn_chunk_args &a, const sequence &s, uint32_t head, uint32_t begin, uint32_t most)
{
    const uint32_t lane = threadIdx.x % QN_WARP_SIZE;
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

// The start of a span that begins with chunk `begin`. By a full warp.
QN_DEVICE start start_of(const qn_gdn_chunk_args &a, const pieces &p, const sequence &s, uint32_t head, uint32_t begin)
{
    const uint32_t most = p.length > QN_GDN_MIN_WARM_UP ? p.length : QN_GDN_MIN_WARM_UP;
    const uint32_t warm_up = warm_up_chunks(a, s, head, begin, begin < most ? begin : most);
    if (warm_up)
        return { START_ZEROS, warm_up };
    if (begin <= QN_GDN_MIN_WARM_UP)
        return { START_INITIAL, begin };
    return { START_STORED, 0 };
}

#endif
