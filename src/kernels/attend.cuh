// Attention to rows of a cache, straight from memory into the registers of a warp: tables and queries in shared memory, both
// products on the matrix units, the running maximum. Where rows begin and end, and what becomes of a warp's sums, is for
// whoever includes this and has defined
//
//   QN_HEAD_DIM, QN_KEY_BITS, QN_VALUE_BITS   16 and 16: halves
//   QN_WARPS                                  of a block, at least QN_ATTENTION_COLUMNS
//   QN_RUNS                                   1 where rows are a session's, halves among them
//
// A warp takes QN_ATTENTION_KEYS rows at a time, turns codes into halves by look-ups in shared memory, and multiplies keys by
// queries, with query heads as the eight columns, and values (transposed) by weights. Which dimension goes to which index of a
// fragment is free as long as queries agree with keys, and so chosen that a lane's words are codes of its own: dim_of() in
// codes.cuh. Look-up tables hold what two codes become, once for each lane, so that no two lanes meet in a bank.
//
// Method: Dao et al., FlashAttention-2 (2023); the running maximum only moves when a score is 2^8 above it.
#ifndef QN_KERNELS_ATTEND_CUH
#define QN_KERNELS_ATTEND_CUH

// Whether a block may have 128 KiB of shared memory, as attend_cuda.h tells from the device.
#define FAR (__CUDA_ARCH__ != 860 && __CUDA_ARCH__ != 890 && __CUDA_ARCH__ < 1200)
#define DIM QN_HEAD_DIM
#define ENTRY_SHIFT 8
#define TABLES_APART FAR

#include "kernels/codes.cuh"
#include "kernels/row.cuh"

#define COLUMNS QN_ATTENTION_COLUMNS
#define KEYS QN_ATTENTION_KEYS
#define THREADS (QN_WARPS * QN_WARP)
#define CODES (QN_KEY_BITS != 16)
#define LANE_VALUES QN_ROW_VALUES(DIM)
#define QUERIES_IN_REGISTERS (DIM <= 128 && CODES) // where they leave room for the rest
#define RISE 8.0f                                  // how far a score may be above the maximum in use, in powers of two
#define MOST_VALUE 128.0f // and the scale of a value in use: so 2^15 bounds their product, which a half holds
#define SCORE_SUMS 4      // that products need not wait for each other
#define LOG2E 1.4426950408889634f
#define LOWEST (-1e30f)

// Tables have an entry for each lane, and behind those of keys those of values; where they begin at FAR_TABLES.
#define VALUE_ENTRY 128
#define TABLE_ENTRIES (1 << max(index_bits(QN_KEY_BITS), index_bits(QN_VALUE_BITS)))
#define FAR_TABLES 0x10000u
#define TABLES(dynamic) (FAR ? FAR_TABLES : qn_shared_address(dynamic))

// Entry `i`, its sixteen pieces in an order of its own, against bank conflicts.
QN_DEVICE void put_entry(uint32_t tables, uint32_t i, uint32_t key, uint32_t value)
{
#pragma unroll
    for (int j = 0; j < (1 << ENTRY_SHIFT) / 16; j++) {
        const uint32_t x = j < (1 << ENTRY_SHIFT) / 32 ? key : value;
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(tables + (i << ENTRY_SHIFT) + j / 8 * VALUE_ENTRY +
                                                                      (j + i) % 8 * 16),
                     "r"(x)
                     : "memory");
    }
}

// ---- Matrix A of the second product ----

// Fragments of value codes: of tile i of 16 dimensions, codes 2i and 2i+1 of the portions of four keys.
template <int bits> struct value_tiles {
    // Codes of a chunk, in one word.
    static constexpr int chunk = bits == 2 ? (DIM / 8 % 16 == 0 ? 16 : 8) : 8;
    static constexpr int tiles = bits == 16 || bits > 4 ? 1 : chunk / 2;

    // Tiles first to first + tiles - 1.
    QN_DEVICE void make(uint32_t (*a)[4], uint32_t table, const uint32_t (*words)[portion<bits, 8>::words], int first)
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
                const uint32_t x = field<2 * bits>(words[i / 2 * 2], first * 2 * bits);
                const uint32_t y = field<2 * bits>(words[i / 2 * 2 + 1], first * 2 * bits);
                const int at = i % 2 * bits;
                a[0][i] = __byte_perm(look_up<index_bits(bits), VALUE_ENTRY>(table, x, at),
                                      look_up<index_bits(bits), VALUE_ENTRY>(table, y, at), 0x7610);
            }
        } else {
            // Codes of two keys side by side: the even ones of the chunk in one word, the odd ones in another.
            uint32_t mask = 0;
#pragma unroll
            for (int i = 0; i < tiles; i++)
                mask |= ((1u << bits) - 1) << (2 * bits * i);
            const int at = first * 2 * bits;
            const int n = min(chunk, DIM / 8 - first * 2) * bits;
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
                    if (2 * (first + i) < DIM / 8) {
                        a[i][2 * half] = look_up<index_bits(bits), VALUE_ENTRY>(table, even, i * 2 * bits);
                        a[i][2 * half + 1] = look_up<index_bits(bits), VALUE_ENTRY>(table, odd, i * 2 * bits);
                    }
                }
            }
        }
    }
};

QN_DEVICE uint32_t transpose_8x8(uint32_t x)
{
    uint32_t y;
    asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
    return y;
}

struct shared {
    float factors[COLUMNS];                // what a score of halves stands for, in powers of two
    float biases[COLUMNS];                 // and what is added to it
    uint32_t begin[COLUMNS], end[COLUMNS]; // rows that a column sees, where columns see rows of their own
    float m[QN_WARPS][COLUMNS], l[QN_WARPS][COLUMNS];
    __align__(16) uint16_t queries[DIM / 16][QN_WARP][4]; // matrix B of the scores, as lanes take it
};

// Where a dimension of a column lies: the inverse of portion::dim_of.
template <int bits> QN_DEVICE uint16_t *query_place(shared &s, int column, int dim)
{
    constexpr int run = portion<bits, 4>::run;
    const int n = dim / (run * 4) * run + dim % run;
    return &s.queries[n / 4][column * 4 + dim / run % 4][n % 4];
}

// A query's column, scaled by a power of two such that halves hold it well.
template <int bits> QN_DEVICE void put_query(shared &s, const float x[LANE_VALUES], float scale, int column, int lane)
{
    float largest = 0;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        largest = fmaxf(largest, fabsf(x[i]));
    largest = qn_warp_max(largest);
    // 2^(127 - exponent): the largest becomes 1 to 2. Beyond float's normal numbers, left alone.
    const uint32_t exponent = __float_as_uint(largest) >> 23;
    const bool ordinary = exponent > 0 && exponent < 254;
    const float up = ordinary ? __uint_as_float((254 - exponent) << 23) : 1;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        if (i * QN_WARP + lane < DIM)
            *query_place<bits>(s, column, i * QN_WARP + lane) = qn_float_to_half(x[i] * up);
    if (lane == 0)
        s.factors[column] = scale * (ordinary ? __uint_as_float(exponent << 23) : 1);
}

// The running maximum of a warp's columns, and the factor of its values, moved up to where all of a tile fits.
struct running {
    float m[2], l[2];
    float top[2];                   // the largest score so far, where that is asked for
    float value_factor, value_unit; // a power of two, and its inverse
};

template <bool scaled, bool only>
QN_DEVICE void raise(running &state, const float x[4], const float value_scales[2], float (*sums)[4], bool first)
{
    float largest[2] = { fmaxf(x[0], x[2]), fmaxf(x[1], x[3]) }, value = fmaxf(value_scales[0], value_scales[1]);
#pragma unroll
    for (int distance = 4; distance < QN_WARP; distance *= 2) {
        largest[0] = fmaxf(largest[0], __shfl_xor_sync(QN_ALL_LANES, largest[0], distance));
        largest[1] = fmaxf(largest[1], __shfl_xor_sync(QN_ALL_LANES, largest[1], distance));
        value = fmaxf(value, __shfl_xor_sync(QN_ALL_LANES, value, distance));
    }
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float raised = fmaxf(state.m[i], largest[i]);
        factor[i] = qn_exp_2(state.m[i] - raised);
        state.m[i] = raised;
        state.l[i] *= factor[i];
    }
    if (scaled && (first || value * state.value_factor > MOST_VALUE)) {
        const uint32_t exponent = __float_as_uint(value) >> 23;
        const bool ordinary = exponent > 0 && exponent < 254;
        const float fitting = ordinary ? __uint_as_float((254 - exponent) << 23) : 1;
        factor[0] *= fitting * state.value_unit;
        factor[1] *= fitting * state.value_unit;
        state.value_factor = fitting;
        state.value_unit = ordinary ? __uint_as_float(exponent << 23) : 1;
    }
#pragma unroll
    for (int i = 0; !only && i < DIM / 16; i++) { // of the only tile nothing is in the sums yet
        sums[i][0] *= factor[0];
        sums[i][1] *= factor[1];
        sums[i][2] *= factor[0];
        sums[i][3] *= factor[1];
    }
}

// Rows of a cache that are there to be read: [0, last_row].
struct source {
    const uint8_t *keys, *values;
    const float *key_scales, *value_scales;
    uint32_t last_row;
    uint32_t skip; // what halves from QN_ATTENTION_RUN on lie further behind
};

// Of them, those that all columns see: [begin, end). A warp takes tiles tile, tile + step, ... below last_tile. Where columns
// see rows of their own, first and limit are bounds for all of them, and what is read last is tile `next`, for what comes then.
struct portion_of_rows {
    uint32_t begin, end;
    uint32_t tile, last_tile, step;
    uint32_t first, limit, next;
};

struct place {
    int warp, lane, g, t;
};

// A tile's words and scales: of keys rows g and g + 8, of values those that a lane needs as the matrix units take them.
template <int key_bits, int value_bits> struct tile_words {
    static constexpr bool scaled = key_bits != 16;
    static constexpr bool ahead = DIM <= 256; // words of the next keys are asked for while these are used, where there is room
    uint32_t k[2][portion<key_bits, 4>::words], v[4][portion<value_bits, 8>::words];
    float k_scale[2], v_scale[2];

    // Rows past the last one are not read: that one is, instead, and weighs nothing.
    static __device__ __forceinline__ uint32_t row_of(const source &from, uint32_t r)
    {
        r = min(r, from.last_row);
        return QN_RUNS && !scaled && r >= QN_ATTENTION_RUN ? r + from.skip : r;
    }

    __device__ __forceinline__ void load_keys(const source &from, const place &p, uint32_t tile)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t r = row_of(from, tile * KEYS + 8 * i + p.g);
            load_portion<key_bits, 4>(k[i], from.keys, r, p.t);
            k_scale[i] = scaled ? from.key_scales[r] : 1;
            v_scale[i] = scaled ? from.value_scales[r] : 1;
        }
    }

    __device__ __forceinline__ void load_values(const source &from, const place &p, uint32_t tile)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_portion<value_bits, 8>(v[i], from.values, row_of(from, tile * KEYS + i / 2 * 8 + 2 * p.t + i % 2), p.g);
    }
};

// The queries of a block's columns, as matrix B of the scores.
struct columns {
    float factors[2], biases[2];
    uint32_t query[QUERIES_IN_REGISTERS ? DIM / 16 : 1][2];
};

QN_DEVICE void take_columns(columns &c, const shared &s, const place &p)
{
#pragma unroll
    for (int j = 0; j < 2; j++) {
        c.factors[j] = s.factors[2 * p.t + j];
        c.biases[j] = s.biases[2 * p.t + j];
    }
#pragma unroll
    for (int i = 0; QUERIES_IN_REGISTERS && i < DIM / 16; i++)
        *(uint2 *)c.query[QUERIES_IN_REGISTERS ? i : 0] = *(const uint2 *)s.queries[i][p.lane];
}

// Scores of 16 keys as sums of SCORE_SUMS parts.
template <int key_bits>
QN_DEVICE void add_scores(float score[SCORE_SUMS][4], const uint32_t (*k)[portion<key_bits, 4>::words], const columns &c,
                          const shared &s, uint32_t table, int lane)
{
#pragma unroll
    for (int i = 0; i < SCORE_SUMS; i++)
        score[i][0] = score[i][1] = score[i][2] = score[i][3] = 0;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        uint32_t m[4];
        m[0] = code_pair<key_bits, 0>(table, k[0], 2 * i);
        m[1] = code_pair<key_bits, 0>(table, k[1], 2 * i);
        m[2] = code_pair<key_bits, 0>(table, k[0], 2 * i + 1);
        m[3] = code_pair<key_bits, 0>(table, k[1], 2 * i + 1);
        uint32_t b[2];
        if (QUERIES_IN_REGISTERS) {
            b[0] = c.query[QUERIES_IN_REGISTERS ? i : 0][0];
            b[1] = c.query[QUERIES_IN_REGISTERS ? i : 0][1];
        } else {
            *(uint2 *)b = *(const uint2 *)s.queries[i][lane];
        }
        qn_mma_m16n8k16_f16(score[i % SCORE_SUMS], m, b);
    }
}

// Values of 16 keys times their weights.
template <int value_bits>
QN_DEVICE void add_values(float (*sums)[4], const uint32_t (*v)[portion<value_bits, 8>::words], const uint32_t weights[2],
                          uint32_t table)
{
    using tiles = value_tiles<value_bits>;
#pragma unroll
    for (int i = 0; i < DIM / 16; i += tiles::tiles) {
        uint32_t m[tiles::tiles][4];
        tiles::make(m, table, v, i);
#pragma unroll
        for (int j = 0; j < tiles::tiles; j++)
            if (i + j < DIM / 16)
                qn_mma_m16n8k16_f16(sums[i + j < DIM / 16 ? i + j : 0], m[j], weights);
    }
}

// A warp's part of its columns' attention, as sums and where they stand. Where words are read ahead, those of the first tile
// have been asked for. With `only`, there is one tile at most. With `each`, columns see rows of their own (shared::begin, end),
// the largest score is kept, and what is asked for last is tile `next`.
template <int key_bits, int value_bits, bool each, bool only>
QN_DEVICE void attend(running &state, float (*sums)[4], tile_words<key_bits, value_bits> &w, const columns &c, const shared &s,
                      const source &from, const portion_of_rows &rows, const place &p, uint32_t table)
{
    constexpr bool scaled = tile_words<key_bits, value_bits>::scaled, ahead = tile_words<key_bits, value_bits>::ahead;
    uint32_t tile = rows.tile;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
    state = { { LOWEST, LOWEST }, { 0, 0 }, { LOWEST, LOWEST }, 1, 1 };
    bool first = true;
    float score[SCORE_SUMS][4];
    uint32_t weights[2];

    // Scores of tile `at` to weights.
    const auto weigh = [&](uint32_t at, const float k_scale[2], const float v_scale[2]) {
        float x[4], scale[2] = { v_scale[0], v_scale[1] };
        uint32_t hidden = 0; // scores of rows that their columns do not see
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = score[0][i];
#pragma unroll
            for (int j = 1; j < SCORE_SUMS; j++)
                x[i] += score[j][i];
            x[i] = fmaf(x[i], k_scale[i / 2] * c.factors[i % 2], c.biases[i % 2]);
        }
        if (at * KEYS < rows.begin || at * KEYS + KEYS > rows.end) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t r = at * KEYS + 8 * i + p.g;
                if (!each) {
                    if (r < rows.begin || r >= rows.end) {
                        x[2 * i] = x[2 * i + 1] = -QN_INFINITY;
                        scale[i] = 0;
                    }
                } else {
#pragma unroll
                    for (int j = 0; j < 2; j++) {
                        if (r < max(rows.first, s.begin[2 * p.t + j]) || r >= min(rows.limit, s.end[2 * p.t + j])) {
                            x[2 * i + j] = -QN_INFINITY;
                            hidden |= 1u << (2 * i + j);
                        }
                    }
                    if ((hidden >> 2 * i & 3) == 3)
                        scale[i] = 0;
                }
            }
        }
        const bool high = x[0] > state.m[0] + RISE || x[1] > state.m[1] + RISE || x[2] > state.m[0] + RISE ||
                          x[3] > state.m[1] + RISE || (scaled && fmaxf(scale[0], scale[1]) * state.value_factor > MOST_VALUE);
        if (__any_sync(QN_ALL_LANES, high || first)) {
            raise<scaled, only>(state, x, scale, sums, first);
            first = false;
        }
        float weight[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            weight[i] = qn_exp_2(x[i] - state.m[i % 2]);
            state.l[i % 2] += weight[i];
            if (each)
                state.top[i % 2] = fmaxf(state.top[i % 2], x[i]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float factor = scaled ? scale[i] * state.value_factor : 1;
            float low = weight[2 * i] * factor, high = weight[2 * i + 1] * factor;
            if (each) { // a scale that is NaN is for those who see it
                low = hidden >> 2 * i & 1 ? 0 : low;
                high = hidden >> 2 * i & 2 ? 0 : high;
            }
            weights[i] = transpose_8x8(qn_floats_to_halves(low, high));
        }
    };
    // The tile that is read while tile `at` is taken.
    const auto after = [&](uint32_t at) { return each && at + rows.step >= rows.last_tile ? rows.next : at + rows.step; };

    // Scores of a tile and values of the one before it wait for nothing of each other.
    if (tile < rows.last_tile) {
        float k_now[2], v_now[2];
        const auto take_scales = [&]() {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                k_now[i] = w.k_scale[i];
                v_now[i] = w.v_scale[i];
            }
        };
        if (!ahead)
            w.load_keys(from, p, tile);
        add_scores<key_bits>(score, w.k, c, s, table, p.lane);
        take_scales();
        if (ahead && !only)
            w.load_keys(from, p, after(tile));
        weigh(tile, k_now, v_now);
        for (tile += rows.step; !only && tile < rows.last_tile; tile += rows.step) {
            if (!ahead)
                w.load_keys(from, p, tile);
            add_scores<key_bits>(score, w.k, c, s, table, p.lane);
            take_scales();
            if (ahead)
                w.load_keys(from, p, after(tile));
            else
                w.load_values(from, p, tile - rows.step);
            add_values<value_bits>(sums, w.v, weights, table);
            if (ahead)
                w.load_values(from, p, tile);
            weigh(tile, k_now, v_now);
        }
        if (!ahead)
            w.load_values(from, p, tile - rows.step);
        add_values<value_bits>(sums, w.v, weights, table);
        if (ahead && each)
            w.load_values(from, p, rows.next);
    } else if (ahead && each) {
        w.load_keys(from, p, rows.next);
        w.load_values(from, p, rows.next);
    }
}

#endif
