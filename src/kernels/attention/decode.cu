// Attention of single query rows over a cache of halves or of AURA codes: what decoding a token does, bound by reading the
// cache. A warp takes QN_ATTENTION_KEYS positions at a time straight from memory into registers, turns codes into halves by
// look-ups in shared memory, and has the matrix units do both products: scores are keys times queries, with the query heads of
// a key-value head as the eight columns, and results are values (transposed) times weights.
//
// Which dimension goes to which index of a fragment is free as long as queries agree with keys, and so chosen that a lane's
// words are codes of its own: dim_of() in codes.cuh. Look-up tables hold what two codes become, once for each lane, so that no
// two lanes meet in a bank.
//
// Method: Dao et al., FlashAttention-2 (2023), and Flash-Decoding; the running maximum only moves when a score is 2^8 above it.

// Whether a block may have 128 KiB of shared memory, as attention_cuda.c tells from the device.
#define FAR (__CUDA_ARCH__ != 860 && __CUDA_ARCH__ != 890 && __CUDA_ARCH__ < 1200)
#define DIM QN_HEAD_DIM
#define ENTRY_SHIFT 8
#define TABLES_APART FAR

#include "kernels/attention/codes.cuh"
#include "kernels/attention/split.cuh"
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

template <int n> struct constant {
    static constexpr int value = n;
};

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

QN_DEVICE float exp_2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

struct shared {
    float factors[COLUMNS]; // what a score of halves stands for, in powers of two
    float biases[COLUMNS];  // and what is added to it
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
    float value_factor, value_unit; // a power of two, and its inverse
};

template <bool scaled>
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
        factor[i] = exp_2(state.m[i] - raised);
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
    for (int i = 0; i < DIM / 16; i++) {
        sums[i][0] *= factor[0];
        sums[i][1] *= factor[1];
        sums[i][2] *= factor[0];
        sums[i][3] *= factor[1];
    }
}

// Rows [begin, end) of a cache, of which the block takes tiles [tile, last_tile).
struct source {
    const uint8_t *keys, *values;
    const float *key_scales, *value_scales;
    uint32_t begin, end, tile, last_tile;
    uint32_t skip; // what rows from QN_ATTENTION_RUN on lie further behind
};

// A warp's sums go to rows of floats, a little longer than DIM and apart, so that lanes rarely meet in a bank.
QN_DEVICE constexpr int row_place(int dim)
{
    return dim + dim / 32;
}

template <int value_bits> QN_DEVICE constexpr int row_stride()
{
    constexpr int apart = portion<value_bits, 8>::run / 8;
    return (row_place(DIM) + 15) / 16 * 16 + (apart > 0 ? apart : 1);
}

struct place {
    int warp, lane, g, t;
    uint32_t n_columns, first_query; // columns in use; the first one's place among all rows' query heads
};

// A block's part of its columns' attention, from queries in shared memory to partial sums. `more` is called once what is read
// first is on its way.
template <int key_bits, int value_bits, class prepare>
QN_DEVICE void attend(const qn_attention_decode_args &a, shared &s, const source &from, const place &p, uint8_t *dynamic,
                      float value_gain, prepare more)
{
    using key_portion = portion<key_bits, 4>;
    using value_portion = portion<value_bits, 8>;
    constexpr bool scaled = key_bits != 16;
    // Words of the next keys are asked for while these are used, where there is room; a run's halves have no next.
    constexpr bool ahead = DIM <= 256 && (scaled || !QN_RUNS);
    const int warp = p.warp, lane = p.lane, g = p.g, t = p.t;
    const uint32_t last_tile = from.last_tile, last_row = min(last_tile * KEYS, from.end) - 1;
    uint32_t tile = from.tile + warp;

    // Rows past the last visible one are not read: theirs is, instead, and weighs nothing.
    uint32_t k[2][key_portion::words], v[4][value_portion::words];
    float k_scale[2] = { 1, 1 }, v_scale[2] = { 1, 1 };
    const auto row_of = [&](uint32_t r) {
        r = min(r, last_row);
        return QN_RUNS && !scaled && r >= QN_ATTENTION_RUN ? r + from.skip : r;
    };
    const auto load_keys = [&](uint32_t at) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t r = row_of(at * KEYS + 8 * i + g);
            load_portion<key_bits, 4>(k[i], from.keys, r, t);
            if (scaled) {
                k_scale[i] = from.key_scales[r];
                v_scale[i] = from.value_scales[r];
            }
        }
    };
    const auto load_values = [&](uint32_t at) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_portion<value_bits, 8>(v[i], from.values, row_of(at * KEYS + i / 2 * 8 + 2 * t + i % 2), g);
    };
    if (ahead && tile < last_tile) {
        load_keys(tile);
        load_values(tile);
    }
    more();
    __syncthreads();

    const float factors[2] = { s.factors[2 * t], s.factors[2 * t + 1] };
    const float biases[2] = { s.biases[2 * t], s.biases[2 * t + 1] };
    const uint32_t table = TABLES(dynamic) + 4 * lane;
    uint32_t query[QUERIES_IN_REGISTERS ? DIM / 16 : 1][2];
#pragma unroll
    for (int i = 0; QUERIES_IN_REGISTERS && i < DIM / 16; i++)
        *(uint2 *)query[QUERIES_IN_REGISTERS ? i : 0] = *(const uint2 *)s.queries[i][lane];
    float sums[DIM / 16][4];
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
    running state = { { LOWEST, LOWEST }, { 0, 0 }, 1, 1 };
    bool first = true;
    float score[SCORE_SUMS][4];
    uint32_t weights[2];

    const auto add_scores = [&]() {
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
                b[0] = query[QUERIES_IN_REGISTERS ? i : 0][0];
                b[1] = query[QUERIES_IN_REGISTERS ? i : 0][1];
            } else {
                *(uint2 *)b = *(const uint2 *)s.queries[i][lane];
            }
            qn_mma_m16n8k16_f16(score[i % SCORE_SUMS], m, b);
        }
    };
    // Scores of tile `at` to weights.
    const auto weigh = [&](uint32_t at, const float k_scale[2], const float v_scale[2]) {
        float x[4], scale[2] = { v_scale[0], v_scale[1] };
#pragma unroll
        for (int i = 0; i < 4; i++) {
            x[i] = score[0][i];
#pragma unroll
            for (int j = 1; j < SCORE_SUMS; j++)
                x[i] += score[j][i];
            x[i] = fmaf(x[i], k_scale[i / 2] * factors[i % 2], biases[i % 2]);
        }
        if (at * KEYS < from.begin || at * KEYS + KEYS > from.end) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t r = at * KEYS + 8 * i + g;
                if (r < from.begin || r >= from.end) {
                    x[2 * i] = x[2 * i + 1] = -QN_INFINITY;
                    scale[i] = 0;
                }
            }
        }
        const bool high = x[0] > state.m[0] + RISE || x[1] > state.m[1] + RISE || x[2] > state.m[0] + RISE ||
                          x[3] > state.m[1] + RISE || (scaled && fmaxf(scale[0], scale[1]) * state.value_factor > MOST_VALUE);
        if (__any_sync(QN_ALL_LANES, high || first)) {
            raise<scaled>(state, x, scale, sums, first);
            first = false;
        }
        float weight[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            weight[i] = exp_2(x[i] - state.m[i % 2]);
            state.l[i % 2] += weight[i];
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float factor = scaled ? scale[i] * state.value_factor : 1;
            weights[i] = transpose_8x8(qn_floats_to_halves(weight[2 * i] * factor, weight[2 * i + 1] * factor));
        }
    };
    const auto add_values = [&]() {
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
    };

    // Scores of a tile and values of the one before it wait for nothing of each other.
    if (tile < last_tile) {
        float k_now[2], v_now[2];
        const auto take_scales = [&]() {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                k_now[i] = k_scale[i];
                v_now[i] = v_scale[i];
            }
        };
        if (!ahead)
            load_keys(tile);
        add_scores();
        take_scales();
        if (ahead)
            load_keys(tile + QN_WARPS);
        weigh(tile, k_now, v_now);
        for (tile += QN_WARPS; tile < last_tile; tile += QN_WARPS) {
            if (!ahead)
                load_keys(tile);
            add_scores();
            take_scales();
            if (ahead)
                load_keys(tile + QN_WARPS);
            else
                load_values(tile - QN_WARPS);
            add_values();
            if (ahead)
                load_values(tile);
            weigh(tile, k_now, v_now);
        }
        if (!ahead)
            load_values(tile - QN_WARPS);
        add_values();
    }

    // ---- The warps of a block ----

#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
        for (int distance = 4; distance < QN_WARP; distance *= 2)
            state.l[i] += __shfl_xor_sync(QN_ALL_LANES, state.l[i], distance);
        if (g == 0) {
            s.m[warp][2 * t + i] = state.m[i];
            s.l[warp][2 * t + i] = state.l[i];
        }
    }
    __syncthreads(); // the tables have done their work, too
    constexpr int stride = row_stride<value_bits>();
    float *rows = (float *)dynamic; // [QN_WARPS][COLUMNS][stride]
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const int column = 2 * t + j;
        if (column < p.n_columns) {
            float m = LOWEST;
#pragma unroll
            for (int w = 0; w < QN_WARPS; w++)
                m = fmaxf(m, s.m[w][column]);
            const float factor = exp_2(state.m[j] - m) * state.value_unit * value_gain;
            float *to = rows + (warp * COLUMNS + column) * stride;
#pragma unroll
            for (int i = 0; i < DIM / 8; i++)
                to[row_place(value_portion::dim_of(i, g))] = sums[i / 2][i % 2 * 2 + j] * factor;
        }
    }
    if (threadIdx.x < p.n_columns) {
        float m = LOWEST, l = 0;
        for (int w = 0; w < QN_WARPS; w++)
            m = fmaxf(m, s.m[w][threadIdx.x]);
        for (int w = 0; w < QN_WARPS; w++)
            l += s.l[w][threadIdx.x] * exp_2(s.m[w][threadIdx.x] - m);
        *(float2 *)&a.maxima[((uint64_t)(p.first_query + threadIdx.x) * gridDim.x + blockIdx.x) * 2] = make_float2(m, l);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < p.n_columns * DIM; i += THREADS) {
        const int column = i / DIM, dim = i % DIM;
        const float *of = rows + column * stride + row_place(dim);
        float sum = 0;
#pragma unroll
        for (int w = 0; w < QN_WARPS; w++)
            sum += of[w * COLUMNS * stride];
        a.partials[((uint64_t)(p.first_query + column) * gridDim.x + blockIdx.x) * DIM + dim] = sum;
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1) qn_attention_decode(const __grid_constant__ qn_attention_decode_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[]; // tables, and after them the sums of all warps in their place
    __shared__ shared s;

    const int warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP;
    const uint32_t group = a.n_heads / a.n_kv_heads, tiles_of_columns = (group + COLUMNS - 1) / COLUMNS;
    const uint32_t head = blockIdx.y / tiles_of_columns, first_column = blockIdx.y % tiles_of_columns * COLUMNS;
    const uint32_t row = blockIdx.z;
    const place p = { warp,
                      lane,
                      lane / 4,
                      lane % 4,
                      min(group - first_column, (uint32_t)COLUMNS),
                      row * a.n_heads + head * group + first_column };
    const bool in_codes = CODES && !(QN_RUNS && blockIdx.x == 0);

    // What does not wait for the kernel before; then loads in the order in which they are waited for.
    uint32_t key_entry = 0, value_entry = 0;
    float signs[LANE_VALUES], query[LANE_VALUES];
    if (in_codes && threadIdx.x < TABLE_ENTRIES) {
        key_entry = table_entry<QN_KEY_BITS>(threadIdx.x, a.key_codec);
        value_entry = table_entry<QN_VALUE_BITS>(threadIdx.x, a.value_codec);
    }
    const bool rotates = CODES && (DIM & (DIM - 1)) == 0 && a.key_codec.signs;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        signs[i] = rotates ? a.key_codec.signs[i * QN_WARP + lane] : 1;
    qn_wait_for_previous();
    qn_let_next_begin();
    const uint32_t position = a.visible.positions ? a.visible.positions[row] : 0, session = a.sessions ? a.sessions[row] : 0;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++) {
        const bool has = warp < p.n_columns && i * QN_WARP + lane < DIM;
        query[i] = has ? a.queries[(uint64_t)(p.first_query + warp) * DIM + i * QN_WARP + lane] : 0;
    }
    if (in_codes && threadIdx.x < TABLE_ENTRIES)
        put_entry(TABLES(dynamic), threadIdx.x, key_entry, value_entry);
    const qn_attention_span span = qn_attention_span_of(a.visible, position, gridDim.x);
    if (blockIdx.x >= span.active)
        return;

    const uint8_t *means = 0;
    float mean[LANE_VALUES];
    if (QN_RUNS && in_codes)
        means = a.runs.means + session * a.runs.mean_session + head * (DIM * 4);
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        mean[i] = means && i * QN_WARP + lane < DIM ? ((const float *)means)[i * QN_WARP + lane] : 0;
    const auto put_queries = [&](auto bits, float gain) {
        if (rotates) {
#pragma unroll
            for (int i = 0; i < LANE_VALUES; i++)
                query[i] *= signs[i];
            qn_row_hadamard<DIM>(query, lane);
        }
        float bias = 0;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            bias += query[i] * mean[i];
        if (QN_RUNS)
            bias = qn_warp_sum(bias);
        if (warp < COLUMNS) {
            put_query<decltype(bits)::value>(s, query, a.scale * LOG2E / gain, warp, lane);
            s.biases[warp] = bias * (a.scale * LOG2E);
        }
    };

    const uint32_t part = blockIdx.x - (QN_RUNS ? 1 : 0);
    source from;
    if (in_codes || !QN_RUNS) {
        from.keys = a.cache.keys + session * a.cache.key_session + head * a.cache.key_head;
        from.values = a.cache.values + session * a.cache.value_session + head * a.cache.value_head;
        const uint64_t scales = session * a.cache.scale_session + head * a.cache.scale_head;
        from.key_scales = (const float *)(a.cache.key_scales + scales);
        from.value_scales = (const float *)(a.cache.value_scales + scales);
        from.begin = span.begin;
        from.end = span.end;
        from.tile = span.tile0 + part * span.share;
        from.last_tile = span.tile0 + min((part + 1) * span.share, span.tiles);
        from.skip = 0;
        attend<QN_KEY_BITS, QN_VALUE_BITS>(a, s, from, p, dynamic, 1.0f,
                                           [&]() { put_queries(constant<QN_KEY_BITS>(), CODES ? a.key_codec.gain : 1); });
    } else {
        const uint32_t run = position / QN_ATTENTION_RUN;
        const uint64_t at = session * a.runs.session + head * a.runs.head;
        from.keys = a.runs.keys + at;
        from.values = a.runs.values + at;
        from.key_scales = from.value_scales = 0;
        from.begin = 0;
        from.end = (run ? QN_ATTENTION_RUN : 0) + position % QN_ATTENTION_RUN + 1;
        from.tile = 0;
        from.last_tile = (from.end + KEYS - 1) / KEYS;
        from.skip = run ? (run - 1) % a.runs.n_open * QN_ATTENTION_RUN : 0;
        attend<16, 16>(a, s, from, p, dynamic, a.value_codec.gain, [&]() { put_queries(constant<16>(), 1); });
    }
}
