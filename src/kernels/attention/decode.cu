// Attention of single query rows over a cache of halves or of AURA codes: what decoding a token does, bound by reading the
// cache. attend.cuh is what a warp does; here are the rows that blocks take, and the sums of a block's warps.
//
// Method: Flash-Decoding (Dao et al., 2023).
#include "kernels/attend.cuh"

#include "kernels/attention/split.cuh"

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

// What a block is after: its columns' places among the query heads of all rows.
struct job {
    uint32_t n_columns, first_query;
};

// A block's part of its columns' attention, from queries to partial sums. Rows that the kernel ahead does not write are asked
// for before it has ended (`early`). `ask` and `put` are called once that is over: for what the queries are made of, and then
// with all on its way, to make them.
template <int key_bits, int value_bits, bool only, class ask_queries, class put_queries>
QN_DEVICE void attend_block(const qn_attention_decode_args &a, shared &s, const source &from, const portion_of_rows &span,
                            const place &p, const job &job, uint8_t *dynamic, float value_gain, bool early, ask_queries ask,
                            put_queries put)
{
    using value_portion = portion<value_bits, 8>;
    const int warp = p.warp, g = p.g, t = p.t;
    tile_words<key_bits, value_bits> words;
    const bool any = words.ahead && span.tile < span.last_tile;
    if (any && early) {
        words.load_keys(from, p, span.tile);
        words.load_values(from, p, span.tile);
    }
    qn_wait_for_previous();
    ask();
    if (any && !early) {
        words.load_keys(from, p, span.tile);
        words.load_values(from, p, span.tile);
    }
    put();
    __syncthreads();
    columns c;
    running state;
    float sums[DIM / 16][4];
    take_columns(c, s, p);
    attend<key_bits, value_bits, false, only>(state, sums, words, c, s, from, span, p, TABLES(dynamic) + 4 * p.lane);

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
        if (column < job.n_columns) {
            float m = LOWEST;
#pragma unroll
            for (int w = 0; w < QN_WARPS; w++)
                m = fmaxf(m, s.m[w][column]);
            const float factor = qn_exp_2(state.m[j] - m) * state.value_unit * value_gain;
            float *to = rows + (warp * COLUMNS + column) * stride;
#pragma unroll
            for (int i = 0; i < DIM / 8; i++)
                to[row_place(value_portion::dim_of(i, g))] = sums[i / 2][i % 2 * 2 + j] * factor;
        }
    }
    if (threadIdx.x < job.n_columns) {
        float m = LOWEST, l = 0;
        for (int w = 0; w < QN_WARPS; w++)
            m = fmaxf(m, s.m[w][threadIdx.x]);
        for (int w = 0; w < QN_WARPS; w++)
            l += s.l[w][threadIdx.x] * qn_exp_2(s.m[w][threadIdx.x] - m);
        *(float2 *)&a.maxima[((uint64_t)(job.first_query + threadIdx.x) * gridDim.x + blockIdx.x) * 2] = make_float2(m, l);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < job.n_columns * DIM; i += THREADS) {
        const int column = i / DIM, dim = i % DIM;
        const float *of = rows + column * stride + row_place(dim);
        float sum = 0;
#pragma unroll
        for (int w = 0; w < QN_WARPS; w++)
            sum += of[w * COLUMNS * stride];
        a.partials[((uint64_t)(job.first_query + column) * gridDim.x + blockIdx.x) * DIM + dim] = sum;
    }
}

template <int bits>
QN_DEVICE void put_column(shared &s, const float query[LANE_VALUES], float bias, float scale, float gain, const place &p)
{
    if (p.warp < COLUMNS) {
        put_query<bits>(s, query, scale / gain, p.warp, p.lane);
        s.biases[p.warp] = bias * scale;
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
    const place p = { warp, lane, lane / 4, lane % 4 };
    const struct job job = { min(group - first_column, (uint32_t)COLUMNS), row * a.n_heads + head * group + first_column };
    const bool in_codes = CODES && !(QN_RUNS && blockIdx.x == 0);

    // What does not wait for the kernel ahead: tables, and which rows it is about.
    qn_let_next_begin();
    const uint32_t position = a.visible.positions ? a.visible.positions[row] : 0, session = a.sessions ? a.sessions[row] : 0;
    const bool rotates = CODES && (DIM & (DIM - 1)) == 0 && a.key_codec.signs;
    float signs[LANE_VALUES], query[LANE_VALUES], mean[LANE_VALUES];
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        signs[i] = rotates ? a.key_codec.signs[i * QN_WARP + lane] : 1;
    if (in_codes && threadIdx.x < TABLE_ENTRIES)
        put_entry(TABLES(dynamic), threadIdx.x, table_entry<QN_KEY_BITS>(threadIdx.x, a.key_codec),
                  table_entry<QN_VALUE_BITS>(threadIdx.x, a.value_codec));
    const qn_attention_span span = qn_attention_span_of(a.visible, position, gridDim.x);
    if (blockIdx.x >= span.active)
        return;

    const auto ask = [&]() {
        const float *means = (const float *)(a.runs.means + session * a.runs.mean_session + head * (DIM * 4));
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const int dim = i * QN_WARP + lane;
            const bool has = warp < job.n_columns && dim < DIM;
            query[i] = has ? a.queries[(uint64_t)(job.first_query + warp) * DIM + dim] : 0;
            mean[i] = QN_RUNS && in_codes && has ? means[dim] : 0;
        }
    };
    // Queries in the basis of the keys; the result is what the keys' mean adds to scores.
    const auto turn_queries = [&]() {
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
        return QN_RUNS ? qn_warp_sum(bias) : 0;
    };

    const uint32_t part = blockIdx.x - (QN_RUNS ? 1 : 0);
    source from;
    portion_of_rows rows;
    rows.step = QN_WARPS;
    rows.first = rows.limit = rows.next = 0;
    if (in_codes || !QN_RUNS) {
        from.keys = a.cache.keys + session * a.cache.key_session + head * a.cache.key_head;
        from.values = a.cache.values + session * a.cache.value_session + head * a.cache.value_head;
        const uint64_t scales = session * a.cache.scale_session + head * a.cache.scale_head;
        from.key_scales = (const float *)(a.cache.key_scales + scales);
        from.value_scales = (const float *)(a.cache.value_scales + scales);
        rows.begin = span.begin;
        rows.end = span.end;
        rows.tile = span.tile0 + part * span.share + warp;
        rows.last_tile = span.tile0 + min((part + 1) * span.share, span.tiles);
        from.last_row = min(rows.last_tile * KEYS, span.end) - 1;
        from.skip = 0;
        const bool early = a.settled && (QN_RUNS || (rows.tile + 1) * KEYS < span.end);
        attend_block<QN_KEY_BITS, QN_VALUE_BITS, false>(a, s, from, rows, p, job, dynamic, 1.0f, early, ask, [&]() {
            put_column<QN_KEY_BITS>(s, query, turn_queries(), a.scale * LOG2E, CODES ? a.key_codec.gain : 1, p);
        });
    } else {
        static_assert(QN_WARPS * KEYS >= 2 * QN_ATTENTION_RUN, "a warp has one tile of halves");
        const uint32_t page = position / QN_ATTENTION_RUN;
        const uint64_t at = session * a.runs.session + head * a.runs.head;
        from.keys = a.runs.keys + at;
        from.values = a.runs.values + at;
        from.key_scales = from.value_scales = 0;
        rows.begin = 0;
        rows.end = (page ? QN_ATTENTION_RUN : 0) + position % QN_ATTENTION_RUN + 1;
        rows.tile = warp;
        rows.last_tile = (rows.end + KEYS - 1) / KEYS;
        from.last_row = rows.end - 1;
        from.skip = page ? (page - 1) % a.runs.n_open * QN_ATTENTION_RUN : 0;
        const bool early = a.settled && (rows.tile + 1) * KEYS < rows.end;
        attend_block<16, 16, true>(a, s, from, rows, p, job, dynamic, a.value_codec.gain, early, ask,
                                   [&]() { put_column<16>(s, query, turn_queries(), a.scale * LOG2E, 1, p); });
    }
}
