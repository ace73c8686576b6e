// Inner loop of decode attention over a KV cache: rows from a ring buffer in shared memory (kv_ring.cuh),
// dequantisation by look-up tables in shared memory, both GEMMs on tensor cores, online softmax; and the reduction over
// the warps of a block. The including kernel sets the range of rows and writes the results. It defines
//
//   QN_HEAD_DIM
//   QN_KEY_BITS, QN_VALUE_BITS   bits of the codes; 16 and 16: fp16
//   QN_WARPS                     warps of a block
//   QN_PAGES                     1: the cache of a session, whose first and newest pages are fp16 (kv.h)
//
// A warp processes a tile of QN_ATTENTION_TILE_KV rows at a time. It dequantises codes to fp16, and multiplies keys
// (operand A) by queries (operand B, the eight columns are query heads), then transposed values (A) by softmax weights
// (B). The order of dimensions within fragments is free as long as queries and keys agree; it is chosen so that no
// 32-bit word of codes is shared between lanes (dim_of() in codes.cuh). A look-up table entry holds the fp16 values of
// two codes, with a copy for each lane (with little shared memory, for two lanes) against bank conflicts.
//
// Method: Dao et al., FlashAttention-2 (2023). Accumulators are rescaled only when a score exceeds the maximum in use
// by more than RESCALE_THRESHOLD (in the log2 domain).
#ifndef QN_CUDA_KERNELS_ATTEND_CUH
#define QN_CUDA_KERNELS_ATTEND_CUH

// Whether a block may have 128 KiB of shared memory; qn_attention_gpu_has_large_smem is the same on the host.
#define LARGE_SMEM (QN_CUDA_ARCH != 860 && QN_CUDA_ARCH != 890 && QN_CUDA_ARCH < 1200)
// Shared memory of a block that is alone on an SM; qn_attention_gpu_shared_limit is the same on the host.
#define SHARED_LIMIT ((LARGE_SMEM ? QN_CUDA_ARCH < 900 ? 163u : 227u : 99u) << 10)
#define DIM QN_HEAD_DIM
#define CODES (QN_KEY_BITS != 16)
#ifndef ENTRY_SHIFT // a kernel may have its own layout of the tables, with VALUE_ENTRY
#define ENTRY_SHIFT (LARGE_SMEM ? 8 : 7)
#define TABLES_ALIGNED_64K LARGE_SMEM
#define SHARED_ENTRIES 1 // an entry has the copies of the key table, then of the value table
#endif
#define TABLE_ENTRIES                                                                                                          \
    (1 << (index_bits(QN_KEY_BITS) > index_bits(QN_VALUE_BITS) ? index_bits(QN_KEY_BITS) : index_bits(QN_VALUE_BITS)))
#define TABLE_BYTES (CODES ? TABLE_ENTRIES << ENTRY_SHIFT : 0)
#ifndef TEAMS
#define TEAMS 1 // of decode attention over codes: groups of QN_WARPS warps with work of their own
#endif
#ifndef BLOCKS
#define BLOCKS 1 // of decode attention over fp16, that an SM runs at a time
#endif
#define BLOCK_LIMIT (qn_attention_gpu_block_limit(SHARED_LIMIT, BLOCKS))

#include "cuda/kernels/codes.cuh"
#include "cuda/kernels/kv_ring.cuh"
#include "cuda/kernels/row.cuh"

#define TILE_Q QN_ATTENTION_TILE_Q
#define TILE_KV QN_ATTENTION_TILE_KV
#define THREADS (QN_WARPS * QN_WARP_SIZE)
#define LANE_VALUES QN_LANE_VALUES(DIM)
#ifndef QUERIES_IN_REGISTERS // if enough registers remain
#define QUERIES_IN_REGISTERS (CODES && (DIM <= 128 || (DIM <= 256 && QN_WARPS <= 8)))
#endif
#define RESCALE_THRESHOLD 8.0f  // of a score above the maximum in use, log2
#define MAX_SCALED_VALUE 128.0f // bound of scaled value scales: the operand is below 2^8 * 2^7, which fp16 holds
#ifndef SCORE_ACCUMULATORS
#define SCORE_ACCUMULATORS 4 // independent accumulators, against the MMA latency
#endif
#define LOWEST (-1e30f)

#ifdef SHARED_ENTRIES
// With large shared memory the tables are at address QN_ATTENTION_TABLE_BASE.
#define VALUE_ENTRY (1 << ENTRY_SHIFT >> 1)
#define TABLE_ADDRESS(dynamic) (LARGE_SMEM ? (uint32_t)QN_ATTENTION_TABLE_BASE : qn_shared_address(dynamic))
#define LANE_TABLE(dynamic, lane) (TABLE_ADDRESS(dynamic) + 4 * (lane) % VALUE_ENTRY) // of the lane's copies

// Stores all copies of entry `i` in stores of 16 bytes, whose order depends on i: against bank conflicts.
QN_DEVICE void store_table_entry(uint32_t tables, uint32_t i, uint32_t key, uint32_t value)
{
    constexpr int stores = VALUE_ENTRY / 16;
#pragma unroll
    for (int j = 0; j < 2 * stores; j++) {
        const uint32_t x = j < stores ? key : value;
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(tables + (i << ENTRY_SHIFT) + j / stores * VALUE_ENTRY +
                                                                      (j + i) % stores * 16),
                     "r"(x)
                     : "memory");
    }
}

#endif

// ---- Operand A of the second MMA: values ----

// A fragments of value codes of `dims` adjacent dimensions. Tile i of 16 of them: codes 2i and 2i+1 of the lane's
// fragments of four keys.
template <int bits, int dims = DIM> struct value_fragments {
    // Codes that are processed together, in one 32-bit word.
    static constexpr int chunk = bits == 2 ? (dims / 8 % 16 == 0 ? 16 : 8) : 8;
    static constexpr int tiles = bits == 16 || bits > 4 ? 1 : chunk / 2;

    // Dequantises tiles first to first + tiles - 1.
    QN_DEVICE void dequantize(uint32_t (*a)[4], uint32_t table, const uint32_t (*words)[lane_fragment<bits, 8, dims>::words],
                              int first)
    {
        if (bits == 16) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                a[0][2 * half] = __byte_perm(words[2 * half][first], words[2 * half + 1][first], 0x5410);
                a[0][2 * half + 1] = __byte_perm(words[2 * half][first], words[2 * half + 1][first], 0x7632);
            }
        } else if (bits > 4) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t x = bit_field<2 * bits>(words[i / 2 * 2], first * 2 * bits);
                const uint32_t y = bit_field<2 * bits>(words[i / 2 * 2 + 1], first * 2 * bits);
                const int at = i % 2 * bits;
                a[0][i] = __byte_perm(lut_load<index_bits(bits), VALUE_ENTRY>(table, x, at),
                                      lut_load<index_bits(bits), VALUE_ENTRY>(table, y, at), 0x7610);
            }
        } else {
            // Interleaves the codes of two keys: even codes in one word, odd codes in another. An index then is a code
            // of both keys.
            uint32_t mask = 0;
#pragma unroll
            for (int i = 0; i < tiles; i++)
                mask |= ((1u << bits) - 1) << (2 * bits * i);
            const int at = first * 2 * bits;
            const int n = min(chunk, dims / 8 - first * 2) * bits;
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const uint32_t *left = words[2 * half], *right = words[2 * half + 1];
                const bool across = at % 32 + n > 32;
                const uint32_t x =
                    across ? __funnelshift_r(left[at / 32], left[at / 32 + across], at % 32) : left[at / 32] >> at % 32;
                const uint32_t y =
                    across ? __funnelshift_r(right[at / 32], right[at / 32 + across], at % 32) : right[at / 32] >> at % 32;
                const uint32_t even = (x & mask) | ((y << bits) & (mask << bits));
                const uint32_t odd = ((x >> bits) & mask) | (y & (mask << bits));
#pragma unroll
                for (int i = 0; i < tiles; i++) {
                    if (2 * (first + i) < dims / 8) {
                        a[i][2 * half] = lut_load<index_bits(bits), VALUE_ENTRY>(table, even, i * 2 * bits);
                        a[i][2 * half + 1] = lut_load<index_bits(bits), VALUE_ENTRY>(table, odd, i * 2 * bits);
                    }
                }
            }
        }
    }
};

struct shared {
    float factors[TILE_Q];               // from MMA scores to the log2 domain
    float biases[TILE_Q];                // added to it
    uint32_t begin[TILE_Q], end[TILE_Q]; // per_query: rows [begin, end) that the query attends to
    float m[QN_WARPS][TILE_Q], l[QN_WARPS][TILE_Q];
    __align__(16) uint16_t queries[DIM / 16][QN_WARP_SIZE][4]; // operand B of the scores, in fragment order
};

// Address of dimension `dim` of query `column`: the inverse of lane_fragment::dim_of.
template <int bits> QN_DEVICE uint16_t *query_slot(shared &s, int column, int dim)
{
    constexpr int run = lane_fragment<bits, 4>::run;
    const int n = dim / (run * 4) * run + dim % run;
    return &s.queries[n / 4][column * 4 + dim / run % 4][n % 4];
}

// Stores a query as fp16, scaled by a power of two to an amax of 1 to 2, and its factor. By a full warp.
template <int bits> QN_DEVICE void store_f16_query(shared &s, const float x[LANE_VALUES], float scale, int column, int lane)
{
    float largest = 0;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    largest = qn_warp_max(largest);
    // 2^(127 - exponent). Zeros, subnormal numbers, infinity and NaN are not scaled.
    const uint32_t exponent = __float_as_uint(largest) >> 23;
    const bool is_normal = exponent > 0 && exponent < 254;
    const float up = is_normal ? __uint_as_float((254 - exponent) << 23) : 1;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        if (i * QN_WARP_SIZE + lane < DIM)
            *query_slot<bits>(s, column, i * QN_WARP_SIZE + lane) = qn_f32_to_f16(x[i] * up);
    if (lane == 0)
        s.factors[column] = scale * (is_normal ? __uint_as_float(exponent << 23) : 1);
}

// State of a warp's online softmax for two queries a lane: maximum in use, sum of weights; and the power of two that
// scales the values' scales into the range of fp16.
struct softmax_state {
    float m[2], l[2];
    float true_max[2];                          // per_query: the largest score so far
    float value_scale_factor, value_scale_unit; // a power of two, and its inverse
};

// Raises the maximum in use, and the scale of values, so that the tile fits; rescales the accumulators.
template <bool scaled>
QN_DEVICE void rescale(softmax_state &state, const float x[4], const float value_scales[2], float (*acc)[4], bool first)
{
    float largest[2] = { fmaxf(x[0], x[2]), fmaxf(x[1], x[3]) }, value = fmaxf(value_scales[0], value_scales[1]);
#pragma unroll
    for (int distance = 4; distance < QN_WARP_SIZE; distance *= 2) {
        largest[0] = fmaxf(largest[0], __shfl_xor_sync(QN_FULL_MASK, largest[0], distance));
        largest[1] = fmaxf(largest[1], __shfl_xor_sync(QN_FULL_MASK, largest[1], distance));
        value = fmaxf(value, __shfl_xor_sync(QN_FULL_MASK, value, distance));
    }
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float raised = fmaxf(state.m[i], largest[i]);
        factor[i] = qn_exp2(state.m[i] - raised);
        state.m[i] = raised;
        state.l[i] *= factor[i];
    }
    if (scaled && (first || value * state.value_scale_factor > MAX_SCALED_VALUE)) {
        const uint32_t exponent = __float_as_uint(value) >> 23;
        const bool is_normal = exponent > 0 && exponent < 254;
        const float new_scale = is_normal ? __uint_as_float((254 - exponent) << 23) : 1;
        factor[0] *= new_scale * state.value_scale_unit;
        factor[1] *= new_scale * state.value_scale_unit;
        state.value_scale_factor = new_scale;
        state.value_scale_unit = is_normal ? __uint_as_float(exponent << 23) : 1;
    }
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        acc[i][0] *= factor[0];
        acc[i][1] *= factor[1];
        acc[i][2] *= factor[0];
        acc[i][3] *= factor[1];
    }
}

// The range of a warp: tiles tile, tile + step, ... below last_tile. All queries attend to rows [begin, end).
// per_query: query i attends to rows [shared.begin[i], shared.end[i]) within [first, limit), and no row of [begin, end)
// is masked for any query.
struct kv_range {
    uint32_t begin, end;
    uint32_t tile, last_tile, step;
    uint32_t first, limit;
    uint32_t n_parts, part_end, part_tiles; // of attend_parts
};

struct thread_coord {
    int warp, lane, g, t;
};

// The block's queries as operand B of the scores: in registers, or loaded from shared memory at each use.
struct query_fragment {
    float factors[2], biases[2];
    uint32_t query[QUERIES_IN_REGISTERS ? DIM / 16 : 1][2];
};

QN_DEVICE void load_query_factors(query_fragment &c, const shared &s, const thread_coord &p)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        c.factors[j] = s.factors[2 * p.t + j];
        c.biases[j] = s.biases[2 * p.t + j];
    }
}

QN_DEVICE void load_query_fragment(query_fragment &c, const shared &s, const thread_coord &p)
{
    load_query_factors(c, s, p);
#pragma unroll
    for (int i = 0; QUERIES_IN_REGISTERS && i < DIM / 16; i++)
        *(uint2 *)c.query[QUERIES_IN_REGISTERS ? i : 0] = *(const uint2 *)s.queries[i][p.lane];
}

// Scores of 16 keys, as SCORE_ACCUMULATORS partial sums.
template <int key_bits>
QN_DEVICE void compute_scores(float score[SCORE_ACCUMULATORS][4], const uint32_t (*k)[lane_fragment<key_bits, 4>::words],
                              const query_fragment &c, const shared &s, uint32_t table, int lane)
{
#pragma unroll
    for (int i = 0; i < SCORE_ACCUMULATORS; i++)
        score[i][0] = score[i][1] = score[i][2] = score[i][3] = 0;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        uint32_t m[4];
        m[0] = dequantize_pair<key_bits, 0>(table, k[0], 2 * i);
        m[1] = dequantize_pair<key_bits, 0>(table, k[1], 2 * i);
        m[2] = dequantize_pair<key_bits, 0>(table, k[0], 2 * i + 1);
        m[3] = dequantize_pair<key_bits, 0>(table, k[1], 2 * i + 1);
        uint32_t b[2];
        if (QUERIES_IN_REGISTERS) {
            b[0] = c.query[QUERIES_IN_REGISTERS ? i : 0][0];
            b[1] = c.query[QUERIES_IN_REGISTERS ? i : 0][1];
        } else {
            *(uint2 *)b = *(const uint2 *)s.queries[i][lane];
        }
        qn_mma_m16n8k16_f16(score[i % SCORE_ACCUMULATORS], m, b);
    }
}

// acc += values of 16 keys times their weights; `dims` adjacent dimensions.
template <int value_bits, int dims = DIM>
QN_DEVICE void accumulate_values(float (*acc)[4], const uint32_t (*v)[lane_fragment<value_bits, 8, dims>::words],
                                 const uint32_t weights[2], uint32_t table)
{
    using tiles = value_fragments<value_bits, dims>;
#pragma unroll
    for (int i = 0; i < dims / 16; i += tiles::tiles) {
        uint32_t m[tiles::tiles][4];
        tiles::dequantize(m, table, v, i);
#pragma unroll
        for (int j = 0; j < tiles::tiles; j++)
            if (i + j < dims / 16)
                qn_mma_m16n8k16_f16(acc[i + j < dims / 16 ? i + j : 0], m[j], weights);
    }
}

// Scores of a tile in the log2 domain, x[2i + j]: row g + 8i, query 2t + j; and the scales of the rows' values.
struct tile_scores {
    float x[4], value_scales[2];
    uint32_t masked; // bit mask of masked scores, per_query
};

// The partial sums of compute_scores to scores in the log2 domain. key_scales: of rows g and g + 8.
QN_DEVICE void reduce_scores(float x[4], const float (*score)[4], const float key_scales[2], const query_fragment &c)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x[i] = score[0][i];
#pragma unroll
        for (int j = 1; j < SCORE_ACCUMULATORS; j++)
            x[i] += score[j][i];
        x[i] = fmaf(x[i], key_scales[i / 2] * c.factors[i % 2], c.biases[i % 2]);
    }
}

// Masks the scores of rows that their queries do not attend to.
template <bool per_query>
QN_DEVICE void mask_scores(tile_scores &scores, const shared &s, const kv_range &rows, const thread_coord &p, uint32_t tile)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t r = tile * TILE_KV + 8 * i + p.g;
        if (!per_query) {
            if (r < rows.begin || r >= rows.end) {
                scores.x[2 * i] = scores.x[2 * i + 1] = -QN_INFINITY;
                scores.value_scales[i] = 0;
            }
        } else {
#pragma unroll
            for (int j = 0; j < 2; j++) {
                if (r < max(rows.first, s.begin[2 * p.t + j]) || r >= min(rows.limit, s.end[2 * p.t + j])) {
                    scores.x[2 * i + j] = -QN_INFINITY;
                    scores.masked |= 1u << (2 * i + j);
                }
            }
            if ((scores.masked >> 2 * i & 3) == 3)
                scores.value_scales[i] = 0;
        }
    }
}

// Softmax weights times value scales, as operand B of the values.
template <bool scaled, bool per_query>
QN_DEVICE void compute_weights(uint32_t weights[2], softmax_state &state, const tile_scores &scores)
{
    float weight[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        weight[i] = qn_exp2(scores.x[i] - state.m[i % 2]);
        state.l[i % 2] += weight[i];
        if (per_query)
            state.true_max[i % 2] = fmaxf(state.true_max[i % 2], scores.x[i]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float factor = scaled ? scores.value_scales[i] * state.value_scale_factor : 1;
        float low = weight[2 * i] * factor, high = weight[2 * i + 1] * factor;
        if (per_query) { // a NaN scale affects only queries that attend to the row
            low = scores.masked >> 2 * i & 1 ? 0 : low;
            high = scores.masked >> 2 * i & 2 ? 0 : high;
        }
        weights[i] = qn_transpose_8x8(qn_f32_to_f16x2(low, high));
    }
}

// Softmax of a tile: scores to weights.
template <bool scaled, bool per_query>
QN_DEVICE void softmax_tile(uint32_t weights[2], softmax_state &state, float (*acc)[4], bool &first, tile_scores &scores,
                            const shared &s, const kv_range &rows, const thread_coord &p, uint32_t tile)
{
    scores.masked = 0;
    if (tile * TILE_KV < rows.begin || tile * TILE_KV + TILE_KV > rows.end)
        mask_scores<per_query>(scores, s, rows, p, tile);
    const float *x = scores.x, *scale = scores.value_scales;
    const bool high = x[0] > state.m[0] + RESCALE_THRESHOLD || x[1] > state.m[1] + RESCALE_THRESHOLD ||
                      x[2] > state.m[0] + RESCALE_THRESHOLD || x[3] > state.m[1] + RESCALE_THRESHOLD ||
                      (scaled && fmaxf(scale[0], scale[1]) * state.value_scale_factor > MAX_SCALED_VALUE);
    if (__any_sync(QN_FULL_MASK, high || first)) {
        rescale<scaled>(state, x, scale, acc, first);
        first = false;
    }
    compute_weights<scaled, per_query>(weights, state, scores);
}

QN_DEVICE void begin_softmax(softmax_state &state, float (*acc)[4])
{
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    state = { { LOWEST, LOWEST }, { 0, 0 }, { LOWEST, LOWEST }, 1, 1 };
}

// Attention of a block's queries over the tiles of one warp, in rows.n_parts parts of rows.part_tiles tiles each, of
// all warps together: the first ends before tile rows.part_end. After each part but the last end_part(i) is called,
// with unnormalised outputs in acc and the softmax state in `state`, which hold the results of the last part. The ring
// streams on over the ends of parts; the caller has filled it with the tiles, and it is empty at the end. Without
// reserved memory there is one part. per_query: each query has its own range of rows (shared.begin, end), and true_max
// is computed.
template <int key_bits, int value_bits, int reserved, bool per_query, class part_sink>
QN_DEVICE void attend_parts(softmax_state &state, float (*acc)[4], kv_ring<key_bits, value_bits, reserved> &ring,
                            const query_fragment &c, const shared &s, const kv_range &rows, const thread_coord &p,
                            uint32_t table, part_sink end_part)
{
    using kv_slots = kv_ring<key_bits, value_bits, reserved>;
    uint32_t k[2][lane_fragment<key_bits, 4>::words], v[4][lane_fragment<value_bits, 8>::words];
    // If registers allow, slots are released before their contents are used, and values are loaded before scores are
    // computed.
    constexpr bool in_registers = DIM <= 256, together = in_registers && sizeof k + sizeof v <= 64 * sizeof(uint32_t);
    constexpr bool has_parts = reserved > 0;
    float score[SCORE_ACCUMULATORS][4], key_scales[2] = { 1, 1 };
    tile_scores scores = { {}, { 1, 1 }, 0 };
    uint32_t weights[2], tile = rows.tile;
    bool first;
    const auto load_keys = [&]() {
        ring.wait();
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load_fragment<key_bits, 4>(k[i], slot_row<key_bits, true>{ ring.at, (uint32_t)p.g, 8 * i }, p.t);
            if (kv_slots::scaled) {
                key_scales[i] = ring.key_scale(8 * i + p.g);
                scores.value_scales[i] = ring.value_scale(8 * i + p.g);
            }
        }
    };
    const auto load_values = [&]() {
        ring.wait();
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_fragment<value_bits, 8>(v[i], slot_row<value_bits, false>{ ring.at, 2u * p.t, i / 2 * 8 + i % 2 }, p.g);
    };
    // Scores of the first tile; of the others, which are independent of the values of the tile before: software
    // pipeline.
    const auto score_first = [&]() {
        load_keys();
        if (!in_registers)
            compute_scores<key_bits>(score, k, c, s, table, p.lane);
        ring.template advance<true, true>(tile, rows.last_tile, rows.step);
        ring.template advance<false, true>(tile - rows.step, rows.last_tile, rows.step);
        if (in_registers)
            compute_scores<key_bits>(score, k, c, s, table, p.lane);
    };
    const auto score_and_accumulate = [&]() {
        load_keys();
        if (in_registers)
            ring.template advance<true, false>(tile, rows.last_tile, rows.step);
        if (together) {
            load_values();
            ring.template advance<false, false>(tile - rows.step, rows.last_tile, rows.step);
        }
        compute_scores<key_bits>(score, k, c, s, table, p.lane);
        if (!in_registers)
            ring.template advance<true, false>(tile, rows.last_tile, rows.step);
        if (!together)
            load_values();
        if (!together && in_registers)
            ring.template advance<false, false>(tile - rows.step, rows.last_tile, rows.step);
        accumulate_values<value_bits>(acc, v, weights, table);
        if (!in_registers)
            ring.template advance<false, false>(tile - rows.step, rows.last_tile, rows.step);
    };
    const auto accumulate_last = [&]() {
        ring.wait_for_last_values(tile, rows.last_tile, rows.step);
        load_values();
        accumulate_values<value_bits>(acc, v, weights, table);
    };
    const auto softmax = [&]() {
        softmax_tile<kv_slots::scaled, per_query>(weights, state, acc, first, scores, s, rows, p, tile);
    };
    const auto reduce = [&]() { reduce_scores(scores.x, score, key_scales, c); };

    uint32_t part = 0, part_end = rows.part_end;
    const auto next_part = [&]() {
        end_part(part++);
        part_end += rows.part_tiles;
        first = true;
        begin_softmax(state, acc);
    };
    first = true;
    begin_softmax(state, acc);
    if (tile < rows.last_tile) {
        score_first();
        reduce();
        softmax();
        for (tile += rows.step; tile < rows.last_tile; tile += rows.step) {
            score_and_accumulate();
            reduce();
            if (has_parts && tile >= part_end)
                next_part();
            softmax();
        }
        accumulate_last();
    }
    while (has_parts && part + 1 < rows.n_parts)
        next_part();
}

// The same over one part, whose results are left in `state` and acc.
template <int key_bits, int value_bits, bool per_query>
QN_DEVICE void attend(softmax_state &state, float (*acc)[4], kv_ring<key_bits, value_bits, 0> &ring, const query_fragment &c,
                      const shared &s, const kv_range &rows, const thread_coord &p, uint32_t table)
{
    attend_parts<key_bits, value_bits, 0, per_query>(state, acc, ring, c, s, rows, p, table, [](uint32_t) {});
}

// ---- Reduction over the warps of a block ----

template <int n> QN_DEVICE void load_floats(float (&x)[n], const float *from)
{
    if (n == 4)
        *(float4 *)x = *(const float4 *)from;
    else
        *(float2 *)x = *(const float2 *)from;
}

template <int n> QN_DEVICE void store_floats(float *to, const float (&x)[n])
{
    if (n == 4)
        *(float4 *)to = *(const float4 *)x;
    else
        *(float2 *)to = *(const float2 *)x;
}

// Calls store(column, dim, sums, loaded) with two or four adjacent sums over all warps of acc times factor, after
// load(column, dim, loaded), which is called early, so that its loads are in flight during the reduction. `buffer` has
// `bytes` bytes; all previous uses have finished. Ends with a block barrier.
template <int value_bits, int bytes, class source, class sink>
QN_DEVICE void reduce_warps(float *buffer, const float (*acc)[4], const float factor[2], uint32_t n_columns,
                            const thread_coord &p, source load, sink store)
{
    using dims = lane_fragment<value_bits, 8>;
    constexpr int n = dims::run % 4 == 0 && DIM / 8 % 4 == 0 ? 4 : 2; // adjacent sums, a group
    constexpr int all = DIM / 8 / n;                                  // groups of a lane
    constexpr int fit = bytes / (QN_WARPS * TILE_Q * 8 * n * 4), passes = (all + fit - 1) / fit,
                  pass = (all + passes - 1) / passes, // groups of a lane that are reduced at a time
        most = (TILE_Q * 8 * pass + THREADS - 1) / THREADS; // sums of a thread
    static_assert(fit > 0, "the buffer is too small");
#pragma unroll
    for (int first = 0; first < all; first += pass) {
        const int groups = min(pass, all - first);
        __align__(16) float loaded[most][n];
#pragma unroll
        for (int s = 0; s < most; s++) {
            const uint32_t i = threadIdx.x + s * THREADS;
            if (i < n_columns * 8 * groups)
                load(i / (8 * groups), (uint32_t)dims::dim_of((first + i % groups) * n, i / groups % 8), loaded[s]);
        }
        // Groups of a lane are rotated by its index: against bank conflicts.
#pragma unroll
        for (int j = 0; j < 2; j++) {
            if (2 * p.t + j < n_columns) {
                float *to = buffer + ((p.warp * TILE_Q + 2 * p.t + j) * 8 + p.g) * (pass * n);
#pragma unroll
                for (int i = 0; i < pass; i++) {
                    if (first + i < all) {
                        __align__(16) float x[n];
#pragma unroll
                        for (int k = 0; k < n; k++) {
                            const int at = first + i < all ? (first + i) * n + k : 0;
                            x[k] = acc[at / 2][at % 2 * 2 + j] * factor[j];
                        }
                        store_floats<n>(to + (i + p.lane) % pass * n, x);
                    }
                }
            }
        }
        __syncthreads();
#pragma unroll
        for (int s = 0; s < most; s++) {
            const uint32_t i = threadIdx.x + s * THREADS;
            const uint32_t column = i / (8 * groups), g = i / groups % 8, group = i % groups;
            if (column >= n_columns)
                break;
            const float *of = buffer + (column * 8 + g) * (pass * n) + (group + g * 4 + column / 2) % pass * n;
            __align__(16) float sum[n] = {};
#pragma unroll
            for (int w = 0; w < QN_WARPS; w++) {
                __align__(16) float x[n];
                load_floats<n>(x, of + w * (TILE_Q * 8 * pass * n));
#pragma unroll
                for (int k = 0; k < n; k++)
                    sum[k] += x[k];
            }
            store(column, (uint32_t)dims::dim_of((first + group) * n, g), sum, loaded[s]);
        }
        __syncthreads();
    }
}

// The same without loads: store(column, dim, sums).
template <int value_bits, int bytes, class sink>
QN_DEVICE void reduce_warps(float *buffer, const float (*acc)[4], const float factor[2], uint32_t n_columns,
                            const thread_coord &p, sink store)
{
    reduce_warps<value_bits, bytes>(
        buffer, acc, factor, n_columns, p, [](uint32_t, uint32_t, auto &) {},
        [&](uint32_t column, uint32_t dim, auto &x, auto &) { store(column, dim, x); });
}

#endif
