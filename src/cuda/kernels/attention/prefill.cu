// Attention of the rows of a prefill step over the caches of their sessions, on tensor cores. A block processes
// QN_ATTENTION_PREFILL_ROWS queries of a key-value head: the tokens of one page of positions of one session times the
// query heads of the group, so that all of them read the same rows in the same format. A tile is one page of keys and
// values, stored as fp16 in shared memory. Codes are dequantised without their scales; key scales multiply scores,
// value scales multiply weights.
//
// The next tile is in flight while a tile is processed. A warp has sixteen queries.
//
// Method: Dao, FlashAttention-2 (2023).
#define DIM QN_HEAD_DIM
#define ENTRY_SHIFT 6 // one copy of an entry for lanes l, l + 8, ...: first the entries of keys, then of values
#define TABLES_ALIGNED_64K 0

#include "cuda/kernels/attention/attention.h"
#include "cuda/kernels/codes.cuh"
#include "cuda/kernels/kv_pages.cuh"
#include "cuda/kernels/ranges.cuh"
#include "cuda/kernels/sigmoid.cuh"
#include "cuda/kernels/typed_rows.cuh"

#define ROWS QN_ATTENTION_PREFILL_ROWS
#define THREADS (ROWS / 16 * QN_WARP_SIZE)
#define CODES (QN_KEY_BITS != 16)
#define VALUE_ENTRY 32
#define TABLE_ENTRIES (1 << max(index_bits(QN_KEY_BITS), index_bits(QN_VALUE_BITS)))
// bytes of an fp16 row in shared memory; 16 bytes of padding avoid bank conflicts of ldmatrix
#define STRIDE (DIM * 2 + 16)
#define LANE_VALUES QN_LANE_VALUES(DIM)
#define LOWEST (-1e30f)

struct shared {
    float factors[ROWS], biases[ROWS];
    float key_scales[2][QN_PAGE], value_scales[2][QN_PAGE]; // of the two buffers
};

// A tile: one page of fp16 rows or of codes.
struct tile {
    const uint8_t *keys, *values;
    const float *key_scales, *value_scales;
    uint32_t n; // valid rows, at most QN_PAGE; the others are filled with zeros
    bool codes;
};

// Copies QN_PAGE fp16 rows to shared memory, with all threads. The caller commits the cp.async group.
QN_DEVICE void copy_f16(uint8_t *to, const uint8_t *from, uint32_t n)
{
    constexpr int segments = DIM * 2 / 16;
    for (int i = threadIdx.x; i < QN_PAGE * segments; i += THREADS) {
        const int row = i / segments, segment = i % segments;
        qn_cp_async_16(to + row * STRIDE + segment * 16, from + (uint64_t)min((uint32_t)row, n - 1) * (DIM * 2) + segment * 16,
                       row < n ? 16 : 0);
    }
}

// Dequantises QN_PAGE rows of codes to fp16, without their scales: four threads a row.
template <int bits, int offset> QN_DEVICE void dequantize(uint8_t *to, const uint8_t *from, uint32_t table)
{
    using p = lane_fragment<bits, 4>;
    for (int row = threadIdx.x / 4; row < QN_PAGE; row += THREADS / 4) {
        const int t = threadIdx.x % 4;
        uint32_t words[p::words];
        load_lane_fragment<bits, 4>(words, from, row, t);
        uint8_t *row_to = to + row * STRIDE;
#pragma unroll
        for (int i = 0; i < p::codes; i += 4)
            *(uint2 *)(row_to + p::dim_of(i, t) * 2) = make_uint2(dequantize_pair<bits, offset>(table, words, i / 2),
                                                                  dequantize_pair<bits, offset>(table, words, i / 2 + 1));
    }
}

// Stores entry threadIdx.x of the look-up tables: eight copies for keys, then eight for values.
QN_DEVICE void store_table_entry(uint32_t tables, const qn_attention_prefill_args &a)
{
    const uint32_t key = make_table_entry<QN_KEY_BITS>(threadIdx.x, a.key_codec);
    const uint32_t value = make_table_entry<QN_VALUE_BITS>(threadIdx.x, a.value_codec);
#pragma unroll
    for (int j = 0; j < 16; j++)
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(tables + threadIdx.x * 64 + j * 4), "r"(j < 8 ? key : value) : "memory");
}

// The queries of a block: rows row0 to row0 + ROWS - 1 of the n_rows of a page. Row r is token r / group of the page's
// positions [begin, end), and query head r % group of the key-value head.
struct query_block {
    uint32_t head, group, n_heads, session;
    uint32_t first, first_row; // position of the piece's first token, and its row in the step
    uint32_t page, begin, end;
    uint32_t row0, n_rows;

    // The token's row in the step.
    __device__ __forceinline__ uint32_t row(uint32_t r) const
    {
        return first_row + (begin - first) + (row0 + r) / group;
    }

    // Index of row row0 + r among the queries.
    __device__ __forceinline__ uint64_t query(uint32_t r) const
    {
        return (uint64_t)row(r) * n_heads + head * group + (row0 + r) % group;
    }

    // Index of its first value, with `stride` values from a token to the next.
    __device__ __forceinline__ uint64_t value(uint32_t r, uint32_t stride) const
    {
        return (uint64_t)row(r) * stride + (head * group + (row0 + r) % group) * DIM;
    }

    __device__ __forceinline__ uint32_t position(uint32_t r) const
    {
        return begin + (row0 + r) / group;
    }
};

// Pages with rows of a piece of n rows from position `first` on.
QN_DEVICE uint32_t pages_of(uint32_t first, uint32_t n)
{
    return n ? (first + n - 1) / QN_PAGE - first / QN_PAGE + 1 : 0;
}

// False if the block has no queries. Blocks of the last page of a piece run first: they have the most keys.
QN_DEVICE bool find_query_block(query_block &b, const qn_attention_prefill_args &a)
{
    b.n_heads = a.n_heads;
    b.group = a.n_heads / a.n_kv_heads;
    b.head = blockIdx.y;
    const uint32_t blocks_per_page = (QN_PAGE * b.group + ROWS - 1) / ROWS, index = blockIdx.x / blocks_per_page;
    const auto rows_of = [&](uint32_t piece) {
        return a.cu_seqlens ? a.cu_seqlens[piece + 1] - a.cu_seqlens[piece] : a.n_rows;
    };
    const qn_range piece = qn_find_range(a.cu_seqlens ? a.n_pieces : 1, index, [&](uint32_t i) {
        return (uint64_t)pages_of(a.positions[i], rows_of(i));
    });
    if (piece.index == (a.cu_seqlens ? a.n_pieces : 1))
        return false;
    b.first = a.positions[piece.index];
    b.first_row = a.cu_seqlens ? a.cu_seqlens[piece.index] : 0;
    b.session = a.sessions ? a.sessions[piece.index] : piece.index;
    const uint32_t end = b.first + rows_of(piece.index);
    b.page = (end - 1) / QN_PAGE - (index - (uint32_t)piece.begin);
    b.begin = max(b.first, b.page * QN_PAGE);
    b.end = min(end, (b.page + 1) * QN_PAGE);
    b.row0 = blockIdx.x % blocks_per_page * ROWS;
    b.n_rows = (b.end - b.begin) * b.group;
    return b.row0 < b.n_rows;
}

// ---- Tiles of keys and values ----

// The first row of a page of fp16 values or of codes, in one array of the cache.
QN_DEVICE const uint8_t *page_rows(const uint64_t *table, const query_block &b, const uint8_t *array, uint64_t head_stride,
                                   uint64_t session_stride, uint32_t page, uint32_t row_bytes)
{
    const qn_kv_rows rows = qn_kv_rows_of(table, array, b.head, head_stride, b.session, session_stride);
    return QN_PAGES ? qn_kv_code_page(rows, page, row_bytes) : qn_kv_row(rows, page * QN_PAGE, row_bytes);
}

QN_DEVICE tile tile_of_page(const qn_attention_prefill_args &a, const query_block &b, uint32_t page)
{
    tile x;
    x.n = page == b.page ? b.end - page * QN_PAGE : QN_PAGE;
    x.codes = QN_PAGES && page != 0 && page != b.page;
    x.key_scales = x.value_scales = 0;
    if (QN_PAGES && !x.codes) {
        const uint64_t *table = qn_kv_table(a.pages.tables, b.session);
        x.keys = qn_kv_f16_page(a.pages, table, a.pages.keys, b.session, b.head, page, DIM * 2);
        x.values = qn_kv_f16_page(a.pages, table, a.pages.values, b.session, b.head, page, DIM * 2);
    } else {
        const qn_attention_gpu_cache &c = a.cache;
        const uint64_t *table = qn_kv_table(c.tables, b.session);
        x.keys = page_rows(table, b, c.keys, c.key_head_stride, c.key_session_stride, page, ROW_WORDS(QN_KEY_BITS) * 4);
        x.values =
            page_rows(table, b, c.values, c.value_head_stride, c.value_session_stride, page, ROW_WORDS(QN_VALUE_BITS) * 4);
        if (CODES) {
            x.key_scales =
                (const float *)page_rows(table, b, c.key_scales, c.scale_head_stride, c.scale_session_stride, page, 4);
            x.value_scales =
                (const float *)page_rows(table, b, c.value_scales, c.scale_head_stride, c.scale_session_stride, page, 4);
        }
    }
    return x;
}

// Issues the copies of a page, or dequantises it, into buffer page % 2.
QN_DEVICE void load_tile(shared &s, uint8_t *keys, uint8_t *values, const qn_attention_prefill_args &a, const query_block &b,
                         uint32_t page, uint32_t table)
{
    const tile x = tile_of_page(a, b, page);
    uint8_t *k = keys + page % 2 * (QN_PAGE * STRIDE), *v = values + page % 2 * (QN_PAGE * STRIDE);
    if (x.codes) {
        if (CODES) {
            dequantize<CODES ? QN_KEY_BITS : 4, 0>(k, x.keys, table);
            dequantize<CODES ? QN_VALUE_BITS : 4, VALUE_ENTRY>(v, x.values, table);
        }
    } else {
        copy_f16(k, x.keys, x.n);
        copy_f16(v, x.values, x.n);
    }
    qn_cp_async_commit();
    // Value scales multiply weights, which become fp16. Values were fp16 before quantisation, so scale / gain is in
    // fp16's range.
    if (CODES && threadIdx.x < QN_PAGE) {
        s.key_scales[page % 2][threadIdx.x] = x.codes ? x.key_scales[threadIdx.x] / a.key_codec.gain : 1;
        s.value_scales[page % 2][threadIdx.x] = x.codes ? fminf(x.value_scales[threadIdx.x] / a.value_codec.gain, 32752.0f) : 1;
    }
}

// ---- Queries ----

// A warp stores its sixteen queries as fp16, scaled by a power of two to 1 <= amax < 2.
QN_DEVICE void store_queries(shared &s, uint8_t *queries, const qn_attention_prefill_args &a, const query_block &b, int warp,
                             int lane)
{
    const float *means = QN_PAGES ? qn_kv_means(a.pages, qn_kv_table(a.pages.tables, b.session), b.session, b.head, DIM) : 0;
    float mean[LANE_VALUES];
#pragma unroll
    for (int i = 0; i < LANE_VALUES; i++)
        mean[i] = QN_PAGES && i * QN_WARP_SIZE + lane < DIM ? means[i * QN_WARP_SIZE + lane] : 0;
    for (int r = warp * 16; r < warp * 16 + 16; r++) {
        float x[LANE_VALUES], row_max = 0, bias = 0;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const bool has = b.row0 + r < b.n_rows && i * QN_WARP_SIZE + lane < DIM;
            x[i] = has ? qn_load_typed(a.queries, b.value(r, a.query_stride) + i * QN_WARP_SIZE + lane, a.dtype) : 0;
            row_max = fmaxf(row_max, fabsf(x[i]));
            bias += x[i] * mean[i];
        }
        row_max = qn_warp_max(row_max);
        if (QN_PAGES)
            bias = qn_warp_sum(bias);
        const uint32_t exponent = __float_as_uint(row_max) >> 23;
        const bool is_normal = exponent > 0 && exponent < 254;
        const float up = is_normal ? __uint_as_float((254 - exponent) << 23) : 1;
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            if (i * QN_WARP_SIZE + lane < DIM)
                *(uint16_t *)(queries + r * STRIDE + (i * QN_WARP_SIZE + lane) * 2) = qn_f32_to_f16(x[i] * up);
        if (lane == 0) {
            s.factors[r] = a.scale * QN_LOG2E * (is_normal ? __uint_as_float(exponent << 23) : 1);
            s.biases[r] = bias * (a.scale * QN_LOG2E);
        }
    }
}

// The two rows of the block that a lane has in accumulators: from MMA scores to scores in the log2 domain.
struct lane_rows {
    int rows[2];
    float factors[2], biases[2];
};

// ---- A tile ----

QN_DEVICE void compute_scores(float (*x)[4], const uint8_t *warp_queries, const uint8_t *k, int lane)
{
#pragma unroll
    for (int i = 0; i < QN_PAGE / 8; i++)
        x[i][0] = x[i][1] = x[i][2] = x[i][3] = 0;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        uint32_t q[4];
        qn_ldmatrix_x4(q, warp_queries + lane % 16 * STRIDE + (2 * i + lane / 16) * 16);
#pragma unroll
        for (int j = 0; j < QN_PAGE / 16; j++) {
            uint32_t b[4];
            qn_ldmatrix_x4(b, k + (j * 16 + lane / 16 * 8 + lane % 8) * STRIDE + (2 * i + lane / 8 % 2) * 16);
            qn_mma_m16n8k16_f16(x[2 * j], q, b);
            qn_mma_m16n8k16_f16(x[2 * j + 1], q, b + 2);
        }
    }
}

// Scales of positions 8i + 2t and 8i + 2t + 1 of a tile.
QN_DEVICE float2 load_scales(const float *scales, int i, int t)
{
    return CODES ? *(const float2 *)&scales[i * 8 + 2 * t] : make_float2(1, 1);
}

// Scores in the log2 domain, those after a row's position masked. row_max: raised to the lane's scores.
QN_DEVICE void scale_scores(float (*x)[4], float row_max[2], const float *key_scales, const lane_rows &l, const query_block &b,
                            uint32_t page, int t)
{
    const bool is_codes = QN_PAGES && page != 0 && page != b.page;
#pragma unroll
    for (int i = 0; i < QN_PAGE / 8; i++) {
        const float2 scales = load_scales(key_scales, i, t);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[i][j] = fmaf(x[i][j], l.factors[j / 2] * (j % 2 ? scales.y : scales.x), is_codes ? l.biases[j / 2] : 0);
            if (page == b.page && b.page * QN_PAGE + i * 8 + 2 * t + j % 2 > b.position(l.rows[j / 2]))
                x[i][j] = -QN_INFINITY;
            row_max[j / 2] = fmaxf(row_max[j / 2], x[i][j]);
        }
    }
}

// Running maximum and sum of the online softmax, of the lane's two rows; l over the lane's columns only.
struct softmax_state {
    float m[2], l[2];
};

// Raises the running maximum to that of a tile.
QN_DEVICE void rescale(softmax_state &state, float (*acc)[4], float row_max[2])
{
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        row_max[i] = qn_lanes_max<1, 4>(row_max[i]);
        factor[i] = qn_exp2(state.m[i] - row_max[i]);
        state.m[i] = row_max[i];
        state.l[i] *= factor[i];
    }
    if (__any_sync(QN_FULL_MASK, factor[0] != 1 || factor[1] != 1)) {
#pragma unroll
        for (int i = 0; i < DIM / 8; i++) {
            acc[i][0] *= factor[0];
            acc[i][1] *= factor[0];
            acc[i][2] *= factor[1];
            acc[i][3] *= factor[1];
        }
    }
}

// Scores to weights, times the scales of their values.
QN_DEVICE void compute_weights(float (*x)[4], softmax_state &state, const float *value_scales, int t)
{
#pragma unroll
    for (int i = 0; i < QN_PAGE / 8; i++) {
        const float2 scales = load_scales(value_scales, i, t);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            x[i][j] = qn_exp2(x[i][j] - state.m[j / 2]);
            state.l[j / 2] += x[i][j];
            x[i][j] *= j % 2 ? scales.y : scales.x;
        }
    }
}

QN_DEVICE void accumulate_values(float (*acc)[4], const float (*x)[4], const uint8_t *v, int lane)
{
#pragma unroll
    for (int i = 0; i < QN_PAGE / 16; i++) {
        const uint32_t p[4] = { qn_f32_to_f16x2(x[2 * i][0], x[2 * i][1]), qn_f32_to_f16x2(x[2 * i][2], x[2 * i][3]),
                                qn_f32_to_f16x2(x[2 * i + 1][0], x[2 * i + 1][1]),
                                qn_f32_to_f16x2(x[2 * i + 1][2], x[2 * i + 1][3]) };
#pragma unroll
        for (int j = 0; j < DIM / 16; j++) {
            uint32_t b[4];
            qn_ldmatrix_x4_trans(b, v + (i * 16 + lane / 8 % 2 * 8 + lane % 8) * STRIDE + (2 * j + lane / 16) * 16);
            qn_mma_m16n8k16_f16(acc[2 * j], p, b);
            qn_mma_m16n8k16_f16(acc[2 * j + 1], p, b + 2);
        }
    }
}

// ---- Results ----

// Writes a warp's output rows, through rows of floats in shared memory.
QN_DEVICE void store_results(float *results, const qn_attention_prefill_args &a, const query_block &b, const lane_rows &rows,
                             softmax_state &state, const float (*acc)[4], int warp, int lane)
{
    constexpr int row_floats = DIM + 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float norm = 1 / qn_lanes_sum<1, 4>(state.l[i]); // l > 0: every query attends to its own position
#pragma unroll
        for (int j = 0; j < DIM / 8; j++)
            *(float2 *)(results + rows.rows[i] * row_floats + j * 8 + 2 * (lane % 4)) =
                make_float2(acc[j][2 * i] * norm, acc[j][2 * i + 1] * norm);
    }
    __syncwarp();
    for (int r = warp * 16; r < warp * 16 + 16 && b.row0 + r < b.n_rows; r++) {
        const uint64_t query = b.query(r), to = b.value(r, a.out_stride);
        float x[LANE_VALUES];
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++)
            x[i] = i * QN_WARP_SIZE + lane < DIM ? results[r * row_floats + i * QN_WARP_SIZE + lane] : 0;
        qn_row_rotate_inverse<DIM>(x, a.rotation, lane);
#pragma unroll
        for (int i = 0; i < LANE_VALUES; i++) {
            const int dim = i * QN_WARP_SIZE + lane;
            if (dim < DIM) {
                if (a.gates)
                    x[i] = qn_gated(x[i], a.gates[(query * 2 + 1) * DIM + dim]);
                qn_store_typed(a.out, to + dim, a.dtype, x[i]);
            }
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    qn_attention_prefill(const __grid_constant__ qn_attention_prefill_args a)
{
    extern __shared__ __align__(128) uint8_t dynamic[];
    __shared__ __align__(8) shared s;
    __shared__ query_block b; // the same for all threads: leaves registers to accumulators
    uint8_t *queries = dynamic, *keys = queries + ROWS * STRIDE, *values = keys + 2 * QN_PAGE * STRIDE;
    const uint32_t tables = qn_shared_address(values + 2 * QN_PAGE * STRIDE);
    const int warp = threadIdx.x / QN_WARP_SIZE, lane = threadIdx.x % QN_WARP_SIZE, g = lane / 4, t = lane % 4;
    const uint32_t table = tables + lane % 8 * 4;

    if (CODES && threadIdx.x < TABLE_ENTRIES)
        store_table_entry(tables, a);
    qn_pdl_wait();
    qn_pdl_trigger();

    query_block found;
    if (!find_query_block(found, a))
        return;
    if (threadIdx.x == 0)
        b = found;
    __syncthreads();
    load_tile(s, keys, values, a, b, 0, table);
    store_queries(s, queries, a, b, warp, lane);
    __syncwarp();
    const int rows[2] = { warp * 16 + g, warp * 16 + g + 8 };
    const lane_rows lane_rows = { { rows[0], rows[1] },
                                  { s.factors[rows[0]], s.factors[rows[1]] },
                                  { s.biases[rows[0]], s.biases[rows[1]] } };

    float acc[DIM / 8][4];
    softmax_state state = { { LOWEST, LOWEST }, { 0, 0 } };
#pragma unroll
    for (int i = 0; i < DIM / 8; i++)
        acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    for (uint32_t page = 0; page <= b.page; page++) {
        qn_cp_async_wait<0>();
        __syncthreads(); // the current tile has arrived, and all warps have read the previous one
        if (page < b.page)
            load_tile(s, keys, values, a, b, page + 1, table);
        const uint32_t buffer = page % 2;
        float x[QN_PAGE / 8][4], row_max[2] = { state.m[0], state.m[1] };
        compute_scores(x, queries + warp * 16 * STRIDE, keys + buffer * (QN_PAGE * STRIDE), lane);
        scale_scores(x, row_max, s.key_scales[buffer], lane_rows, b, page, t);
        rescale(state, acc, row_max);
        compute_weights(x, state, s.value_scales[buffer], t);
        accumulate_values(acc, x, values + buffer * (QN_PAGE * STRIDE), lane);
    }
    __syncthreads(); // all warps have read queries and tiles: results overwrite them
    store_results((float *)dynamic, a, b, lane_rows, state, acc, warp, lane);
}
