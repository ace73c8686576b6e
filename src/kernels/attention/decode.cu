// Attention of single query rows over a cache of halves or of AURA codes: what decoding a token does, bound by reading the
// cache. A warp takes QN_ATTENTION_KEYS positions at a time straight from memory into registers, turns codes into halves by
// look-ups in shared memory, and has the matrix units do both products: scores are keys times queries, with the query heads of
// a key-value head as the eight columns, and results are values (transposed) times weights.
//
// Which dimension goes to which index of a fragment is free as long as queries agree with keys, and so chosen that a lane's
// words are codes of its own: dim_of() below. Look-up tables hold what two codes become, once for each lane, so that no two
// lanes meet in a bank.
//
// Method: Dao et al., FlashAttention-2 (2023), and Flash-Decoding; the running maximum only moves when a score is 2^8 above it.
#include "kernels/attention/attention_cuda.h"

#define DIM QN_HEAD_DIM
#define COLUMNS QN_ATTENTION_COLUMNS
#define KEYS QN_ATTENTION_KEYS
#define THREADS (QN_WARPS * QN_WARP)
#define CODES (QN_KEY_BITS != 16)
#define ROW_WORDS(bits) ((DIM * (bits) + 31) / 32)
#define FRAGMENT (DIM * COLUMNS) // floats of a warp's sums: [DIM / 8][QN_WARP][2]
#define RISE 8.0f                // how far a score may be above the maximum in use, in powers of two
#define LOG2E 1.4426950408889634f
#define LOWEST (-1e30f)

// Queries stay in registers where they leave room for the rest.
#define QUERIES_IN_REGISTERS (DIM <= 256 && CODES)
// Words of the next keys are asked for while these are used, where there is room.
#define AHEAD (DIM <= 256)

// ---- A lane's portion of a row: DIM / lanes codes, as words ----

template <int bits, int lanes> struct portion {
    static constexpr int codes = DIM / lanes;
    static constexpr bool whole = codes * bits % 32 == 0;             // words of its own
    static constexpr int words = (codes * bits + 31) / 32;
    static constexpr bool dividing = bits == 2 || bits == 4 || bits == 8 || bits == 16;
    static constexpr int width = !whole ? 1 : words % 4 == 0 ? 4 : words % 2 == 0 ? 2 : 1; // words of a load
    static constexpr int run = whole && dividing ? width * 32 / bits : codes; // codes that are next to each other

    // The dimension of the lane's n-th code.
    QN_DEVICE int dim_of(int n, int lane)
    {
        return (n / run * lanes + lane) * run + n % run;
    }
};

template <int width> QN_DEVICE void load_words(uint32_t *to, const uint32_t *from)
{
    if (width == 4)
        asm volatile("ld.global.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "l"(from));
    else if (width == 2)
        asm volatile("ld.global.v2.u32 {%0, %1}, [%2];" : "=r"(to[0]), "=r"(to[1]) : "l"(from));
    else
        asm volatile("ld.global.u32 %0, [%1];" : "=r"(to[0]) : "l"(from));
}

template <int bits, int lanes> QN_DEVICE void load_portion(uint32_t *to, const uint8_t *rows, uint32_t row, int lane)
{
    using p = portion<bits, lanes>;
    const uint32_t *from = (const uint32_t *)(rows + (uint64_t)row * (ROW_WORDS(bits) * 4));
    if (p::whole && p::dividing) {
#pragma unroll
        for (int i = 0; i < p::words / p::width; i++)
            load_words<p::width>(to + i * p::width, from + (i * lanes + lane) * p::width);
    } else if (p::whole) {
#pragma unroll
        for (int i = 0; i < p::words; i += p::width)
            load_words<p::width>(to + i, from + lane * p::words + i);
    } else {
        // Portions that begin within a word: shifted to their own first bit.
        const int begin = lane * p::codes * bits, first = begin / 32;
        uint32_t low, high;
        load_words<1>(&low, from + first);
#pragma unroll
        for (int i = 0; i < p::words; i++) {
            load_words<1>(&high, from + min(first + i + 1, ROW_WORDS(bits) - 1));
            to[i] = __funnelshift_r(low, high, begin % 32);
            low = high;
        }
    }
}

// `n` bits from bit `at` of the words on, in the low bits of the result; what is above them is whatever follows.
template <int n> QN_DEVICE uint32_t field(const uint32_t *words, int at)
{
    const int word = at / 32, shift = at % 32;
    return shift + n <= 32 ? words[word] >> shift : __funnelshift_r(words[word], words[word + 1], shift);
}

// ---- Tables: entry i of lane l is at word i * QN_WARP + l ----

// Bits of a table's index: two codes where they are small, else one.
__device__ constexpr int index_bits(int bits)
{
    return bits <= 4 ? 2 * bits : bits;
}

#define TABLE_BYTES(bits) ((bits) == 16 ? 0 : (QN_WARP * 4) << index_bits(bits))

// What the `n` bits at `at` of x stand for; table is that of the lane.
template <int n> QN_DEVICE uint32_t look_up(const uint8_t *table, uint32_t x, int at)
{
    const uint32_t mask = ((1u << n) - 1) << 7;
    return *(const uint32_t *)(table + ((at >= 7 ? x >> (at - 7) : x << (7 - at)) & mask));
}

template <int bits> QN_DEVICE void fill_table(uint32_t *table, const float *codebook, float gain)
{
    if (bits == 16)
        return;
    const uint32_t levels = 1u << (bits == 16 ? 0 : bits);
    for (uint32_t i = threadIdx.x; i < (8u << index_bits(bits)); i += THREADS) {
        const uint32_t entry = i / 8, low = entry % levels, high = bits <= 4 ? entry / levels : low;
        const uint32_t pair = qn_floats_to_halves(codebook[low] * gain, codebook[high] * gain);
        ((uint4 *)table)[i] = make_uint4(pair, pair, pair, pair);
    }
}

// ---- Matrix A of the two products ----

// Codes 2p and 2p+1 of a portion of a key.
template <int bits> QN_DEVICE uint32_t key_pair(const uint8_t *table, const uint32_t *words, int p)
{
    if (bits == 16)
        return words[p];
    const int at = p * 2 * bits;
    if (bits <= 4) {
        if (at % 32 + 2 * bits <= 32)
            return look_up<index_bits(bits)>(table, words[at / 32], at % 32);
        return look_up<index_bits(bits)>(table, field<2 * bits>(words, at), 0);
    }
    const uint32_t both = field<2 * bits>(words, at);
    return __byte_perm(look_up<index_bits(bits)>(table, both, 0), look_up<index_bits(bits)>(table, both, bits), 0x7610);
}

// Fragments of value codes: of tile i of 16 dimensions, codes 2i and 2i+1 of the portions of four keys.
template <int bits> struct value_tiles {
    // Codes of a chunk, in one word.
    static constexpr int chunk = bits == 2 ? (DIM / 8 % 16 == 0 ? 16 : 8) : 8;
    static constexpr int tiles = bits == 16 || bits > 4 ? 1 : chunk / 2;

    // Tiles first to first + tiles - 1.
    QN_DEVICE void make(uint32_t (*a)[4], const uint8_t *table, const uint32_t (*words)[portion<bits, 8>::words], int first)
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
                a[0][i] = __byte_perm(look_up<index_bits(bits)>(table, x, at), look_up<index_bits(bits)>(table, y, at), 0x7610);
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
                const uint32_t x = across ? __funnelshift_r(left[at / 32], left[at / 32 + across], at % 32) : left[at / 32] >> at % 32;
                const uint32_t y = across ? __funnelshift_r(right[at / 32], right[at / 32 + across], at % 32) : right[at / 32] >> at % 32;
                const uint32_t even = (x & mask) | ((y << bits) & (mask << bits));
                const uint32_t odd = ((x >> bits) & mask) | (y & (mask << bits));
#pragma unroll
                for (int i = 0; i < tiles; i++) {
                    if (2 * (first + i) < DIM / 8) {
                        a[i][2 * half] = look_up<index_bits(bits)>(table, even, i * 2 * bits);
                        a[i][2 * half + 1] = look_up<index_bits(bits)>(table, odd, i * 2 * bits);
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

// ---- Rows of DIM floats in the registers of a warp: value i of a lane is dimension i * QN_WARP + lane ----

#define LANE_VALUES ((DIM + QN_WARP - 1) / QN_WARP)

// Normalised Walsh-Hadamard transform; DIM is a power of two.
QN_DEVICE void hadamard(float x[LANE_VALUES], int lane)
{
#pragma unroll
    for (int distance = 1; distance < QN_WARP; distance *= 2) {
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const float other = __shfl_xor_sync(QN_ALL_LANES, x[i], distance);
            x[i] = lane & distance ? other - x[i] : x[i] + other;
        }
    }
#pragma unroll
    for (int distance = 1; distance < LANE_VALUES; distance *= 2) {
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            if (!(i & distance)) {
                const float a = x[i], b = x[i + distance];
                x[i] = a + b;
                x[i + distance] = a - b;
            }
        }
    }
    const float norm = rsqrtf((float)DIM);
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        x[i] *= norm;
}

struct shared {
    float factors[COLUMNS];         // what a score of halves stands for, in powers of two
    float m[QN_WARPS][COLUMNS], l[QN_WARPS][COLUMNS];
    float rise[QN_WARPS];           // 1 / what a warp multiplied its values by
    float total_m[COLUMNS], total_l[COLUMNS];
    uint32_t is_last;
    __align__(16) uint16_t queries[COLUMNS][DIM];
};

// A query's column: rotated, scaled by a power of two such that halves hold it well.
QN_DEVICE void make_query(const qn_attention_decode_args &a, shared &s, const float *query, int column, int lane)
{
    float x[LANE_VALUES], largest = 0;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        x[i] = query && i * QN_WARP + lane < DIM ? query[i * QN_WARP + lane] : 0;
    if ((DIM & (DIM - 1)) == 0 && CODES && a.key_codec.signs && query) {
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            x[i] *= a.key_codec.signs[i * QN_WARP + lane];
        hadamard(x, lane);
    }
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
            s.queries[column][i * QN_WARP + lane] = qn_float_to_half(x[i] * up);
    if (lane == 0)
        s.factors[column] = a.scale * LOG2E / (CODES ? a.key_codec.gain : 1) * (ordinary ? __uint_as_float(exponent << 23) : 1);
}

// A lane's part of matrix B of the scores, for the k-th step of 16 dimensions.
QN_DEVICE void query_fragment(uint32_t b[2], const shared &s, int k, int g, int t)
{
    using p = portion<QN_KEY_BITS, 4>;
#pragma unroll
    for (int i = 0; i < 2; i++)
        b[i] = *(const uint32_t *)&s.queries[g][p::dim_of(4 * k + 2 * i, t)];
}

// The running maximum of a warp's columns, and the factor of its values, moved up to where all of this tile fits.
struct running {
    float m[2], l[2];
    float value_factor; // a power of two
};

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
    if (CODES && (first || value * state.value_factor > 128)) {
        const uint32_t exponent = __float_as_uint(value) >> 23;
        const float fitting = exponent > 0 && exponent < 254 ? __uint_as_float((254 - exponent) << 23) : 1;
        factor[0] *= fitting / state.value_factor;
        factor[1] *= fitting / state.value_factor;
        state.value_factor = fitting;
    }
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        sums[i][0] *= factor[0];
        sums[i][1] *= factor[1];
        sums[i][2] *= factor[0];
        sums[i][3] *= factor[1];
    }
}

// Results [DIM] of a column, all merged: normalised, rotated back and written.
QN_DEVICE void write_result(const qn_attention_decode_args &a, const float *sums, float l, float *out, int lane)
{
    float x[LANE_VALUES];
    const float norm = l > 0 || l != l ? 1 / (l * (CODES ? a.value_codec.gain : 1)) : 0;
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        x[i] = i * QN_WARP + lane < DIM ? sums[i * QN_WARP + lane] * norm : 0;
    if ((DIM & (DIM - 1)) == 0 && CODES && a.value_codec.signs) {
        hadamard(x, lane);
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            x[i] *= a.value_codec.signs[i * QN_WARP + lane];
    }
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        if (i * QN_WARP + lane < DIM)
            out[i * QN_WARP + lane] = x[i];
}

QN_DEVICE float4 load_shared_by_all(const float *from)
{
    float4 x;
    asm volatile("ld.global.cg.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(from));
    return x;
}

extern "C" __global__ void __launch_bounds__(THREADS, QN_BLOCKS)
    qn_attention_decode(const __grid_constant__ qn_attention_decode_args a)
{
    using key_portion = portion<QN_KEY_BITS, 4>;
    using value_portion = portion<QN_VALUE_BITS, 8>;
    extern __shared__ __align__(128) uint8_t dynamic[]; // tables, and after them the sums of all warps in their place
    __shared__ shared s;

    const int warp = threadIdx.x / QN_WARP, lane = threadIdx.x % QN_WARP, g = lane / 4, t = lane % 4;
    const uint32_t group = a.n_heads / a.n_kv_heads, tiles_of_columns = (group + COLUMNS - 1) / COLUMNS;
    const uint32_t head = blockIdx.y / tiles_of_columns, first_column = blockIdx.y % tiles_of_columns * COLUMNS;
    const uint32_t n_columns = min(group - first_column, (uint32_t)COLUMNS), row = blockIdx.z;

    uint32_t *key_table = (uint32_t *)dynamic, *value_table = key_table + TABLE_BYTES(QN_KEY_BITS) / 4;
    fill_table<QN_KEY_BITS>(key_table, a.key_codec.codebook, a.key_codec.gain);
    fill_table<QN_VALUE_BITS>(value_table, a.value_codec.codebook, a.value_codec.gain);
    qn_wait_for_previous();

    // Which positions: `begin` to `end`, in tiles at multiples of KEYS, shared out evenly.
    const uint32_t position = a.causal || a.window ? a.positions[row] : 0, session = a.sessions ? a.sessions[row] : 0;
    const uint32_t end = a.causal ? min(position + 1, a.n_keys) : a.n_keys;
    const uint32_t begin = a.window && position >= a.window ? min(position + 1 - a.window, end) : 0;
    const uint32_t tile0 = begin / KEYS, n_tiles = (end + KEYS - 1) / KEYS - min(tile0, (end + KEYS - 1) / KEYS);
    const uint32_t share = max((n_tiles + gridDim.x - 1) / gridDim.x, (uint32_t)QN_WARPS);
    const uint32_t n_active = max((n_tiles + share - 1) / share, 1u);
    if (blockIdx.x >= n_active)
        return;
    const uint32_t last_tile = tile0 + min((blockIdx.x + 1) * share, n_tiles);
    uint32_t tile = tile0 + blockIdx.x * share + warp;

    const uint8_t *keys = a.cache.keys + session * a.cache.key_session + head * a.cache.key_head;
    const uint8_t *values = a.cache.values + session * a.cache.value_session + head * a.cache.value_head;
    const float *key_scales = (const float *)(a.cache.key_scales + session * a.cache.scale_session + head * a.cache.scale_head);
    const float *value_scales = (const float *)(a.cache.value_scales + session * a.cache.scale_session + head * a.cache.scale_head);

    // Rows past the last visible one are not read: theirs is, instead, and weighs nothing.
    uint32_t k[2][key_portion::words], v[4][value_portion::words];
    float k_scale[2] = { 1, 1 }, v_scale[2] = { 1, 1 };
    const auto load_keys = [&](uint32_t at) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t r = min(at * KEYS + 8 * i + g, end - 1);
            load_portion<QN_KEY_BITS, 4>(k[i], keys, r, t);
            if (CODES) {
                k_scale[i] = key_scales[r];
                v_scale[i] = value_scales[r];
            }
        }
    };
    const auto load_values = [&](uint32_t at) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_portion<QN_VALUE_BITS, 8>(v[i], values, min(at * KEYS + i / 2 * 8 + 2 * t + i % 2, end - 1), g);
    };
    if (AHEAD && tile < last_tile) {
        load_keys(tile);
        load_values(tile);
    }

    for (int column = warp; column < COLUMNS; column += QN_WARPS)
        make_query(a, s,
                   column < n_columns ? a.queries + ((uint64_t)row * a.n_heads + head * group + first_column + column) * DIM : 0,
                   column, lane);
    __syncthreads();

    uint32_t q[QUERIES_IN_REGISTERS ? DIM / 16 : 1][2];
    if (QUERIES_IN_REGISTERS) {
#pragma unroll
        for (int i = 0; i < DIM / 16; i++)
            query_fragment(q[QUERIES_IN_REGISTERS ? i : 0], s, i, g, t);
    }
    const float factors[2] = { s.factors[2 * t], s.factors[2 * t + 1] };
    const uint8_t *my_keys = (const uint8_t *)(key_table + lane), *my_values = (const uint8_t *)(value_table + lane);

    float sums[DIM / 16][4];
#pragma unroll
    for (int i = 0; i < DIM / 16; i++)
        sums[i][0] = sums[i][1] = sums[i][2] = sums[i][3] = 0;
    running state = { { LOWEST, LOWEST }, { 0, 0 }, 1 };
    bool first = true;

    for (; tile < last_tile; tile += QN_WARPS) {
        if (!AHEAD)
            load_keys(tile);
        // Two sums, so that products do not wait for each other.
        float score[2][4] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) {
            uint32_t m[4], b[2];
            m[0] = key_pair<QN_KEY_BITS>(my_keys, k[0], 2 * i);
            m[1] = key_pair<QN_KEY_BITS>(my_keys, k[1], 2 * i);
            m[2] = key_pair<QN_KEY_BITS>(my_keys, k[0], 2 * i + 1);
            m[3] = key_pair<QN_KEY_BITS>(my_keys, k[1], 2 * i + 1);
            if (QUERIES_IN_REGISTERS) {
                b[0] = q[QUERIES_IN_REGISTERS ? i : 0][0];
                b[1] = q[QUERIES_IN_REGISTERS ? i : 0][1];
            } else {
                query_fragment(b, s, i, g, t);
            }
            qn_mma_m16n8k16_f16(score[i % 2], m, b);
        }
        float x[4], weight[4], scale[2];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = (score[0][i] + score[1][i]) * (k_scale[i / 2] * factors[i % 2]);
        scale[0] = v_scale[0];
        scale[1] = v_scale[1];
        if (tile * KEYS < begin || tile * KEYS + KEYS > end) {
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t r = tile * KEYS + 8 * i + g;
                if (r < begin || r >= end) {
                    x[2 * i] = x[2 * i + 1] = -QN_INFINITY;
                    scale[i] = 0;
                }
            }
        }
        if (AHEAD && tile + QN_WARPS < last_tile)
            load_keys(tile + QN_WARPS);

        const bool high = x[0] > state.m[0] + RISE || x[1] > state.m[1] + RISE || x[2] > state.m[0] + RISE ||
                          x[3] > state.m[1] + RISE || fmaxf(scale[0], scale[1]) * state.value_factor > 128;
        if (__any_sync(QN_ALL_LANES, high || first)) {
            raise(state, x, scale, sums, first);
            first = false;
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            weight[i] = exp_2(x[i] - state.m[i % 2]);
            state.l[i % 2] += weight[i];
        }
        uint32_t b[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float factor = CODES ? scale[i] * state.value_factor : 1;
            b[i] = transpose_8x8(qn_floats_to_halves(weight[2 * i] * factor, weight[2 * i + 1] * factor));
        }

        if (!AHEAD)
            load_values(tile);
        using tiles = value_tiles<QN_VALUE_BITS>;
#pragma unroll
        for (int i = 0; i < DIM / 16; i += tiles::tiles) {
            uint32_t m[tiles::tiles][4];
            tiles::make(m, my_values, v, i);
#pragma unroll
            for (int j = 0; j < tiles::tiles; j++)
                if (i + j < DIM / 16)
                    qn_mma_m16n8k16_f16(sums[i + j < DIM / 16 ? i + j : 0], m[j], b);
        }
        if (AHEAD && tile + QN_WARPS < last_tile)
            load_values(tile + QN_WARPS);
    }
    qn_let_next_begin();

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
    float2 *fragments = (float2 *)dynamic;
    {
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float m = LOWEST;
#pragma unroll
            for (int w = 0; w < QN_WARPS; w++)
                m = fmaxf(m, s.m[w][2 * t + i]);
            factor[i] = exp_2(state.m[i] - m) / state.value_factor;
        }
#pragma unroll
        for (int i = 0; i < DIM / 16; i++) {
            fragments[(warp * (DIM / 8) + 2 * i) * QN_WARP + lane] = make_float2(sums[i][0] * factor[0], sums[i][1] * factor[1]);
            fragments[(warp * (DIM / 8) + 2 * i + 1) * QN_WARP + lane] = make_float2(sums[i][2] * factor[0], sums[i][3] * factor[1]);
        }
    }
    if (threadIdx.x < COLUMNS) {
        float m = LOWEST, l = 0;
        for (int w = 0; w < QN_WARPS; w++)
            m = fmaxf(m, s.m[w][threadIdx.x]);
        for (int w = 0; w < QN_WARPS; w++)
            l += s.l[w][threadIdx.x] * exp_2(s.m[w][threadIdx.x] - m);
        s.total_m[threadIdx.x] = m;
        s.total_l[threadIdx.x] = l;
    }
    __syncthreads();

    // ---- The blocks of a head: four floats of the fragments at a time, those of four columns ----

    const uint32_t job = blockIdx.z * gridDim.y + blockIdx.y;
    float *partials = a.partials + (uint64_t)job * gridDim.x * QN_ATTENTION_DECODE_PARTIAL(DIM);
    float *mine = partials + (uint64_t)blockIdx.x * QN_ATTENTION_DECODE_PARTIAL(DIM);
    float4 *all = (float4 *)dynamic;
    for (int f = threadIdx.x; f < FRAGMENT / 4; f += THREADS) {
        float4 sum = all[f];
#pragma unroll
        for (int w = 1; w < QN_WARPS; w++) {
            const float4 x = all[w * (FRAGMENT / 4) + f];
            sum.x += x.x;
            sum.y += x.y;
            sum.z += x.z;
            sum.w += x.w;
        }
        if (n_active == 1)
            all[f] = sum;
        else
            ((float4 *)mine)[f] = sum;
    }
    if (n_active > 1) {
        if (threadIdx.x < COLUMNS) {
            mine[FRAGMENT + threadIdx.x] = s.total_m[threadIdx.x];
            mine[FRAGMENT + COLUMNS + threadIdx.x] = s.total_l[threadIdx.x];
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            const uint32_t ticket = atomicAdd(&a.tickets[job], 1);
            s.is_last = ticket == n_active - 1;
            if (s.is_last)
                a.tickets[job] = 0;
        }
        __syncthreads();
        if (!s.is_last)
            return;
        __threadfence();
        // Factors of every block's columns, behind the place of the merged sums.
        float *factors_of = (float *)dynamic + FRAGMENT;
        for (int column = warp; column < COLUMNS; column += QN_WARPS) {
            float m = LOWEST, l = 0;
            for (uint32_t b = lane; b < n_active; b += QN_WARP)
                m = fmaxf(m, __ldcg(&partials[b * QN_ATTENTION_DECODE_PARTIAL(DIM) + FRAGMENT + column]));
            m = qn_warp_max(m);
            for (uint32_t b = lane; b < n_active; b += QN_WARP) {
                const float *ml = &partials[b * QN_ATTENTION_DECODE_PARTIAL(DIM) + FRAGMENT + column];
                const float factor = exp_2(__ldcg(ml) - m);
                factors_of[b * COLUMNS + column] = factor;
                l += __ldcg(ml + COLUMNS) * factor;
            }
            l = qn_warp_sum(l);
            if (lane == 0) {
                s.total_m[column] = m;
                s.total_l[column] = l;
            }
        }
        __syncthreads();
        for (int f = threadIdx.x; f < FRAGMENT / 4; f += THREADS) {
            float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
            for (uint32_t b = 0; b < n_active; b++) {
                const float4 x = load_shared_by_all(partials + b * QN_ATTENTION_DECODE_PARTIAL(DIM) + 4 * f);
                const float4 y = *(const float4 *)(factors_of + b * COLUMNS + f % 2 * 4);
                sum.x += x.x * y.x;
                sum.y += x.y * y.y;
                sum.z += x.z * y.z;
                sum.w += x.w * y.w;
            }
            all[f] = sum;
        }
    }
    __syncthreads();

    // ---- From fragments to rows ----

    float *rows = (float *)dynamic + FRAGMENT + (n_active + 1) * COLUMNS;
    for (int f = threadIdx.x; f < FRAGMENT / 4; f += THREADS) {
        const int dim = value_portion::dim_of(f / 16, f % 16 / 2), column = f % 2 * 4;
        const float4 x = all[f];
        rows[column * DIM + dim] = x.x;
        rows[(column + 1) * DIM + dim] = x.y;
        rows[(column + 2) * DIM + dim] = x.z;
        rows[(column + 3) * DIM + dim] = x.w;
    }
    __syncthreads();
    for (int column = warp; column < n_columns; column += QN_WARPS) {
        const uint32_t query = head * group + first_column + column;
        float l = s.total_l[column], factor = 1;
        if (a.sinks) {
            const float sink = a.sinks[query] * LOG2E, m = fmaxf(s.total_m[column], sink);
            factor = exp_2(s.total_m[column] - m);
            l = (l * factor + exp_2(sink - m)) / factor;
            if (factor == 0)
                l = 0; // the sink outweighs all: zeros
        }
        write_result(a, rows + column * DIM, l, a.out + ((uint64_t)row * a.n_heads + query) * DIM, lane);
    }
}
