// Phases of the persistent decode kernel: attention of one row over an fp16 KV cache (qn_persistent_attention), and the
// GEMV prologue that combines its splits (QN_PROLOGUE_ATTENTION_COMBINE). Grid barriers are in persistent.cu. With
// QN_KEY_BITS the cache is one of AURA codes: split 0 is its fp16 pages, which are processed here as a short fp16 cache in
// the rotated basis; the other splits are in persistent_codes.cuh.
//
// A unit is one split of one key-value head of a row, for all query heads of the group; a block computes one at a time.
// A tile is 16 positions. A warp processes a slice of 64 dimensions of a tile; a warp group (head_dim / 64 warps)
// processes a tile, and the groups of a block alternate over the tiles of the split. Each warp loads keys and values
// from global memory directly into registers. This way a short context is spread over many warps, whose loads are in
// flight at the same time, and accumulators take few registers (20). The warps of a group add their scores in shared
// memory.
//
// As in attention/decode.cu, scores are the MMA of keys (A) and queries (B; the N dimension is the query heads of the
// group), and outputs the MMA of transposed values (A) and softmax weights (B). The order of dimensions within
// fragments is free if both operands agree; it is chosen so that lanes load 16 bytes.
//
// With short contexts the time is bound by instructions: each is issued for sixteen warps, and the instruction cache
// misses once a layer. Therefore loops are not unrolled where that is less code.
#ifndef QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_ATTENTION_CUH
#define QN_CUDA_KERNELS_PERSISTENT_PERSISTENT_ATTENTION_CUH

#include "cuda/kernels/butterflies.cuh"
#include "cuda/kernels/kv_pages.cuh"
#include "cuda/kernels/persistent/persistent.cuh"

#ifdef QN_KEY_BITS
#define ATTENTION_CODES 1
#include "cuda/kernels/persistent/persistent_tables.cuh"
#else
#define ATTENTION_CODES 0
#endif

#define ATTENTION_TILE_KV 16 // positions of a tile
#define ATTENTION_PAGE_TILES (QN_PAGE / ATTENTION_TILE_KV)
#define ATTENTION_TILE_Q QN_PERSISTENT_MAX_GROUP
#define ATTENTION_LOG_SLICE 6 // log2 of the dimensions of a warp
#define ATTENTION_SLICE (1 << ATTENTION_LOG_SLICE)
#define ATTENTION_WARPS (QN_PERSISTENT_THREADS / QN_WARP_SIZE)
#define ATTENTION_MAX_DIM 256
#define ATTENTION_LOWEST (-1e30f)
#define ATTENTION_PARTIAL_LOADS 5 // loads of partials in flight: most qkv GEMVs have at most 5 slices
#define ATTENTION_F16_MAX 65504.0f
#define ATTENTION_F16_NAN 0x7e00
// Bytes from a warp group's tile to its next tile in a contiguous cache: n_groups tiles on, the same for all head
// dimensions. With a page table it is at the same place of another page, since n_groups tiles are pages.
#define ATTENTION_TILE_STRIDE (ATTENTION_WARPS * ATTENTION_TILE_KV * ATTENTION_SLICE * 2)

// Queries, as attention_qk_norm_rope_store prepares them for the loop over tiles.
struct attention_inputs {
    float factors[ATTENTION_TILE_Q]; // from MMA scores to scores in the log2 domain
    // Padded: rows are 64 bytes apart modulo 128, against bank conflicts.
    __align__(16) uint16_t queries[ATTENTION_TILE_Q][ATTENTION_MAX_DIM + 32];
    float2 sumsq[ATTENTION_TILE_Q + 2][2]; // of each 128 dimensions of a row, before and after the norm's weights
    union {
        float rows[ATTENTION_TILE_Q + 2][ATTENTION_MAX_DIM];
        float4 scores[2][ATTENTION_WARPS][QN_WARP_SIZE];
#if ATTENTION_CODES
        struct {
            float rows[ATTENTION_TILE_Q + 2][ATTENTION_MAX_DIM];
            float exchange[ATTENTION_TILE_Q + 2][QN_HEAD_DIM]; // of the rotation, between the two warps of a row of 256
        } rotated;
        struct : slice_buffers {
            uint64_t pages[QN_PERSISTENT_THREADS]; // page table entries of the split
        } codes;
#endif
    } u;
#if ATTENTION_CODES
    shared codes;                                     // queries in the order of codes, factors, maxima and sums
    float biases[ATTENTION_TILE_Q][2];                // of each 128 dimensions: of the scores of codes, from the keys' mean
#endif
};

struct attention_shared {
    __align__(16) uint16_t new_kv[2][ATTENTION_MAX_DIM]; // the row's own key and value
    float2 maxima[ATTENTION_WARPS][ATTENTION_TILE_Q];    // of each warp group: m, l
    union {
        attention_inputs inputs;
        float4 acc[ATTENTION_WARPS - 1][4][QN_WARP_SIZE]; // of all warp groups but the first
    } u;
};

static_assert(sizeof(attention_shared) <= QN_PERSISTENT_SCRATCH_BYTES, "attention needs more than the scratch of a phase");

// A head has 1 << log_slices slices of 64 dimensions; a warp group has one warp for each slice and processes one tile
// at a time.
QN_DEVICE uint32_t attention_log_slices(uint32_t head_dim)
{
    return head_dim >> (ATTENTION_LOG_SLICE + 1); // 64, 128, 256: 0, 1, 2
}

#if ATTENTION_CODES

// Codes: pages of a split, of the pages between page 0 and that of `position`; split 0 is those two.
QN_DEVICE uint32_t attention_code_pages(uint32_t position)
{
    return max(position / QN_PAGE, 1u) - 1;
}

QN_DEVICE uint32_t attention_tiles_per_split(uint32_t position, uint32_t n_splits)
{
    return max((attention_code_pages(position) + n_splits - 2) / (n_splits - 1), 1u) * ATTENTION_PAGE_TILES;
}

QN_DEVICE uint32_t attention_used_splits(uint32_t position, uint32_t tiles_per_split)
{
    const uint32_t tiles = attention_code_pages(position) * ATTENTION_PAGE_TILES;
    return 1 + (tiles + tiles_per_split - 1) / tiles_per_split;
}

// The position in the fp16 pages, page 0 and that of `position`, one after the other.
QN_DEVICE uint32_t attention_f16_position(uint32_t position)
{
    return position < QN_PAGE ? position : QN_PAGE + position % QN_PAGE;
}

#else

// Tiles of a split for the positions 0 to `position`: ceil(tiles / n_splits). A short context is spread over many
// splits, since the reduction over the warps of a block costs more than one more split. Several rows occupy the blocks
// with fewer splits of each: these have a minimum, the same for any number of rows.
QN_DEVICE uint32_t attention_tiles_per_split(uint32_t position, uint32_t n_splits)
{
    const uint32_t tiles = (position / ATTENTION_TILE_KV + n_splits) >> (31 - __clz(n_splits));
    return KERNEL_ROWS > 1 ? max(tiles, (uint32_t)QN_PERSISTENT_ROWS_SPLIT_TILES) : tiles;
}

// Splits that have positions.
QN_DEVICE uint32_t attention_used_splits(uint32_t position, uint32_t tiles_per_split)
{
    return (uint32_t)__fdividef(position / ATTENTION_TILE_KV + tiles_per_split + 0.5f, tiles_per_split);
}

#endif

struct attention_range {
    uint32_t kv_head, split, first, last, n_tiles; // tiles [first, last) of n_tiles; first == last: no work
    bool has_pages;                                // attention_pages are of this range
};

// Whether a range is codes. Its tiles are counted from page 1 on.
QN_DEVICE bool attention_is_codes(const attention_range &r)
{
    return ATTENTION_CODES && r.split > 0;
}

QN_DEVICE attention_range attention_range_of(const qn_persistent_attention &s, uint32_t position, uint32_t kv_head,
                                             uint32_t split, bool has_pages)
{
    attention_range r;
    const uint32_t tiles_per_split = attention_tiles_per_split(position, s.n_splits);
    r.kv_head = kv_head;
    r.split = split;
#if ATTENTION_CODES
    r.n_tiles = split ? attention_code_pages(position) * ATTENTION_PAGE_TILES
                      : attention_f16_position(position) / ATTENTION_TILE_KV + 1;
    r.first = split ? min((split - 1) * tiles_per_split, r.n_tiles) : 0;
    r.last = r.kv_head >= s.n_kv_heads ? r.first : split ? min(r.first + tiles_per_split, r.n_tiles) : r.n_tiles;
#else
    r.n_tiles = position / ATTENTION_TILE_KV + 1;
    r.first = min(r.split * tiles_per_split, r.n_tiles);
    r.last = r.kv_head < s.n_kv_heads ? min(r.first + tiles_per_split, r.n_tiles) : r.first;
#endif
    r.has_pages = has_pages;
    return r;
}

// Page table entries of the first pages of a block's first unit, in shared memory. Loaded by the first call of
// attention_prefetch, and again only where the range of tiles differs. Each of the two warps that prefetch has a copy
// of its own; the phase reads the first.
struct attention_pages {
    uint64_t entries[2][QN_WARP_SIZE];
    uint32_t first[2], last[2]; // the range of tiles; first > last: nothing is loaded
};

QN_DEVICE uint64_t attention_page(const qn_persistent_attention &s, const attention_range &r, const attention_pages &pages,
                                  uint32_t tile)
{
    const uint32_t page = tile / ATTENTION_PAGE_TILES, i = page - r.first / ATTENTION_PAGE_TILES;
    if (!s.cache.tables)
        return 0;
    return r.has_pages && i < QN_WARP_SIZE ? pages.entries[0][i] : qn_kv_table(s.cache.tables, 0)[page + ATTENTION_CODES];
}

// The keys or values of a key-value head, without a page's address. The cache is that of the row's sequence.
QN_DEVICE const uint8_t *attention_rows(const uint8_t *array, uint64_t head_stride, uint32_t kv_head)
{
    return array + kv_head * head_stride;
}

// The fp16 keys and values of a key-value head.
QN_DEVICE const uint8_t *attention_keys(const qn_persistent_attention &s, const qn_persistent_codes &codes, uint32_t kv_head)
{
    return ATTENTION_CODES ? attention_rows(s.f16_keys, codes.f16_head, kv_head)
                           : attention_rows(s.cache.keys, s.cache.key_head_stride, kv_head);
}

QN_DEVICE const uint8_t *attention_values(const qn_persistent_attention &s, const qn_persistent_codes &codes, uint32_t kv_head)
{
    return ATTENTION_CODES ? attention_rows(s.f16_values, codes.f16_head, kv_head)
                           : attention_rows(s.cache.values, s.cache.value_head_stride, kv_head);
}

// A position's row in a page, or in a contiguous cache.
QN_DEVICE uint32_t attention_row(const qn_persistent_attention &s, uint32_t position)
{
    return s.cache.tables ? position % QN_PAGE : position;
}

// ---- Biases, qk_norm, rope, kv_store of the row ----

QN_DEVICE float attention_sumsq(float4 x)
{
    return x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
}

// Issues the loads of the cosines and sines of four dimensions from d on; two values each with interleaved rope.
QN_DEVICE void attention_load_rope(float4 &cosine, float4 &sine, const qn_persistent_attention &s, uint32_t d)
{
    const uint32_t half = s.n_rot / 2;
    if (s.interleaved) {
        *(float2 *)&cosine = *(const float2 *)(s.cosines + d / 2);
        *(float2 *)&sine = *(const float2 *)(s.sines + d / 2);
    } else {
        const uint32_t pair = d < half ? d : d - half;
        cosine = *(const float4 *)(s.cosines + pair);
        sine = *(const float4 *)(s.sines + pair);
    }
}

QN_DEVICE uint32_t attention_to_f16(float x, bool is_nan, uint32_t replacement)
{
    return is_nan || x != x ? replacement : qn_f32_to_f16(fminf(fmaxf(x, -ATTENTION_F16_MAX), ATTENTION_F16_MAX));
}

// Four dimensions of a row from d on, after rope. All dimensions of the row are in `row`.
QN_DEVICE float4 attention_apply_rope(float4 x, float4 cosine, float4 sine, const float *row, const qn_persistent_attention &s,
                                      uint32_t d, uint32_t half_rot)
{
    float4 other = make_float4(-x.y, x.x, -x.w, x.z);
    if (s.interleaved) {
        cosine = make_float4(cosine.x, cosine.x, cosine.y, cosine.y);
        sine = make_float4(sine.x, sine.x, sine.y, sine.y);
    } else {
        other = d < half_rot ? scale_4(*(const float4 *)&row[d + half_rot], -1) : *(const float4 *)&row[d - half_rot];
    }
    return make_float4(x.x * cosine.x + other.x * sine.x, x.y * cosine.y + other.y * sine.y, x.z * cosine.z + other.z * sine.z,
                       x.w * cosine.w + other.w * sine.w);
}

// Stores four dimensions of the row's key (row 0) or value (row 1) from d on, to the cache and to shared.new_kv. A NaN
// in the value is stored as 0, and the whole key as NaN: the row then makes scores NaN.
QN_DEVICE void attention_store_new_kv(attention_shared &shared, float4 x, const qn_persistent_attention &s,
                                      const qn_persistent_codes &codes, const attention_range &r,
                                      const attention_pages &pages, uint32_t position, uint32_t row, uint32_t d)
{
    const attention_inputs &inputs = shared.u.inputs;
    const bool is_value = row == 1;
    const uint32_t replacement = is_value ? 0 : ATTENTION_F16_NAN;
    float value_sumsq = inputs.sumsq[1][0].x;
    if (s.head_dim > 128)
        value_sumsq += inputs.sumsq[1][1].x;
    const bool is_nan = !is_value && value_sumsq != value_sumsq; // a sum of squares is NaN only if an element is
    const uint2 packed =
        make_uint2(attention_to_f16(x.x, is_nan, replacement) | attention_to_f16(x.y, is_nan, replacement) << 16,
                   attention_to_f16(x.z, is_nan, replacement) | attention_to_f16(x.w, is_nan, replacement) << 16);
    *(uint2 *)&shared.new_kv[row][d] = packed;
    // The cache's pointers are const for its readers; this phase writes it.
    const uint8_t *rows = is_value ? attention_values(s, codes, r.kv_head) : attention_keys(s, codes, r.kv_head);
    const uint64_t at = attention_page(s, r, pages, position / ATTENTION_TILE_KV) +
                        (uint64_t)attention_row(s, position) * s.head_dim * 2 + d * 2;
    *(uint2 *)((uint8_t *)rows + at) = packed;
}

#if ATTENTION_CODES

// Normalised Walsh-Hadamard transform of rows of QN_HEAD_DIM; a thread has four dimensions of row `row` from d on. By all
// threads of the block; exchange: a row each, for QN_HEAD_DIM 256.
QN_DEVICE float4 attention_hadamard(float4 x, float (*exchange)[QN_HEAD_DIM], uint32_t row, uint32_t d, bool valid)
{
    float v[4] = { x.x, x.y, x.z, x.w };
    qn_butterflies<1, 4>(v);
    qn_butterflies<2, 4>(v);
#pragma unroll
    for (uint32_t distance = 1; distance < min(QN_HEAD_DIM / 4, QN_WARP_SIZE); distance *= 2) {
        const float sign = threadIdx.x & distance ? -1.0f : 1.0f; // the upper lane keeps the difference
#pragma unroll
        for (int i = 0; i < 4; i++)
            v[i] = fmaf(v[i], sign, __shfl_xor_sync(QN_FULL_MASK, v[i], distance));
    }
    x = make_float4(v[0], v[1], v[2], v[3]);
    if (QN_HEAD_DIM > 128) {
        if (valid)
            *(float4 *)&exchange[row][d] = x;
        __syncthreads();
        if (valid)
            x = add_4(*(const float4 *)&exchange[row][d ^ 128], scale_4(x, d & 128 ? -1.0f : 1.0f));
    }
    return scale_4(x, rsqrtf((float)QN_HEAD_DIM));
}

// Stores four dimensions of a query, from d on, as operand B of the scores of codes.
QN_DEVICE void attention_store_code_query(shared &s, uint32_t column, uint32_t d, uint2 packed)
{
    constexpr uint32_t run = lane_fragment<QN_KEY_BITS, 4>::run;
    const uint32_t n = d / (run * 4) * run + d % run;
    *(uint2 *)s.queries[n / 4][column * 4 + d / run % 4] = packed;
}

#endif

// The queries of n heads from `first_head` on, to shared memory as fp16, divided by a power of two near their norm
// (factors holds the inverse). With new_kv also the row's key and value, to the cache as qn_rope_qk_norm_store stores
// them (rope/rope.cu), and to shared.new_kv. A thread processes four dimensions of a row; rows 0 and 1 are then the key
// and the value.
QN_DEVICE void attention_qk_norm_rope_store(attention_shared &shared, const qn_persistent_attention &s,
                                            const qn_persistent_codes &codes, const attention_range &r,
                                            const attention_pages &pages, uint32_t position, uint32_t first_head, uint32_t n,
                                            bool new_kv)
{
    attention_inputs &inputs = shared.u.inputs;
    const uint32_t log_quads = 4 + attention_log_slices(s.head_dim);
    const uint32_t n_new_kv = new_kv ? 2 : 0, count = (n + n_new_kv) << log_quads, half_rot = s.n_rot / 2;
    // Without biases the norm's factor is applied last: its reduction then runs together with qk_norm's reductions.
    const bool has_biases = s.query_bias || s.key_bias || s.value_bias;
#pragma unroll 1
    for (uint32_t i = threadIdx.x; i - threadIdx.x < count; i += QN_PERSISTENT_THREADS) {
        const uint32_t row = i >> log_quads, d = (i & ((1 << log_quads) - 1)) * 4, column = row - n_new_kv;
        const bool valid = i < count, is_query = row >= n_new_kv, is_value = !is_query && row == 1;
        const float *weights = is_query ? s.query_weight : is_value ? 0 : s.key_weight;
        const float *bias = is_query ? s.query_bias : is_value ? s.value_bias : s.key_bias;
        const bool has_rope = valid && d < s.n_rot && !is_value;
        const uint32_t at = is_query   ? s.q_row + (first_head + column) * s.query_stride
                            : is_value ? s.v_row + r.kv_head * s.head_dim
                                       : s.k_row + r.kv_head * s.head_dim;
        float sumsq = rms_sumsq(s.qkv);
        float4 weight = { 1, 1, 1, 1 }, biases = {}, cosine = {}, sine = {};
#if ATTENTION_CODES
        float4 sign = {}, mean = {};
        if (valid)
            sign = *(const float4 *)((is_value ? codes.values.signs : codes.keys.signs) + d);
        if (valid && attention_is_codes(r))
            mean = *(const float4 *)((const float *)(s.means + qn_kv_table(codes.tables, 0)[0]) + r.kv_head * QN_HEAD_DIM + d);
#endif
        if (bias && valid)
            biases = *(const float4 *)(bias + (is_query ? first_head + column : r.kv_head) * s.head_dim + d);
        if (weights)
            weight = *(const float4 *)(weights + d);
        if (has_rope)
            attention_load_rope(cosine, sine, s, d);
        partial_loads_4<ATTENTION_PARTIAL_LOADS> loads;
        issue_partials_4(loads, s.qkv, at + d, 0, valid);
        float4 x = finish_partials_4(loads, s.qkv, at + d, valid);
        if (has_biases)
            x = add_4(scale_4(x, rms_scale(s.qkv, sumsq)), biases);
        float before = attention_sumsq(x);
        x = make_float4(x.x * weight.x, x.y * weight.y, x.z * weight.z, x.w * weight.w);
        float after = attention_sumsq(x);
#pragma unroll
        for (int distance = QN_WARP_SIZE / 2; distance > 0; distance /= 2) {
            sumsq += __shfl_xor_sync(QN_FULL_MASK, sumsq, distance);
            const float more_before = __shfl_xor_sync(QN_FULL_MASK, before, distance);
            const float more_after = __shfl_xor_sync(QN_FULL_MASK, after, distance);
            before += distance < 1 << log_quads ? more_before : 0;
            after += distance < 1 << log_quads ? more_after : 0;
        }
        if (valid) {
            *(float4 *)&inputs.u.rows[row][d] = x;
            if (d % 128 == 0)
                inputs.sumsq[row][d / 128] = make_float2(before, after);
        }
        __syncthreads();
        if (has_rope)
            x = attention_apply_rope(x, cosine, sine, inputs.u.rows[row], s, d, half_rot);
#if ATTENTION_CODES
        x = attention_hadamard(make_float4(x.x * sign.x, x.y * sign.y, x.z * sign.z, x.w * sign.w),
                               inputs.u.rotated.exchange, row, d, valid);
        float mean_product = x.x * mean.x + x.y * mean.y + (x.z * mean.z + x.w * mean.w);
        if (attention_is_codes(r)) {
#pragma unroll
            for (int distance = QN_WARP_SIZE / 2; distance > 0; distance /= 2) {
                const float more = __shfl_xor_sync(QN_FULL_MASK, mean_product, distance);
                mean_product += distance < 1 << log_quads ? more : 0;
            }
        }
#endif
        if (!valid)
            continue;
        float2 acc = inputs.sumsq[row][0];
        if (s.head_dim > 128) {
            acc.x += inputs.sumsq[row][1].x;
            acc.y += inputs.sumsq[row][1].y;
        }
        float scale = has_biases ? 1 : rms_scale_of(s.qkv, sumsq);
        if (weights)
            scale *= rsqrtf(__fdividef(acc.x * scale * scale, (float)s.head_dim) + s.eps);
        if (is_query) {
            // Exponent of the norm: half the exponent of the sum of squares.
            const uint32_t exponent = ((__float_as_uint(acc.y * scale * scale) >> 23) + 127) / 2;
            const float factor = s.scale * QN_LOG2E * __uint_as_float(exponent << 23);
            if (d == 0)
                inputs.factors[column] = factor;
#if ATTENTION_CODES
            if (d == 0)
                inputs.codes.factors[column] = factor / codes.keys.gain; // a power of two
            if (d % 128 == 0)
                inputs.biases[column][d / 128] = mean_product * scale * s.scale * QN_LOG2E;
#endif
            x = scale_4(x, scale * __uint_as_float((254 - exponent) << 23));
            const uint2 packed = make_uint2(qn_f32_to_f16x2(x.x, x.y), qn_f32_to_f16x2(x.z, x.w));
#if ATTENTION_CODES
            if (attention_is_codes(r)) {
                attention_store_code_query(inputs.codes, column, d, packed);
                continue;
            }
#endif
            *(uint2 *)&inputs.queries[column][d] = packed;
        } else {
            attention_store_new_kv(shared, scale_4(x, scale), s, codes, r, pages, position, row, d);
        }
    }
    __syncthreads();
}

// ---- Tiles ----

// A warp's part of a tile, in pieces of 8 dimensions (16 bytes). Keys: rows g and g+8, pieces t and t+4 of the slice.
// Values: rows 2t, 2t+1, 2t+8, 2t+9, piece g.
struct attention_fragments {
    uint4 k[2][2], v[4];
};

QN_DEVICE uint4 attention_load_16(const uint8_t *at)
{
    uint4 x;
    asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
                 : "l"(at));
    return x;
}

QN_DEVICE void attention_load_keys(attention_fragments &w, const uint8_t *at, uint32_t row_bytes)
{
    w.k[0][0] = attention_load_16(at);
    w.k[0][1] = attention_load_16(at + 64);
    w.k[1][0] = attention_load_16(at + 8 * row_bytes);
    w.k[1][1] = attention_load_16(at + 8 * row_bytes + 64);
}

QN_DEVICE void attention_load_values(attention_fragments &w, const uint8_t *at, uint32_t row_bytes)
{
    w.v[0] = attention_load_16(at);
    w.v[1] = attention_load_16(at + row_bytes);
    w.v[2] = attention_load_16(at + 8 * row_bytes);
    w.v[3] = attention_load_16(at + 9 * row_bytes);
}

// The last tile: inserts the row's own key and value as row `last`, and zeros the values of the rows after it, whose
// memory is not initialised. (Their scores are masked, but 0 * NaN is NaN.)
QN_DEVICE void attention_insert_new_kv(attention_fragments &w, const attention_shared &shared, uint32_t last, uint32_t slice,
                                       uint32_t g, uint32_t t)
{
    const uint4 *key = (const uint4 *)(shared.new_kv[0] + slice * ATTENTION_SLICE);
    const uint4 value = ((const uint4 *)(shared.new_kv[1] + slice * ATTENTION_SLICE))[g];
#pragma unroll
    for (int i = 0; i < 2; i++)
        if (8 * i + g == last) {
            w.k[i][0] = key[t];
            w.k[i][1] = key[4 + t];
        }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t row = i / 2 * 8 + 2 * t + i % 2;
        if (row == last)
            w.v[i] = value;
        else if (row > last)
            w.v[i] = uint4{};
    }
}

// A warp's accumulators: v[j][2e + c] of a lane is dimension 8g + 2j + e of the slice, query head 2t + c. m, l: running
// maximum and sum of the online softmax.
struct attention_acc {
    float v[4][4], m[2], l[2];
};

QN_DEVICE void attention_rescale(attention_acc &acc, int c, float factor)
{
    acc.l[c] *= factor;
#pragma unroll
    for (int j = 0; j < 4; j++) {
        acc.v[j][c] *= factor;
        acc.v[j][2 + c] *= factor;
    }
}

QN_DEVICE void attention_pv(attention_acc &acc, const uint4 v[4], const uint32_t probs[2])
{
    const uint32_t x[4][4] = { { v[0].x, v[1].x, v[2].x, v[3].x },
                               { v[0].y, v[1].y, v[2].y, v[3].y },
                               { v[0].z, v[1].z, v[2].z, v[3].z },
                               { v[0].w, v[1].w, v[2].w, v[3].w } };
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint32_t a[4] = { __byte_perm(x[j][0], x[j][1], 0x5410), __byte_perm(x[j][0], x[j][1], 0x7632),
                                __byte_perm(x[j][2], x[j][3], 0x5410), __byte_perm(x[j][2], x[j][3], 0x7632) };
        qn_mma_m16n8k16_f16(acc.v[j], a, probs);
    }
}

// Partial scores over the warp's slice of dimensions: rows g and g+8, query heads 2t and 2t+1.
QN_DEVICE float4 attention_qk(const uint4 (&k)[2][2], const uint4 query[2])
{
    float x[2][4] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t low[4] = { k[0][j].x, k[1][j].x, k[0][j].y, k[1][j].y }, low_query[2] = { query[j].x, query[j].y };
        const uint32_t high[4] = { k[0][j].z, k[1][j].z, k[0][j].w, k[1][j].w }, high_query[2] = { query[j].z, query[j].w };
        qn_mma_m16n8k16_f16(x[j], low, low_query);
        qn_mma_m16n8k16_f16(x[j], high, high_query);
    }
    return make_float4(x[0][0] + x[1][0], x[0][1] + x[1][1], x[0][2] + x[1][2], x[0][3] + x[1][3]);
}

// Online softmax of a tile: scores in the log2 domain (-infinity: masked) to weights, as operand B of the second MMA.
QN_DEVICE void attention_softmax(attention_acc &acc, uint32_t probs[2], const float x[4])
{
    float weight[4];
#pragma unroll
    for (int c = 0; c < 2; c++) {
        const float m = qn_lanes_max<4, QN_WARP_SIZE>(fmaxf(acc.m[c], fmaxf(x[c], x[2 + c])));
        attention_rescale(acc, c, qn_exp2(acc.m[c] - m));
        acc.m[c] = m;
        weight[c] = qn_exp2(x[c] - m);
        weight[2 + c] = qn_exp2(x[2 + c] - m);
        acc.l[c] += weight[c] + weight[2 + c];
    }
#pragma unroll
    for (int i = 0; i < 2; i++)
        probs[i] = qn_transpose_8x8(qn_f32_to_f16x2(weight[2 * i], weight[2 * i + 1]));
}

// Adds the partial scores of all slices of a tile. The warps of a group synchronise at a named barrier; two buffers
// alternate, so that one barrier a tile is enough.
QN_DEVICE float4 attention_reduce_scores(attention_inputs &inputs, float4 x, uint32_t buffer, uint32_t log_slices,
                                         uint32_t warp, uint32_t lane)
{
    if (log_slices == 0)
        return x;
    const uint32_t slices = 1 << log_slices, group = warp >> log_slices;
    const float4(*scores)[QN_WARP_SIZE] = inputs.u.scores[buffer] + (group << log_slices);
    inputs.u.scores[buffer][warp][lane] = x;
    asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(slices * QN_WARP_SIZE) : "memory");
    x = add_4(scores[0][lane], scores[1][lane]);
    if (slices > 2)
        x = add_4(x, add_4(scores[2][lane], scores[3][lane]));
    return x;
}

// ---- Partials of the split ----

#if ATTENTION_CODES

// Rotates a split's sums, in shared memory, back to the model's basis, and stores them: the combine then is that of an
// fp16 cache.
QN_DEVICE void attention_store_rotated(float (*rows)[QN_HEAD_DIM], const qn_persistent_attention &s,
                                       const qn_persistent_codes &codes, const attention_range &r, uint32_t first_head,
                                       uint32_t n)
{
    const uint32_t row = threadIdx.x / (QN_HEAD_DIM / 4), d = threadIdx.x % (QN_HEAD_DIM / 4) * 4;
    const bool valid = row < n;
    float4 sign = {}, x = {};
    if (valid)
        sign = *(const float4 *)(codes.values.signs + d);
    __syncthreads();
    if (valid)
        x = *(const float4 *)&rows[row][d];
    x = attention_hadamard(x, rows + ATTENTION_TILE_Q, row, d, valid);
    if (valid)
        *(float4 *)(s.partials + ((uint64_t)(first_head + row) * s.n_splits + r.split) * QN_HEAD_DIM + d) =
            make_float4(x.x * sign.x, x.y * sign.y, x.z * sign.z, x.w * sign.w);
}

static_assert(QN_PERSISTENT_MAX_GROUP * QN_HEAD_DIM / 4 <= QN_PERSISTENT_THREADS, "a thread has four values of the sums");

#endif

// The warps of the first group combine the accumulators of the n_groups groups that had tiles, and store the split's
// partials.
QN_DEVICE void attention_write_partials(attention_shared &shared, attention_acc &acc, const qn_persistent_attention &s,
                                        const qn_persistent_codes &codes, const attention_range &r, uint32_t first_head,
                                        uint32_t n, uint32_t n_groups, uint32_t warp, uint32_t lane)
{
    const uint32_t log_slices = attention_log_slices(s.head_dim), slices = 1 << log_slices;
    const uint32_t group = warp >> log_slices, slice = warp & (slices - 1), g = lane / 4, t = lane % 4;
#pragma unroll
    for (int c = 0; c < 2; c++)
        acc.l[c] = qn_lanes_sum<4, QN_WARP_SIZE>(acc.l[c]);
    if (n_groups > 1) {
        if (slice == 0 && g == 0)
            *(float4 *)&shared.maxima[group][2 * t] = make_float4(acc.m[0], acc.l[0], acc.m[1], acc.l[1]);
        __syncthreads(); // all reads of scores are done: u.acc overwrites them
        if (group > 0 && group < n_groups) {
#pragma unroll
            for (int j = 0; j < 4; j++)
                shared.u.acc[warp - slices][j][lane] = make_float4(acc.v[j][0], acc.v[j][1], acc.v[j][2], acc.v[j][3]);
        }
        __syncthreads();
    }
    if (!ATTENTION_CODES && group > 0)
        return;
    float m[2] = { acc.m[0], acc.m[1] };
    if (group > 0)
        n_groups = 0;
#pragma unroll 1
    for (uint32_t i = 1; i < n_groups; i++) {
        const float4 m_l = *(const float4 *)&shared.maxima[i][2 * t]; // m and l of two query heads
        m[0] = fmaxf(m[0], m_l.x);
        m[1] = fmaxf(m[1], m_l.z);
    }
    attention_rescale(acc, 0, qn_exp2(acc.m[0] - m[0]));
    attention_rescale(acc, 1, qn_exp2(acc.m[1] - m[1]));
#pragma unroll 1
    for (uint32_t i = 1; i < n_groups; i++) {
        const float4 m_l = *(const float4 *)&shared.maxima[i][2 * t];
        const float factors[2] = { qn_exp2(m_l.x - m[0]), qn_exp2(m_l.z - m[1]) };
        acc.l[0] += m_l.y * factors[0];
        acc.l[1] += m_l.w * factors[1];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const float4 other = shared.u.acc[((i - 1) << log_slices) + slice][j][lane];
            acc.v[j][0] += other.x * factors[0];
            acc.v[j][1] += other.y * factors[1];
            acc.v[j][2] += other.z * factors[0];
            acc.v[j][3] += other.w * factors[1];
        }
    }
    const uint32_t partial = (first_head + 2 * t) * s.n_splits + r.split;
#if ATTENTION_CODES
    float(*rows)[QN_HEAD_DIM] = (float(*)[QN_HEAD_DIM])&shared.u;
    __syncthreads(); // all reads of u are done
    if (group == 0) {
#pragma unroll
        for (int c = 0; c < 2; c++) {
            if (2 * t + c >= n)
                continue;
            float *row = rows[2 * t + c] + slice * ATTENTION_SLICE + 8 * g;
            *(float4 *)row = make_float4(acc.v[0][c], acc.v[0][2 + c], acc.v[1][c], acc.v[1][2 + c]);
            *(float4 *)(row + 4) = make_float4(acc.v[2][c], acc.v[2][2 + c], acc.v[3][c], acc.v[3][2 + c]);
            if (slice == 0 && g == 0)
                *(float2 *)(s.maxima + 2 * (partial + c * s.n_splits)) = make_float2(m[c], acc.l[c]);
        }
    }
    attention_store_rotated(rows, s, codes, r, first_head, n);
#else
    float *to = s.partials + (uint64_t)partial * s.head_dim + slice * ATTENTION_SLICE + 8 * g, *maxima = s.maxima + 2 * partial;
#pragma unroll
    for (int c = 0; c < 2; c++) {
        if (2 * t + c < n) {
            *(float4 *)to = make_float4(acc.v[0][c], acc.v[0][2 + c], acc.v[1][c], acc.v[1][2 + c]);
            *(float4 *)(to + 4) = make_float4(acc.v[2][c], acc.v[2][2 + c], acc.v[3][c], acc.v[3][2 + c]);
            if (slice == 0 && g == 0)
                *(float2 *)maxima = make_float2(m[c], acc.l[c]);
        }
        to += s.n_splits * s.head_dim;
        maxima += 2 * s.n_splits;
    }
#endif
}

#if ATTENTION_CODES
#include "cuda/kernels/persistent/persistent_codes.cuh"
#endif

// ---- The phase ----

// Prefetches into L2 the cache rows that the block's warps load first, and makes the page table's entries ready in
// `pages`. Called while the block waits at the grid barrier before the phase. By two warps, for keys and values; with
// page tables by a lane a page.
QN_DEVICE void attention_prefetch(const qn_persistent_attention &s, const qn_persistent_codes &codes, attention_pages &pages,
                                  uint32_t row, const attention_range &r, uint32_t position = 0)
{
#if ATTENTION_CODES
    codes_prefetch(s, codes, pages, r, position);
#else
    constexpr uint32_t max_bytes = 4 * ATTENTION_TILE_STRIDE; // four tiles of each group
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE;
    if (warp > 1 || (lane > 0 && !s.cache.tables))
        return;
    const uint32_t tile_bytes = ATTENTION_TILE_KV * 2 * s.head_dim, n_tiles = min(r.last - r.first, max_bytes / tile_bytes);
    const uint8_t *rows = warp ? attention_rows(s.cache.values, s.cache.value_head_stride, r.kv_head)
                               : attention_rows(s.cache.keys, s.cache.key_head_stride, r.kv_head);
    uint32_t first = r.first, last = r.first + n_tiles;
    uint64_t page_address = 0;
    if (s.cache.tables) {
        const uint32_t page = r.first / ATTENTION_PAGE_TILES + lane;
        if (pages.first[warp] == r.first && pages.last[warp] == r.last) {
            page_address = pages.entries[warp][lane];
        } else {
            if (page * ATTENTION_PAGE_TILES < r.last)
                page_address = qn_kv_table(s.cache.tables, row)[page];
            pages.entries[warp][lane] = page_address;
            __syncwarp();
            if (lane == 0) {
                pages.first[warp] = r.first;
                pages.last[warp] = r.last;
            }
        }
        first = max(first, page * ATTENTION_PAGE_TILES);
        last = min(last, (page + 1) * ATTENTION_PAGE_TILES);
    }
    if (first < last)
        prefetch_bytes(rows + page_address + (uint64_t)attention_row(s, first * ATTENTION_TILE_KV) * 2 * s.head_dim,
                       (last - first) * tile_bytes);
#endif
}

// A unit, by the whole block.
QN_DEVICE void attention_unit(const qn_persistent_attention &s, const qn_persistent_codes &codes, const attention_range &r,
                              const attention_pages &pages, uint32_t position, uint8_t *scratch)
{
    attention_shared &shared = *(attention_shared *)scratch;
    if (r.first == r.last)
        return;
    const uint32_t warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
    const uint32_t log_slices = attention_log_slices(s.head_dim), row_bytes = 2 * s.head_dim;
    const uint32_t group = warp >> log_slices, slice = warp & ((1 << log_slices) - 1);
    const uint32_t n = (uint32_t)__fdividef(s.n_heads + 0.5f, s.n_kv_heads), first_head = r.kv_head * n;
    const uint32_t n_groups = ATTENTION_WARPS >> log_slices;
    uint32_t tile = r.first + group;
    const uint32_t row = attention_row(s, tile * ATTENTION_TILE_KV), stride = s.cache.tables ? 0 : ATTENTION_TILE_STRIDE;
    const auto page_of = [&](uint32_t at) { return at < r.last ? attention_page(s, r, pages, at) : 0; };
    uint64_t page = page_of(tile); // of the tile whose keys and values are loaded next
    const uint8_t *keys =
        attention_keys(s, codes, r.kv_head) + slice * (ATTENTION_SLICE * 2) + t * 16 + (uint64_t)(row + g) * row_bytes;
    const uint8_t *values =
        attention_values(s, codes, r.kv_head) + slice * (ATTENTION_SLICE * 2) + g * 16 + (uint64_t)(row + 2 * t) * row_bytes;
    attention_fragments w = {};
    if (tile < r.last) {
        attention_load_keys(w, keys + page, row_bytes);
        attention_load_values(w, values + page, row_bytes);
    }
    page = page_of(tile + n_groups);
    attention_qk_norm_rope_store(shared, s, codes, r, pages, position, first_head, n, r.last == r.n_tiles);
    uint4 query[2];
#pragma unroll
    for (int j = 0; j < 2; j++)
        query[j] = *(const uint4 *)&shared.u.inputs.queries[g][slice * ATTENTION_SLICE + (4 * j + t) * 8];
    const float2 factors = *(const float2 *)&shared.u.inputs.factors[2 * t];
    attention_acc acc = { {}, { ATTENTION_LOWEST, ATTENTION_LOWEST }, { 0, 0 } };
#pragma unroll 1
    for (uint32_t buffer = 0; tile < r.last; tile += n_groups, buffer ^= 1) {
        const bool is_last = tile + 1 == r.n_tiles, more = tile + n_groups < r.last;
        if (is_last)
            attention_insert_new_kv(w, shared, position % ATTENTION_TILE_KV, slice, g, t);
        const float4 score = attention_qk(w.k, query);
        keys += stride;
        values += stride;
        if (more)
            attention_load_keys(w, keys + page, row_bytes);
        const float4 all = attention_reduce_scores(shared.u.inputs, score, buffer, log_slices, warp, lane);
        float x[4] = { all.x * factors.x, all.y * factors.y, all.z * factors.x, all.w * factors.y };
        if (is_last) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (8 * i + g > position % ATTENTION_TILE_KV)
                    x[2 * i] = x[2 * i + 1] = -QN_INFINITY;
        }
        uint32_t probs[2];
        attention_softmax(acc, probs, x);
        attention_pv(acc, w.v, probs);
        if (more)
            attention_load_values(w, values + page, row_bytes);
        page = page_of(tile + 2 * n_groups);
    }
    attention_write_partials(shared, acc, s, codes, r, first_head, n, min(n_groups, r.last - r.first), warp, lane);
}

// ---- Split-KV combine: prologue of the next GEMV ----

// Partials of a head in flight at the same time; the second four only if there are more than four.
#define COMBINE_LOADS 8

QN_DEVICE void combine_load(float4 x[COMBINE_LOADS], const float *partials, uint32_t stride, uint32_t n)
{
#pragma unroll
    for (uint32_t i = 0; i < COMBINE_LOADS / 2; i++)
        x[i] = load_cg_4_if(partials + i * stride, i < n);
    if (n > COMBINE_LOADS / 2) {
#pragma unroll
        for (uint32_t i = COMBINE_LOADS / 2; i < COMBINE_LOADS; i++)
            x[i] = load_cg_4_if(partials + i * stride, i < n);
    }
}

// Columns first + 4*lane to first + 4*lane + 3 of QN_PROLOGUE_ATTENTION_COMBINE, by a full warp; `first` is a multiple
// of 128. Partials are added in ascending order of the split.
QN_DEVICE float4 prologue_attention_combine(const qn_persistent_gemv &s, uint32_t position, uint32_t first, uint32_t lane)
{
    // width: lanes of a head
    const uint32_t width = min(s.head / 4, (uint32_t)QN_WARP_SIZE), log_head = 31 - __clz(s.head);
    const uint32_t lane_of_head = lane % width,
                   n = attention_used_splits(position, attention_tiles_per_split(position, s.n_splits));
    const uint32_t column = first + 4 * lane;
    const bool valid = column < s.n_cols;
    const uint32_t head = valid ? column >> log_head : 0, d = column & (s.head - 1);
    const uint32_t gate_at = s.row + 2 * head * s.head + s.head + d;
    const float *partials = s.x + (uint64_t)head * s.n_splits * s.head + d;
    const float2 *maxima = (const float2 *)s.maxima + head * s.n_splits;
    // All loads are issued before the first result is used.
    float2 stats[2] = { { ATTENTION_LOWEST, 0 }, { ATTENTION_LOWEST, 0 } };
    if (lane_of_head < n)
        stats[0] = __ldcg(maxima + lane_of_head);
    if (lane_of_head + width < n)
        stats[1] = __ldcg(maxima + lane_of_head + width);
    float4 x[COMBINE_LOADS] = {}, y = {};
    combine_load(x, partials, s.head, n);
    partial_loads_4<ATTENTION_PARTIAL_LOADS> gates = {};
    float sumsq = 0;
    if (s.gated) {
        sumsq = rms_sumsq(s.from);
        issue_partials_4(gates, s.from, gate_at, 0, valid);
    }
    float m = fmaxf(stats[0].x, stats[1].x);
#pragma unroll 1
    for (uint32_t distance = width / 2; distance > 0; distance /= 2)
        m = fmaxf(m, __shfl_xor_sync(QN_FULL_MASK, m, distance));
    const float factors[2] = { qn_exp2(stats[0].x - m), qn_exp2(stats[1].x - m) };
    float l = stats[0].y * factors[0] + stats[1].y * factors[1];
#pragma unroll 1
    for (uint32_t distance = width / 2; distance > 0; distance /= 2)
        l += __shfl_xor_sync(QN_FULL_MASK, l, distance);
    const auto add = [&](uint32_t i, const float4 &partial) {
        const float factor = __shfl_sync(QN_FULL_MASK, i < width ? factors[0] : factors[1], i, width);
        if (i < n)
            y = add_4(y, scale_4(partial, factor));
    };
#pragma unroll 1
    for (uint32_t i = 0; i < n; i += COMBINE_LOADS) {
        if (i > 0)
            combine_load(x, partials + i * s.head, s.head, n - i);
#pragma unroll
        for (uint32_t k = 0; k < COMBINE_LOADS / 2; k++)
            add(i + k, x[k]);
        if (n - i > COMBINE_LOADS / 2) {
#pragma unroll
            for (uint32_t k = COMBINE_LOADS / 2; k < COMBINE_LOADS; k++)
                add(i + k, x[k]);
        }
    }
    y = scale_4(y, __fdividef(1, l));
    if (s.gated) {
        const float4 gate = scale_4(finish_partials_4(gates, s.from, gate_at, valid), -rms_scale(s.from, sumsq));
        y.x = __fdividef(y.x, 1 + __expf(gate.x));
        y.y = __fdividef(y.y, 1 + __expf(gate.y));
        y.z = __fdividef(y.z, 1 + __expf(gate.z));
        y.w = __fdividef(y.w, 1 + __expf(gate.w));
    }
    return valid ? y : float4{};
}

#endif
